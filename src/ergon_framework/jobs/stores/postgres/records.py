"""Reads and writes everything in a PostgreSQL job store as records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from ergon_framework.errors import StoreError
from ergon_framework.jobs.stores.documents import column_key, options_text, text_of
from ergon_framework.jobs.stores.flow_settlement import FlowRow, FlowWork
from ergon_framework.jobs.stores.postgres.flow_tables import (
    PostgresFlowTables,
    StepSettlement,
    flow_row,
    flow_values,
)
from ergon_framework.jobs.stores.postgres.rows import page_of
from ergon_framework.jobs.stores.postgres.statements import (
    flags,
    key_values,
    label_values,
    numbers,
    statements,
    texts,
)
from ergon_framework.jobs.stores.postgres.transactions import (
    SCHEMA,
    PostgresTransactions,
    PostgresTx,
    is_conflict,
)
from ergon_framework.jobs.stores.records import (
    FROZEN_TABLES,
    KeyBuckets,
    SettingsStore,
    by_queue,
    discard_settings,
    dump_settings,
    load_settings,
)
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
from ergon_framework.storage.freeze import postgres_bars
from ergon_framework.storage.postgres.migrations import make_with
from ergon_framework.storage.postgres.pipeline import ByteaArray

_SQL = statements("records.sql")
_JOBS = statements("jobs.sql")
_JOINING = statements("external_transaction.sql")
_NUMBERS = (
    *("fence", "deliveries", "attempts", "excused", "lease_expires_at", "claimed_at", "purge_at"),
    *("priority", "run_at", "expires_at", "limit", "created_at"),
)
_TEXTS = ("worker", "why", "queue", "executor", "limit_key", "id", "handler")
_AS_THEY_ARE: dict[str, Callable[[Any], object]] = {
    **dict.fromkeys(_NUMBERS, numbers),
    **dict.fromkeys(_TEXTS, texts),
    **dict.fromkeys(("args", "kwargs", "result"), ByteaArray),
    **dict.fromkeys(("is_charged", "is_solo"), flags),
}


class PostgresJobRecords:
    """The records of one store: its jobs and flows, the limits of its queues, its schedules."""

    def __init__(self, transactions: PostgresTransactions, store: SettingsStore) -> None:
        self._transactions = transactions
        self._store = store

    def dump(self, kind: type[C], after: Any, limit: int) -> list[C]:
        """The records of a kind after a place, in order."""
        if kind is FlowRecord:
            flows = self._transactions.read(lambda tx: _flows(tx, after or "", limit))
            return cast("list[C]", flows)
        if kind is not JobRecord:
            return dump_settings(self._store, self, kind, after, limit)
        return cast("list[C]", self._transactions.read(lambda tx: _page(tx, after or 0, limit)))

    def load(self, records: Sequence[TransferRecord], fence: Fence | None = None) -> None:
        """Write records of one kind, in order."""
        jobs = [each for each in records if isinstance(each, JobRecord)]
        flows = [each for each in records if isinstance(each, FlowRecord)]
        with self._transactions.guard.set(_check_of(fence)):
            if jobs:
                try:
                    self._transactions.stepwise(lambda tx: _load(tx, jobs), "move")
                except StoreError as error:
                    raise (_refused(error) if is_conflict(error) else error) from error
            if flows:
                self._transactions.stepwise(lambda tx: _load_flows(tx, flows), "move")
            load_settings(self._store, self, records)

    def discard(self, records: Sequence[TransferRecord], fence: Fence | None = None) -> None:
        """Delete records of one kind. Records that do not exist are skipped."""
        ids = [each.identity for each in records if isinstance(each, JobRecord)]
        flows = [each for each in records if isinstance(each, FlowRecord)]
        with self._transactions.guard.set(_check_of(fence)):
            if ids:
                self._transactions.stepwise(
                    lambda tx: tx.execute(_SQL["remove"], {"ids": texts(ids)}), "move"
                )
            if flows:
                self._transactions.stepwise(lambda tx: _discard_flows(tx, flows), "move")
            discard_settings(self._store, records)

    def buckets(self) -> Mapping[str, float]:
        """When the bucket of each queue with a rate will be full."""
        return dict(self._transactions.read(lambda tx: tx.execute(_SQL["buckets"]).fetchall()))

    def fill_buckets(self, full_at: Mapping[str, float]) -> None:
        """Set when the buckets of queues will be full."""

        def work(tx: PostgresTx) -> None:
            for name, instant in full_at.items():
                tx.execute(_SQL["fill_bucket"], {"name": name, "full_at": instant})

        self._transactions.stepwise(work, "move")

    def key_buckets(self) -> KeyBuckets:
        """When the bucket of each limit key of which tokens were taken will be full."""
        return by_queue(
            self._transactions.read(lambda tx: tx.execute(_SQL["key_buckets"]).fetchall())
        )

    def fill_key_buckets(self, full_at: KeyBuckets) -> None:
        """Set when the buckets of limit keys will be full."""

        def work(tx: PostgresTx) -> None:
            for queue, keys in full_at.items():
                values = {"keys": texts(keys), "full_at": numbers(keys.values())}
                tx.execute(_SQL["fill_key_buckets"], {"queue": queue, **values})

        self._transactions.stepwise(work, "move")

    def move_state(self) -> bytes | None:
        """The recorded state of a move into this store."""
        rows = self._transactions.read(lambda tx: tx.execute(_SQL["mark"]).fetchall())
        return rows[0][0] if rows else None

    def set_move_state(self, state: bytes | None, fence: Fence | None = None) -> None:
        """Record the state of a move into this store, or delete the record."""
        statement = _SQL["unmark" if state is None else "set_mark"]

        def work(tx: PostgresTx) -> None:
            if fence is not None:
                fence.check_change(_locked_mark(tx), state)
            tx.execute(statement, {"mark": state})

        self._transactions.stepwise(work, "move")

    def store_id(self) -> str:
        """Server, database and table, none of which is ever given twice; not all may ask."""

        def ask(tx: PostgresTx) -> str:
            [[may_ask]] = tx.execute(_JOINING["may_ask"]).fetchall()
            if not may_ask:
                return ""
            [home] = tx.execute(_JOINING["home"]).fetchall()
            return " ".join(map(str, home[:3]))

        return self._transactions.read(ask)

    def freeze(self, place: str | None, fence: Fence | None = None) -> None:
        """Refuse changes of jobs, flows, schedules and queues, or allow them again."""

        def work(tx: PostgresTx) -> None:
            for statement in postgres_bars(FROZEN_TABLES, place):
                tx.connection.execute(statement.encode(), prepare=False)

        with self._transactions.guard.set(_check_of(fence)):
            self._transactions.unpipelined(work, "move", topics=())


def make_marked(url: str, state: bytes) -> None:
    """Make the tables with a move state in them, in one commit; nothing if they are there."""
    make_with(url, SCHEMA, None, _SQL["set_mark"], {"mark": state})


def _check_of(fence: Fence | None) -> Callable[[PostgresTx], None] | None:
    """What each transaction of a move looks at first."""
    return None if fence is None else lambda tx: fence.check(_locked_mark(tx))


def _locked_mark(tx: PostgresTx) -> bytes | None:
    """The move state, which nobody else changes before this transaction has ended."""
    tx.execute(_SQL["lock_mark"])
    rows = tx.execute(_SQL["mark"]).fetchall()
    return bytes(rows[0][0]) if rows else None


def _page(tx: PostgresTx, after: int, limit: int) -> list[JobRecord]:
    """One page of jobs; it has fewer jobs when they are large."""
    places = tx.execute(_SQL["places"], {"after": after, "limit": limit}).fetchall()
    changed = dict(as_page(((seq, changed_at), size) for seq, changed_at, size in places))
    stretch = {"after": after, "last": max(changed, default=after)}
    page = page_of(tx.execute(_SQL["stretch"], stretch))
    if page.unreadable:
        raise cannot_move(page.unreadable[0])
    # A job may have been committed since the places were read, with a number between two of them.
    return [JobRecord(job, changed[job.key]) for job in page.jobs if job.key in changed]


def _flows(tx: PostgresTx, after: str, limit: int) -> list[FlowRecord]:
    """One page of flows by id; it has fewer flows when they are large."""
    sizes = tx.execute(_SQL["flow_sizes"], {"after": after, "limit": limit}).fetchall()
    wanted = {"ids": texts(as_page(sizes))}
    flows = [flow_row(row).flow() for row in tx.execute(_SQL["flows"], wanted).fetchall()]
    joins: dict[str, list[Join]] = {}
    for join, flow_id, remaining, members in tx.execute(_SQL["flow_joins"], wanted).fetchall():
        made = Join(id=join, flow_id=flow_id, remaining=remaining, members=bytes(members))
        joins.setdefault(flow_id, []).append(made)
    work: dict[str, dict[str, str]] = {}
    for flow_id, target, kind in tx.execute(_SQL["flow_work"], wanted).fetchall():
        work.setdefault(flow_id, {})[target] = kind
    return [
        FlowRecord(each, tuple(joins.get(each.id, ())), work.get(each.id, {})) for each in flows
    ]


def _load_flows(tx: PostgresTx, records: Sequence[FlowRecord]) -> None:
    """Write whole flows, replacing equal ones; new flows come after all others."""
    tables = PostgresFlowTables(StepSettlement(tx))
    # A flow may be here from an earlier round of the move, with joins and work that are done now.
    _strip(tx, records)
    for copy in records:
        tx.execute(_SQL["put_flow"], flow_values(FlowRow.of(copy.flow)))
        tables.put_joins(copy.joins)
        for target, kind in copy.work.items():
            tables.put_work(FlowWork(target, kind, 0))


def _discard_flows(tx: PostgresTx, records: Sequence[FlowRecord]) -> None:
    """Delete flows. Their steps are records of their own."""
    _strip(tx, records)
    tx.execute(_SQL["remove_flows"], {"ids": texts([each.flow.id for each in records])})


def _strip(tx: PostgresTx, records: Sequence[FlowRecord]) -> None:
    """Delete the joins and the unfinished work of flows."""
    ids = {"ids": texts([each.flow.id for each in records])}
    tx.execute(_SQL["remove_joins"], ids)
    tx.execute(_SQL["remove_work"], ids)


def _load(tx: PostgresTx, records: Sequence[JobRecord]) -> None:
    ids = {"ids": texts([copy.job.id for copy in records])}
    found = tx.execute(_SQL["standing"], ids).fetchall()
    standing = {(job_id, created_at): seq for job_id, seq, created_at in found}
    tx.execute(_SQL["remove"], ids)
    # One of another instant is another job, which was added later.
    seqs = [standing.get((copy.job.id, copy.job.created_at)) for copy in records]
    values = {"seq": numbers(seqs), "changed_at": numbers([copy.changed_at for copy in records])}
    jobs = [copy.job for copy in records]
    tx.execute(_SQL["put"], values | _columns(jobs))
    labels = label_values(jobs)
    if labels is not None:
        tx.execute(_JOBS["index"], labels)
    # The last of each key: one statement can put a row in only once.
    by_age = sorted(jobs, key=lambda job: job.created_at)
    taken = key_values({job.unique_key: job for job in by_age if job.unique is not None}.values())
    if taken is not None:
        tx.execute(_JOBS["load_keys"], taken)


def _columns(jobs: Sequence[Job]) -> dict[str, object]:
    """The columns of jobs, by name."""
    plain = {
        name: array([getattr(job, name) for job in jobs]) for name, array in _AS_THEY_ARE.items()
    }
    errors = [None if job.last_error is None else text_of(job.last_error) for job in jobs]
    steps = [job.step for job in jobs]
    return plain | {
        "flow_id": texts([None if step is None else step.flow_id for step in steps]),
        "join_id": texts([None if step is None else step.join_id for step in steps]),
        "feeds": texts([None if step is None else text_of(step.feeds) for step in steps]),
        "wait": numbers([None if step is None else step.wait for step in steps]),
        "signal": texts([None if step is None else step.signal for step in steps]),
        "status": texts([job.status.value for job in jobs]),
        "unique_key": texts([column_key(job) for job in jobs]),
        "options": texts(map(options_text, jobs)),
        "last_error": texts(errors),
        "history": texts([b"\n".join(job.history).decode() or None for job in jobs]),
    }


def _refused(error: StoreError) -> StoreError:
    return StoreError(
        f"some of these jobs cannot be put beside the others: {error}",
        remedy="see that nobody else writes to the store, then move again",
    )
