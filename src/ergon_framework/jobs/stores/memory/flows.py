"""Flows in a memory store: what ``FlowSettlement`` asks for, and the calls of their port."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Protocol

import msgspec

from ergon_framework.core.flow import FlowEvent, FlowStatus
from ergon_framework.core.job import JobStatus
from ergon_framework.core.retention import JobRetention
from ergon_framework.jobs.stores.flow_settlement import (
    EarlySignal,
    EndedStep,
    FlowRow,
    FlowSettlement,
    FlowWork,
    Predecessor,
    ReleaseSlice,
    WaitingSignal,
    is_as_read,
)
from ergon_framework.jobs.stores.memory.rows import MemoryJob
from ergon_framework.jobs.stores.pages import flow_page
from ergon_framework.jobs.stores.transitions import JobPosition
from ergon_framework.ports.flow import Flow, Join, NewFlow, SignalOutcome
from ergon_framework.ports.jobstore import EnqueueResult, NewJob, Settlement

_BAD_ENDS = (JobStatus.FAILED, JobStatus.CANCELLED)


@dataclass(slots=True)
class FlowBook:
    """All flows with their joins, and where their steps are."""

    flows: dict[str, FlowRow] = field(default_factory=dict)  # in the order of adding
    places: dict[str, int] = field(default_factory=dict)  # of flows, in that order
    joins: dict[str, Join] = field(default_factory=dict)
    steps: dict[str, dict[int, MemoryJob]] = field(default_factory=dict)  # by flow and key
    work: dict[str, FlowWork] = field(default_factory=dict)  # by target
    added: int = 0

    def put(self, row: FlowRow) -> None:
        """Write a flow; a new one comes behind all others."""
        if row.id not in self.places:
            self.added += 1
            self.places[row.id] = self.added
        self.flows[row.id] = row

    def discard(self, flow_id: str) -> None:
        """Forget a flow, if it is there, and its place."""
        self.flows.pop(flow_id, None)
        self.places.pop(flow_id, None)

    def enlist(self, record: MemoryJob) -> None:
        """A step belongs to its flow."""
        if record.flow_id is not None:
            self.steps.setdefault(record.flow_id, {})[record.key] = record

    def forget(self, record: MemoryJob) -> None:
        """A step is removed."""
        if record.flow_id is not None:
            self.steps.get(record.flow_id, {}).pop(record.key, None)

    def is_stopping(self, record: MemoryJob) -> bool:
        """Whether a step may not start any more, since its flow stops."""
        flow = self.flows.get(record.flow_id or "")
        return flow is not None and flow.state.status.is_stopping

    def due(self, now: float) -> list[FlowRow]:
        """Flows that were kept long enough."""
        rows = self.flows.values()
        return [row for row in rows if row.purge_at is not None and row.purge_at <= now]

    def drop(self, flow_id: str) -> None:
        """Forget a flow and its joins."""
        self.discard(flow_id)
        self.steps.pop(flow_id, None)
        for join in [each.id for each in self.joins.values() if each.flow_id == flow_id]:
            del self.joins[join]


class StepJobs(Protocol):
    """What flows need of the table."""

    records: dict[int, MemoryJob]
    by_id: dict[str, MemoryJob]
    flow_book: FlowBook
    retention: JobRetention
    is_work: bool

    def add(self, jobs: Sequence[NewJob], now: float) -> list[EnqueueResult]:
        """Add all jobs or none."""

    def settle(self, settlement: Settlement, now: float) -> bool:
        """Apply a transition."""

    def release(self, record: MemoryJob, now: float) -> None:
        """A step waits for its predecessors no more."""

    def moves(self, now: float) -> FlowSettlement:
        """The flows that this step of a caller changes."""

    def keep(self, record: MemoryJob) -> None:
        """Keep a job that became a step as long as its flow."""

    def check_new(self, jobs: Sequence[NewJob], now: float) -> None:
        """Refuse jobs whose ids are taken."""

    def purge_flow(self, flow_id: str, limit: int) -> int:
        """Delete some steps of a flow, and with the last the flow itself."""


class MemoryFlowTables:
    """Flows within one step of a caller."""

    def __init__(self, table: StepJobs, now: float) -> None:
        self._table = table
        self._book = table.flow_book
        self._now = now

    @property
    def at(self) -> float:
        """The instant of the step."""
        return self._now

    @property
    def retention(self) -> JobRetention:
        """How long jobs are kept that end in the step."""
        return self._table.retention

    def get_flow(self, flow_id: str) -> FlowRow | None:
        """A flow."""
        row = self._book.flows.get(flow_id)
        # A copy, as a database gives one: a change that is planned and then refused must not show.
        return None if row is None else replace(row)

    def put_flow(self, row: FlowRow, *, is_new: bool = False) -> None:
        """Write a flow."""
        self._book.put(replace(row))

    def put_flows(self, rows: Sequence[FlowRow]) -> None:
        """Update existing flows."""
        for row in rows:
            self.put_flow(row)

    def put_joins(self, joins: Sequence[Join]) -> None:
        """Add joins."""
        self._book.joins.update({join.id: join for join in joins})

    def count_at(self, counts: Counter[str]) -> list[str]:
        """Subtract ended predecessors from joins. Returns the joins that have none left."""
        for join_id, number in counts.items():
            join = self._book.joins[join_id]
            left = msgspec.structs.replace(join, remaining=join.remaining - number)
            self._book.joins[join_id] = left
        return [join_id for join_id in sorted(counts) if self.is_open(join_id)]

    def is_open(self, join_id: str) -> bool:
        """Whether a join has no predecessors left."""
        return self._book.joins[join_id].remaining == 0

    def open_joins(self, flow_id: str) -> list[str]:
        """The joins of a flow that have no predecessors left."""
        joins = self._book.joins.values()
        return [each.id for each in joins if each.flow_id == flow_id and self.is_open(each.id)]

    def release(self, joins: Sequence[str], limit: int) -> ReleaseSlice:
        """Release steps that wait at joins."""
        waiting = (
            step
            for join_id in joins
            for step in self._steps(self._book.joins[join_id].flow_id)
            if step.join_id == join_id and step.is_joining
        )
        found = list(islice(waiting, limit))
        for record in found:
            self._table.release(record, self._now)
        early = [
            EarlySignal(record.position(), record.result)
            for record in found
            if record.signal is not None and record.result is not None
        ]
        return ReleaseSlice(len(found), early)

    def waiting(self, flow_id: str, after: int, limit: int) -> list[JobPosition]:
        """Steps that wait."""
        found = (
            step.position()
            for step in self._steps(flow_id, after)
            if not step.status.is_final and step.status is not JobStatus.ACTIVE
        )
        return list(islice(found, limit))

    def ended(self, flow_id: str, after: int, limit: int) -> list[EndedStep]:
        """Steps that failed or were cancelled."""
        found = (
            EndedStep(step.position(), step.why, step.feeds or ())
            for step in self._steps(flow_id, after)
            if step.status in _BAD_ENDS
        )
        return list(islice(found, limit))

    def set_feeds(self, key: int, feeds: Sequence[str]) -> None:
        """Set the joins at which the end of a step counts."""
        self._table.records[key].feeds = tuple(feeds)

    def predecessors(self, ids: Sequence[str]) -> list[Predecessor]:
        """The jobs of these ids."""
        found = [self._table.by_id[each] for each in ids if each in self._table.by_id]
        return [
            Predecessor(
                each.key, each.new.id, each.status, each.flow_id, each.feeds or (), each.why
            )
            for each in found
        ]

    def adopt(self, key: int, flow_id: str, feeds: Sequence[str]) -> None:
        """Make a job a step of a flow."""
        record = self._table.records[key]
        record.flow_id, record.feeds = flow_id, tuple(feeds)
        self._table.keep(record)
        self._book.enlist(record)

    def waiting_signals(self, flow_id: str, name: str) -> list[WaitingSignal]:
        """The steps of a flow that wait for a signal, or will, in the order in which they were
        added.
        """
        return [
            WaitingSignal(step.position(), step.join_id is None, step.expires_at, step.result)
            for step in self._steps(flow_id)
            if step.signal == name and step.is_joining
        ]

    def keep_signal(self, key: int, value: bytes) -> None:
        """Keep the value of a signal for a step that has not been reached."""
        self._table.records[key].result = value

    def settle_all(self, settlements: Sequence[Settlement]) -> None:
        """Apply transitions of steps."""
        for settlement in settlements:
            self._table.settle(settlement, self._now)

    def insert(self, steps: Sequence[NewJob]) -> None:
        """Add new steps."""
        self._table.add(steps, self._now)

    def first_work(self) -> FlowWork | None:
        """A piece of unfinished work."""
        return next(iter(self._book.work.values()), None)

    def find_work(self, target: str) -> FlowWork | None:
        """The unfinished work at a target."""
        return self._book.work.get(target)

    def put_work(self, work: FlowWork) -> None:
        """Record how far a piece of work is; other work gets its turn first."""
        # Taken out first, because a dict keeps the old position of a key: each flow gets its turn.
        self._book.work.pop(work.target, None)
        self._book.work[work.target] = work

    def drop_work(self, target: str) -> None:
        """Delete finished work."""
        self._book.work.pop(target, None)

    def changed(self) -> None:
        """Note that something may have become claimable, or is left to be done."""
        self._table.is_work = True

    def _steps(self, flow_id: str, after: int = 0) -> Iterator[MemoryJob]:
        found = list(self._book.steps.get(flow_id, {}).values())
        # Sorted: a job that became a step later may have been added to the store long before.
        return (step for step in sorted(found, key=_key) if step.key > after)


def _key(record: MemoryJob) -> int:
    return record.key


class MemoryFlows:
    """The flows of one job store."""

    def __init__(
        self, step: Callable[[], AbstractContextManager[StepJobs]], now: Callable[[], float]
    ) -> None:
        self._step = step
        self._now = now

    def add(self, flow: NewFlow, steps: Sequence[NewJob]) -> list[EnqueueResult]:
        """Store a flow and its steps in one step, or steps of a flow that is there."""
        with self._step() as table:
            table.check_new(steps, self._now())
            table.moves(self._now()).add(flow, steps)
            return [EnqueueResult(step.id, True) for step in steps]

    def find(self, flow_id: str) -> Flow | None:
        """One flow."""
        with self._step() as table:
            row = table.flow_book.flows.get(flow_id)
            return None if row is None else row.flow()

    def search(self, statuses: Sequence[FlowStatus], limit: int) -> list[Flow]:
        """Flows in one of these states, or in any; the newest first."""
        return self.page(statuses, limit)[0]

    def page(
        self, statuses: Sequence[FlowStatus], limit: int, below: int | None = None
    ) -> tuple[list[Flow], int | None]:
        """One page of flows, and the place below which the next page begins; None: this was the
        last page.
        """
        with self._step() as table:
            book = table.flow_book
            found = (
                (book.places[row.id], row.flow())
                for row in reversed(book.flows.values())
                if (not statuses or row.state.status in statuses)
                and (below is None or book.places[row.id] < below)
            )
            return flow_page([*islice(found, limit + 1)], limit)

    def joins(self, flow_id: str) -> list[Join]:
        """The joins of a flow, in the order in which they were added."""
        with self._step() as table:
            joins = table.flow_book.joins.values()
            return [each for each in joins if each.flow_id == flow_id]

    def apply(self, flow_id: str, event: FlowEvent) -> Flow:
        """Cancel, retry or skip."""
        with self._step() as table:
            return table.moves(self._now()).apply(flow_id, event)

    def sweep(self, flow_id: str) -> bool:
        """Continue a decision for one slice of steps. Returns whether anything is left to do."""
        with self._step() as table:
            return table.moves(self._now()).sweep(flow_id)

    def purge(self, flow_id: str) -> None:
        """Let retention delete a flow that has ended, with its steps."""
        with self._step() as table:
            table.moves(self._now()).purge(flow_id)

    def prunable(self, limit: int) -> list[Flow]:
        """Flows that have ended and whose retention is over."""
        with self._step() as table:
            found = table.flow_book.due(self._now())
            found.sort(key=lambda row: row.purge_at or 0.0)
            return [row.flow() for row in found[:limit]]

    def delete(self, flow: Flow, limit: int) -> bool:
        """Delete some steps of a flow whose retention is over, and finally the flow."""
        with self._step() as table:
            row = table.flow_book.flows.get(flow.id)
            if row is None or not is_as_read(row, flow, self._now()):
                return False
            return table.purge_flow(flow.id, limit) >= limit

    def signal(self, flow_id: str, name: str, value: bytes) -> SignalOutcome:
        """Complete the step that waits for a signal, or keep the value for the step that will wait
        for it.
        """
        with self._step() as table:
            return table.moves(self._now()).signal(flow_id, name, value)

    def results(self, ids: Sequence[str]) -> Mapping[str, bytes | None]:
        """What jobs returned, by id."""
        with self._step() as table:
            found = ((each, table.by_id.get(each)) for each in ids)
            return {
                job_id: record.result
                for job_id, record in found
                if record is not None
                and record.status is JobStatus.COMPLETED
                and record.result is not None
            }
