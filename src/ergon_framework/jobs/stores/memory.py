"""Jobs in the memory of one process: for tests, examples and work that may be lost with it."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from ergon_framework.errors import StoreUnavailableError
from ergon_framework.jobs.stores.memory_ledger import Ledger
from ergon_framework.jobs.stores.memory_moving import MemoryMoving
from ergon_framework.ports.jobstore import (
    Added,
    Ask,
    Bell,
    Claimed,
    Hold,
    Job,
    NewJob,
    Settlement,
    Topic,
)
from ergon_framework.storage.notifier import Belfry


class MemoryJobStore(MemoryMoving):
    """A job store for the threads of one process. Every call is one step under one lock."""

    is_synced = False
    durability = "An acknowledged job is in this process's memory, and is lost when it ends."

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        super().__init__()
        self._clock = clock
        self._ledger = Ledger()
        self._belfry = Belfry()
        self._lock = threading.Lock()
        self._is_closed = False

    def now(self) -> float:
        """The store's clock."""
        return self._clock()

    @contextmanager
    def _step(self) -> Iterator[Ledger]:
        """The ledger for one step of one caller; what the step changed rings afterwards."""
        with self._lock:
            if self._is_closed:
                raise StoreUnavailableError(
                    "the memory store is closed", remedy="open a new one; what it held is gone"
                )
            ledger = self._ledger
            ledger.is_work = ledger.is_done = False
            yield ledger
            is_work, is_done = ledger.is_work, ledger.is_done
        if is_work:
            self._belfry.ring(Topic.WORK)
        if is_done:
            self._belfry.ring(Topic.DONE)

    def add(self, jobs: Sequence[NewJob]) -> list[Added]:
        """Store all of them or none."""
        with self._step() as ledger:
            return ledger.add(jobs, self.now())

    def exchange(
        self, settlements: Sequence[Settlement], ask: Ask | None
    ) -> tuple[list[bool], Claimed]:
        """Apply what happened, then claim, in one step."""
        with self._step() as ledger:
            now = self.now()
            applied = [ledger.settle(each, now) for each in settlements]
            return applied, Claimed([]) if ask is None else ledger.claim(ask, now)

    def renew(self, holds: Sequence[Hold], lease: float) -> list[bool]:
        """Prolong leases and charge attempts."""
        with self._step() as ledger:
            until = self.now() + lease
            return [_renew(ledger, hold, until) for hold in holds]

    def shorten(self, leases: Mapping[str, float], others: float) -> int:
        """Cut leases that end later than they could if they were renewed now."""
        number = 0
        with self._step() as ledger:
            now = self.now()
            for record in ledger.active.values():
                until = now + leases.get(record.worker or "", others)
                if record.lease_expires_at is not None and record.lease_expires_at > until:
                    record.lease_expires_at = until
                    number += 1
        return number

    def overdue(self, limit: int) -> list[Job]:
        """Running jobs whose lease has expired, the oldest first."""
        with self._step() as ledger:
            now = self.now()
            expired = [record for record in ledger.active.values() if record.is_expired(now)]
            first = heapq.nsmallest(
                limit, expired, key=lambda record: (record.lease_expires_at, record.key)
            )
            return [record.job() for record in first]

    def find(self, job_id: str) -> Job | None:
        """One job."""
        with self._step() as ledger:
            record = ledger.by_id.get(job_id)
            return None if record is None else record.job()

    def holder(self, unique_key: str) -> str | None:
        """The id of the job that holds a unique key."""
        with self._step() as ledger:
            record = ledger.holders.get(unique_key)
            return None if record is None else record.new.id

    def listen(self, topic: Topic) -> Bell:
        """A bell for the threads of this process."""
        with self._step():
            return self._belfry.listen(topic)

    def close(self) -> None:
        """Forget everything, and let whoever waits for a bell go."""
        with self._lock:
            self._is_closed = True
            self._ledger = Ledger()
        self._belfry.close()


def _renew(ledger: Ledger, hold: Hold, until: float) -> bool:
    record = ledger.active.get(hold.key)
    if record is None or record.new.id != hold.id or record.fence != hold.fence:
        return False
    record.lease_expires_at = until
    record.is_charged |= hold.is_charged
    return True
