"""The overview and the queues: one read of the job store, shared by everybody who watches."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from ergon_framework.core.job import JobStatus
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.views import moment
from ergon_framework.web.backend_pool import BackendPool, backend_title
from ergon_framework.web.backends import Backend, JobBackend
from ergon_framework.web.console.attention import (
    Concern,
    JobsSeen,
    TakenQueues,
    concerns,
    queue_chip,
)
from ergon_framework.web.console.formatting import Figure
from ergon_framework.web.console.job_look import (
    MOST_NAMED,
    busiest_first,
    seen_in,
    shown_queues,
    totals_of,
)
from ergon_framework.web.console.rates import JobRates
from ergon_framework.web.console.sharing import SharedLook
from ergon_framework.web.files_to_come import TO_COME, is_to_come
from ergon_framework.web.job_routes import queues_page
from ergon_framework.web.responses import BackendUnavailableError, cursor_text, page

REFRESH = 15.0
"""Seconds after which open pages reload even if no count has changed, because ages grow."""


@dataclass(frozen=True, slots=True)
class JobsLook:
    """The result of one read of the job store."""

    seen: JobsSeen
    rates: Mapping[str, Any]
    mark: str
    """A text that changes when there is something new to show, and now and then."""


class Overview(NamedTuple):
    """The state of everything."""

    jobs: JobsLook | None
    """The job store. None when there is none, or when it does not answer."""
    parts: Sequence[tuple[str, str | None]]
    """The titles of all backends, with the error codes of those that fail."""


class Watch:
    """Reads everything for all pages of a server."""

    def __init__(self, pool: BackendPool) -> None:
        self._pool = pool
        self._rates = JobRates()
        self._jobs = SharedLook(self._look_at_jobs)
        self._parts = SharedLook(self._look_at_parts)

    async def jobs(self) -> JobsLook | None:
        """The job store. None when the settings have none."""
        return None if self._pool.backends.jobs is None else await self._jobs.get()

    async def overview(self) -> Overview:
        """Everything. Backends that do not answer are marked."""
        # Concurrently: every backend that hangs takes all of its time.
        (jobs, first), others = await asyncio.gather(self._jobs_or_why(), self._parts.get())
        return Overview(jobs, [*first, *others])

    async def _jobs_or_why(self) -> tuple[JobsLook | None, list[tuple[str, str | None]]]:
        title = backend_title("jobs")
        try:
            jobs = await self.jobs()
        except BackendUnavailableError as error:
            return None, [(title, error.code)]
        state = TO_COME if is_to_come(self._pool.backends.jobs) else None
        return jobs, [] if jobs is None else [(title, state)]

    async def mark(self) -> str:
        """A text that changes when pages have something new to show."""
        jobs = await self.jobs()
        return "none" if jobs is None else jobs.mark

    async def counts(self) -> dict[str, Figure]:
        """The counts beside the links; none while the store is away."""
        try:
            jobs = await self.jobs()
        except BackendUnavailableError:
            return {}
        if jobs is None:
            return {}
        seen = jobs.seen
        found = totals_of(seen)
        alive = sum(each["state"] != "silent" for each in seen.workers)
        return {
            "jobs": Figure(sum(found["counts"].values()), bool(found["more"])),
            "queues": Figure(found["queues_in_all"], found["are_more_queues"]),
            "dead": Figure(*seen.total(JobStatus.FAILED.value)),
            "workers": Figure(alive),
        }

    async def _look_at_jobs(self) -> JobsLook:
        source = self._pool.jobs()

        def look() -> JobsLook:
            with source.opened() as client:
                return _seen(client, self._rates)

        return await self._pool.call("jobs", look)

    async def _look_at_parts(self) -> list[tuple[str, str | None]]:
        async def state(name: str, backend: Backend) -> tuple[str, str | None]:
            try:
                await self._pool.call(name, backend.check)
            except BackendUnavailableError as error:
                return backend_title(name), error.code
            return backend_title(name), TO_COME if is_to_come(backend) else None

        parts = [each for each in self._pool.backends.parts() if each[0] != "jobs"]
        return list(await asyncio.gather(*(state(*each) for each in parts)))


def _seen(client: JobClient, rates: JobRates) -> JobsLook:
    seen = seen_in(client.store, rates)
    return JobsLook(seen, rates.document(), _mark(seen))


def _mark(seen: JobsSeen) -> str:
    """A text made of the counts, but not of ages, which change all the time."""
    counts = [(queue["name"], queue["paused"], queue["counts"]) for queue in seen.queues]
    workers = [(each["id"], each["state"], each["busy"]) for each in seen.workers]
    told = msgspec.json.encode((counts, seen.totals, workers, int(seen.now / REFRESH)))
    return f"{zlib.crc32(told):08x}"


def overview_document(found: Overview) -> dict[str, Any]:
    """The overview as plain values."""
    away = [(title, code) for title, code in found.parts if code and code != TO_COME]
    is_empty = (backend_title("jobs"), TO_COME) in found.parts
    seen = None if found.jobs is None else found.jobs.seen
    return {
        "at": None if seen is None else moment(seen.now),
        "parts": [{"title": title, "problem": code} for title, code in found.parts],
        "attention": [
            *(each.document() for each in concerns(seen, away)),
            *([_to_come().document()] if is_empty else []),
        ],
        "jobs": None if found.jobs is None else _jobs_document(found.jobs),
    }


def _to_come() -> Concern:
    return Concern(
        "warn",
        "The job store",
        "is not there yet: the first job makes its file, and so does a worker.",
        "If jobs were stored here before, the settings name another place, or its disk is missing.",
        "/jobs",
        "The first job",
        "ergon worker",
    )


def _jobs_document(look: JobsLook) -> dict[str, Any]:
    seen = look.seen
    waiting = [queue for queue in seen.queues if queue["oldest_due"] is not None]
    oldest = max(waiting, key=lambda queue: queue["oldest_due"], default=None)
    alive = [each for each in seen.workers if each["state"] != "silent"]
    rows = queue_rows(look, seen.queues)
    return {
        **totals_of(seen),
        "oldest_due": None if oldest is None else oldest["oldest_due"],
        "oldest_in": None if oldest is None else oldest["name"],
        "rates": {name: value for name, value in look.rates.items() if name != "queues"},
        "workers": {
            "alive": len(alive),
            "silent": len(seen.workers) - len(alive),
            "busy": sum(each["busy"] for each in alive),
            "hosts": len({each["host"] for each in alive}),
        },
        "queues": rows if seen.is_all else busiest_first(rows),
    }


def queue_rows(look: JobsLook, queues: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Queues with their state in words and their rates per second."""
    rates = look.rates["queues"]
    is_known = look.rates["seconds"] is not None
    taken = TakenQueues(look.seen.workers)
    return [
        {
            **queue,
            "state": queue_chip(queue, taken)._asdict(),
            "done_per_second": rates.get(queue["name"], 0.0) if is_known else None,
        }
        for queue in queues
    ]


def queues_document(
    source: JobBackend, look: JobsLook, prefix: str, after: str, limit: int
) -> dict[str, Any]:
    """A page of queues whose names begin in a given way, and how many there are of these."""
    with source.opened() as client:
        store = client.store
        number = look.seen.number or 0, look.seen.are_more
        if prefix:
            names = store.queue_names(prefix=prefix, limit=MOST_NAMED + 1)
            number = min(len(names), MOST_NAMED), len(names) > MOST_NAMED
        found, following = queues_page(client, prefix, after, limit)
        rows = shown_queues(store, found, store.workers(), store.now())
    return {
        **page(queue_rows(look, rows), None if following is None else cursor_text(following)),
        "number": number[0],
        "are_more": number[1],
        "following": following,
    }
