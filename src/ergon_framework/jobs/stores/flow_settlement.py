"""What the end of a step brings about: joins count it, and the step or callback behind is released.

The same in every store but Redis, where ``lua/steps.lua`` does it, held to this by tests.
``core/flow.py`` decides; :class:`FlowSettlement` asks it, gathers what one transaction has to
change, and has the store's own tables (:class:`FlowTables`) change it. A store settles the step
itself: it asks :meth:`FlowSettlement.plan` what the end of the step means, writes the row behind
its fence, and tells :meth:`FlowSettlement.accept` only when the row was written.

Stopping. A flow stops in one commit, and its steps are cancelled in slices. A step that no slice
has come to must not start: whoever claims asks for work of the kind :data:`CANCEL`, which costs
nothing where there is none, and cancels the candidates whose flow is the target of such work.

Locks. A transaction that settles steps locks their flows first, in the order of their ids. Whoever
releases or sweeps steps of a flow holds its lock, too: two transactions never wait for each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from ergon_framework.core.flow import (
    FlowChange,
    FlowEvent,
    FlowState,
    InvalidFlowChange,
    StepEnded,
    StepReturned,
    StepsAdded,
    StepSkipped,
    Sweep,
    SweepEnded,
    advance,
)
from ergon_framework.core.job import EDITED, SUPERSEDED, JobStatus
from ergon_framework.core.retention import JobRetention
from ergon_framework.errors import DuplicateJobError, JobNotFoundError, JobStateError
from ergon_framework.jobs.stores.transitions import (
    JobPosition,
    bring_back,
    cancel_step,
    complete_signal,
    expire,
)
from ergon_framework.ports.flow import (
    CANCELLED_BY_FLOW,
    Flow,
    Join,
    NewFlow,
    SignalOutcome,
    flow_of,
)
from ergon_framework.ports.jobstore import NewJob, Settlement
from ergon_framework.storage.conflicts import ConflictError
from ergon_framework.storage.urls import pasteable

SLICE = 500
"""Steps that one transaction releases, cancels or brings back at once."""
RELEASE = "release"
CANCEL = Sweep.CANCEL.value
"""The kind of work that cancels the steps of a flow which stops."""


@dataclass(slots=True)
class FlowRow:
    """A flow within a transaction."""

    id: str
    state: FlowState
    keep: float | None = 0.0
    purge_at: float | None = None
    name: str = ""
    created_at: float = 0.0
    changed_at: float = 0.0
    plan: bytes = b"{}"

    @classmethod
    def of(cls, flow: Flow) -> FlowRow:
        """The row of a flow that comes from another store."""
        return cls(
            flow.id,
            flow.state,
            flow.keep,
            flow.purge_at,
            flow.name,
            flow.created_at,
            flow.changed_at,
            flow.plan,
        )

    def flow(self) -> Flow:
        """As callers of the store see it."""
        return Flow(
            id=self.id,
            name=self.name,
            state=self.state,
            created_at=self.created_at,
            changed_at=self.changed_at,
            purge_at=self.purge_at,
            keep=self.keep,
            plan=self.plan,
        )


def is_as_read(row: FlowRow, flow: Flow, now: float) -> bool:
    """Whether a flow may go that a caller has read: it was kept long enough, and nothing changed.

    A flow that is retried has another instant of its last change.
    """
    is_unchanged = (row.purge_at, row.changed_at) == (flow.purge_at, flow.changed_at)
    return is_unchanged and row.purge_at is not None and row.purge_at <= now


class EarlySignal(NamedTuple):
    """A step that has just been released, and whose signal had come before."""

    position: JobPosition
    value: bytes


class WaitingSignal(NamedTuple):
    """A step that a signal can complete."""

    position: JobPosition
    is_reached: bool  # else it waits for others, and what comes for it is kept
    expires_at: float | None  # its time limit, of one that has been reached
    early: bytes | None  # the value that is kept for it


class ReleaseSlice(NamedTuple):
    """What one slice of a release did."""

    number: int
    signalled: Sequence[EarlySignal]


class EndedStep(NamedTuple):
    """A step that failed or was cancelled."""

    position: JobPosition
    why: str
    feeds: tuple[str, ...]


class Predecessor(NamedTuple):
    """A job that others are to wait for: its number, its state, and its flow if it has one."""

    key: int
    id: str
    status: JobStatus
    flow_id: str | None
    feeds: tuple[str, ...]
    why: str

    @property
    def was_edited(self) -> bool:
        """Whether it is no step, and another job was stored in its place."""
        is_over = self.status is JobStatus.CANCELLED and self.why == EDITED
        return is_over and self.flow_id is None


class FlowWork(NamedTuple):
    """Something that is done in slices, to the steps at a join or of a flow, and how far it is."""

    target: str
    kind: str
    after: int

    @property
    def flow_id(self) -> str:
        """The flow in which it is done."""
        return flow_of(self.target) if self.kind == RELEASE else self.target


class FlowTables(Protocol):
    """What one transaction of a store reads and writes of flows."""

    @property
    def at(self) -> float:
        """The instant of the transaction."""

    @property
    def retention(self) -> JobRetention:
        """How long jobs are kept that end in the transaction."""

    def get_flow(self, flow_id: str) -> FlowRow | None:
        """A flow; nobody else changes it until the transaction ends."""

    def put_flow(self, row: FlowRow, *, is_new: bool = False) -> None:
        """Write a flow."""

    def put_flows(self, rows: Sequence[FlowRow]) -> None:
        """Update existing flows, in the given order."""

    def put_joins(self, joins: Sequence[Join]) -> None:
        """Add joins."""

    def count_at(self, counts: Counter[str]) -> list[str]:
        """Subtract ended predecessors from joins. Returns the joins that have none left."""

    def is_open(self, join_id: str) -> bool:
        """Whether a join has no predecessors left."""

    def open_joins(self, flow_id: str) -> list[str]:
        """The joins of a flow that have no predecessors left."""

    def release(self, joins: Sequence[str], limit: int) -> ReleaseSlice:
        """Release steps that wait at a join: each becomes due, or waits for its signal."""

    def waiting(self, flow_id: str, after: int, limit: int) -> list[JobPosition]:
        """Steps that wait, in the order in which they were added."""

    def ended(self, flow_id: str, after: int, limit: int) -> list[EndedStep]:
        """Steps that failed or were cancelled, in the order in which they were added."""

    def set_feeds(self, key: int, feeds: Sequence[str]) -> None:
        """Set the joins at which the end of a step counts."""

    def predecessors(self, ids: Sequence[str]) -> list[Predecessor]:
        """The jobs of these ids, as far as there are any; nobody else changes them."""

    def adopt(self, key: int, flow_id: str, feeds: Sequence[str]) -> None:
        """Make a job a step of a flow. From then on it is kept as long as the flow."""

    def waiting_signals(self, flow_id: str, name: str) -> list[WaitingSignal]:
        """The steps of a flow that wait for a signal, or will, in the order in which they were
        added.
        """

    def keep_signal(self, key: int, value: bytes) -> None:
        """Keep the value of a signal for a step that has not been reached."""

    def settle_all(self, settlements: Sequence[Settlement]) -> None:
        """Apply transitions of steps like those that a worker reports; at most one for
        each step.
        """

    def insert(self, steps: Sequence[NewJob]) -> None:
        """Add new steps."""

    def first_work(self) -> FlowWork | None:
        """A piece of unfinished work that no other transaction is doing."""

    def find_work(self, target: str) -> FlowWork | None:
        """The unfinished work at a target."""

    def put_work(self, work: FlowWork) -> None:
        """Record how far a piece of work is; it replaces other work for the same target."""

    def drop_work(self, target: str) -> None:
        """Delete finished work."""

    def changed(self) -> None:
        """Note that something may have become claimable, or is left to be done."""


@dataclass(slots=True)
class FlowSettlement:
    """The flows that one transaction changes."""

    tables: FlowTables
    _rows: dict[str, FlowRow] = field(default_factory=dict)
    _dirty: set[str] = field(default_factory=set)
    _counts: Counter[str] = field(default_factory=Counter)
    _sweeps: dict[str, Sweep] = field(default_factory=dict)

    # ---- for the settlement of a step ----

    def row(self, flow_id: str) -> FlowRow:
        """A flow that a step names."""
        # Read once per transaction: what was changed here must not be read again from the row.
        row = self._rows.get(flow_id) or self.tables.get_flow(flow_id)
        if row is None:
            raise no_flow(flow_id)
        self._rows[flow_id] = row
        return row

    def hold(self, rows: Iterable[FlowRow]) -> None:
        """Take flows that the store has read and locked, in the order of their ids."""
        for row in rows:
            self._rows.setdefault(row.id, row)

    def plan(self, flow_id: str, event: FlowEvent) -> FlowChange | None:
        """What an event makes of a flow; None where it cannot happen."""
        try:
            return advance(self.row(flow_id).state, event)
        except InvalidFlowChange:
            return None

    def accept(
        self,
        flow_id: str,
        change: FlowChange,
        feeds: Sequence[str] = (),
        keep: float | None = 0.0,
    ) -> None:
        """The step was written: what was planned is so. ``keep``: how long its result is wanted."""
        row = self.row(flow_id)
        row.state = change.state
        # The flow is kept as long as the step that is kept longest, since results are read through
        # it.
        row.keep = None if row.keep is None or keep is None else max(row.keep, keep)
        self._dirty.add(flow_id)
        if change.counts:
            for join in feeds:  # ``update`` would take longer: most steps have one
                self._counts[join] += 1
        if change.sweep is not None:
            self._sweeps[flow_id] = change.sweep

    def is_stopping(self, flow_id: str) -> bool:
        """Whether no step of the flow may start any more."""
        return self.row(flow_id).state.status.is_stopping

    # ---- at the end of a transaction ----

    def finish(self) -> None:
        """Do what the settlements bring about, and write the flows."""
        # Counting may release steps that end at once, whose ends count again: until nothing
        # follows.
        while self._counts or self._sweeps:
            counts, self._counts = self._counts, Counter()
            if counts:
                self._open(counts)
            elif self._sweeps:
                self._sweep(FlowWork(*self._sweeps.popitem(), 0))
        # In the order of their ids, as all transactions do.
        rows = [self._rows[flow_id] for flow_id in sorted(self._dirty)]
        for row in rows:
            self._stamp(row)
        if rows:
            self.tables.put_flows(rows)
        self._dirty.clear()

    def do_slice(self) -> None:
        """Do one slice of unfinished work, and what follows from it."""
        work = self.tables.first_work()
        if work is None:
            return
        target = work.target
        # Deleted meanwhile; its work would be found first for ever.
        if self.tables.get_flow(work.flow_id) is None:
            self.tables.drop_work(target)
            return
        work = self.tables.find_work(target)  # as it is now that nobody else changes it
        if work is None:
            return
        if work.kind == RELEASE:
            self.release(work.target)
        else:
            self._sweep(work)
        self.finish()

    def sweep(self, flow_id: str) -> bool:
        """Go on with the sweep of a flow, one slice of it; whether anything is left."""
        self.row(flow_id)
        work = self.tables.find_work(flow_id)
        if work is None:
            return False
        self._sweep(work)
        self.finish()
        return self.tables.find_work(flow_id) is not None

    def _stamp(self, row: FlowRow) -> None:
        """Note when a flow was changed, and until when one is kept that has ended."""
        now = self.tables.at
        row.changed_at = now
        # A flow that was retried has not ended any more: retention must not delete it.
        row.purge_at = None
        if row.state.status.is_final and row.keep is not None:
            row.purge_at = now + row.keep

    def _open(self, counts: Counter[str]) -> None:
        opened = self.tables.count_at(counts)
        # Where a flow stops, its steps stay where they are: the sweep cancels them there.
        going = [join for join in opened if not self.is_stopping(flow_of(join))]
        if going:
            # A join opens once: nothing is noted as left at it yet, which would have to be dropped.
            self._release(going)

    def release(self, join: str) -> None:
        """Let the steps go that wait at an open join, the first slice of them."""
        if self.is_stopping(flow_of(join)):
            self.tables.drop_work(join)
            return
        if not self._release([join]):
            self.tables.drop_work(join)

    def _release(self, joins: Sequence[str]) -> bool:
        """Let a slice of the steps go that wait at open joins; whether any may be left."""
        released = self.tables.release(joins, SLICE)
        if released.number:
            self.tables.changed()
        now = self.tables.at
        early = [complete_signal(position, value, now) for position, value in released.signalled]
        if early:
            self.tables.settle_all(early)
        if released.number < SLICE:
            return False
        # A full slice: there may be more at any of them, which later transactions release.
        for join in joins:
            self.tables.put_work(FlowWork(join, RELEASE, 0))
        return True

    # ---- sweeps ----

    def _sweep(self, work: FlowWork) -> None:
        flow_id, kind, after = work
        sweep = Sweep(kind)
        if sweep is Sweep.CANCEL:
            last, is_over = self._cancel(flow_id, after)
        else:
            # With the first slice only: joins that were open when the flow stopped have steps to
            # let go.
            if not after:
                for join in self.tables.open_joins(flow_id):
                    self.release(join)
            last, is_over = self._bring_back(flow_id, after, skips=sweep is Sweep.SKIP)
        # What was settled in this slice may have failed the flow again; that sweep takes the place
        # of this one.
        if flow_id in self._sweeps:
            return  # another one has begun in its place
        if not is_over:
            self.tables.put_work(FlowWork(flow_id, sweep.value, last))
            self.tables.changed()
            return
        self.tables.drop_work(flow_id)
        # A flow that was cancelled has nothing to decide: it ends with its last step.
        change = None if sweep is Sweep.CANCEL else self.plan(flow_id, SweepEnded())
        if change is not None:
            self.accept(flow_id, change)

    def _cancel(self, flow_id: str, after: int) -> tuple[int, bool]:
        found = self.tables.waiting(flow_id, after, SLICE)
        now = self.tables.at
        self.tables.settle_all(
            [cancel_step(position, now, self.tables.retention) for position in found]
        )
        return (found[-1][0] if found else after), len(found) < SLICE

    def _bring_back(self, flow_id: str, after: int, *, skips: bool) -> tuple[int, bool]:
        found = self.tables.ended(flow_id, after, SLICE)
        back: list[Settlement] = []
        for step in found:
            # Another job does its work with newer arguments: it must not run with the old ones.
            if not skips and step.why in SUPERSEDED:
                continue
            if not skips or step.why == CANCELLED_BY_FLOW:
                back.append(bring_back(step.position, self.tables.at))
            # Without a join at which its end has yet to count, there is nothing to skip.
            elif step.feeds and (change := self.plan(flow_id, StepSkipped())) is not None:
                self.tables.set_feeds(step.position[0], ())
                self.accept(flow_id, change, step.feeds)
        self.tables.settle_all(back)
        return (found[-1].position[0] if found else after), len(found) < SLICE

    # ---- adding ----

    def add(self, new: NewFlow, steps: Sequence[NewJob]) -> None:
        """Add a flow with its steps, or steps to a flow that is there."""
        if not new.is_new:
            self.row(new.id)  # before any job is locked
        found = self._found(new)
        if new.is_new:
            now = self.tables.at
            state = FlowState(new.on_failure)
            row = FlowRow(new.id, state, new.keep, None, new.name, now, now, new.plan)
            self._rows[new.id] = row
            self.tables.put_flow(row, is_new=True)
        # Jobs that the new steps wait for become steps themselves: the flow ends only when they
        # have.
        not_yet_steps = sum(each.flow_id is None for each in found)
        change = self.plan(new.id, StepsAdded(len(steps) + not_yet_steps))
        if change is None:
            raise flow_is_over(self.row(new.id).flow())
        self.accept(new.id, change)
        self.tables.put_joins(new.joins)
        self.tables.insert(steps)
        for each in found:
            self._follow(each, new.id, new.joins[0].id)

    def _found(self, new: NewFlow) -> list[Predecessor]:
        if not new.after:
            return []
        found = {each.id: each for each in self.tables.predecessors(new.after)}
        for job_id in new.after:
            if job_id not in found:
                raise no_predecessor(job_id)
            if found[job_id].flow_id not in (None, new.id):
                raise ConflictError  # it became a step of another flow since the client looked
            if found[job_id].was_edited:
                raise ConflictError  # since the client looked, which now finds what it became
        return list(found.values())

    def _follow(self, job: Predecessor, flow_id: str, join: str) -> None:
        """Let the end of a job count at a join; one that has ended is dealt with at once."""
        if job.flow_id is not None:
            has_counted = job.status.is_final and not job.feeds
            # An end counts once, and this one has counted before the join was there.
            if has_counted:
                self._counts[join] += 1
            else:
                self.tables.set_feeds(job.key, (*job.feeds, join))
            return
        feeds: tuple[str, ...] = (join,)
        if job.status.is_final:
            ended = self.plan(flow_id, StepEnded(job.status))
            if ended is not None:
                self.accept(flow_id, ended, feeds)
                feeds = () if ended.counts else feeds
        self.tables.adopt(job.key, flow_id, feeds)

    # ---- operators ----

    def apply(self, flow_id: str, event: FlowEvent) -> Flow:
        """Cancel, retry or skip."""
        change = advance(self.row(flow_id).state, event)
        self.accept(flow_id, change)
        self.finish()
        return self.row(flow_id).flow()

    def purge(self, flow_id: str) -> None:
        """Let retention delete a flow that has ended, with its steps."""
        row = self.row(flow_id)
        if not row.state.status.is_final:
            raise flow_goes_on(row.flow())
        row.purge_at = self.tables.at
        self.tables.put_flow(row)

    def signal(self, flow_id: str, name: str, value: bytes) -> SignalOutcome:
        """Complete the step that waits for a signal, or keep the value for the first that will.

        One step, also in a flow of an earlier version, which may have several of one name. A step
        whose time limit is over fails here and now: no worker may have come to it yet.
        """
        self.row(flow_id)
        now = self.tables.at
        found = self.tables.waiting_signals(flow_id, name)
        reached = [each for each in found if each.is_reached]
        in_time = [each for each in reached if each.expires_at is None or each.expires_at > now]
        if in_time:
            self.tables.settle_all([complete_signal(in_time[0].position, value, now)])
        elif reached:
            self.tables.settle_all([expire(reached[0].position, now, self.tables.retention)])
        elif not found:
            return SignalOutcome.UNKNOWN
        # The first value stays: a signal that is repeated must not replace what its sender was told
        # is taken.
        elif found[0].early is None:
            self.tables.keep_signal(found[0].position[0], value)
        elif found[0].early != value:
            return SignalOutcome.SIGNALLED
        self.finish()
        return SignalOutcome.TOO_LATE if reached and not in_time else SignalOutcome.TAKEN


def returned(status: JobStatus, feeds: Sequence[str]) -> StepReturned:
    """The event of a step that begins anew."""
    return StepReturned(status, not feeds)


# A store does not know its address: whoever has one opened adds it to the command at the end.


def no_flow(flow_id: str, option: str = "") -> JobNotFoundError:
    """There is no such flow."""
    return JobNotFoundError(
        f"there is no flow {flow_id!r}",
        remedy=f"this lists those that there are:  ergon flows{option}",
        details={"flow_id": flow_id},
    )


def flow_taken(flow_id: str) -> DuplicateJobError:
    """There is a flow with this id."""
    return DuplicateJobError(
        f"there is a flow with the id {flow_id!r}",
        remedy="enqueue the chain or group again: it gets another id",
        details={"flow_id": flow_id},
    )


def no_predecessor(job_id: str) -> JobNotFoundError:
    """A job that another is to wait for is not there."""
    return JobNotFoundError(
        f"there is no job {job_id!r} to wait for",
        remedy="enqueue it first; ended jobs are kept for a while only",
        details={"job_id": job_id},
    )


def flow_goes_on(flow: Flow) -> JobStateError:
    """A flow that has not ended cannot be purged."""
    return JobStateError(
        f"the flow {flow.id} is {flow.status} and cannot be purged",
        remedy=f"wait for its end, or give it up first:  {pasteable('flows cancel', flow.id)}",
        details={"flow_id": flow.id, "status": flow.status.value},
    )


def flow_is_over(flow: Flow) -> JobStateError:
    """A flow that stops, or has stopped, takes no more steps."""
    return JobStateError(
        f"the flow {flow.id} is {flow.status} and takes no more steps",
        remedy=f"this lets it go on:  {pasteable('flows retry', flow.id)}",
        details={"flow_id": flow.id, "status": flow.status.value},
    )
