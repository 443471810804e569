"""How far everything is, as the stores and nodes say it while it runs."""

from __future__ import annotations

import json
import urllib.request
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, Self

from ergon_framework.jobs import Job, JobStatus, Search
from ergon_framework.jobs import open_store as open_job_store
from ergon_framework.providers import open_store as open_provider_store

from .carrier import TENANT
from .floor import FILE
from .site import Site

WAITING = (JobStatus.PENDING, JobStatus.RETRYING)


@dataclass(frozen=True)
class Reading:
    """One look at everything."""

    packed: int = 0
    plant: int = 0
    enterprise: int = 0
    done: int = 0
    running: int = 0
    parked: int = 0
    dead: int = 0
    circuit: str = "closed"
    link: str = "normal"

    @property
    def ended(self) -> int:
        """Jobs that came to an end, good or bad."""
        return self.done + self.dead


class Gauges:
    """Opens the stores of a site for looking only."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._stack = ExitStack()
        nothing: dict[str, Any] = {"logs": [], "links": []}
        self._known = {site.plant_port: nothing, site.enterprise_port: nothing}
        self._jobs = open_job_store(f"sqlite:///{site.folder / 'work.db'}")
        self._stack.callback(self._jobs.close)
        self._carrier = open_provider_store(f"sqlite:///{site.folder / 'carrier.db'}")
        self._stack.callback(self._carrier.close)

    def read(self) -> Reading:
        """How it stands now."""
        counts = {status: self._count(status) for status in JobStatus}
        enterprise = self._status(self._site.enterprise_port)
        return Reading(
            packed=self.packed(),
            plant=_head(self._status(self._site.plant_port), "outbound"),
            enterprise=_head(enterprise, "inbound:plant"),
            done=counts[JobStatus.COMPLETED],
            running=counts[JobStatus.ACTIVE],
            parked=sum(is_parked(job) for job in self.jobs(*WAITING)),
            dead=counts[JobStatus.FAILED],
            circuit=self.circuit(),
            link=next((each["mode"] for each in enterprise["links"]), "normal"),
        )

    def packed(self) -> int:
        """Shipments that the shop floor wrote down."""
        with open(self._site.folder / "floor" / FILE, "rb") as file:
            return sum(1 for _ in file)

    def circuit(self) -> str:
        """How the carrier's circuit stands."""
        return next((lane.breaker_state for lane in self._carrier.health(TENANT)), "closed")

    def jobs(self, *statuses: JobStatus) -> list[Job]:
        """Jobs in these states, or all of them."""
        return list(self._jobs.search(Search(statuses=statuses)))

    def job(self, job_id: str) -> Job | None:
        """One job."""
        return self._jobs.find(job_id)

    def close(self) -> None:
        """Let go of the stores."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _count(self, status: JobStatus) -> int:
        return self._jobs.count(Search(statuses=(status,)))

    def _status(self, port: int) -> dict[str, Any]:
        """A node's own account, as ``ergon boundary status --json`` shows it."""
        url = f"http://127.0.0.1:{port}/bsfg.v1.BoundaryAdmin/GetStatus"
        request = urllib.request.Request(url, b"{}", method="POST")
        with suppress(OSError), urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310
            self._known[port] = json.load(answer)
        return self._known[port]


def events(job: Job) -> list[str]:
    """What happened to a job, in order."""
    return [str(json.loads(entry)["event"]) for entry in job.history]


def is_parked(job: Job) -> bool:
    """Whether it waits for a gate: an open circuit, for example."""
    return job.status in WAITING and events(job)[-1:] == ["held"]


def _head(status: dict[str, Any], log: str) -> int:
    return next((int(each["head_offset"]) for each in status["logs"] if each["log"] == log), 0)
