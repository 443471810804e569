"""Flows in an SQLite file: the rows that ``FlowSettlement`` asks for within a transaction."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any, Protocol

from ergon_framework.core.flow import FlowState, FlowStatus, OnFailure
from ergon_framework.core.job import JobStatus
from ergon_framework.core.retention import JobRetention
from ergon_framework.jobs.stores.documents import feeds_from, text_of
from ergon_framework.jobs.stores.flow_settlement import (
    EarlySignal,
    EndedStep,
    FlowRow,
    FlowWork,
    Predecessor,
    ReleaseSlice,
    WaitingSignal,
    flow_taken,
)
from ergon_framework.jobs.stores.sqlite.many_rows import for_many
from ergon_framework.jobs.stores.sqlite.rows import SQL
from ergon_framework.jobs.stores.transitions import JobPosition
from ergon_framework.ports.flow import Join
from ergon_framework.ports.jobstore import NewJob, Settlement
from ergon_framework.storage.sql_files import load
from ergon_framework.storage.sqlite.errors import is_moved_away

_SQL = load(SQL, "flows.sql")
JOINS_AT_ONCE = 50
"""Joins that one statement inserts, as it inserts that many jobs."""
_POSITION = 8
"""Columns of a ``JobPosition``."""


class StepTransaction(Protocol):
    """The transaction that these rows are changed in."""

    cursor: sqlite3.Cursor
    now: float
    retention: JobRetention
    is_work: bool

    def apply(self, settlement: Settlement) -> bool:
        """Apply a transition."""

    def insert_steps(self, steps: Sequence[NewJob]) -> None:
        """Insert new steps of a flow."""


class SqliteFlowTables:
    """The rows of flows within one transaction."""

    def __init__(self, tx: StepTransaction) -> None:
        self._tx = tx
        self._cursor = tx.cursor

    @property
    def at(self) -> float:
        """The instant of the transaction."""
        return self._tx.now

    @property
    def retention(self) -> JobRetention:
        """How long jobs are kept that end in the transaction."""
        return self._tx.retention

    def get_flow(self, flow_id: str) -> FlowRow | None:
        """A flow; there is one writer at a time."""
        row = self._cursor.execute(_SQL["flow"], (flow_id,)).fetchone()
        return None if row is None else flow_row(row)

    def put_flow(self, row: FlowRow, *, is_new: bool = False) -> None:
        """Write a flow."""
        if is_new:
            state = row.state
            head = (row.id, state.on_failure.value, state.status.value, *_counts(state), row.keep)
            rest = (row.purge_at, row.name, row.created_at, row.changed_at, row.plan)
            try:
                self._cursor.execute(_SQL["insert_flow"], (*head, *rest))
            except sqlite3.IntegrityError as error:
                # A store that a move has frozen refuses by a trigger, which raises the same class.
                if is_moved_away(error):
                    raise
                raise flow_taken(row.id) from None
        else:
            self.put_flows([row])

    def put_flows(self, rows: Sequence[FlowRow]) -> None:
        """Update existing flows, in the given order."""
        values = [
            (
                row.state.status.value,
                *_counts(row.state),
                row.keep,
                row.purge_at,
                row.changed_at,
                row.id,
            )
            for row in rows
        ]
        self._cursor.executemany(_SQL["update_flow"], values)

    def put_joins(self, joins: Sequence[Join]) -> None:
        """Add joins."""
        rows = [(each.id, each.flow_id, each.remaining, bytearray(each.members)) for each in joins]
        left = len(rows) % JOINS_AT_ONCE
        together = for_many(_SQL["insert_join"], JOINS_AT_ONCE)
        for start in range(0, len(rows) - left, JOINS_AT_ONCE):
            part = rows[start : start + JOINS_AT_ONCE]
            self._cursor.execute(together, [*chain.from_iterable(part)])
        self._cursor.executemany(_SQL["insert_join"], rows[len(rows) - left :])

    def count_at(self, counts: Counter[str]) -> list[str]:
        """Subtract ended predecessors from joins. Returns the joins that have none left."""
        joins: dict[int, list[str]] = {}  # nearly all of chains have one predecessor
        for join_id, number in counts.items():
            joins.setdefault(number, []).append(join_id)
        opened: list[str] = []
        for number, ids in joins.items():
            found = self._cursor.execute(_SQL["count_at"], (number, text_of(ids))).fetchall()
            opened += [join_id for join_id, remaining in found if remaining == 0]
        return sorted(opened)

    def is_open(self, join_id: str) -> bool:
        """Whether a join has no predecessors left."""
        return self._cursor.execute(_SQL["is_closed"], (join_id,)).fetchone() is None

    def open_joins(self, flow_id: str) -> list[str]:
        """The joins of a flow that have no predecessors left."""
        return [join for (join,) in self._cursor.execute(_SQL["open_joins"], (flow_id,)).fetchall()]

    def release(self, joins: Sequence[str], limit: int) -> ReleaseSlice:
        """Release steps that wait at joins."""
        rows = self._cursor.execute(_SQL["release"], (self.at, text_of(joins), limit)).fetchall()
        # Nearly no step has a signal. What a statement returns of each row costs as much as half of
        # the change.
        signalled = [seq for (seq,) in rows if seq is not None]
        if not signalled:
            return ReleaseSlice(len(rows), ())
        found = self._cursor.execute(_SQL["signalled"], (text_of(signalled),)).fetchall()
        return ReleaseSlice(len(rows), [EarlySignal(tuple(row[:-1]), row[-1]) for row in found])

    def waiting(self, flow_id: str, after: int, limit: int) -> list[JobPosition]:
        """Steps that wait."""
        return self._cursor.execute(_SQL["waiting"], (flow_id, after, limit)).fetchall()

    def ended(self, flow_id: str, after: int, limit: int) -> list[EndedStep]:
        """Steps that failed or were cancelled."""
        rows = self._cursor.execute(_SQL["ended_badly"], (flow_id, after, limit)).fetchall()
        return [EndedStep(row[:_POSITION], row[-2], feeds_from(row[-1])) for row in rows]

    def set_feeds(self, key: int, feeds: Sequence[str]) -> None:
        """Set the joins at which the end of a step counts."""
        self._cursor.execute(_SQL["set_feeds"], (text_of(feeds), key))

    def predecessors(self, ids: Sequence[str]) -> list[Predecessor]:
        """The jobs of these ids."""
        rows = self._cursor.execute(_SQL["predecessors"], (text_of(ids),)).fetchall()
        return [
            Predecessor(seq, job_id, JobStatus(status), flow_id, feeds_from(feeds or "[]"), why)
            for seq, job_id, status, flow_id, feeds, why in rows
        ]

    def adopt(self, key: int, flow_id: str, feeds: Sequence[str]) -> None:
        """Make a job a step of a flow."""
        self._cursor.execute(_SQL["adopt"], (flow_id, text_of(feeds), key))

    def waiting_signals(self, flow_id: str, name: str) -> list[WaitingSignal]:
        """The steps of a flow that wait for a signal, or will, in the order in which they were
        added.
        """
        rows = self._cursor.execute(_SQL["signals"], (flow_id, name)).fetchall()
        return [
            WaitingSignal(row[:_POSITION], bool(row[_POSITION]), *row[_POSITION + 1 :])
            for row in rows
        ]

    def keep_signal(self, key: int, value: bytes) -> None:
        """Keep the value of a signal for a step that has not been reached."""
        self._cursor.execute(_SQL["keep_signal"], (value, key))

    def settle_all(self, settlements: Sequence[Settlement]) -> None:
        """Apply transitions of steps."""
        for settlement in settlements:
            self._tx.apply(settlement)

    def insert(self, steps: Sequence[NewJob]) -> None:
        """Add new steps."""
        self._tx.insert_steps(steps)

    def first_work(self) -> FlowWork | None:
        """A piece of unfinished work."""
        row = self._cursor.execute(_SQL["first_work"]).fetchone()
        return None if row is None else FlowWork(*row)

    def find_work(self, target: str) -> FlowWork | None:
        """The unfinished work at a target."""
        row = self._cursor.execute(_SQL["work_of"], (target,)).fetchone()
        return None if row is None else FlowWork(*row)

    def put_work(self, work: FlowWork) -> None:
        """Record how far a piece of work is."""
        self._cursor.execute(_SQL["put_work"], work)

    def drop_work(self, target: str) -> None:
        """Delete finished work."""
        self._cursor.execute(_SQL["drop_work"], (target,))

    def changed(self) -> None:
        """Note that something may have become claimable, or is left to be done."""
        self._tx.is_work = True


def _counts(state: FlowState) -> tuple[int, ...]:
    return state.unfinished, state.completed, state.failed, state.cancelled, state.uncounted


def flow_row(row: tuple[Any, ...]) -> FlowRow:
    """A row of the statement ``flow``."""
    flow_id, on_failure, status, *counts = row[:8]
    state = FlowState(OnFailure(on_failure), FlowStatus(status), *counts)
    keep, purge_at, name, created_at, changed_at, plan = row[8:]
    return FlowRow(flow_id, state, keep, purge_at, name, created_at, changed_at, plan)


def purge_flows(tx: StepTransaction, limit: int) -> int:
    """Delete flows whose retention is over, with their steps; at most so many steps."""
    purged = 0
    due = tx.cursor.execute(_SQL["flows_kept_long_enough"], (tx.now, limit)).fetchall()
    for (flow_id,) in due:
        purged += purge_flow(tx, flow_id, limit - purged)
        if purged >= limit:
            break
    return purged


def purge_flow(tx: StepTransaction, flow_id: str, limit: int) -> int:
    """Delete at most so many steps of a flow. If fewer are left, the flow is deleted, too. Returns
    how many.
    """
    purged = tx.cursor.execute(_SQL["purge_steps"], (flow_id, limit)).rowcount
    # With as many as the limit there may be more steps: the flow stays until the next slice.
    if purged < limit:
        tx.cursor.execute(_SQL["purge_joins"], (flow_id,))
        tx.cursor.execute(_SQL["purge_flow"], (flow_id,))
    return purged
