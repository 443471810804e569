"""The campaign on a job store: producers, workers and their executors die."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from ergon_framework.core.job import JobStatus
from ergon_framework.jobs.maintenance import Maintenance
from ergon_framework.ports.jobstore import Search
from tests.campaign.actors import Actor
from tests.campaign.campaign import Campaign
from tests.campaign.outage_retry import patiently, pause
from tests.campaign.programs.producer import BATCH
from tests.differential.places import Place, open_jobs

WAITING = Search(statuses=(JobStatus.PENDING, JobStatus.ACTIVE, JobStatus.RETRYING))
ELSEWHERE = ("jobs.add.", "jobs.fire.", "jobs.move.")
"""Failpoints of clients, of cron and of ``ergon move``, which no worker passes here."""
LEAST = 60
"""Jobs that are there to be done, at any time."""


class JobCampaign(Campaign):
    """Every job is completed, and once only."""

    what = "jobs"
    ranks: Sequence[str] = ("producer", "worker", "worker")

    def open(self, place: Place) -> None:
        """A client that counts."""
        self.store = open_jobs(place)
        self.allowed = 0

    def close(self) -> None:
        """Close it."""
        self.store.close()

    def points(self, program: str) -> list[str]:
        """Those of a client, or those of a worker."""
        assert Maintenance is not None  # imported for its failpoints
        known = self.known(("jobs.", "worker."))
        if program == "producer":
            return [name for name in known if name.startswith(("jobs.add.", "storage."))]
        return [name for name in known if not name.startswith(ELSEWHERE)]

    def start(self, program: str, arm: str) -> Actor:
        """A producer is told what was allowed and not yet done."""
        actor = super().start(program, arm)
        if program == "producer":
            actor.allow(self.allowed - self._added())
        return actor

    def _added(self) -> int:
        return sum(words[0] == "added" for words in self.book.lines())

    def feed(self) -> None:
        """Let some more be added when few are left."""
        is_behind = self.allowed - self._added() > 2 * LEAST // BATCH
        if not is_behind and patiently(lambda: self.store.count(WAITING)) < LEAST:
            self._allow(LEAST // BATCH)

    def _allow(self, batches: int) -> None:
        self.allowed += batches
        for actor in self.actors:
            if actor.program == "producer":
                actor.allow(batches)

    def struck(self, actor: Actor) -> None:
        """A producer dies while it adds."""
        if actor.program == "producer":
            self._allow(2)
            pause(self.dice.uniform(0.0, 0.01))

    def strikes(self) -> Sequence[Callable[[], None]]:
        """Executors die as well, as often as all others together."""
        return (self._kill_an_executor,)

    def _kill_an_executor(self) -> None:
        """One that has just begun to run something, if there is any."""
        workers = [actor for actor in self.actors if actor.program == "worker"]
        alive = {str(pid) for worker in workers for pid in worker.children()}
        ran = {words[2] for words in self.book.latest() if words[0] == "ran"}
        if alive & ran:
            with suppress(ProcessLookupError):
                os.kill(int(self.dice.choice(sorted(alive & ran))), signal.SIGKILL)
                self.killed["executor"] += 1

    def is_done(self) -> bool:
        """Whether all was added and all has ended."""
        return self._added() == self.allowed and not patiently(lambda: self.store.count(WAITING))

    def judged(self) -> dict[str, Any]:
        """Lost, completed twice, claimed twice, and run more often than given out."""
        jobs = {job.id: job for job in patiently(lambda: list(self.store.search(Search())))}
        wanted = {f"job-{n}" for n in range(self.allowed * BATCH)}
        told: dict[str, list[str]] = {"ran": [], "done": [], "claimed": [], "added": []}
        for verb, *rest in self.book.lines():
            told[verb].append(" ".join(rest))
        completed = {job.id for job in jobs.values() if job.status is JobStatus.COMPLETED}
        accepted = Counter(entry.split()[0] for entry in told["done"])
        recorded = {job.id: _completions(job.history) for job in jobs.values()}
        runs = Counter(entry.split()[0] for entry in told["ran"])
        return {
            "units": len(wanted),
            "lost": len(wanted - completed),
            "completed_twice": more_than_once(accepted)
            + sum(n != 1 for job_id, n in recorded.items() if job_id in completed),
            "strangers": len(jobs.keys() - wanted),
            "claimed_twice": more_than_once(Counter(told["claimed"])),
            "never_ran": len(wanted - runs.keys()),
            "ran_undelivered": sum(
                n > jobs[job_id].deliveries for job_id, n in runs.items() if job_id in jobs
            ),
            "ran_again": len(told["ran"]) - len(wanted),
        }


def more_than_once(counts: Counter[str]) -> int:
    """How many of them were counted more than once."""
    return sum(n > 1 for n in counts.values())


def _completions(history: Iterable[bytes]) -> int:
    return sum(msgspec.json.decode(entry)["event"] == "completed" for entry in history)
