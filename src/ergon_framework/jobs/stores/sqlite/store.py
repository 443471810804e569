"""The SQLite job store: all calls of its ports, each one transaction."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ergon_framework.core.claim import DEFAULT_BOUNDS, ClaimBounds, ClaimRequest
from ergon_framework.core.job import JobStatus
from ergon_framework.core.retention import JobRetention
from ergon_framework.jobs.stores.documents import Reader, earliest, queue_of, text_of
from ergon_framework.jobs.stores.sqlite.admin import (
    count_jobs,
    ended_statuses,
    erase_jobs,
    list_queues,
    named_executors,
    prune_jobs,
    purge_jobs,
    search_jobs,
)
from ergon_framework.jobs.stores.sqlite.claim import SqliteClaim, SqliteClaimMemory, limits_of
from ergon_framework.jobs.stores.sqlite.completions import NotAllCompleted
from ergon_framework.jobs.stores.sqlite.flows import SqliteFlows
from ergon_framework.jobs.stores.sqlite.queue_counts import (
    count_by_status,
    look_at_queues,
    queue_names,
)
from ergon_framework.jobs.stores.sqlite.rows import (
    SQL,
    job_or_unreadable,
    lossy,
    lossy_if_misread,
    page_of,
    unreadable_row,
)
from ergon_framework.jobs.stores.sqlite.transactions import SqliteTransactions
from ergon_framework.jobs.stores.sqlite.transitions import (
    SqliteTransitions,
    add_jobs,
    add_new_jobs,
    holder_of,
)
from ergon_framework.jobs.stores.transitions import DUE, ENDED, MAX_WOKEN, RUNNING
from ergon_framework.jobs.stores.unreadable import (
    READ_ERRORS,
    UnreadableLog,
    argument_problem,
    is_misread,
    key_is_held,
    left_out_of,
    note_of,
    unreadable_job,
    was_status,
)
from ergon_framework.ports.jobstore import (
    MAX_CLOCK_SKEW,
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
from ergon_framework.storage.sql_files import load
from ergon_framework.storage.sqlite.external_transaction import SqliteJoinable, is_locked_by, joined
from ergon_framework.storage.urls import option_for

if TYPE_CHECKING:
    from ergon_framework.jobs.stores.sqlite.records import SqliteJobRecords

_ADMIN = load(SQL, "admin.sql")
_SCHEDULES = load(SQL, "schedules.sql")
_SQL = load(SQL, "jobs.sql")


class SqliteJobStore:
    """Jobs in one SQLite file, which any number of processes on this machine may share."""

    is_synced = True
    durability = "An acknowledged job is synced to disk in the SQLite file and survives power cuts."

    def __init__(
        self,
        path: str | Path,
        *,
        clock: Callable[[], float] = time.time,
        busy_timeout: float = 5.0,
        read_only: bool = False,
        claim_bounds: ClaimBounds = DEFAULT_BOUNDS,
    ) -> None:
        self.transactions = SqliteTransactions(
            path, clock=clock, busy_timeout=busy_timeout, read_only=read_only
        )
        self._claim_bounds = claim_bounds
        self._claim_memory = SqliteClaimMemory()
        self._reader = Reader()
        self._unreadable_log = UnreadableLog()

    @property
    def records(self) -> SqliteJobRecords:
        """All records of the store, for copies into another store or from one."""
        # Late: it brings the records of all stores, which few processes need.
        from ergon_framework.jobs.stores.sqlite.records import SqliteJobRecords

        return SqliteJobRecords(self.transactions, self)

    @property
    def retention(self) -> JobRetention:
        """How long jobs are kept that the store ends by itself."""
        return self.transactions.retention

    @retention.setter
    def retention(self, retention: JobRetention) -> None:
        self.transactions.retention = retention

    @property
    def flows(self) -> SqliteFlows:
        """The flows of the store."""
        return SqliteFlows(self.transactions)

    @property
    def path(self) -> Path:
        """The file."""
        return self.transactions.path

    def now(self) -> float:
        """The store's clock."""
        return self.transactions.now()

    def subscribe(self, topic: Topic) -> Subscription:
        """Subscribe this process to each change of that kind, made by any process."""
        return self.transactions.subscribe(topic)

    def announce(self) -> None:
        """Wake the workers. For callers that added jobs in a transaction of their own."""
        self.transactions.announce()

    def maintain(self) -> bool:
        """Shorten the write-ahead log if it is long; whether that was done."""
        return self.transactions.maintain()

    def close(self) -> None:
        """Close everything. May be called twice."""
        self.transactions.close()

    # ---- clients and workers ---------------------------------------------------------------------

    def add(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        """Store all jobs or none. Raises DuplicateJobError."""
        if not jobs:
            return []
        return self.transactions.write(lambda tx: add_jobs(tx, jobs), "add", is_work=True)

    def add_in(self, connection: SqliteJoinable, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        """Add jobs in the caller's own transaction on the same file, which the caller commits.

        ``connection`` is one of sqlite3, or a connection or session of SQLAlchemy with sqlite3
        under it. The jobs are there when it commits and not before, or never. Workers find them at
        their next look; :meth:`announce`, called after the commit, wakes them at once.
        """
        with joined(connection, self.path, _SQL["lock"]) as cursor:
            tx = SqliteTransitions(cursor, self.now(), self.retention)
            added = add_jobs(tx, jobs) if jobs else []
            tx.finish()  # it may have replaced a step
            return added

    def is_locked_by(self, connection: SqliteJoinable) -> bool:
        """Whether that connection's open transaction holds the file's one write lock.

        The thread that has it cannot store anything over another connection: it would wait for
        itself.
        """
        return is_locked_by(connection, self.path, _SQL["lock"])

    def settle_and_claim(
        self, settlements: Sequence[Settlement], request: ClaimRequest | None
    ) -> tuple[list[bool], ClaimResult]:
        """Apply what happened, then claim, in one commit."""

        def work(
            tx: SqliteTransitions, *, are_together: bool = True
        ) -> tuple[list[bool], ClaimResult]:
            applied = tx.apply_all(settlements, are_together=are_together)
            tx.finish()  # before the claim: what was released may be claimed at once
            if request is None:
                return applied, ClaimResult([])
            claim = SqliteClaim(tx, request, self._claim_memory, self._claim_bounds)
            return applied, claim.run()

        # A claim is not synced: if a power cut undoes it, the job is due again, and is run again.
        is_synced = bool(settlements)
        try:
            return self.transactions.write(work, "exchange", is_synced=is_synced)
        except NotAllCompleted:
            # One of them came too late, or its place has changed: one by one, each has its answer.
            one_by_one = partial(work, are_together=False)
            return self.transactions.write(one_by_one, "exchange", is_synced=is_synced)

    def renew(self, holds: Sequence[LeaseRenewal], lease: float) -> list[bool]:
        """Renew leases and charge attempts. False for each job that this holder has lost."""

        def work(tx: SqliteTransitions) -> list[bool]:
            return _renew(tx.cursor, holds, tx.now + lease)

        # Not synced: a power cut that undoes a renewal ends the worker, too.
        return self.transactions.write(work, "renew", is_synced=False)

    def request_cancel(self, job: Job, request: CancelRequest) -> bool:
        """Record that a running job is to be cancelled. False: this claim of it no longer runs."""
        is_noted = self.transactions.write(lambda tx: tx.request_cancel(job, request), "desk")
        if is_noted:
            self.transactions.notifier.notify(Topic.CANCEL.value)
        return is_noted

    def cancel_requests(self, claims: Sequence[LeaseRenewal]) -> Mapping[str, CancelRequest]:
        """Which of these claims are to be cancelled, by job id."""

        def work(cursor: sqlite3.Cursor) -> dict[str, CancelRequest]:
            return SqliteTransitions(cursor, self.now()).cancel_requests(claims)

        return self.transactions.read(work)

    def shorten(self, leases: Mapping[str, float], others: float) -> int:
        """Shorten leases that end later than a renewal at this moment would make them end."""
        latest = self.now() + min((*leases.values(), others))
        # A plain look first: clocks are hardly ever set back, and a write would take the lock each
        # time.
        if self.transactions.first(_SQL["any_later"], (latest,)) is None:
            return 0

        def work(tx: SqliteTransitions) -> int:
            values = (text_of(leases), tx.now, others)
            return tx.cursor.execute(_SQL["shorten"], values).rowcount

        return self.transactions.write(work, "renew", is_synced=False)

    def shorten_waits(self) -> int:
        """Restore the decided wait of jobs that went back to their queue, after the clock was set
        back.
        """
        latest = self.now() + MAX_CLOCK_SKEW
        if self.transactions.first(_SQL["any_wait_from_later"], (latest,)) is None:
            return 0

        def work(tx: SqliteTransitions) -> int:
            values = (tx.now, tx.now + MAX_CLOCK_SKEW)
            return tx.cursor.execute(_SQL["shorten_waits"], values).rowcount

        return self.transactions.write(work, "renew", is_work=True, is_synced=False)

    def expired_leases(self, limit: int) -> list[Job]:
        """Running jobs whose lease has expired, the oldest first."""
        return self.transactions.readable(_SQL["overdue"], (self.now(), limit))

    def find(self, job_id: str) -> Job | None:
        """One job."""
        page = self.transactions.read(lambda cursor: page_of(cursor, _SQL["find"], (job_id,)))
        if page.unreadable:
            raise unreadable_job(job_id, page.unreadable[0].problem, option_for(self))
        return page.jobs[0] if page.jobs else None

    def holder(self, unique_key: str) -> str | None:
        """The id of the job that holds a unique key."""
        row = self.transactions.read(lambda cursor: holder_of(cursor, unique_key, self.now()))
        return None if row is None else row[1]

    # ---- jobs -----------------------------------------------------------------------------------

    def search(self, search: Search, limit: int | None = None) -> Iterator[Job]:
        """Matching jobs, the newest first, read in pages."""
        return search_jobs(self.transactions.read, search, limit, self._unreadable_log)

    def count(self, search: Search) -> int:
        """How many jobs match."""
        return self.transactions.read(lambda cursor: count_jobs(cursor, search))

    def unreadable(self, limit: int | None = None) -> list[Unreadable]:
        """The rows that were set aside because they cannot be read, the newest first."""

        def work(cursor: sqlite3.Cursor) -> list[Unreadable]:
            seqs = cursor.execute(_SQL["aside"], (-1 if limit is None else limit,)).fetchall()
            return [unreadable_row(cursor, seq, "") for (seq,) in seqs]

        return self.transactions.read(work)

    def left_out(self) -> Iterator[Unreadable]:
        """Rows that a search skips as unreadable although no worker has set them aside."""
        return left_out_of(
            lambda log: search_jobs(self.transactions.read, Search(), None, log), self.unreadable()
        )

    def restore_unreadable(self, key: Any) -> bool:
        """Read an unreadable row again, and put the job back where it was."""

        def work(tx: SqliteTransitions) -> bool:
            found = tx.cursor.execute(_SQL["is_aside"], (key,)).fetchone()
            if found is None:
                return False
            status = was_status(note_of(found[0]))
            stage = RUNNING if status is JobStatus.ACTIVE else ENDED if status.is_final else DUE
            try:
                tx.cursor.execute(_SQL["put_back"], (stage, status.value, key, tx.now))
            except sqlite3.IntegrityError as error:
                raise key_is_held(unreadable_row(tx.cursor, key, "").id) from error
            # After it was put back, in the same transaction: the error undoes that.
            if (problem := _problem(tx.cursor, key)) is not None:
                raise unreadable_job(str(key), problem, option_for(self))
            tx.release_step(key)
            return True

        return self.transactions.write(work, "desk", is_work=True)

    def discard_unreadable(self, key: Any) -> bool:
        """Delete an unreadable row for good."""

        def work(tx: SqliteTransitions) -> bool:
            tx.lose_step(key)
            return tx.cursor.execute(_SQL["discard"], (key,)).rowcount == 1

        return self.transactions.write(work, "desk")

    def replace(self, settlement: Settlement, job: NewJob) -> bool:
        """End a job that is no step of a flow, and add another in its place, in one commit."""

        def work(tx: SqliteTransitions) -> bool:
            return tx.apply_to_job(settlement) and bool(add_jobs(tx, [job]))

        return self.transactions.write(work, "desk", is_work=True)

    def purge(self, jobs: Sequence[Job]) -> int:
        """Delete final jobs that have not changed since they were read."""
        return self.transactions.write(lambda tx: purge_jobs(tx, jobs), "desk")

    def erase(self, jobs: Sequence[Job]) -> int:
        """Erase the content of final jobs that have not changed since they were read."""
        return self.transactions.write(lambda tx: erase_jobs(tx, jobs), "desk")

    def prunable(self, limit: int) -> list[Job]:
        """Ended jobs whose retention is over and that are not steps of flows."""
        found: list[Job] = []
        for queue, status in self.transactions.read(lambda cursor: list(ended_statuses(cursor))):
            if len(found) >= limit:
                break
            values = (queue, status, self.now(), limit - len(found))
            found += self.transactions.readable(_ADMIN["prunable"], values)
        return found

    def prune(self, limit: int, *, purges: bool = True) -> PruneResult:
        """Delete jobs whose retention is over, end expired jobs, and forget dead workers.

        Also makes jobs due again that wait for a limit key which is free.
        """
        return self.transactions.write(lambda tx: prune_jobs(tx, limit, purges=purges), "sweep")

    # ---- queues ---------------------------------------------------------------------------------

    def queues(self) -> list[Queue]:
        """Every queue with jobs or settings, by name."""
        return self.transactions.read(lambda cursor: list_queues(cursor, self.now()))

    def queue_names(
        self, *, prefix: str = "", after: str = "", limit: int = 100, is_due: bool = False
    ) -> list[str]:
        """The next queues that have jobs or settings, by name."""
        now = self.now()

        def work(cursor: sqlite3.Cursor) -> list[str]:
            return queue_names(cursor, now, prefix=prefix, after=after, limit=limit, is_due=is_due)

        return self.transactions.read(lambda cursor: lossy_if_misread(cursor, work))

    def look_at_queues(
        self, names: Sequence[str], *, most: int = MOST_COUNTED, sample: int = MOST_SAMPLED
    ) -> list[Queue]:
        """The given queues, in this order. Each state is counted up to ``most`` jobs."""
        now = self.now()

        def work(cursor: sqlite3.Cursor) -> list[Queue]:
            return look_at_queues(cursor, names, now, most=most, sample=sample)

        return self.transactions.read(lambda cursor: lossy_if_misread(cursor, work))

    def count_by_status(self, *, most: int = MOST_COUNTED) -> StatusCounts:
        """The jobs of the whole store by status, each counted up to ``most`` jobs."""
        return self.transactions.read(lambda cursor: count_by_status(cursor, most=most))

    def set_queue(self, name: str, **changes: Any) -> Queue:
        """Change some settings of a queue; the answer has no counts."""

        def work(tx: SqliteTransitions) -> Queue:
            before = limits_of(tx.cursor, name)
            settings = before.changed(changes, tx.now)
            if settings.is_plain:
                tx.cursor.execute(_ADMIN["unset_queue"], (name,))
            else:
                values = (name, *(getattr(settings, field) for field in settings.__slots__))
                tx.cursor.execute(_ADMIN["set_queue"], values)
            if settings.key_rate is None and before.key_rate is not None:
                tx.cursor.execute(_ADMIN["drop_keys"], (name,))
            if settings.of_key(0.0) != before.of_key(0.0):
                tx.wake_keys(MAX_WOKEN)
            return queue_of(name, settings)

        return self.transactions.write(work, "desk", is_work=True)

    def pinned_queues(self) -> dict[str, str]:
        """The versions that queues are pinned to."""
        return self.transactions.read(
            lambda cursor: dict(cursor.execute(_ADMIN["pinned_queues"]).fetchall())
        )

    def key_wakes_at(self, queue: str, limit_key: str) -> float | None:
        """When jobs that wait for a token of this limit key are due; None if none waits."""
        found = self.transactions.first(_ADMIN["key_wakes_at"], (queue, limit_key))
        return None if found is None else found[0]

    # ---- workers --------------------------------------------------------------------------------

    def heartbeat(self, record: WorkerRecord) -> None:
        """Store a worker's heartbeat record. A record with the state ``gone`` removes it."""

        def work(tx: SqliteTransitions) -> None:
            if record.state == "gone":
                tx.cursor.execute(_ADMIN["gone"], (record.id,))
            else:
                tx.cursor.execute(_ADMIN["tell"], (record.id, tx.now, text_of(record)))
                names = text_of(["", *record.executors, *record.serves])
                tx.cursor.execute(_ADMIN["tell_executors"], (tx.now, names))

        # A heartbeat that a power cut takes back is told again within seconds.
        self.transactions.write(work, "desk", is_synced=False)

    def check_tables(self) -> None:
        """Raise ``StoreError`` unless the file has all tables of jobs."""
        self.transactions.check_tables()

    def workers(self) -> list[WorkerRecord]:
        """The workers with a heartbeat record, by id."""
        return [each for each in self._worker_records() if not each.has_ended]

    def ended_workers(self) -> list[WorkerRecord]:
        """The final records of workers that have ended."""
        return [each for each in self._worker_records() if each.has_ended]

    def _worker_records(self) -> list[WorkerRecord]:
        rows = self.transactions.read(lambda cursor: _all(cursor, _ADMIN["workers"]))
        return self._reader.workers(rows)

    def named(self) -> list[Named]:
        """The executors that due jobs name, by name."""
        while True:
            try:
                return self.transactions.read(named_executors)
            except (*READ_ERRORS, sqlite3.OperationalError) as error:
                if not is_misread(error) or not self.transactions.set_unreadable_rows_aside(error):
                    raise

    def waiting_for(self, executor: str, due_before: float, limit: int) -> list[Job]:
        """Jobs that name this executor, could be claimed, and became due before that instant."""
        values = (executor, due_before, limit)
        return self.transactions.readable(_ADMIN["waiting_for"], values)

    # ---- schedules ------------------------------------------------------------------------------

    def schedules(self) -> list[Schedule]:
        """All schedules, by name."""
        rows = self.transactions.read(lambda cursor: _all(cursor, _SCHEDULES["all"]))
        return self._reader.schedules(rows)

    def next_schedules(self, limit: int) -> list[Schedule]:
        """Schedules that fire next, the earliest first. Paused schedules, and those without another
        fire, are left out.
        """
        rows = self.transactions.read(lambda cursor: _all(cursor, _SCHEDULES["next"], limit))
        found = self._reader.schedules(rows)
        # Rows that cannot be read must not stand before the others for ever.
        return found if len(found) == len(rows) else earliest(self.schedules(), limit)

    def put_schedule(self, schedule: Schedule) -> None:
        """Store a schedule; nothing of an earlier definition is kept."""

        def work(tx: SqliteTransitions) -> None:
            tx.cursor.execute(_SCHEDULES["put"], msgspec.structs.astuple(schedule))

        self.transactions.write(work, "desk")

    def drop_schedule(self, name: str) -> bool:
        """Remove a schedule. Returns whether it existed."""

        def work(tx: SqliteTransitions) -> bool:
            return tx.cursor.execute(_SCHEDULES["drop"], (name,)).rowcount == 1

        return self.transactions.write(work, "desk")

    def fire(
        self, name: str, expected: float, next_at: float | None, jobs: Sequence[NewJob]
    ) -> bool:
        """Advance ``next_at`` and add the jobs, in one commit, if ``next_at`` still is
        ``expected``.

        A job whose id or unique key is taken is skipped.
        """

        def work(tx: SqliteTransitions) -> bool:
            tx.cursor.execute(_SCHEDULES["advance"], (next_at, expected, name))
            if tx.cursor.rowcount != 1:
                return False
            tx.is_work |= add_new_jobs(tx, jobs) > 0
            return True

        return self.transactions.write(work, "fire")


MAX_SINGLE_RENEWALS = 4
"""Up to so many leases are renewed one by one: for more, two statements for all are faster."""


def _renew(cursor: sqlite3.Cursor, holds: Sequence[LeaseRenewal], until: float) -> list[bool]:
    if len(holds) <= MAX_SINGLE_RENEWALS:
        return [_renew_one(cursor, hold, until) for hold in holds]
    keys = text_of([hold.key for hold in holds])
    # As bytes: an id that is no text would end the call, and with it all other renewals.
    held = set(cursor.execute(_SQL["held"], (keys,)).fetchall())
    kept = [(hold.key, hold.id.encode(), hold.fence) in held for hold in holds]
    for is_charged in (False, True):
        found = [
            hold.key
            for hold, is_kept in zip(holds, kept, strict=True)
            if is_kept and hold.is_charged is is_charged
        ]
        if found:
            cursor.execute(_SQL["renew_many"], (until, int(is_charged), text_of(found)))
    return kept


def _renew_one(cursor: sqlite3.Cursor, hold: LeaseRenewal, until: float) -> bool:
    values = (until, hold.is_charged, hold.key, hold.id, hold.fence)
    return cursor.execute(_SQL["renew"], values).rowcount == 1


def _all(cursor: sqlite3.Cursor, statement: str, *values: object) -> list[tuple[Any, ...]]:
    """All rows, a text that is not UTF-8 as well as it can be read."""
    try:
        return cursor.execute(statement, values).fetchall()
    except sqlite3.OperationalError as error:
        if not is_misread(error):
            raise
        with lossy(cursor):
            return cursor.execute(statement, values).fetchall()


def _problem(cursor: sqlite3.Cursor, seq: int) -> str | None:
    """What is wrong with a row; None if it is a job that can be run."""
    job = job_or_unreadable(cursor, seq)
    if not isinstance(job, Job):
        return "it is gone" if job is None else job.problem
    return argument_problem(job)
