"""The memory store's other two sides: the operator's desk and the cron schedules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any

import msgspec

from ergon_framework.core.job import JobStatus
from ergon_framework.jobs.stores.memory_ledger import Ledger
from ergon_framework.jobs.stores.memory_record import Record
from ergon_framework.jobs.stores.own_moves import WORKER_FORGOTTEN_AFTER
from ergon_framework.jobs.stores.queue_changes import checked_changes
from ergon_framework.jobs.stores.queue_counts import named_in
from ergon_framework.ports.jobstore import (
    Job,
    Named,
    NewJob,
    Queue,
    Schedule,
    Search,
    Sweep,
    Unreadable,
    WorkerRecord,
)

PAGE = 200
_WAITING = (JobStatus.PENDING, JobStatus.RETRYING)


class MemoryDesk(ABC):
    """What operators and cron need, on top of the store's steps."""

    def __init__(self) -> None:
        self._workers: dict[str, WorkerRecord] = {}
        self._executors: dict[str, float] = {}  # when each was last seen; "": since when
        self._schedules: dict[str, Schedule] = {}

    @abstractmethod
    def now(self) -> float:
        """The store's clock."""

    @abstractmethod
    def _step(self) -> AbstractContextManager[Ledger]:
        """The ledger for one step of one caller."""

    # ---- jobs -----------------------------------------------------------------------------------

    def unreadable(self, limit: int | None = None) -> list[Unreadable]:
        """None: there are no rows in memory."""
        return []

    def restore_unreadable(self, key: Any) -> bool:
        """There is none."""
        return False

    def discard_unreadable(self, key: Any) -> bool:
        """There is none."""
        return False

    def search(self, search: Search, limit: int | None = None) -> Iterator[Job]:
        """Matching jobs, the newest first; nobody is kept waiting while they are read."""
        return islice(self._found(search), limit)

    def _found(self, search: Search) -> Iterator[Job]:
        with self._step() as ledger:
            keys = list(reversed(ledger.records))
        for start in range(0, len(keys), PAGE):
            with self._step() as ledger:
                records = map(ledger.records.get, keys[start : start + PAGE])
                page = [each.job() for each in records if each is not None and each.matches(search)]
            yield from page

    def count(self, search: Search) -> int:
        """How many match."""
        with self._step() as ledger:
            return sum(record.matches(search) for record in ledger.records.values())

    def purge(self, jobs: Sequence[Job]) -> int:
        """Delete final jobs that have not been moved since they were read."""
        with self._step() as ledger:
            found = [ledger.records.get(job.key) for job in jobs]
            doomed = {
                record.key: record
                for record, job in zip(found, jobs, strict=True)
                if record is not None and _is_as_read(record, job)
            }
            for record in doomed.values():
                ledger.remove(record)
            return len(doomed)

    # ---- queues ---------------------------------------------------------------------------------

    def queues(self) -> list[Queue]:
        """Every queue that has jobs or settings, by name."""
        with self._step() as ledger:
            now = self.now()
            members = defaultdict[str, list[Record]](list)
            for record in ledger.records.values():
                members[record.new.queue].append(record)
            found = [
                _look(line.settings, members[line.settings.name], now) for line in ledger.lines
            ]
            return sorted(found, key=lambda queue: queue.name)

    def set_queue(self, name: str, **changes: Any) -> Queue:
        """Change ``is_paused``, ``max_active``, ``rate`` or ``burst``."""
        checked = checked_changes(changes)
        with self._step() as ledger:
            line = ledger.lines.line(name)
            now = self.now()
            line.change(msgspec.structs.replace(line.settings, **checked), now)
            ledger.is_work = True
            members = [each for each in ledger.records.values() if each.new.queue == name]
            queue = _look(line.settings, members, now)
            ledger.lines.forget(name)
            return queue

    # ---- workers and upkeep ---------------------------------------------------------------------

    def tell(self, record: WorkerRecord) -> None:
        """Note that a worker lives, or that it is gone."""
        with self._step():
            if record.state == "gone":
                self._workers.pop(record.id, None)
            else:
                now = self.now()
                self._workers[record.id] = msgspec.structs.replace(record, seen_at=now)
                self._executors.setdefault("", now)
                self._executors.update(dict.fromkeys(record.executors, now))

    def workers(self) -> list[WorkerRecord]:
        """Those that told of themselves, by id."""
        with self._step():
            return sorted(self._workers.values(), key=lambda record: record.id)

    def named(self) -> list[Named]:
        """The executors that due jobs name, by name."""
        with self._step() as ledger:
            due = _claimable(ledger, self.now())
            return named_in({(each.new.executor, each.new.queue) for each in due}, self._executors)

    def waiting_for(self, executor: str, due_before: float, limit: int) -> list[Job]:
        """Jobs that name this executor, could be claimed, and became due before that instant."""
        with self._step() as ledger:
            due = (each for each in _claimable(ledger, self.now()) if each.run_at < due_before)
            found = (each.job() for each in due if each.new.executor == executor)
            return list(islice(found, limit))

    def sweep(self, limit: int) -> Sweep:
        """Purge what has been kept long enough, end what is outdated, forget dead workers."""
        with self._step() as ledger:
            now = self.now()
            purged = outdated = 0
            while purged < limit and _first_before(ledger.leaving.first(), now):
                ledger.remove(ledger.records[ledger.leaving.pop()])
                purged += 1
            while purged + outdated < limit and _first_before(ledger.expiring.first(), now):
                ledger.end_outdated(ledger.records[ledger.expiring.pop()], now)
                outdated += 1
            oldest = now - WORKER_FORGOTTEN_AFTER
            dead = [each.id for each in self._workers.values() if each.seen_at < oldest]
            for worker in dead:
                del self._workers[worker]
            is_more = any(
                _first_before(heap.first(), now) for heap in (ledger.leaving, ledger.expiring)
            )
            return Sweep(purged, outdated, len(dead), is_more)

    # ---- schedules ------------------------------------------------------------------------------

    def schedules(self) -> list[Schedule]:
        """All, by name."""
        with self._step():
            return sorted(self._schedules.values(), key=lambda schedule: schedule.name)

    def put_schedule(self, schedule: Schedule) -> None:
        """Add or replace the definition."""
        with self._step():
            self._schedules[schedule.name] = schedule

    def drop_schedule(self, name: str) -> bool:
        """Remove one; whether it was there."""
        with self._step():
            return self._schedules.pop(name, None) is not None

    def fire(
        self, name: str, expected: float, next_at: float | None, jobs: Sequence[NewJob]
    ) -> bool:
        """Move ``next_at`` on and add the jobs, in one step, if it still is ``expected``.

        A job whose id or unique key is taken is skipped: the schedule goes on without it.
        """
        with self._step() as ledger:
            schedule = self._schedules.get(name)
            if schedule is None or schedule.next_at != expected:
                return False
            self._schedules[name] = msgspec.structs.replace(
                schedule, next_at=next_at, last_at=expected
            )
            for job in jobs:
                if ledger.can_add(job):
                    ledger.add([job], self.now())
            return True


def _claimable(ledger: Ledger, now: float) -> Iterator[Record]:
    """Due jobs that name an executor, and wait for no limit key."""
    for record in ledger.records.values():
        is_due = record.status in _WAITING and record.run_at <= now and not record.is_limited
        if record.new.executor and is_due:
            yield record


def _is_as_read(record: Record, job: Job) -> bool:
    return record.status.is_final and (record.status, record.fence, record.finished_at) == (
        job.status,
        job.fence,
        job.finished_at,
    )


def _look(settings: Queue, members: list[Record], now: float) -> Queue:
    due = [each.run_at for each in members if each.status in _WAITING and each.run_at <= now]
    counts = Counter(str(each.status) for each in members)
    oldest = min(due, default=None)
    return msgspec.structs.replace(settings, counts=dict(counts), oldest_due_at=oldest)


def _first_before(first: tuple[tuple[float, ...], int] | None, now: float) -> bool:
    return first is not None and first[0][0] <= now
