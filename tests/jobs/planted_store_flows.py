"""Job stores that keep flows wrongly in one way each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar

from ergon_framework.core.claim import ClaimRequest
from ergon_framework.core.flow import (
    FlowChange,
    FlowEvent,
    OnFailure,
    RetryFlow,
    StepEnded,
    StepReturned,
    advance,
    replace,
)
from ergon_framework.core.job import SUPERSEDED, JobStatus
from ergon_framework.jobs.stores.flow_settlement import (
    EndedStep,
    FlowSettlement,
    FlowWork,
    Predecessor,
    WaitingSignal,
)
from ergon_framework.jobs.stores.memory.flows import MemoryFlowTables
from ergon_framework.jobs.stores.memory.job_table import JobTable
from ergon_framework.jobs.stores.memory.records import MemoryJobRecords
from ergon_framework.jobs.stores.memory.rows import MemoryJob
from ergon_framework.ports.flow import Flow, NewFlow, SignalOutcome
from ergon_framework.ports.jobstore import ClaimResult, Job, NewJob, Search, Settlement
from ergon_framework.ports.transfer import Fence, FlowRecord, JobRecord, TransferRecord
from tests.jobs.planted_stores import Honest, change


class Flows(Honest):
    """A store whose table keeps flows in the tables and by the moves of a class."""

    Tables: type[MemoryFlowTables] = MemoryFlowTables
    Moves: type[FlowSettlement] = FlowSettlement

    class PlantedJobTable(JobTable):
        Tables: type[MemoryFlowTables] = MemoryFlowTables
        Moves: type[FlowSettlement] = FlowSettlement

        def flow_tables(self, now: float) -> MemoryFlowTables:
            return self.Tables(self, now)

        def moves(self, now: float) -> FlowSettlement:
            if self._moves is None:
                self._moves = self.Moves(self.flow_tables(now))
            return self._moves

    def __init_subclass__(cls) -> None:
        parts = {"Tables": cls.Tables, "Moves": cls.Moves}
        setattr(cls, "PlantedJobTable", type("PlantedJobTable", (cls.PlantedJobTable,), parts))  # noqa: B010 - a class is meant


# ---- waiting and counting -----------------------------------------------------------------------


class OpensOneEarly(Flows):
    """Takes a join for open while one predecessor is left."""

    class Tables(MemoryFlowTables):
        def is_open(self, join_id: str) -> bool:
            return self._book.joins[join_id].remaining <= 1


class CountsWithoutAFence(Flows):
    """Counts a report of a step before it looks whether the report is a late one."""

    class PlantedJobTable(Flows.PlantedJobTable):
        def settle(self, settlement: Settlement, now: float) -> bool:
            applied = super().settle(settlement, now)
            record = self.records[settlement.key]
            if not applied and record.new.step is not None:
                done = settlement.transition.status is JobStatus.COMPLETED
                joins = Counter(record.new.step.feeds if done else ())
                for join in self.flow_tables(now).count_at(joins):
                    self.moves(now).release(join)
            return applied


class StartsWhatFollowsTwice(Flows):
    """Adds a step that was released to its queue, and its twin as well."""

    class PlantedJobTable(Flows.PlantedJobTable):
        def release(self, record: MemoryJob, now: float) -> None:
            super().release(record, now)
            twin = change(record.new, id=f"{record.new.id}+", step=None)
            self.add([twin], now)


class ReleasesLater(Flows):
    """Releases steps with the next retention run."""

    class PlantedJobTable(Flows.PlantedJobTable):
        def go_on_with_flows(self, now: float) -> None:
            """Leave it to others."""

    class Moves(FlowSettlement):
        def finish(self) -> None:
            counts, self._counts = self._counts, Counter()
            for join in counts:
                self.tables.count_at(Counter({join: counts[join]}))
                self.tables.put_work(FlowWork(join, "release", 0))
            super().finish()


class LetsStepsBeHurried(Flows):
    """Lets an operator start a step before its turn."""

    class PlantedJobTable(Flows.PlantedJobTable):
        def settle(self, settlement: Settlement, now: float) -> bool:
            record = self.records.get(settlement.key)
            if (
                record is not None
                and record.is_joining
                and settlement.transition.event == "hurried"
            ):
                self.release(record, now)
            return super().settle(settlement, now)


class DelaysFromTheBeginning(Flows):
    """Counts the delay of a step from when its flow was stored."""

    class PlantedJobTable(Flows.PlantedJobTable):
        def release(self, record: MemoryJob, now: float) -> None:
            record.wait = max(0.0, (record.wait or 0.0) - (now - record.created_at))
            super().release(record, now)


class StartsWhenItWasAdded(Flows):
    """Lets a step wait until the clock shows again when the step was added."""

    class PlantedJobTable(Flows.PlantedJobTable):
        def release(self, record: MemoryJob, now: float) -> None:
            super().release(record, max(now, record.created_at))


class StoresHalfAFlow(Flows):
    """Finds out that an id is taken when the flow is stored already."""

    class PlantedJobTable(Flows.PlantedJobTable):
        def check_new(self, jobs: Sequence[NewJob], now: float) -> None:
            """Let anything through."""


# ---- failures -----------------------------------------------------------------------------------


class ChangedPolicy(FlowSettlement):
    """Takes one policy of what follows a failure for another."""

    taken_for: ClassVar[Mapping[OnFailure, OnFailure]]

    def plan(self, flow_id: str, event: FlowEvent) -> FlowChange | None:
        row = self.row(flow_id)
        policy = row.state.on_failure
        row.state = replace(row.state, on_failure=self.taken_for.get(policy, policy))
        return super().plan(flow_id, event)


class AlwaysContinues(Flows):
    """Lets the end of a step count however it ended."""

    class Moves(ChangedPolicy):
        taken_for: ClassVar = dict.fromkeys(OnFailure, OnFailure.CONTINUE)


class HoldsNothing(Flows):
    """Takes ``hold`` for ``cancel``."""

    class Moves(ChangedPolicy):
        taken_for: ClassVar = {OnFailure.HOLD: OnFailure.CANCEL}


class NeverContinues(Flows):
    """Takes ``continue`` for ``cancel``."""

    class Moves(ChangedPolicy):
        taken_for: ClassVar = {OnFailure.CONTINUE: OnFailure.CANCEL}


class TriesAgainInAStoppedFlow(Flows):
    """Lets a step wait for its next attempt in a flow that was stopped."""

    class Moves(FlowSettlement):
        def is_stopping(self, flow_id: str) -> bool:
            return False


class CancelsWhatRuns(Flows):
    """Ends a flow as soon as a step has failed, whatever still runs."""

    class Moves(FlowSettlement):
        def accept(
            self,
            flow_id: str,
            change: FlowChange,
            feeds: Sequence[str] = (),
            keep: float | None = 0.0,
        ) -> None:
            if change.sweep is not None:
                change = replace(change, state=replace(change.state, unfinished=0))
            super().accept(flow_id, change, feeds, keep)


class SkipsOnPaper(Flows):
    """Says that a step was skipped, and does not count it at its joins."""

    class Tables(MemoryFlowTables):
        def set_feeds(self, key: int, feeds: Sequence[str]) -> None:
            record = self._table.records[key]
            for join in record.feeds or ():
                self.count_at(Counter({join: -1}))
            super().set_feeds(key, feeds)


class RetriesTheFailedAlone(Flows):
    """Leaves the steps cancelled that the flow cancelled."""

    class Moves(FlowSettlement):
        def apply(self, flow_id: str, event: FlowEvent) -> Flow:
            if not isinstance(event, RetryFlow):
                return super().apply(flow_id, event)
            change = advance(self.row(flow_id).state, event)
            self.accept(flow_id, replace(change, sweep=None))
            for step in self.tables.ended(flow_id, 0, 10):
                if step.position[2] == JobStatus.FAILED:
                    self._bring_back_one(step.position[0])
            self.finish()
            return self.row(flow_id).flow()

        def _bring_back_one(self, key: int) -> None:
            from ergon_framework.jobs.stores.transitions import bring_back

            ended = self.tables.ended(self._only(key), key - 1, 1)
            self.tables.settle_all([bring_back(ended[0].position, self.tables.at)])

        def _only(self, key: int) -> str:
            return next(iter(self._rows))


class RetriesOldArguments(Flows):
    """Brings steps back in whose place there is another job."""

    class Tables(MemoryFlowTables):
        def ended(self, flow_id: str, after: int, limit: int) -> list[EndedStep]:
            found = super().ended(flow_id, after, limit)
            return [each._replace(why="") if each.why in SUPERSEDED else each for each in found]


class WaitsForTheEdited(Flows):
    """Takes the end of a job that was edited for its last word."""

    class Tables(MemoryFlowTables):
        def predecessors(self, ids: Sequence[str]) -> list[Predecessor]:
            return [each._replace(why="") for each in super().predecessors(ids)]


class BringsBackSingleSteps(Flows):
    """Lets a step of a stopped flow come back by itself."""

    class Moves(FlowSettlement):
        def plan(self, flow_id: str, event: FlowEvent) -> FlowChange | None:
            if isinstance(event, StepReturned):
                return FlowChange(self.row(flow_id).state)
            return super().plan(flow_id, event)


class IgnoresCancelledSteps(Flows):
    """Takes a cancelled step for a completed one."""

    class Moves(FlowSettlement):
        def plan(self, flow_id: str, event: FlowEvent) -> FlowChange | None:
            if isinstance(event, StepEnded) and event.status is JobStatus.CANCELLED:
                event = StepEnded(JobStatus.COMPLETED)
            return super().plan(flow_id, event)


class StepsNeverExpire(Flows):
    """Looks at the expiry of a step only when it is due."""

    class PlantedJobTable(Flows.PlantedJobTable):
        def end_outdated(self, record: MemoryJob, now: float) -> None:
            if not record.is_joining or record.signal is not None:
                super().end_outdated(record, now)


# ---- signals ------------------------------------------------------------------------------------


class LosesEarlySignals(Flows):
    """Takes a signal for a step that has not been reached, and forgets it."""

    class Tables(MemoryFlowTables):
        def keep_signal(self, key: int, value: bytes) -> None:
            """Forget it."""


class StopsWithoutSignals(Flows):
    """Forgets a signal that came early when its step is cancelled."""

    class PlantedJobTable(Flows.PlantedJobTable):
        def settle(self, settlement: Settlement, now: float) -> bool:
            applied = super().settle(settlement, now)
            record = self.records[settlement.key]
            if record.signal is not None and record.status is JobStatus.CANCELLED:
                record.result = None
            return applied


class WaitsForWhatHasCome(Flows):
    """Lets a step that comes back wait for its signal, though that came before."""

    class PlantedJobTable(Flows.PlantedJobTable):
        def settle(self, settlement: Settlement, now: float) -> bool:
            record = self.records[settlement.key]
            if record.signal is None or settlement.transition.event != "requeued":
                return super().settle(settlement, now)
            kept, record.result = record.result, None
            applied = super().settle(settlement, now)
            record.result = kept
            return applied


class AsksForSignalsAgain(Flows):
    """Forgets with a retry what a signal said whose step has completed."""

    class Tables(MemoryFlowTables):
        def ended(self, flow_id: str, after: int, limit: int) -> list[EndedStep]:
            for step in self._steps(flow_id):
                if step.signal is not None and step.status is JobStatus.COMPLETED:
                    step.result = None
            return super().ended(flow_id, after, limit)


class SignalsRunOutFromTheBeginning(Flows):
    """Counts the time limit of a signal from when its flow was stored."""

    class PlantedJobTable(Flows.PlantedJobTable):
        def release(self, record: MemoryJob, now: float) -> None:
            if record.signal is not None and record.wait is not None:
                record.wait = max(0.0, record.wait - (now - record.created_at))
            super().release(record, now)


class TakesAnySignal(Flows):
    """Completes a step by a signal of another name."""

    class Moves(FlowSettlement):
        def signal(self, flow_id: str, name: str, value: bytes) -> SignalOutcome:
            return super().signal(flow_id, "ok", value)


class OpensEveryGate(Flows):
    """Takes a signal for all steps of its name."""

    class Moves(FlowSettlement):
        def signal(self, flow_id: str, name: str, value: bytes) -> SignalOutcome:
            for each in self.tables.waiting_signals(flow_id, name):
                if not each.is_reached:
                    self.tables.keep_signal(each.position[0], value)
            return super().signal(flow_id, name, value)


class TakesTheLatestSignal(Flows):
    """Lets a second value for a step that has not been reached replace the first."""

    class Tables(MemoryFlowTables):
        def waiting_signals(self, flow_id: str, name: str) -> list[WaitingSignal]:
            return [each._replace(early=None) for each in super().waiting_signals(flow_id, name)]


class SignalsAreNeverLate(Flows):
    """Looks at the time limit of a signal only when retention runs."""

    class Tables(MemoryFlowTables):
        def waiting_signals(self, flow_id: str, name: str) -> list[WaitingSignal]:
            found = super().waiting_signals(flow_id, name)
            return [each._replace(expires_at=None) for each in found]


class TellsNoExpiry(Flows):
    """Leaves it to the next retention run to find what has expired."""

    class PlantedJobTable(Flows.PlantedJobTable):
        def claim(self, request: ClaimRequest, now: float) -> ClaimResult:
            return change(super().claim(request, now), expires_at=None)


# ---- jobs that are there, many, and keeping -----------------------------------------------------


class WaitsForTheWaitingAlone(Flows):
    """Does not wait for a job that runs already."""

    class Tables(MemoryFlowTables):
        def predecessors(self, ids: Sequence[str]) -> list[Predecessor]:
            return [
                each._replace(status=JobStatus.COMPLETED)
                if each.status is JobStatus.ACTIVE
                else each
                for each in super().predecessors(ids)
            ]


class DoesNotLookAtFailures(Flows):
    """Waits for a job that failed long ago as if it could still complete."""

    class Tables(MemoryFlowTables):
        def predecessors(self, ids: Sequence[str]) -> list[Predecessor]:
            return [each._replace(status=JobStatus.PENDING) for each in super().predecessors(ids)]


class ReleasesOneSlice(Flows):
    """Forgets the steps that the first slice of a release left."""

    class Tables(MemoryFlowTables):
        def put_work(self, work: FlowWork) -> None:
            if work.kind != "release":
                super().put_work(work)


class CancelsOneSlice(Flows):
    """Forgets the steps that the first slice of a sweep left."""

    class Tables(MemoryFlowTables):
        def put_work(self, work: FlowWork) -> None:
            if work.kind == "release":
                super().put_work(work)


class StopsWhatIsSwept(Flows):
    """Lets steps of a flow that stops start until a slice of the sweep has come to them."""

    class PlantedJobTable(Flows.PlantedJobTable):
        def claim(self, request: ClaimRequest, now: float) -> ClaimResult:
            flows, self.flow_book.flows = self.flow_book.flows, {}
            try:
                return super().claim(request, now)
            finally:
                self.flow_book.flows = flows


class FindsWhatWaits(Flows):
    """Takes steps that wait for others for steps that have been released."""

    def search(self, search: Search, limit: int | None = None) -> Iterator[Job]:
        return super().search(change(search, is_released=False), limit)


class PurgesWhatGoesOn(Flows):
    """Purges a flow whose steps have not ended."""

    class Moves(FlowSettlement):
        def purge(self, flow_id: str) -> None:
            self.row(flow_id).purge_at = self.tables.at
            self.tables.put_flow(self.row(flow_id))


class KeepsFlowsAsLongAsJobsAlone(Flows):
    """Keeps a flow without jobs for no time."""

    class Moves(FlowSettlement):
        def add(self, new: NewFlow, steps: Sequence[NewJob]) -> None:
            super().add(replace(new, keep=0.0), steps)


class PurgesStepsAlone(Flows):
    """Keeps the steps of a flow no longer than a flow that has ended would keep them."""

    class Moves(FlowSettlement):
        def accept(
            self,
            flow_id: str,
            change: FlowChange,
            feeds: Sequence[str] = (),
            keep: float | None = 0.0,
        ) -> None:
            self.row(flow_id).keep = 0.0
            super().accept(flow_id, change, feeds, keep)


# ---- moving -------------------------------------------------------------------------------------


class Moved(Flows):
    """A store whose records are those of a class."""

    Records: type[MemoryJobRecords] = MemoryJobRecords

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self.records = self.Records(self.step, self)


class LoadsNoJoins(Moved):
    """Takes flows in, and forgets where their steps wait."""

    class Records(MemoryJobRecords):
        def load(self, records: Sequence[TransferRecord], fence: Fence | None = None) -> None:
            found = [change(e, joins=()) if isinstance(e, FlowRecord) else e for e in records]
            super().load(found, fence)


class LoadsNoWork(Moved):
    """Takes flows in as if no sweep were under way."""

    class Records(MemoryJobRecords):
        def load(self, records: Sequence[TransferRecord], fence: Fence | None = None) -> None:
            found = [change(e, work={}) if isinstance(e, FlowRecord) else e for e in records]
            super().load(found, fence)


class LoadsResultsOfTheCompletedAlone(Moved):
    """Takes a step that was cancelled in without the signal that had come for it."""

    class Records(MemoryJobRecords):
        def load(self, records: Sequence[TransferRecord], fence: Fence | None = None) -> None:
            super().load([_without_a_signal(each) for each in records], fence)


def _without_a_signal(copy: TransferRecord) -> TransferRecord:
    if not isinstance(copy, JobRecord) or copy.job.status is not JobStatus.CANCELLED:
        return copy
    return JobRecord(change(copy.job, result=None), copy.changed_at)


class StartsStepsThatWaited(Moved):
    """Takes jobs in without where they wait, as a store without flows does."""

    class Records(MemoryJobRecords):
        def load(self, records: Sequence[TransferRecord], fence: Fence | None = None) -> None:
            found = [_started(e) if isinstance(e, JobRecord) else e for e in records]
            super().load(found, fence)


def _started(copy: JobRecord) -> JobRecord:
    step = copy.job.step
    place = None if step is None else change(step, join_id=None)
    return JobRecord(change(copy.job, step=place), copy.changed_at)


class DoesNotParkJoins(Moved):
    """Loses a join that opened while its flow stopped: a retry does not find it."""

    class Tables(MemoryFlowTables):
        def open_joins(self, flow_id: str) -> list[str]:
            return []


class LoadsAtTheEnd(Moved):
    """Puts a flow that is loaded again behind all others."""

    class Records(MemoryJobRecords):
        def load(self, records: Sequence[TransferRecord], fence: Fence | None = None) -> None:
            self.discard([each for each in records if isinstance(each, FlowRecord)], fence)
            super().load(records, fence)


class DiscardsStepsToo(Moved):
    """Takes the steps out with their flow, though each is a record of its own."""

    class Records(MemoryJobRecords):
        def discard(self, records: Sequence[TransferRecord], fence: Fence | None = None) -> None:
            with self._step() as table:
                for each in records:
                    for record in list(table.flow_book.steps.get(str(each.identity), {}).values()):
                        table.remove(record)
            super().discard(records, fence)
