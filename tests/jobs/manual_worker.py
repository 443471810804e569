"""A clock that tests set, a worker's hand that runs one job at a time, a watched subscription."""

from __future__ import annotations

import threading

import msgspec

from ergon_framework.core.claim import ClaimRequest
from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.job import Failed, JobEvent, Succeeded
from ergon_framework.jobs.claims import Claim
from ergon_framework.jobs.settings import JobsSettings
from ergon_framework.jobs.settlement import Settler
from ergon_framework.ports.jobstore import ClaimedJob, JobStore, Subscription

SETTINGS = JobsSettings(max_attempts=2)
BROKEN = Failed(Failure(Kind.DEFECT, "ValueError", "no such picture"))


class Clock:
    """A clock that tests set."""

    now = 1_900_000_000.0

    def __call__(self) -> float:
        return self.now


class Hand:
    """A worker's hand: claims one job at a time and settles it."""

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._settler = Settler(SETTINGS, "w")

    def claim(self) -> ClaimedJob:
        ask = ClaimRequest(worker="w", lease=10, slots={"python": 1}, default="python")
        (job,) = self._store.settle_and_claim([], ask)[1].jobs
        return job

    def settle(self, job: ClaimedJob, seen: JobEvent, result: object = None) -> None:
        encoded = msgspec.json.encode(result) if isinstance(seen, Succeeded) else None
        settled = self._settler.settle_claim(Claim(job), seen, self._store.now(), 0.1, encoded)
        self._store.settle_and_claim([settled], None)

    def settle_raw(self, job: ClaimedJob, result: bytes) -> None:
        """Complete it with a result as an executor wrote it."""
        settled = self._settler.settle_claim(
            Claim(job), Succeeded(), self._store.now(), 0.1, result
        )
        self._store.settle_and_claim([settled], None)

    def run(self, seen: JobEvent, result: object = None) -> None:
        self.settle(self.claim(), seen, result)


class NotedSubscription:
    """Another subscription, which notes when it is waited on and when it is closed."""

    def __init__(self, other: Subscription) -> None:
        self._other = other
        self.is_waited_on = threading.Event()
        self.is_closed = False

    def wait(self, seconds: float | None) -> bool:
        self.is_waited_on.set()
        return self._other.wait(seconds)

    def wake(self) -> None:
        self._other.wake()

    def close(self) -> None:
        self._other.close()
        self.is_closed = True
