"""Jobs in the memory of one process: for tests, examples and work that may be lost with it."""

from __future__ import annotations

import heapq
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import msgspec

from ergon_framework.core.claim import ClaimRequest, checked_changes
from ergon_framework.core.job import JobStatus
from ergon_framework.core.retention import JobRetention
from ergon_framework.errors import StoreUnavailableError
from ergon_framework.jobs.stores.bounded_counts import next_names
from ergon_framework.jobs.stores.documents import earliest, named_in, text_of
from ergon_framework.jobs.stores.memory.flows import MemoryFlows
from ergon_framework.jobs.stores.memory.job_table import JobTable
from ergon_framework.jobs.stores.memory.records import MemoryJobRecords
from ergon_framework.jobs.stores.memory.rows import MemoryJob
from ergon_framework.jobs.stores.transitions import WORKER_FORGOTTEN_AFTER
from ergon_framework.ports.jobstore import (
    MOST_COUNTED,
    MOST_SAMPLED,
    CancelRequest,
    ClaimResult,
    EnqueueResult,
    Job,
    LeaseRenewal,
    Named,
    NewJob,
    PruneResult,
    Queue,
    Schedule,
    Search,
    Settlement,
    StatusCounts,
    Subscription,
    Topic,
    Unreadable,
    WorkerRecord,
)
from ergon_framework.storage.notifier import LocalNotifier

PAGE_SIZE = 200  # jobs that a search looks at before it lets others have the lock
_WAITING = (JobStatus.PENDING, JobStatus.RETRYING)


class MemoryJobStore:
    """A job store for the threads of one process. Every call is one step under one lock."""

    is_synced = False
    durability = "An acknowledged job is in this process's memory, and is lost when it ends."

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.table = JobTable()
        self._notifier = LocalNotifier()
        self._lock = threading.Lock()
        self._is_closed = False
        self._workers: dict[str, WorkerRecord] = {}
        self._executors: dict[str, float] = {}  # when each was last seen; "": since when
        self._schedules: dict[str, Schedule] = {}
        self.records = MemoryJobRecords(self.step, self)
        """All records of the store, for copies into another store or from one."""

    @property
    def retention(self) -> JobRetention:
        """How long jobs are kept that the store ends by itself."""
        return self.table.retention

    @retention.setter
    def retention(self, retention: JobRetention) -> None:
        self.table.retention = retention

    @property
    def flows(self) -> MemoryFlows:
        """The flows of the store."""
        return MemoryFlows(self.step, self.now)

    def now(self) -> float:
        """The store's clock."""
        return self._clock()

    @contextmanager
    def step(self) -> Iterator[JobTable]:
        """The table for one step of one caller; its changes are notified afterwards."""
        with self._lock:
            if self._is_closed:
                raise StoreUnavailableError(
                    "the memory store is closed", remedy="open a new one; what it held is gone"
                )
            table = self.table
            table.is_work = table.is_done = False
            try:
                yield table
            finally:
                # After an error, too: what was gathered would otherwise be done in another caller's
                # step.
                table.finish(self.now())
            is_work, is_done = table.is_work, table.is_done
        if is_work:
            self._notifier.notify(Topic.WORK)
        if is_done:
            self._notifier.notify(Topic.DONE)

    def add(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        """Store all jobs or none."""
        with self.step() as table:
            return table.add(jobs, self.now())

    def settle_and_claim(
        self, settlements: Sequence[Settlement], request: ClaimRequest | None
    ) -> tuple[list[bool], ClaimResult]:
        """Apply what happened, then claim, in one step."""
        with self.step() as table:
            now = self.now()
            applied = [table.settle(each, now) for each in settlements]
            table.finish(now)
            if request is not None:
                table.go_on_with_flows(now)
            return applied, ClaimResult([]) if request is None else table.claim(request, now)

    def renew(self, holds: Sequence[LeaseRenewal], lease: float) -> list[bool]:
        """Renew leases and charge attempts."""
        with self.step() as table:
            until = self.now() + lease
            return [_renew(table, hold, until) for hold in holds]

    def request_cancel(self, job: Job, request: CancelRequest) -> bool:
        """Record that a running job is to be cancelled."""
        with self.step() as table:
            record = _held(table, LeaseRenewal(job.key, job.id, job.fence, False))
            if record is None:
                return False
            # The first request stays, as in the other stores: its author is in the history.
            record.why = record.why or text_of(request)
        self._notifier.notify(Topic.CANCEL)
        return True

    def cancel_requests(self, claims: Sequence[LeaseRenewal]) -> Mapping[str, CancelRequest]:
        """Which of these claims are to be cancelled, by job id."""
        with self.step() as table:
            found = ((each.id, _held(table, each)) for each in claims)
            asked = {name: None if each is None else each.cancel_request for name, each in found}
            return {name: request for name, request in asked.items() if request is not None}

    def shorten(self, leases: Mapping[str, float], others: float) -> int:
        """Shorten leases that end later than a renewal at this moment would make them end."""
        number = 0
        with self.step() as table:
            now = self.now()
            for record in table.active.values():
                until = now + leases.get(record.worker or "", others)
                if record.lease_expires_at is not None and record.lease_expires_at > until:
                    record.lease_expires_at = until
                    number += 1
        return number

    def shorten_waits(self) -> int:
        """Restore the decided wait of jobs that went back to their queue, after the clock was set
        back.
        """
        with self.step() as table:
            now = self.now()
            return sum(table.shorten_wait(record, now) for record in table.records.values())

    def expired_leases(self, limit: int) -> list[Job]:
        """Running jobs whose lease has expired, the oldest first."""
        with self.step() as table:
            now = self.now()
            expired = [record for record in table.active.values() if record.is_expired(now)]
            first = heapq.nsmallest(
                limit, expired, key=lambda record: (record.lease_expires_at, record.key)
            )
            return [record.job() for record in first]

    def find(self, job_id: str) -> Job | None:
        """One job."""
        with self.step() as table:
            record = table.by_id.get(job_id)
            return None if record is None else record.job()

    def holder(self, unique_key: str) -> str | None:
        """The id of the job that holds a unique key."""
        with self.step() as table:
            record = table.holder(unique_key, self.now())
            return None if record is None else record.new.id

    def subscribe(self, topic: Topic) -> Subscription:
        """Subscribe a thread of this process."""
        with self.step():
            return self._notifier.subscribe(topic)

    def close(self) -> None:
        """Forget everything, and wake the threads that wait for a notification."""
        with self._lock:
            self._is_closed = True
            self.table = JobTable()
        self._notifier.close()

    # ---- jobs -----------------------------------------------------------------------------------

    def unreadable(self, limit: int | None = None) -> list[Unreadable]:
        """None: there are no rows in memory."""
        return []

    def left_out(self) -> Iterator[Unreadable]:
        """None, for the same reason."""
        return iter(())

    def restore_unreadable(self, key: Any) -> bool:
        """There is none."""
        return False

    def discard_unreadable(self, key: Any) -> bool:
        """There is none."""
        return False

    def search(self, search: Search, limit: int | None = None) -> Iterator[Job]:
        """Matching jobs, the newest first; the lock is free between two pages."""
        return islice(self._found(search), limit)

    def _found(self, search: Search) -> Iterator[Job]:
        with self.step() as table:
            keys = list(reversed(table.records))
        for start in range(0, len(keys), PAGE_SIZE):
            with self.step() as table:
                records = map(table.records.get, keys[start : start + PAGE_SIZE])
                page = [each.job() for each in records if each is not None and each.matches(search)]
            yield from page

    def count(self, search: Search) -> int:
        """How many jobs match."""
        with self.step() as table:
            return sum(record.matches(search) for record in table.records.values())

    def replace(self, settlement: Settlement, job: NewJob) -> bool:
        """End a job that is no step of a flow, and add another in its place, in one step."""
        with self.step() as table:
            return table.replace(settlement, job, self.now())

    def purge(self, jobs: Sequence[Job]) -> int:
        """Delete final jobs that have not changed since they were read."""
        with self.step() as table:
            found = [table.records.get(job.key) for job in jobs]
            doomed = {
                record.key: record
                for record, job in zip(found, jobs, strict=True)
                # Steps are purged with their flow, which gives out their results until then.
                if record is not None and record.feeds is None and _is_as_read(record, job)
            }
            for record in doomed.values():
                table.remove(record)
            return len(doomed)

    def erase(self, jobs: Sequence[Job]) -> int:
        """Erase the content of final jobs that have not changed since they were read."""
        with self.step() as table:
            found = [table.records.get(job.key) for job in jobs]
            doomed = [
                record
                for record, job in zip(found, jobs, strict=True)
                if record is not None and _is_as_read(record, job)
            ]
            for record in doomed:
                key = record.new.unique_key or ""
                if table.takers.get(key) is record:
                    del table.takers[key]
                record.erase(self.now())
            return len(doomed)

    # ---- queues ---------------------------------------------------------------------------------

    def queues(self) -> list[Queue]:
        """Every queue with jobs or settings, by name."""
        with self.step() as table:
            now = self.now()
            members = defaultdict[str, list[MemoryJob]](list)
            for record in table.records.values():
                members[record.new.queue].append(record)
            found = [
                _look(queue.settings, members[queue.settings.name], now) for queue in table.queues
            ]
            return sorted(found, key=lambda queue: queue.name)

    def queue_names(
        self, *, prefix: str = "", after: str = "", limit: int = 100, is_due: bool = False
    ) -> list[str]:
        """The next queues that have jobs or settings, by name."""
        found = [
            each.name for each in self.queues() if each.oldest_due_at is not None or not is_due
        ]
        return next_names(found, prefix=prefix, after=after, limit=limit)

    def look_at_queues(
        self, names: Sequence[str], *, most: int = MOST_COUNTED, sample: int = MOST_SAMPLED
    ) -> list[Queue]:
        """The given queues, in this order. The counts are exact, because every job of the process
        is read.
        """
        found = {each.name: each for each in self.queues()}
        return [found.get(name) or Queue(name=name) for name in names]

    def count_by_status(self, *, most: int = MOST_COUNTED) -> StatusCounts:
        """The jobs of the whole store by status; exact, each job of the process is read."""
        with self.step() as table:
            found = Counter(str(each.status) for each in table.records.values())
        return StatusCounts(counts=dict(found))

    def set_queue(self, name: str, **changes: Any) -> Queue:
        """Change some settings of a queue."""
        checked = checked_changes(changes)
        with self.step() as table:
            queue = table.queues.get(name)
            now = self.now()
            before, after = queue.settings, msgspec.structs.replace(queue.settings, **checked)
            queue.change(after, now)
            if _key_limits(before) != _key_limits(after):
                table.queues.take_turns(queue)
                table.queues.wake_all()
            table.is_work = True
            members = [each for each in table.records.values() if each.new.queue == name]
            shown = _look(queue.settings, members, now)
            table.queues.forget(name)
            return shown

    def pinned_queues(self) -> dict[str, str]:
        """The versions that queues are pinned to."""
        with self.step() as table:
            found = {each.settings.name: each.settings.pinned_version for each in table.queues}
            return {name: version for name, version in found.items() if version is not None}

    def key_wakes_at(self, queue: str, limit_key: str) -> float | None:
        """When jobs that wait for a token of this limit key are due; None if none waits."""
        with self.step() as table:
            return table.queues.key_wakes_at(queue, limit_key)

    # ---- workers and upkeep ---------------------------------------------------------------------

    def heartbeat(self, record: WorkerRecord) -> None:
        """Store a worker's heartbeat record, or remove it."""
        with self.step():
            if record.state == "gone":
                self._workers.pop(record.id, None)
            else:
                now = self.now()
                self._workers[record.id] = msgspec.structs.replace(record, seen_at=now)
                self._executors.setdefault("", now)
                names = (*record.executors, *record.serves)
                self._executors.update(dict.fromkeys(names, now))

    def check_tables(self) -> None:
        """Nobody can take anything from it."""

    def workers(self) -> list[WorkerRecord]:
        """The workers with a heartbeat record, by id."""
        return [each for each in self._worker_records() if not each.has_ended]

    def ended_workers(self) -> list[WorkerRecord]:
        """The final records of workers that have ended."""
        return [each for each in self._worker_records() if each.has_ended]

    def _worker_records(self) -> list[WorkerRecord]:
        with self.step():
            return sorted(self._workers.values(), key=lambda record: record.id)

    def named(self) -> list[Named]:
        """The executors that due jobs name, by name."""
        with self.step() as table:
            due = _claimable(table, self.now())
            return named_in({(each.new.executor, each.new.queue) for each in due}, self._executors)

    def waiting_for(self, executor: str, due_before: float, limit: int) -> list[Job]:
        """Jobs that name this executor, could be claimed, and became due before that instant."""
        with self.step() as table:
            due = (each for each in _claimable(table, self.now()) if each.run_at < due_before)
            found = (each.job() for each in due if each.new.executor == executor)
            return list(islice(found, limit))

    def prunable(self, limit: int) -> list[Job]:
        """Ended jobs whose retention is over and that are not steps of flows."""
        with self.step() as table:
            now = self.now()
            due: list[MemoryJob] = []
            found: list[MemoryJob] = []
            while len(found) < limit and _first_before(table.leaving.first(), now):
                record = table.records[table.leaving.pop()]
                due.append(record)
                if not table.keeps_key(record, now):
                    found.append(record)
            for record in due:
                # This call only looks: all that was popped goes back, also what holds its unique
                # key for longer.
                table.leaving.push(record.key, (record.purge_at or now,))
            return [record.job() for record in found]

    def prune(self, limit: int, *, purges: bool = True) -> PruneResult:
        """Delete jobs whose retention is over, end expired jobs, and forget dead workers."""
        with self.step() as table:
            now = self.now()
            purged = outdated = 0
            while purges and purged < limit and _first_before(table.leaving.first(), now):
                purged += table.purge_due(table.leaving.pop(), now)
            if purges:
                purged += table.purge_flows(now, limit - purged)
            table.go_on_with_flows(now)
            table.queues.shorten_key_waits(now)
            while purged + outdated < limit and _first_before(table.expiring.first(), now):
                table.end_outdated(table.records[table.expiring.pop()], now)
                outdated += 1
            oldest = now - WORKER_FORGOTTEN_AFTER
            dead = [each.id for each in self._workers.values() if each.seen_at < oldest]
            for worker in dead:
                del self._workers[worker]
            heaps = (table.leaving, table.expiring) if purges else (table.expiring,)
            is_more = any(_first_before(heap.first(), now) for heap in heaps)
            return PruneResult(purged, outdated, len(dead), is_more)

    # ---- schedules ------------------------------------------------------------------------------

    def schedules(self) -> list[Schedule]:
        """All schedules, by name."""
        with self.step():
            return sorted(self._schedules.values(), key=lambda schedule: schedule.name)

    def next_schedules(self, limit: int) -> list[Schedule]:
        """Schedules that fire next, the earliest first. Paused schedules, and those without another
        fire, are left out.
        """
        with self.step():
            return earliest(self._schedules.values(), limit)

    def put_schedule(self, schedule: Schedule) -> None:
        """Store a schedule, in place of an earlier definition."""
        with self.step():
            self._schedules[schedule.name] = schedule

    def drop_schedule(self, name: str) -> bool:
        """Remove a schedule. Returns whether it existed."""
        with self.step():
            return self._schedules.pop(name, None) is not None

    def fire(
        self, name: str, expected: float, next_at: float | None, jobs: Sequence[NewJob]
    ) -> bool:
        """Advance ``next_at`` and add the jobs, in one step, if ``next_at`` still is ``expected``.

        A job whose id or unique key is taken is skipped.
        """
        with self.step() as table:
            schedule = self._schedules.get(name)
            if schedule is None or schedule.next_at != expected:
                return False
            self._schedules[name] = msgspec.structs.replace(
                schedule, next_at=next_at, last_at=expected
            )
            now = self.now()
            for job in jobs:
                if table.can_add(job, now):
                    table.add([job], now)
            return True


def _renew(table: JobTable, hold: LeaseRenewal, until: float) -> bool:
    record = _held(table, hold)
    if record is None:
        return False
    record.lease_expires_at = until
    record.is_charged |= hold.is_charged
    return True


def _held(table: JobTable, hold: LeaseRenewal) -> MemoryJob | None:
    """The job, if it runs by this very claim."""
    record = table.active.get(hold.key)
    if record is None or record.new.id != hold.id or record.fence != hold.fence:
        return None
    return record


def _claimable(table: JobTable, now: float) -> Iterator[MemoryJob]:
    """Due jobs that name an executor, and wait for no limit key."""
    for record in table.records.values():
        is_due = record.status in _WAITING and record.run_at <= now and not record.is_limited
        if record.new.executor and is_due and not record.is_joining:
            yield record


def _is_as_read(record: MemoryJob, job: Job) -> bool:
    return record.status.is_final and (record.status, record.fence, record.finished_at) == (
        job.status,
        job.fence,
        job.finished_at,
    )


def _look(settings: Queue, members: list[MemoryJob], now: float) -> Queue:
    due = [
        each.run_at
        for each in members
        if each.status in _WAITING and each.run_at <= now and not each.is_joining
    ]
    counts = Counter(str(each.status) for each in members)
    oldest = min(due, default=None)
    return msgspec.structs.replace(settings, counts=dict(counts), oldest_due_at=oldest)


def _key_limits(queue: Queue) -> tuple[float | None, ...]:
    return queue.key_max_active, queue.key_rate, queue.key_burst


def _first_before(first: tuple[tuple[float, ...], int] | None, now: float) -> bool:
    return first is not None and first[0][0] <= now
