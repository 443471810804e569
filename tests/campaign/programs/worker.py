"""A worker that writes down what its store gave it, and which completions it accepted.

    python -m tests.campaign.programs.worker URL ZONE BOOK [EXECUTOR]

EXECUTOR is the program of another executor than the ledger, in the same folder.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from ergon_framework.core.claim import ClaimRequest
from ergon_framework.core.job import JobStatus
from ergon_framework.errors import StoreUnavailableError
from ergon_framework.jobs.settings import BackoffSettings, ExecutorSettings, JobsSettings
from ergon_framework.jobs.worker import Worker
from ergon_framework.ports.jobstore import ClaimResult, Settlement
from tests.campaign.event_file import Book, at_work
from tests.campaign.outage_retry import TURNED_AWAY, patiently
from tests.differential.places import Place, open_jobs

LEASE = 1.0
IN_FLIGHT = 8
POOL = 2
PLANTED = "planted_failure"
"""The error of steps that are to fail for good."""


class Reporter:
    """The store, and a book beside it."""

    def __init__(self, store: Any, book: Book) -> None:
        self._store = store
        self._book = book
        self._has_worked = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def settle_and_claim(
        self, settlements: Sequence[Settlement], ask: ClaimRequest | None
    ) -> tuple[list[bool], ClaimResult]:
        """Tell the store, then the book."""
        applied, claimed = self._store.settle_and_claim(settlements, ask)
        done = [
            f"done {each.id} {each.fence}"
            for each, was_applied in zip(settlements, applied, strict=True)
            if was_applied and each.transition.status is JobStatus.COMPLETED
        ]
        self._book.write(*done, *(f"claimed {job.id} {job.fence}" for job in claimed.jobs))
        if claimed.jobs and not self._has_worked:
            self._has_worked = True
            at_work()
        return applied, claimed


def main(url: str, zone: str, path: str, executor_name: str = "ledger") -> None:
    """Work until told to stop."""
    settings = JobsSettings(
        backoff=BackoffSettings(base=0.01, cap=0.02),
        lease=LEASE,
        max_attempts=500,
        grace=1.0,
        poll=0.2,
        give_up_on=(PLANTED,),
    )
    program = Path(__file__).with_name(f"{executor_name}.py")
    executor = ExecutorSettings(
        command=(sys.executable, "-S", "-E", str(program), path),
        pool_size=POOL,
        max_in_flight=IN_FLIGHT,
        kill_grace=0.2,
    )
    with closing(patiently(lambda: open_jobs(Place(url, zone)))) as store:
        worker = Worker(
            Reporter(store, Book(path)), executors={"ledger": executor}, settings=settings
        )
        signal.signal(signal.SIGTERM, lambda *_: worker.stop())
        try:
            worker.run()
        except StoreUnavailableError:
            sys.exit(TURNED_AWAY)


if __name__ == "__main__":
    main(*sys.argv[1:])
