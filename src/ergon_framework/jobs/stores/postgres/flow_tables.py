"""Flows within one PostgreSQL transaction: settling steps, and the rows that flows consist of.

Locks are taken in one order: flows by id, then jobs by number. A transaction that holds a job and
would need its flow leaves the step to a transaction of its own, so that no two wait for each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ergon_framework.core.flow import (
    FlowState,
    FlowStatus,
    OnFailure,
    StepEnded,
)
from ergon_framework.core.job import JobStatus
from ergon_framework.core.retention import JobRetention
from ergon_framework.jobs.stores.documents import (
    feeds_from,
    feeds_text,
    step_options_text,
    text_of,
)
from ergon_framework.jobs.stores.flow_settlement import (
    EarlySignal,
    EndedStep,
    FlowRow,
    FlowSettlement,
    FlowWork,
    Predecessor,
    ReleaseSlice,
    WaitingSignal,
    returned,
)
from ergon_framework.jobs.stores.postgres.rows import Row, StatementResult
from ergon_framework.jobs.stores.postgres.settle import Effects, changes, stage_of, waves
from ergon_framework.jobs.stores.postgres.statements import (
    flags,
    label_values,
    numbers,
    plain_values,
    special_values,
    statements,
    texts,
)
from ergon_framework.jobs.stores.postgres.transactions import (
    PostgresTransactions,
    PostgresTx,
    topics_of,
)
from ergon_framework.jobs.stores.transitions import (
    JOINING,
    SIGNALLING,
    JobPosition,
    cancel_step,
    complete_signal,
    may_be_cancelled,
)
from ergon_framework.ports.flow import Join
from ergon_framework.ports.jobstore import NewJob, Settlement, Topic
from ergon_framework.storage.postgres.pipeline import ByteaArray, Texts

MAX_INSERTED = 10_000
"""Steps that one statement inserts."""
_SQL = statements("flows.sql")
_JOBS = statements("jobs.sql")
_TRANSITIONS = statements("transitions.sql")
_POSITION = 8
"""Columns of a ``JobPosition``."""


class _Step(NamedTuple):
    """A job that was read and locked; ``feeds`` is None for one that belongs to no flow."""

    seq: int
    id: str
    status: str
    fence: int
    attempts: int
    deliveries: int
    excused: int
    queue: str
    stage: int
    flow_id: str
    feeds: str | None
    join_id: str | None
    signal: str | None
    early: bytes | None  # the value of a signal that came before it was reached
    unique_key: str | None  # also one that it holds only while it waits
    is_key_held: bool  # it has ended, and another job holds its unique key
    is_expired: bool
    is_cancelling: bool  # it runs, and its cancellation was requested: see ``settle_cancelled``
    now: float


class _Move(NamedTuple):
    """A transition of a step that is going to be written."""

    settlement: Settlement
    step: _Step
    stage: int
    feeds: str


class StepSettlement:
    """The steps that one transaction settles, and what that brings about in their flows."""

    def __init__(self, tx: PostgresTx) -> None:
        self.tx = tx
        self.effects = Effects()
        self.flows = FlowSettlement(PostgresFlowTables(self))
        self._now = tx.now
        self._sent: list[tuple[list[_Move], StatementResult]] = []

    @property
    def at(self) -> float:
        """The instant of the transaction."""
        if self._now is None:
            [[self._now]] = self.tx.execute(_SQL["now"]).fetchall()
        return self._now

    def lock_flows(self, seqs: Sequence[int]) -> None:
        """Lock the flows of jobs, before any of the jobs is locked."""
        locked = self.tx.execute(_SQL["lock_flows_of"], {"seqs": numbers(seqs)})
        self.flows.hold(map(flow_row, locked.fetchall()))

    def apply(self, settlements: Sequence[Settlement]) -> list[bool | None]:
        """Settle steps; for each, whether it was applied. None: the job belongs to no flow."""
        locked = self.tx.execute(_SQL["lock_flows_of"], _keys(settlements))
        found = self.tx.execute(_SQL["lock_steps"], _keys(settlements))
        self.flows.hold(map(flow_row, locked.fetchall()))
        applied: dict[int, bool | None] = {}  # by identity: two may be about one job
        for n, wave in enumerate(waves(settlements)):
            if n:
                # A second transition of a job is judged by what the first one has made of it.
                found = self.tx.execute(_SQL["lock_steps"], _keys(wave))
            steps = {row[0]: _Step(*row) for row in found.fetchall()}
            if self._now is None and steps:
                # It came along with the rows: to ask for it would cost a round trip.
                self._now = next(iter(steps.values())).now
            applied |= self._apply_wave(wave, steps)
        return [applied[id(each)] for each in settlements]

    def finish(self) -> None:
        """Do what the settlements bring about: counts, releases and sweeps."""
        self.flows.finish()

    def topics(self) -> set[Topic]:
        """Whom to notify of what was written."""
        return topics_of(is_work=self.effects.is_work, is_done=self.effects.is_done)

    def read(self) -> Effects:
        """What settled steps leave to be done after the commit."""
        sent, self._sent = self._sent, []
        for wave, cursor in sent:
            rows = {row[0]: row for row in cursor.fetchall()}
            for move in wave:
                self.effects.note(move.settlement, rows[move.step.seq])
        return self.effects

    def release(self, seq: int) -> None:
        """Release a step whose row was set aside while its join opened."""
        step = self._step(seq)
        join_id = None if step is None else step.join_id
        if join_id is not None and self.flows.tables.is_open(join_id):
            self.flows.release(join_id)

    def lose(self, seq: int) -> None:
        """A step whose row was set aside is discarded: its flow takes it for cancelled."""
        step = self._step(seq)
        if step is None or step.feeds is None:
            return
        ended = StepEnded(JobStatus.CANCELLED, step.feeds == "[]")
        change = self.flows.plan(step.flow_id, ended)
        if change is not None:
            self.flows.accept(step.flow_id, change, feeds_from(step.feeds))

    def _step(self, seq: int) -> _Step | None:
        rows = self.tx.execute(_SQL["lock_steps"], {"seqs": numbers([seq])}).fetchall()
        found = [_Step(*row) for row in rows]
        return found[0] if found and found[0].feeds is not None else None

    def _apply_wave(
        self, wave: Sequence[Settlement], steps: Mapping[int, _Step]
    ) -> dict[int, bool | None]:
        applied: dict[int, bool | None] = {}
        moved: list[_Move] = []
        back = [steps[each.key] for each in wave if each.expected.is_final and each.key in steps]
        closed = self._closed({step.join_id for step in back} - {None})
        keys: set[str | None] = set()  # unique keys that steps which came back hold
        for settlement in wave:
            step = steps.get(settlement.key)
            if step is not None and step.feeds is None:
                applied[id(settlement)] = None
                continue
            move = None if step is None else self._planned(settlement, step, closed, keys)
            applied[id(settlement)] = move is not None
            if move is not None:
                moved.append(move)
        if moved:
            self._write(moved)
        return applied

    def _planned(
        self,
        settlement: Settlement,
        step: _Step,
        closed: Container[str | None],
        keys: set[str | None],
    ) -> _Move | None:
        """What becomes of a step; None where the settlement is not about it as it stands."""
        if not _is_fit(settlement, step):
            return None
        if settlement.transition.status.is_final:
            return self._end(settlement, step)
        if settlement.expected.is_final:
            if step.is_key_held or (step.unique_key is not None and step.unique_key in keys):
                return None
            # One statement writes all of them: of two that come back with one key, the second would
            # break it.
            keys.add(step.unique_key)
            return self._back(settlement, step, closed)
        if step.stage in (JOINING, SIGNALLING):
            return None  # a step cannot go before what it waits for has come
        return _Move(settlement, step, stage_of(settlement), step.feeds or "[]")

    def _end(self, settlement: Settlement, step: _Step) -> _Move | None:
        feeds = step.feeds or "[]"
        ended = StepEnded(settlement.transition.status, feeds == "[]")
        change = self.flows.plan(step.flow_id, ended)
        if change is None:
            return None
        # Before the row is written: it is locked and was compared, so that the write cannot miss
        # it.
        self.flows.accept(step.flow_id, change, feeds_from(feeds), settlement.keep)
        return _Move(settlement, step, stage_of(settlement), "[]" if change.counts else feeds)

    def _back(
        self, settlement: Settlement, step: _Step, closed: Container[str | None]
    ) -> _Move | None:
        feeds = step.feeds or "[]"
        change = self.flows.plan(step.flow_id, returned(settlement.expected, feeds_from(feeds)))
        if change is None:
            return None
        self.flows.accept(step.flow_id, change)
        stage = stage_of(settlement)
        if step.join_id in closed:
            stage = JOINING
        elif step.signal is not None:
            stage = SIGNALLING
        return _Move(settlement, step, stage, feeds)

    def _closed(self, ids: Collection[str | None]) -> set[str]:
        """Those of these joins that have predecessors left."""
        if not ids:
            return set()
        rows = self.tx.execute(_SQL["closed_joins"], {"ids": texts(ids)}).fetchall()
        return {join for (join,) in rows}

    def _write(self, moved: list[_Move]) -> None:
        """Write moves; a step that would go back to the queue of a flow that stops is ended."""
        given = [move.settlement for move in moved]
        transitions = [each.transition for each in given]
        values = changes(given) | {
            "seqs": numbers([each.key for each in given]),
            "attempts": numbers([each.attempts for each in transitions]),
            "excuses": numbers([each.excused for each in transitions]),
            "entries": Texts([each.entry for each in given]),
            "now": self.at,
            "stages": numbers([move.stage for move in moved]),
            "backs": flags([each.expected.is_final for each in given]),
            "feeds": texts([move.feeds for move in moved]),
        }
        self._sent.append((moved, self.tx.execute(_SQL["move_steps"], values)))
        back = [each.key for each in given if each.expected.is_final]
        if back:  # as in SettleBatch, which leaves steps to this class
            self.tx.execute(_TRANSITIONS["take_keys_back"], {"seqs": numbers(back)})
        self.effects.is_done |= any(each.status.is_final for each in transitions)
        self.effects.is_work |= not all(each.status.is_final for each in transitions)
        stopped = [
            _after(move)
            for move in moved
            if not move.settlement.transition.status.is_final
            and self.flows.is_stopping(move.step.flow_id)
        ]
        if stopped:
            # They went back to the queue of a flow that stops. The sweep may be past them, and
            # would not return.
            self.apply([cancel_step(position, self.at, self.tx.retention) for position in stopped])
        answered = [
            complete_signal(_after(move), bytes(move.step.early), self.at)
            for move in moved
            if move.stage == SIGNALLING and move.step.early is not None
        ]
        if answered:  # they came back, and their signals had come before they were cancelled
            self.apply(answered)


def _keys(settlements: Sequence[Settlement]) -> dict[str, Any]:
    return {"seqs": numbers([each.key for each in settlements])}


def _is_fit(settlement: Settlement, step: _Step) -> bool:
    """Whether the job still is where the transition was decided."""
    return (
        step.id == settlement.id
        and step.fence == settlement.fence
        and step.status == settlement.expected
        and (step.is_expired or not settlement.if_expired)
        and not (step.is_cancelling and may_be_cancelled(settlement))
    )


def _after(move: _Move) -> JobPosition:
    """Where a step stands that has just gone back to its queue."""
    step, transition = move.step, move.settlement.transition
    head = (step.seq, step.id, transition.status.value, step.fence)
    return *head, transition.attempts, step.deliveries, transition.excused, step.queue


class PostgresFlowTables:
    """The rows of flows within one transaction."""

    def __init__(self, settlement: StepSettlement) -> None:
        self._settlement = settlement
        self._tx = settlement.tx

    @property
    def at(self) -> float:
        """The instant of the transaction."""
        return self._settlement.at

    @property
    def retention(self) -> JobRetention:
        """How long jobs are kept that end in the transaction."""
        return self._tx.retention

    def get_flow(self, flow_id: str) -> FlowRow | None:
        """A flow; nobody else changes it until the transaction ends."""
        rows = self._tx.execute(_SQL["lock_flow"], {"id": flow_id}).fetchall()
        return flow_row(rows[0]) if rows else None

    def put_flow(self, row: FlowRow, *, is_new: bool = False) -> None:
        """Write a flow."""
        self._tx.execute(_SQL["insert_flow" if is_new else "update_flow"], flow_values(row))

    def put_flows(self, rows: Sequence[FlowRow]) -> None:
        """Write flows that are there; they are locked, so that their order does not matter."""
        if len(rows) == 1:
            self.put_flow(rows[0])
            return
        states = [row.state for row in rows]
        values = {
            "ids": texts([row.id for row in rows]),
            "statuses": texts([state.status.value for state in states]),
            "unfinished": numbers([state.unfinished for state in states]),
            "completed": numbers([state.completed for state in states]),
            "failed": numbers([state.failed for state in states]),
            "cancelled": numbers([state.cancelled for state in states]),
            "uncounted": numbers([state.uncounted for state in states]),
            "keeps": numbers([row.keep for row in rows]),
            "purges": numbers([row.purge_at for row in rows]),
            "changes": numbers([row.changed_at for row in rows]),
        }
        self._tx.execute(_SQL["update_flows"], values)

    def put_joins(self, joins: Sequence[Join]) -> None:
        """Add joins."""
        if not joins:
            return
        values = {
            "ids": texts([each.id for each in joins]),
            "flow_ids": texts([each.flow_id for each in joins]),
            "remaining": numbers([each.remaining for each in joins]),
            "members": ByteaArray([each.members for each in joins]),
        }
        self._tx.execute(_SQL["insert_joins"], values)

    def count_at(self, counts: Counter[str]) -> list[str]:
        """Subtract ended predecessors from joins. Returns the joins that have none left."""
        values = {"ids": texts(counts), "numbers": numbers(counts.values())}
        rows = self._tx.execute(_SQL["count_at"], values).fetchall()
        return sorted(join for join, remaining in rows if remaining == 0)

    def is_open(self, join_id: str) -> bool:
        """Whether a join has no predecessors left."""
        values = {"ids": texts([join_id])}
        return not self._tx.execute(_SQL["closed_joins"], values).fetchall()

    def open_joins(self, flow_id: str) -> list[str]:
        """The joins of a flow that have no predecessors left."""
        rows = self._tx.execute(_SQL["open_joins"], {"flow_id": flow_id}).fetchall()
        return [join for (join,) in rows]

    def release(self, joins: Sequence[str], limit: int) -> ReleaseSlice:
        """Release steps that wait at joins."""
        values = {"now": self.at, "joins": texts(joins), "limit": limit}
        rows = self._tx.execute(_SQL["release"], values).fetchall()
        early = [
            EarlySignal(row[:_POSITION], row[-1])
            for row in sorted(rows)
            if row[-2] is not None and row[-1] is not None
        ]
        return ReleaseSlice(len(rows), early)

    def waiting(self, flow_id: str, after: int, limit: int) -> list[JobPosition]:
        """Steps that wait."""
        return [_position(row) for row in self._page("waiting", flow_id, after, limit)]

    def ended(self, flow_id: str, after: int, limit: int) -> list[EndedStep]:
        """Steps that failed or were cancelled."""
        rows = self._page("ended_badly", flow_id, after, limit)
        return [EndedStep(_position(row), row[-2], feeds_from(row[-1])) for row in rows]

    def _page(self, statement: str, flow_id: str, after: int, limit: int) -> list[Row]:
        values = {"flow_id": flow_id, "after": after, "limit": limit}
        return self._tx.execute(_SQL[statement], values).fetchall()

    def set_feeds(self, key: int, feeds: Sequence[str]) -> None:
        """Set the joins at which the end of a step counts."""
        self._tx.execute(_SQL["set_feeds"], {"seq": key, "feeds": text_of(feeds)})

    def predecessors(self, ids: Sequence[str]) -> list[Predecessor]:
        """The jobs of these ids."""
        rows = self._tx.execute(_SQL["predecessors"], {"ids": texts(ids)}).fetchall()
        return [
            Predecessor(seq, job_id, JobStatus(status), flow_id, feeds_from(feeds or "[]"), why)
            for seq, job_id, status, flow_id, feeds, why in rows
        ]

    def adopt(self, key: int, flow_id: str, feeds: Sequence[str]) -> None:
        """Make a job a step of a flow."""
        values = {"seq": key, "flow_id": flow_id, "feeds": text_of(feeds)}
        self._tx.execute(_SQL["adopt"], values)

    def waiting_signals(self, flow_id: str, name: str) -> list[WaitingSignal]:
        """The steps of a flow that wait for a signal, or will, in the order in which they were
        added.
        """
        values = {"flow_id": flow_id, "name": name}
        rows = self._tx.execute(_SQL["signals"], values).fetchall()
        return [
            WaitingSignal(_position(row), is_reached, expires_at, early and bytes(early))
            for row in rows
            for is_reached, expires_at, early in [row[_POSITION:]]
        ]

    def keep_signal(self, key: int, value: bytes) -> None:
        """Keep the value of a signal for a step that has not been reached."""
        self._tx.execute(_SQL["keep_signal"], {"seq": key, "value": value})

    def settle_all(self, settlements: Sequence[Settlement]) -> None:
        """Apply transitions of steps."""
        if settlements:
            self._settlement.apply(settlements)

    def insert(self, steps: Sequence[NewJob]) -> None:
        """Add new steps."""
        for first in range(0, len(steps), MAX_INSERTED):
            some = steps[first : first + MAX_INSERTED]
            self._tx.execute(_SQL["insert_steps"], _step_values(some))
            labels = label_values(some)
            if labels is not None:
                self._tx.execute(_JOBS["index"], labels)

    def first_work(self) -> FlowWork | None:
        """A piece of unfinished work of a flow that no other transaction is changing."""
        rows = self._tx.execute(_SQL["first_work"]).fetchall()
        return FlowWork(*rows[0]) if rows else None

    def find_work(self, target: str) -> FlowWork | None:
        """The unfinished work at a target."""
        rows = self._tx.execute(_SQL["work_of"], {"target": target}).fetchall()
        return FlowWork(*rows[0]) if rows else None

    def put_work(self, work: FlowWork) -> None:
        """Record how far a piece of work is; other work gets its turn first."""
        self.drop_work(work.target)
        self._tx.execute(_SQL["put_work"], work._asdict() | {"flow_id": work.flow_id})

    def drop_work(self, target: str) -> None:
        """Delete finished work."""
        self._tx.execute(_SQL["drop_work"], {"target": target})

    def changed(self) -> None:
        """Note that something may have become claimable, or is left to be done."""
        self._settlement.effects.is_work = True


def _position(row: Row) -> JobPosition:
    seq, job_id, status, fence, attempts, deliveries, excused, queue = row[:_POSITION]
    return seq, job_id, status, fence, attempts, deliveries, excused, queue


def flow_row(row: Row) -> FlowRow:
    """A row of the statement ``flow``."""
    flow_id, on_failure, status, *counts = row[:8]
    state = FlowState(OnFailure(on_failure), FlowStatus(status), *counts)
    keep, purge_at, name, created_at, changed_at, plan = row[8:]
    return FlowRow(flow_id, state, keep, purge_at, name, created_at, changed_at, bytes(plan))


def flow_values(row: FlowRow) -> dict[str, Any]:
    """All columns of a flow, by name."""
    return msgspec.structs.asdict(row.state) | {
        "id": row.id,
        "on_failure": row.state.on_failure.value,
        "status": row.state.status.value,
        "keep": row.keep,
        "purge_at": row.purge_at,
        "changed_at": row.changed_at,
        "name": row.name,
        "created_at": row.created_at,
        "plan": row.plan,
    }


def _step_values(jobs: Sequence[NewJob]) -> dict[str, Any]:
    places = [job.step for job in jobs if job.step is not None]
    return {
        **plain_values(jobs),
        **special_values(jobs, step_options_text),
        "flow_ids": texts([place.flow_id for place in places]),
        "join_ids": texts([place.join_id for place in places]),
        "feeds": texts([feeds_text(place.feeds) for place in places]),
        "waits": numbers([place.wait for place in places]),
        "signals": texts([place.signal for place in places]),
    }


def purge_flows(tx: PostgresTx, limit: int) -> int:
    """Delete flows whose retention is over, with their steps; at most so many steps."""
    purged = 0
    due = tx.execute(_SQL["kept_long_enough"], {"limit": limit}).fetchall()
    for (flow_id,) in due:
        purged += purge_flow(tx, flow_id, limit - purged)
        if purged >= limit:
            break
    return purged


def purge_flow(tx: PostgresTx, flow_id: str, limit: int) -> int:
    """Delete at most so many steps of a flow. If fewer are left, the flow is deleted, too. Returns
    how many.
    """
    values = {"flow_id": flow_id, "limit": limit}
    purged = tx.execute(_SQL["purge_steps"], values).rowcount
    if purged < limit:
        for statement in ("purge_joins", "purge_work", "purge_flow"):
            tx.execute(_SQL[statement], values)
    return purged


def settle_steps(
    transactions: PostgresTransactions, settlements: Sequence[Settlement], call: str
) -> tuple[list[bool], Effects]:
    """Settle steps in a transaction of their own; jobs that belong to no flow are left alone."""
    topics: set[Topic] = set()

    def send(tx: PostgresTx) -> Callable[[], tuple[list[bool], Effects]]:
        steps = StepSettlement(tx)
        applied = steps.apply(settlements)
        steps.finish()
        # Before `pipelined` notifies: it looks at the set only after everything was sent.
        topics.update(steps.topics())
        return lambda: ([each is True for each in applied], steps.read())

    return transactions.pipelined(send, call, topics=topics)


def do_slice(transactions: PostgresTransactions, call: str) -> Effects:
    """Do one slice of unfinished work."""
    topics: set[Topic] = set()

    def send(tx: PostgresTx) -> Callable[[], Effects]:
        steps = StepSettlement(tx)
        steps.flows.do_slice()
        topics.update(steps.topics())
        return steps.read

    return transactions.pipelined(send, call, topics=topics)
