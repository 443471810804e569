"""Job stores with one realistic bug each, planted in the memory store."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice

import msgspec

from ergon_framework.core.claim import ClaimRequest
from ergon_framework.core.job import JobStatus, Transition
from ergon_framework.core.unique import OnDuplicate
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.jobs.stores.memory.job_table import JobTable
from ergon_framework.jobs.stores.memory.queues import MemoryQueue, Offer, QueueSet
from ergon_framework.jobs.stores.memory.records import MemoryJobRecords
from ergon_framework.jobs.stores.memory.rows import MemoryJob
from ergon_framework.ports.jobstore import (
    ClaimResult,
    EnqueueResult,
    Job,
    NewJob,
    Search,
    Settlement,
    WorkerRecord,
    labels_of,
)
from ergon_framework.ports.transfer import Fence, TransferRecord

change = msgspec.structs.replace


class Honest(MemoryJobStore):
    """The memory store, with its inner parts open to replacement."""

    PlantedJobTable: type[JobTable] = JobTable
    Lanes: type[QueueSet] = QueueSet

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self.table = self.PlantedJobTable()
        self.table.queues = self.Lanes(self.table.records)


# ---- moving -------------------------------------------------------------------------------------


class LoadsForAnyRun(Honest):
    """Puts records in whatever the fence says."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self.records = _LoadsForAnyRun(self.step, self)


class _LoadsForAnyRun(MemoryJobRecords):
    def load(self, records: Sequence[TransferRecord], fence: Fence | None = None) -> None:
        super().load(records)


class MarksForAnyRun(Honest):
    """Writes the state of a move down whatever the fence says."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self.records = _MarksForAnyRun(self.step, self)


class _MarksForAnyRun(MemoryJobRecords):
    def set_move_state(self, state: bytes | None, fence: Fence | None = None) -> None:
        super().set_move_state(state)


# ---- workers ------------------------------------------------------------------------------------


class ForgetsProgress(Honest):
    """Has no column for how far jobs are."""

    def heartbeat(self, record: WorkerRecord) -> None:
        super().heartbeat(change(record, progress={}))


class AddsProgressUp(Honest):
    """Keeps what a worker told of jobs that it says nothing of any more."""

    def heartbeat(self, record: WorkerRecord) -> None:
        before = {each.id: each.progress for each in self.workers()}
        told = {**before.get(record.id, {}), **record.progress}
        super().heartbeat(change(record, progress=told))


# ---- adding -------------------------------------------------------------------------------------


class AddsPartly(Honest):
    """Stores a batch job by job, and what came before a refused one stays."""

    def add(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        return [added for job in jobs for added in super(AddsPartly, self).add([job])]


class ForgetsTags(Honest):
    """Keeps what running a job needs, and no more."""

    def add(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        return super().add([change(job, tags=(), metadata=None) for job in jobs])


class OverwritesDuplicates(Honest):
    """Lets a job of the same id take the place of the first."""

    def add(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        for job in jobs:
            record = self.table.by_id.pop(job.id, None)
            if record is not None:
                self.table.records.pop(record.key)
        return super().add(jobs)


class TidiesPayloads(Honest):
    """Writes arguments as it would have written them."""

    def add(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        return super().add([change(job, args=job.args.replace(b" ", b"")) for job in jobs])


class ForgetsTheTrace(Honest):
    """Has no column for the trace context."""

    def add(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        return super().add([change(job, trace_context=None) for job in jobs])


class FillsInDefaults(Honest):
    """Decides about timeouts in the place of the worker."""

    def add(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        return super().add([change(job, timeout=job.timeout or 300.0) for job in jobs])


class WholeSeconds(Honest):
    """Keeps instants as whole seconds."""

    def now(self) -> float:
        return float(int(super().now()))


class IgnoresTheDelay(Honest):
    """Makes every new job due at once."""

    def add(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        return super().add([change(job, delay=0.0) for job in jobs])


# ---- unique keys --------------------------------------------------------------------------------


class AddsBesideTheHolder(Honest):
    """Answers with the job that is there, and stores the new one all the same."""

    def add(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        found = super().add(jobs)
        for job, added in zip(jobs, found, strict=True):
            if not added.is_new:
                super().add([change(job, unique_key=None)])
        return found


class ReplacesTheRunning(Honest):
    """Cancels a job that a worker is busy with."""

    def add(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        for job in jobs:
            holder = self.table.holders.get(job.unique_key or "")
            if holder is not None and job.on_duplicate is OnDuplicate.REPLACE:
                self.table.put(replace(holder, status=JobStatus.CANCELLED))
        return super().add(jobs)


class IgnoresCase(Honest):
    """Compares keys as some databases compare text."""

    def add(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        keys = [job.unique_key and job.unique_key.casefold() for job in jobs]
        return super().add(
            [change(job, unique_key=key) for job, key in zip(jobs, keys, strict=True)]
        )


class KeyPerQueue(Honest):
    """Takes a unique key to be unique in its queue only."""

    def add(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        keys = [job.unique_key and f"{job.queue}/{job.unique_key}" for job in jobs]
        return super().add(
            [change(job, unique_key=key) for job, key in zip(jobs, keys, strict=True)]
        )


class KeyLeaksOnCancel(Honest):
    """Frees unique keys only when a job has run."""

    class PlantedJobTable(JobTable):
        def _move(self, record: MemoryJob, move: Transition, entry: bytes, now: float) -> None:
            super()._move(record, move, entry, now)
            if move.status is JobStatus.CANCELLED and record.new.unique_key is not None:
                self.holders[record.new.unique_key] = record


class KeyFreeWhileRetrying(Honest):
    """Frees unique keys after every attempt."""

    class PlantedJobTable(JobTable):
        def _move(self, record: MemoryJob, move: Transition, entry: bytes, now: float) -> None:
            super()._move(record, move, entry, now)
            if move.status is JobStatus.RETRYING and record.new.unique_key is not None:
                del self.holders[record.new.unique_key]


class KeyOfTwo(Honest):
    """Sends a job back though another holds its key by now."""

    class PlantedJobTable(JobTable):
        def _is_key_taken(self, record: MemoryJob) -> bool:
            return False


class AddsForTheMoved(Honest):
    """Adds the job that is to come in the place of another though that one was moved since."""

    def replace(self, settlement: Settlement, job: NewJob) -> bool:
        with self.step() as table:
            return table.settle(settlement, self.now()) | bool(table.add([job], self.now()))


# ---- claiming -----------------------------------------------------------------------------------


class _Ordered(QueueSet):
    """Lines whose order can be bent."""

    def order(self, record: MemoryJob) -> tuple[float, ...]:
        return (-record.new.priority, record.run_at, record.key)

    def _make_due(self, record: MemoryJob) -> None:
        super()._make_due(record)
        new = record.new
        self._queues[new.queue].due[new.executor].push(record.key, self.order(record))


class TiesById(Honest):
    """Lets jobs of one instant go in the order of their ids."""

    class Lanes(_Ordered):
        def order(self, record: MemoryJob) -> tuple[float, ...]:
            return (-record.new.priority, record.run_at, *map(ord, record.new.id))


class OrderOfAddingOnly(Honest):
    """Does not look at due times once they have passed."""

    class Lanes(_Ordered):
        def order(self, record: MemoryJob) -> tuple[float, ...]:
            return (-record.new.priority, record.key)


class LowestPriorityFirst(Honest):
    """Sorts priorities the wrong way round."""

    class Lanes(_Ordered):
        def order(self, record: MemoryJob) -> tuple[float, ...]:
            return (record.new.priority, record.run_at, record.key)


class ToTheEndOfTheLine(Honest):
    """Lets a job that was given back wait behind all the others."""

    class Lanes(_Ordered):
        def order(self, record: MemoryJob) -> tuple[float, ...]:
            return (-record.new.priority, record.run_at, record.deliveries, record.key)


class Starves(Honest):
    """Empties one queue before it looks at the next."""

    class PlantedJobTable(JobTable):
        def claim(self, ask: ClaimRequest, now: float) -> ClaimResult:
            jobs = []
            for name in sorted(line.settings.name for line in self.queues):
                if ask.queues is None or name in ask.queues:
                    jobs += super().claim(change(ask, queues=(name,)), now).jobs
                    taken = sum(job.queue == name for job in jobs)
                    slots = {each: max(0, n - taken) for each, n in ask.slots.items()}
                    ask = change(ask, slots=slots)
            return ClaimResult(jobs)


class OneTooMany(Honest):
    """Gives a worker one job more than it has slots."""

    def settle_and_claim(
        self, settlements: Sequence[Settlement], ask: ClaimRequest | None
    ) -> tuple[list[bool], ClaimResult]:
        if ask is not None:
            ask = change(ask, slots={name: n + (n > 1) for name, n in ask.slots.items()})
        return super().settle_and_claim(settlements, ask)


class HeadOfLine(Honest):
    """Looks at the first job only, and waits when that one cannot go."""

    class Lanes(QueueSet):
        def next(self, line: MemoryQueue, offer: Offer, now: float) -> MemoryJob | None:
            self._admit(line, now)
            firsts = [(group.first(), name) for name, group in line.due.items() if group]
            if firsts and not offer.takes(line.settings.name, min(firsts)[1]):
                return None
            return super().next(line, offer, now)


class NoRoutes(Honest):
    """Sends everything without an executor to the default one."""

    def settle_and_claim(
        self, settlements: Sequence[Settlement], ask: ClaimRequest | None
    ) -> tuple[list[bool], ClaimResult]:
        return super().settle_and_claim(settlements, ask and change(ask, routes={}))


class ClaimsTheUnknown(Honest):
    """Gives a worker jobs for executors that it does not have."""

    def settle_and_claim(
        self, settlements: Sequence[Settlement], ask: ClaimRequest | None
    ) -> tuple[list[bool], ClaimResult]:
        return super().settle_and_claim(
            settlements, ask and change(ask, slots={**ask.slots, "cobol": 9})
        )


class ForgetsExecutors(Honest):
    """Forgets with a worker that leaves when its executors were last seen."""

    def heartbeat(self, record: WorkerRecord) -> None:
        super().heartbeat(record)
        if record.state == "gone":
            self._executors = {"": self._executors.get("", self.now())}


def _handlers_in(records: Mapping[int, MemoryJob]) -> tuple[str, ...]:
    return tuple({each.new.executor.partition("#")[2] for each in records.values()})


class HandsOutWhateverTheHandler(Honest):
    """Gives a worker jobs of handlers that it does not have."""

    def settle_and_claim(
        self, settlements: Sequence[Settlement], ask: ClaimRequest | None
    ) -> tuple[list[bool], ClaimResult]:
        handlers = {"python": _handlers_in(self.table.records)}
        return super().settle_and_claim(settlements, ask and change(ask, handlers=handlers))


class _ForgetsTheLane(JobTable):
    def _move(self, record: MemoryJob, move: Transition, entry: bytes, now: float) -> None:
        super()._move(record, replace(move, lane=""), entry, now)


class ForgetsTheLane(Honest):
    """Lets a job wait where it stood before, whatever it lacks."""

    PlantedJobTable = _ForgetsTheLane


class LanesHaveNoRoutes(Honest):
    """Leaves jobs that wait for a handler to the default executor, whatever their queue."""

    def settle_and_claim(
        self, settlements: Sequence[Settlement], ask: ClaimRequest | None
    ) -> tuple[list[bool], ClaimResult]:
        if ask is not None and ask.handlers:
            ask = change(ask, routes={})
        return super().settle_and_claim(settlements, ask)


class TellsNoLanes(Honest):
    """Does not say for which handlers jobs wait."""

    def settle_and_claim(
        self, settlements: Sequence[Settlement], ask: ClaimRequest | None
    ) -> tuple[list[bool], ClaimResult]:
        applied, claimed = super().settle_and_claim(settlements, ask)
        return applied, change(claimed, handler_lanes=())


class LanesOfOthersAreMore(Honest):
    """Counts as left what waits for a handler that the worker does not have."""

    def settle_and_claim(
        self, settlements: Sequence[Settlement], ask: ClaimRequest | None
    ) -> tuple[list[bool], ClaimResult]:
        applied, claimed = super().settle_and_claim(settlements, ask)
        return applied, change(claimed, more=claimed.more or bool(claimed.handler_lanes))


class LanesComeLast(Honest):
    """Looks for handlers only when nothing else is due."""

    def settle_and_claim(
        self, settlements: Sequence[Settlement], ask: ClaimRequest | None
    ) -> tuple[list[bool], ClaimResult]:
        if ask is None or not ask.handlers:
            return super().settle_and_claim(settlements, ask)
        applied, first = super().settle_and_claim(settlements, change(ask, handlers={}))
        left = {"python": ask.slots.get("python", 0) - len(first.jobs)}
        _, second = super().settle_and_claim([], change(ask, slots=left))
        return applied, change(second, jobs=[*first.jobs, *second.jobs])


class _LeavesTheLane(JobTable):
    def _move(self, record: MemoryJob, move: Transition, entry: bytes, now: float) -> None:
        super()._move(record, move, entry, now)
        if not move.lane and not record.status.is_final:
            self._leave(record)
            record.new = change(record.new, executor="")
            self._enter(record)


class LeavesTheLane(Honest):
    """Offers a job to everybody again when it was given back."""

    PlantedJobTable = _LeavesTheLane


class _MovesAnyway(JobTable):
    def settle(self, settlement: Settlement, now: float) -> bool:
        was_applied = super().settle(settlement, now)
        record, lane = self.records.get(settlement.key), settlement.transition.lane
        if record is not None and lane and record.status is JobStatus.PENDING:
            self._leave(record)
            record.new = change(record.new, executor=lane)
            self._enter(record)
        return was_applied


class LateReportMovesTheJob(Honest):
    """Does not look at the claim of a job whose handler is missing."""

    PlantedJobTable = _MovesAnyway


class ForgetsServedLanes(Honest):
    """Notes when executors were last seen, and no handlers."""

    def heartbeat(self, record: WorkerRecord) -> None:
        super().heartbeat(change(record, serves=()))


class LanesHaveNoLimits(Honest):
    """Forgets the limit key of a job that waits for a handler."""

    class PlantedJobTable(JobTable):
        def _move(self, record: MemoryJob, move: Transition, entry: bytes, now: float) -> None:
            super()._move(record, move, entry, now)
            if move.lane:
                self._leave(record)
                record.new = change(record.new, limit_key=None)
                self._enter(record)


class StepsStayInTheirLane(Honest):
    """Writes the lane of plain jobs, and has another statement for steps."""

    class PlantedJobTable(JobTable):
        def _move(self, record: MemoryJob, move: Transition, entry: bytes, now: float) -> None:
            lane = "" if record.feeds is not None else move.lane
            super()._move(record, replace(move, lane=lane), entry, now)


class LosesTheUrgent(Honest):
    """Looks for jobs that wait for an executor only among those of the usual priority."""

    def waiting_for(self, executor: str, due_before: float, limit: int) -> list[Job]:
        found = super().waiting_for(executor, due_before, limit)
        return [job for job in found if job.priority == 0]


class PausesNothing(Honest):
    """Notes that a queue is paused, and does nothing about it."""

    class Lanes(QueueSet):
        def __iter__(self) -> Iterator[MemoryQueue]:
            for line in super().__iter__():
                line.settings = change(line.settings, is_paused=False)
                yield line


class ClaimsWithoutALock(Honest):
    """Chooses jobs, and only then makes sure of them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self.meeting = threading.Barrier(2)

    def settle_and_claim(
        self, settlements: Sequence[Settlement], ask: ClaimRequest | None
    ) -> tuple[list[bool], ClaimResult]:
        if ask is None:
            return super().settle_and_claim(settlements, ask)
        with self._lock:
            seen = copy.deepcopy(self.table).claim(ask, self.now())
        with suppress(threading.BrokenBarrierError):
            self.meeting.wait(0.5)
        super().settle_and_claim(settlements, ask)
        return [], seen


class DeliversTheOutdated(Honest):
    """Keeps the expiry for show."""

    def add(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        return super().add([change(job, expires_at=None) for job in jobs])


class RoundsNextAt(Honest):
    """Tells a worker to come a little later than needed."""

    def settle_and_claim(
        self, settlements: Sequence[Settlement], ask: ClaimRequest | None
    ) -> tuple[list[bool], ClaimResult]:
        applied, claimed = super().settle_and_claim(settlements, ask)
        at = claimed.next_at
        return applied, change(claimed, next_at=at and float(int(at) + 1))


class NeverMore(Honest):
    """Does not say that something due was left."""

    def settle_and_claim(
        self, settlements: Sequence[Settlement], ask: ClaimRequest | None
    ) -> tuple[list[bool], ClaimResult]:
        applied, claimed = super().settle_and_claim(settlements, ask)
        return applied, change(claimed, more=False)


class OthersAreMore(Honest):
    """Counts as left what only other workers can run."""

    def settle_and_claim(
        self, settlements: Sequence[Settlement], ask: ClaimRequest | None
    ) -> tuple[list[bool], ClaimResult]:
        return super().settle_and_claim(settlements, ask and change(ask, own=frozenset()))


class LimitedIsNotMore(Honest):
    """Counts as left only what a further slot would have got."""

    def settle_and_claim(
        self, settlements: Sequence[Settlement], ask: ClaimRequest | None
    ) -> tuple[list[bool], ClaimResult]:
        applied, claimed = super().settle_and_claim(settlements, ask)
        is_short = ask is not None and len(claimed.jobs) >= sum(ask.slots.values())
        return applied, change(claimed, more=claimed.more and is_short)


class PausedIsMore(Honest):
    """Counts as left what stands in a paused queue."""

    class PlantedJobTable(JobTable):
        def claim(self, ask: ClaimRequest, now: float) -> ClaimResult:
            asked = [x for x in self.queues if ask.queues is None or x.settings.name in ask.queues]
            claimed = super().claim(ask, now)
            return change(claimed, more=any(line.has_due() for line in asked))


class DeliveriesNotCounted(Honest):
    """Forgets to count deliveries that came to nothing."""

    class PlantedJobTable(JobTable):
        def _move(self, record: MemoryJob, move: Transition, entry: bytes, now: float) -> None:
            super()._move(record, move, entry, now)
            if move.event == "released":
                record.deliveries -= 1


class ChargesAtTheClaim(Honest):
    """Takes a claim for an attempt."""

    class PlantedJobTable(JobTable):
        def _lease(self, record: MemoryJob, ask: ClaimRequest, now: float) -> None:
            super()._lease(record, ask, now)
            record.is_charged = True


class OneFence(Honest):
    """Names all claims of a job alike."""

    class PlantedJobTable(JobTable):
        def _lease(self, record: MemoryJob, ask: ClaimRequest, now: float) -> None:
            super()._lease(record, ask, now)
            record.fence = 1


class WaitsFollowTheClock(Honest):
    """A retry waits for as much longer as the clock was set back."""

    def shorten_waits(self) -> int:
        return 0


class LeasesFollowTheClock(Honest):
    """A lease lasts for as much longer as the clock was set back."""

    def shorten(self, leases: Mapping[str, float], others: float) -> int:
        return 0


# ---- finding ------------------------------------------------------------------------------------


class AnyTagWillDo(Honest):
    """Finds jobs that have one of the tags, not all of them."""

    def search(self, search: Search, limit: int | None = None) -> Iterator[Job]:
        found = [
            job
            for label in search.labels or (None,)
            for job in super(AnyTagWillDo, self).search(_with_label(search, label))
        ]
        by_age = sorted({job.key: job for job in found}.values(), key=lambda job: -job.key)
        return iter(by_age[:limit])

    def count(self, search: Search) -> int:
        return len(list(self.search(search)))


class TakesMetadataForTags(Honest):
    """Keeps the names of the metadata where the tags are."""

    def search(self, search: Search, limit: int | None = None) -> Iterator[Job]:
        found = super().search(change(search, tags=(), metadata={}))
        wanted = {*search.tags, *search.metadata}
        fits = (job for job in found if wanted <= {*job.tags, *(job.metadata or {})})
        return islice(fits, limit)

    def count(self, search: Search) -> int:
        return len(list(self.search(search)))


class KeepsTagsOfTheGone(Honest):
    """Notes tags by id, and never takes them off its list."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self.labels: dict[str, set[str]] = {}

    def add(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        for job in jobs:
            noted = self.labels.setdefault(job.id, set())
            noted.update(labels_of(job.tags, job.metadata))
        return super().add(jobs)

    def search(self, search: Search, limit: int | None = None) -> Iterator[Job]:
        wanted = set(search.labels)
        found = super().search(change(search, tags=(), metadata={}))
        return islice((job for job in found if wanted <= self.labels[job.id]), limit)

    def count(self, search: Search) -> int:
        return len(list(self.search(search)))


class ErrorsByCodeAlone(Honest):
    """Takes the family of an error for its code."""

    def search(self, search: Search, limit: int | None = None) -> Iterator[Job]:
        return super().search(change(search, code=search.error, error=None), limit)

    def count(self, search: Search) -> int:
        return super().count(change(search, code=search.error or search.code, error=None))


class UntilIsIncluded(Honest):
    """Counts the last instant in, so that two searches that follow each other find a job twice."""

    def search(self, search: Search, limit: int | None = None) -> Iterator[Job]:
        until = None if search.until is None else search.until + 1e-6
        return super().search(change(search, until=until), limit)

    def count(self, search: Search) -> int:
        return len(list(self.search(search)))


def _with_label(search: Search, label: str | None) -> Search:
    if label is None:
        return search
    key, mark, value = label.partition("=")
    if mark:
        return change(search, tags=(), metadata={key: value})
    return change(search, tags=(label,), metadata={})
