"""Reads and writes everything in an SQLite job store as records."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from ergon_framework.errors import StoreError
from ergon_framework.jobs.stores.documents import column_key, options_text, text_of
from ergon_framework.jobs.stores.flow_settlement import FlowRow, FlowWork
from ergon_framework.jobs.stores.records import (
    FROZEN_TABLES,
    KeyBuckets,
    SettingsStore,
    by_queue,
    discard_settings,
    dump_settings,
    load_settings,
)
from ergon_framework.jobs.stores.sqlite.flow_tables import SqliteFlowTables, flow_row
from ergon_framework.jobs.stores.sqlite.rows import SQL, page_of
from ergon_framework.jobs.stores.sqlite.transactions import SqliteTransactions
from ergon_framework.jobs.stores.sqlite.transitions import LARGE, SqliteTransitions, taken_key
from ergon_framework.jobs.stores.transitions import DUE, LATER, copied_stage
from ergon_framework.jobs.stores.unreadable import cannot_move
from ergon_framework.ports.flow import Join
from ergon_framework.ports.jobstore import Job
from ergon_framework.ports.transfer import (
    C,
    Fence,
    FlowRecord,
    JobRecord,
    TransferRecord,
    as_page,
)
from ergon_framework.storage.freeze import sqlite_bars
from ergon_framework.storage.sql_files import load

_SQL = load(SQL, "records.sql")
_JOBS = load(SQL, "jobs.sql")
_FLOWS = load(SQL, "flows.sql")


class SqliteJobRecords:
    """The records of one store: its jobs and flows, the limits of its queues, its schedules."""

    def __init__(self, transactions: SqliteTransactions, store: SettingsStore) -> None:
        self._transactions = transactions
        self._store = store

    def dump(self, kind: type[C], after: Any, limit: int) -> list[C]:
        """The records of a kind after a place, in order."""
        if kind is FlowRecord:
            flows = self._transactions.read(lambda cursor: _flows(cursor, after or "", limit))
            return cast("list[C]", flows)
        if kind is not JobRecord:
            return dump_settings(self._store, self, kind, after, limit)
        page = self._transactions.read(lambda cursor: _page(cursor, after or 0, limit))
        return cast("list[C]", page)

    def load(self, records: Sequence[TransferRecord], fence: Fence | None = None) -> None:
        """Write records of one kind, in order."""
        jobs = [each for each in records if isinstance(each, JobRecord)]
        flows = [each for each in records if isinstance(each, FlowRecord)]
        with self._transactions.guard.set(_check_of(fence)):
            if jobs:
                self._transactions.write(lambda tx: _load(tx, jobs), "move")
            if flows:
                self._transactions.write(lambda tx: _load_flows(tx, flows), "move")
            load_settings(self._store, self, records)

    def discard(self, records: Sequence[TransferRecord], fence: Fence | None = None) -> None:
        """Delete records of one kind. Records that do not exist are skipped."""
        ids = [(each.identity,) for each in records if isinstance(each, JobRecord)]
        flows = [each for each in records if isinstance(each, FlowRecord)]
        with self._transactions.guard.set(_check_of(fence)):
            if ids:
                self._execute_many("remove", ids)
            if flows:
                self._transactions.write(lambda tx: _discard_flows(tx, flows), "move")
            discard_settings(self._store, records)

    def buckets(self) -> Mapping[str, float]:
        """When the bucket of each queue with a rate will be full."""
        found = self._transactions.read(lambda cursor: cursor.execute(_SQL["buckets"]).fetchall())
        return dict(found)

    def fill_buckets(self, full_at: Mapping[str, float]) -> None:
        """Set when the buckets of queues will be full."""
        self._execute_many("fill_bucket", [(at, name) for name, at in full_at.items()])

    def key_buckets(self) -> KeyBuckets:
        """When the bucket of each limit key of which tokens were taken will be full."""
        statement = _SQL["key_buckets"]
        return by_queue(
            self._transactions.read(lambda cursor: cursor.execute(statement).fetchall())
        )

    def fill_key_buckets(self, full_at: KeyBuckets) -> None:
        """Set when the buckets of limit keys will be full."""
        rows = [(queue, key, at) for queue, keys in full_at.items() for key, at in keys.items()]
        self._execute_many("fill_key_bucket", rows)

    def move_state(self) -> bytes | None:
        """The recorded state of a move into this store."""
        return self._transactions.read(_mark)

    def set_move_state(self, state: bytes | None, fence: Fence | None = None) -> None:
        """Record the state of a move into this store, or delete the record."""

        def work(tx: SqliteTransitions) -> None:
            if fence is not None:
                fence.check_change(_mark(tx.cursor), state)
            if state is None:
                tx.cursor.execute(_SQL["unmark"])
            else:
                tx.cursor.execute(_SQL["set_mark"], (state,))

        self._transactions.write(work, "move")

    def store_id(self) -> str:
        """Where the file is, and when its tables were made; a copy of the file is another store."""
        [made_at] = self._transactions.first(_SQL["made_at"])
        return f"{self._transactions.path.resolve()} {made_at!r}"

    def freeze(self, place: str | None, fence: Fence | None = None) -> None:
        """Refuse changes of jobs, flows, schedules and queues, or allow them again."""

        def work(tx: SqliteTransitions) -> None:
            for statement in sqlite_bars(FROZEN_TABLES, place):
                tx.cursor.execute(statement)

        with self._transactions.guard.set(_check_of(fence)):
            self._transactions.write(work, "move")

    def _execute_many(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        def work(tx: SqliteTransitions) -> None:
            tx.cursor.executemany(_SQL[statement], rows)

        self._transactions.write(work, "move")


def _check_of(fence: Fence | None) -> Callable[[SqliteTransitions], None] | None:
    """What each transaction of a move looks at first: it has locked the file."""
    return None if fence is None else lambda tx: fence.check(_mark(tx.cursor))


def _mark(cursor: sqlite3.Cursor) -> bytes | None:
    row = cursor.execute(_SQL["mark"]).fetchone()
    return None if row is None else bytes(row[0])


def _page(cursor: sqlite3.Cursor, after: int, limit: int) -> list[JobRecord]:
    """One page of jobs; it has fewer jobs when they are large."""
    places = cursor.execute(_SQL["places"], (after, limit))
    changed = dict(as_page(((seq, changed_at), size) for seq, changed_at, size in places))
    page = page_of(cursor, _SQL["stretch"], (after, max(changed, default=after)))
    if page.unreadable:
        raise cannot_move(page.unreadable[0])
    return [JobRecord(job, changed[job.key]) for job in page.jobs]


def _flows(cursor: sqlite3.Cursor, after: str, limit: int) -> list[FlowRecord]:
    """One page of flows by id; it has fewer flows when they are large."""
    work: dict[str, dict[str, str]] = {}
    for row in cursor.execute(_SQL["flow_work"]).fetchall():
        left = FlowWork(*row)
        work.setdefault(left.flow_id, {})[left.target] = left.kind
    ids = cursor.execute(_SQL["flow_ids"], (after, limit)).fetchall()
    records = (_flow_record(cursor, flow_id, work.get(flow_id, {})) for (flow_id,) in ids)
    return as_page((each, each.payload_size) for each in records)


def _flow_record(cursor: sqlite3.Cursor, flow_id: str, work: dict[str, str]) -> FlowRecord:
    flow = flow_row(cursor.execute(_FLOWS["flow"], (flow_id,)).fetchone()).flow()
    joins = tuple(
        Join(id=join, flow_id=owner, remaining=remaining, members=members)
        for join, owner, remaining, members in cursor.execute(_FLOWS["joins"], (flow_id,))
    )
    return FlowRecord(flow, joins, work)


def _load_flows(tx: SqliteTransitions, records: Sequence[FlowRecord]) -> None:
    """Write whole flows, replacing equal ones; new flows come after all others."""
    tables = SqliteFlowTables(tx)
    # A flow may be here from an earlier round of the move, with joins and work that are done now.
    _strip(tx, records)
    for copy in records:
        tables.put_flow(FlowRow.of(copy.flow), is_new=tables.get_flow(copy.flow.id) is None)
        frame = copy.flow.state.on_failure.value, copy.flow.name, copy.flow.created_at
        tx.cursor.execute(_SQL["frame_flow"], (*frame, copy.flow.plan, copy.flow.id))
        tables.put_joins(copy.joins)
        for target, kind in copy.work.items():
            tables.put_work(FlowWork(target, kind, 0))


def _discard_flows(tx: SqliteTransitions, records: Sequence[FlowRecord]) -> None:
    """Delete flows. Their steps are records of their own."""
    _strip(tx, records)
    tx.cursor.executemany(_FLOWS["purge_flow"], [(each.flow.id,) for each in records])


def _strip(tx: SqliteTransitions, records: Sequence[FlowRecord]) -> None:
    """Delete the joins and the unfinished work of flows."""
    ids = [(each.flow.id,) for each in records]
    for statement in (_SQL["remove_flow_work"], _FLOWS["purge_joins"]):
        tx.cursor.executemany(statement, ids)


def _load(tx: SqliteTransitions, records: Sequence[JobRecord]) -> None:
    cursor = tx.cursor
    for copy in records:
        job = copy.job
        found = cursor.execute(_SQL["standing"], (job.id,)).fetchone()
        seq = None
        if found is not None:
            # One of another instant is another job, which was added later.
            seq = found[0] if found[1] == job.created_at else None
            cursor.execute(_SQL["remove"], (job.id,))
        try:
            cursor.execute(_SQL["put"], (seq, *_row(job, copy.changed_at, tx.now)))
        except sqlite3.IntegrityError as error:
            raise StoreError(
                f"the job {job.id} cannot be put beside the others: {error}",
                remedy="see that nobody else writes to the store, then move again",
            ) from error
        if _is_large(job):
            values = (cursor.lastrowid, job.args, job.kwargs)
            cursor.execute(_JOBS["insert_payload"], values)
        tx.index((job,))
        if job.unique is not None:
            cursor.execute(_JOBS["take_key_back"], taken_key(job, job.created_at))


def _is_large(job: Job) -> bool:
    return len(job.args) + len(job.kwargs) > LARGE


def _row(job: Job, changed_at: float, now: float) -> tuple[Any, ...]:
    """The columns of a job, from its stage to its history."""
    is_large = _is_large(job)
    stage = copied_stage(job, DUE if job.run_at <= now else LATER)
    return (
        *(stage, job.status.value, job.fence, job.deliveries, job.attempts),
        *(job.excused, job.is_charged, job.is_solo, changed_at, job.lease_expires_at),
        *(job.claimed_at, job.worker, job.why, job.purge_at, job.queue, job.executor),
        *(job.priority, job.run_at, job.expires_at, column_key(job), job.limit_key, job.limit),
        *(job.id, job.handler, job.created_at),
        options_text(job),
        None if is_large else job.args,
        None if is_large else job.kwargs,
        None if job.last_error is None else text_of(job.last_error),
        job.result,
        b"\n".join(job.history).decode() or None,
        *_step(job),
    )


def _step(job: Job) -> tuple[Any, ...]:
    """The columns of a step, from its flow to its signal."""
    step = job.step
    if step is None:
        return (None,) * 5
    return step.flow_id, step.join_id, text_of(step.feeds), step.wait, step.signal
