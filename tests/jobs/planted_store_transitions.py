"""Job stores that settle, limit, lease or look after jobs wrongly in one way each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ergon_framework.core.claim import ClaimRequest
from ergon_framework.core.job import JobStatus, Transition
from ergon_framework.errors import DuplicateJobError
from ergon_framework.jobs.stores.documents import text_of
from ergon_framework.jobs.stores.memory.job_table import JobTable
from ergon_framework.jobs.stores.memory.queues import MemoryQueue, Offer, QueueSet
from ergon_framework.jobs.stores.memory.rows import MemoryJob
from ergon_framework.jobs.stores.transitions import cancel_running
from ergon_framework.ports.jobstore import (
    CancelRequest,
    ClaimResult,
    EnqueueResult,
    Job,
    LeaseRenewal,
    NewJob,
    PruneResult,
    Queue,
    Schedule,
    Search,
    Settlement,
    WorkerRecord,
)
from tests.jobs.planted_stores import Honest, change

# ---- settling -----------------------------------------------------------------------------------


class SettlesUnfenced(Honest):
    """Believes whoever reports about a running job."""

    class PlantedJobTable(JobTable):
        def settle(self, settlement: Settlement, now: float) -> bool:
            record = self.records.get(settlement.key)
            fence = settlement.fence if record is None else record.fence
            return super().settle(change(settlement, fence=fence), now)


class SettlesInAnyState(Honest):
    """Does not look at the state in which a move was decided."""

    class PlantedJobTable(JobTable):
        def settle(self, settlement: Settlement, now: float) -> bool:
            record = self.records.get(settlement.key)
            expected = settlement.expected if record is None else record.status
            return super().settle(change(settlement, expected=expected), now)


class SettlesById(Honest):
    """Finds a job by its id alone, whatever life of it was meant."""

    class PlantedJobTable(JobTable):
        def settle(self, settlement: Settlement, now: float) -> bool:
            record = self.by_id.get(settlement.id)
            if record is None:
                return False
            return super().settle(change(settlement, key=record.key, fence=record.fence), now)


class LateReportLeavesATrace(Honest):
    """Refuses a late report, and writes it into the history all the same."""

    class PlantedJobTable(JobTable):
        def settle(self, settlement: Settlement, now: float) -> bool:
            applied = super().settle(settlement, now)
            if not applied and settlement.key in self.records:
                self.records[settlement.key].history.append(settlement.entry)
            return applied


class RescuesTheRenewed(Honest):
    """Takes a job from a holder that has come back in time."""

    class PlantedJobTable(JobTable):
        def settle(self, settlement: Settlement, now: float) -> bool:
            return super().settle(change(settlement, if_expired=False), now)


class ClaimsBeforeItSettles(Honest):
    """Claims first, so that what a call frees is not there for it."""

    def settle_and_claim(
        self, settlements: Sequence[Settlement], ask: ClaimRequest | None
    ) -> tuple[list[bool], ClaimResult]:
        _, claimed = super().settle_and_claim([], ask)
        return super().settle_and_claim(settlements, None)[0], claimed


class OneAnswerForAll(Honest):
    """Applies a batch of settlements all or none."""

    def settle_and_claim(
        self, settlements: Sequence[Settlement], ask: ClaimRequest | None
    ) -> tuple[list[bool], ClaimResult]:
        applied, claimed = super().settle_and_claim(settlements, ask)
        return [all(applied)] * len(applied), claimed


class NullIsNothing(Honest):
    """Does not tell a null result from none."""

    class PlantedJobTable(JobTable):
        def settle(self, settlement: Settlement, now: float) -> bool:
            result = None if settlement.result == b"null" else settlement.result
            return super().settle(change(settlement, result=result), now)


class RetriesAtOnce(Honest):
    """Does not wait between attempts."""

    class PlantedJobTable(JobTable):
        def _move(self, record: MemoryJob, move: Transition, entry: bytes, now: float) -> None:
            super()._move(record, replace(move, delay=0.0), entry, now)


class ReleaseWipesTheError(Honest):
    """Forgets the last failure at the next move."""

    class PlantedJobTable(JobTable):
        def _move(self, record: MemoryJob, move: Transition, entry: bytes, now: float) -> None:
            super()._move(record, move, entry, now)
            record.last_error = move.failure


class ForgetsSolo(Honest):
    """Lets a job that may have killed its neighbours run among others again."""

    class PlantedJobTable(JobTable):
        def _move(self, record: MemoryJob, move: Transition, entry: bytes, now: float) -> None:
            super()._move(record, replace(move, is_solo=False), entry, now)


class SoloForEver(Honest):
    """Never lets a job run among others again."""

    class PlantedJobTable(JobTable):
        def _move(self, record: MemoryJob, move: Transition, entry: bytes, now: float) -> None:
            is_solo = move.is_solo or record.is_solo
            super()._move(record, replace(move, is_solo=is_solo), entry, now)


class NewestEntryFirst(Honest):
    """Writes the history from its end."""

    class PlantedJobTable(JobTable):
        def _move(self, record: MemoryJob, move: Transition, entry: bytes, now: float) -> None:
            super()._move(record, move, entry, now)
            record.history.rotate(1)


class EndlessHistory(Honest):
    """Lets a job's history grow with every move."""

    class PlantedJobTable(JobTable):
        def _move(self, record: MemoryJob, move: Transition, entry: bytes, now: float) -> None:
            record.history = type(record.history)(record.history)
            super()._move(record, move, entry, now)


class KeepsForEver(Honest):
    """Knows no time of purging."""

    class PlantedJobTable(JobTable):
        def settle(self, settlement: Settlement, now: float) -> bool:
            return super().settle(change(settlement, keep=None), now)


class ReschedulesFromTheOldTime(Honest):
    """Adds the delay to the time at which the job was due."""

    class PlantedJobTable(JobTable):
        def _move(self, record: MemoryJob, move: Transition, entry: bytes, now: float) -> None:
            before = record.run_at
            super()._move(record, move, entry, now)
            if move.event == "rescheduled":
                self.queues.leave(record)
                record.run_at = before + move.delay
                self.queues.wait(record)


class RequeueKeepsCounters(Honest):
    """Sends a job back that has no delivery left."""

    class PlantedJobTable(JobTable):
        def _move(self, record: MemoryJob, move: Transition, entry: bytes, now: float) -> None:
            deliveries = record.deliveries
            super()._move(record, move, entry, now)
            record.deliveries = deliveries


class RequeueKeepsThePurge(Honest):
    """Sends a job back, and sweeps it away while it waits."""

    class PlantedJobTable(JobTable):
        def _move(self, record: MemoryJob, move: Transition, entry: bytes, now: float) -> None:
            purge_at = record.purge_at
            super()._move(record, move, entry, now)
            record.purge_at = purge_at


class RequeueResetsTheFence(Honest):
    """Begins anew so thoroughly that old reports are believed again."""

    class PlantedJobTable(JobTable):
        def _move(self, record: MemoryJob, move: Transition, entry: bytes, now: float) -> None:
            super()._move(record, move, entry, now)
            if move.is_reset:
                record.fence = self._last_fence = 0


class RequeueKeepsTheExpiry(Honest):
    """Sends an outdated job back to be outdated at once."""

    class PlantedJobTable(JobTable):
        def _move(self, record: MemoryJob, move: Transition, entry: bytes, now: float) -> None:
            expires_at = record.expires_at
            super()._move(record, move, entry, now)
            record.expires_at = expires_at


# ---- limits -------------------------------------------------------------------------------------


class NoQueueLimit(Honest):
    """Keeps a queue's limit for show."""

    class Lanes(QueueSet):
        def get(self, name: str) -> MemoryQueue:
            found = super().get(name)
            found.has_room = lambda: True  # type: ignore[method-assign]
            return found


class RateIgnoresTime(Honest):
    """Never fills the bucket again."""

    class Lanes(QueueSet):
        def next(self, line: MemoryQueue, offer: Offer, now: float) -> MemoryJob | None:
            has_token = line.has_token(0.0) if line.full_at is not None else True
            return super().next(line, offer, now) if has_token else None


class SavesTokens(Honest):
    """Lets a queue that rested start as many as it might have started meanwhile."""

    def set_queue(self, name: str, **changes: Any) -> Queue:
        queue = super().set_queue(name, **changes)
        line = self.table.queues.get(name)
        if line.full_at is not None:
            since = self.now()
            line.has_token = lambda now: now > since or queue.burst > line.active  # type: ignore[method-assign]
        return queue


class KeyLimitPerQueue(Honest):
    """Counts the jobs of a limit key in each queue for itself."""

    def add(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        keys = [job.limit_key and f"{job.queue}/{job.limit_key}" for job in jobs]
        return super().add(
            [change(job, limit_key=key) for job, key in zip(jobs, keys, strict=True)]
        )


class _Leaking(JobTable):
    """Does not free limit keys after some moves."""

    leaks: tuple[str, ...] = ()

    def _move(self, record: MemoryJob, move: Transition, entry: bytes, now: float) -> None:
        key = record.new.limit_key
        if key is not None and move.event in self.leaks:
            self.queues.running[key] += 1
        super()._move(record, move, entry, now)


class LimitLeaksOnRelease(Honest):
    """Keeps the limit key of a job that was given back."""

    class PlantedJobTable(_Leaking):
        leaks = ("released",)


class LimitLeaksOnRescue(Honest):
    """Keeps the limit key of a job that was taken from a lost worker."""

    class PlantedJobTable(_Leaking):
        leaks = ("lost",)


class LimitLeaksOnRetry(Honest):
    """Keeps the limit key of a job that failed."""

    class PlantedJobTable(_Leaking):
        leaks = ("failed",)


class LateReportFreesTheKey(Honest):
    """Counts a key as free when a late report comes."""

    class PlantedJobTable(JobTable):
        def settle(self, settlement: Settlement, now: float) -> bool:
            applied = super().settle(settlement, now)
            record = self.records.get(settlement.key)
            if not applied and record is not None and record.new.limit_key is not None:
                self.queues.running[record.new.limit_key] -= 1
                self.queues._unblock(record.new.limit_key)
            return applied


class CancelledKeepsItsTurn(Honest):
    """Calls one job back when a key is freed, and no other when that one is cancelled."""

    class Lanes(QueueSet):
        def leave(self, record: MemoryJob) -> None:
            aside, self.blocked = self.blocked, self.blocked if record.is_limited else {}
            super().leave(record)
            self.blocked = aside


class _CallsOnly(QueueSet):
    """Lets only some of those go that wait for a key which was freed."""

    def chosen(self, key: str) -> list[tuple[str, str, int]]:
        raise NotImplementedError

    def _unblock(self, key: str, queue: str | None = None, most: int = 1) -> bool:
        groups = self.blocked.get(key, {})
        chosen = self.chosen(key)
        rest = {name: groups.pop(name) for name in list(groups) if name not in chosen}
        if not groups:
            self.blocked.pop(key, None)
        called = super()._unblock(key, queue, most)
        if rest:
            self.blocked.setdefault(key, {}).update(rest)
        return called


class KeyGoesToOneAlone(Honest):
    """Calls the first of all back when a key is freed, whether that one can go or not."""

    class Lanes(_CallsOnly):
        def chosen(self, key: str) -> list[tuple[str, str, int]]:
            waiting = self.blocked.get(key, {})
            firsts = [(group.first() or ((), 0), name) for name, group in waiting.items()]
            return [name for _, name in sorted(firsts)[:1]]


class ResumedQueueIsForgotten(Honest):
    """Passes over paused queues when a key is freed, and does not think of them again."""

    class Lanes(_CallsOnly):
        def chosen(self, key: str) -> list[tuple[str, str, int]]:
            waiting = self.blocked.get(key, {})
            return [name for name in waiting if not self.get(name[0]).settings.is_paused]


# ---- leases -------------------------------------------------------------------------------------


class ChargesTwice(Honest):
    """Charges an attempt at every renewal."""

    def renew(self, holds: Sequence[LeaseRenewal], lease: float) -> list[bool]:
        for hold in holds:
            record = self.table.active.get(hold.key)
            if record is not None and record.is_charged and hold.is_charged:
                record.attempts += 1
        return super().renew(holds, lease)


class ChargesAllAlike(Honest):
    """Charges every job of a call if one of them is to be charged."""

    def renew(self, holds: Sequence[LeaseRenewal], lease: float) -> list[bool]:
        is_charged = any(hold.is_charged for hold in holds)
        return super().renew([change(hold, is_charged=is_charged) for hold in holds], lease)


class ChargesTheNext(Honest):
    """Carries a charge over to the next delivery."""

    class PlantedJobTable(JobTable):
        def _move(self, record: MemoryJob, move: Transition, entry: bytes, now: float) -> None:
            was_charged = record.is_charged
            super()._move(record, move, entry, now)
            record.is_charged = was_charged and not move.status.is_final


class RenewsForAnybody(Honest):
    """Prolongs the lease of whoever holds the job."""

    def renew(self, holds: Sequence[LeaseRenewal], lease: float) -> list[bool]:
        active = self.table.active
        fences = [active[hold.key].fence if hold.key in active else 0 for hold in holds]
        pairs = zip(holds, fences, strict=True)
        return super().renew([change(hold, fence=fence) for hold, fence in pairs], lease)


class RenewsOnPaper(Honest):
    """Says that the lease is prolonged, and does not prolong it."""

    def renew(self, holds: Sequence[LeaseRenewal], lease: float) -> list[bool]:
        return super().renew(holds, 0.0)


class AllAreOverdue(Honest):
    """Takes every running job for a lost one."""

    def expired_leases(self, limit: int) -> list[Job]:
        return [record.job() for record in self.table.active.values()][:limit]


# ---- cancelling what runs -----------------------------------------------------------------------


class ForgetsWhoAsked(Honest):
    """Drops the request with the next renewal."""

    def renew(self, holds: Sequence[LeaseRenewal], lease: float) -> list[bool]:
        kept = super().renew(holds, lease)
        for hold in holds:
            if hold.key in self.table.active:
                self.table.active[hold.key].why = ""
        return kept


class LastWhoAsksCounts(Honest):
    """Lets a second request take the place of the first."""

    def request_cancel(self, job: Job, request: CancelRequest) -> bool:
        if job.key in self.table.active:
            self.table.active[job.key].why = ""
        return super().request_cancel(job, request)


class CancelsAnyClaim(Honest):
    """Does not look at the claim that was meant."""

    def request_cancel(self, job: Job, request: CancelRequest) -> bool:
        record = self.table.active.get(job.key)
        fence = job.fence if record is None else record.fence
        return super().request_cancel(change(job, fence=fence), request)


class _SettlesAsTold(JobTable):
    """Does not look for a request when it settles."""

    def settle(self, settlement: Settlement, now: float) -> bool:
        record = self.records.get(settlement.key)
        if record is not None and record.cancel_request is not None:
            record.why = ""
        return super().settle(settlement, now)


class GivesBackTheCancelled(Honest):
    """Lets a job wait again whose cancellation was requested."""

    class PlantedJobTable(_SettlesAsTold):
        pass


class CancelsTheCompleted(Honest):
    """Takes a request for more than a completion."""

    class PlantedJobTable(JobTable):
        def settle(self, settlement: Settlement, now: float) -> bool:
            record = self.records.get(settlement.key)
            request = None if record is None else record.cancel_request
            if request is not None and settlement.transition.status is JobStatus.COMPLETED:
                waits = replace(settlement.transition, status=JobStatus.RETRYING)
                settlement = cancel_running(
                    change(settlement, transition=waits), request, self.retention
                )
            return super().settle(settlement, now)


class CancelsQuietly(Honest):
    """Wakes nobody who runs the job."""

    def request_cancel(self, job: Job, request: CancelRequest) -> bool:
        record = self.table.active.get(job.key)
        if record is None or record.fence != job.fence:
            return False
        record.why = record.why or text_of(request)
        return True


# ---- admin, upkeep and schedules -------------------------------------------------------------


class PagesByOffset(Honest):
    """Reads pages by their number, so that jobs which move hide others."""

    def search(self, search: Search, limit: int | None = None) -> Iterator[Job]:
        start = 0
        while page := list(super().search(search))[start : start + 100]:
            yield from page[:limit]
            start += 100


class OldestFirst(Honest):
    """Lists jobs from the wrong end."""

    def search(self, search: Search, limit: int | None = None) -> Iterator[Job]:
        return iter(list(super().search(search))[::-1][:limit])


class PurgesTheMoved(Honest):
    """Purges by id, whatever happened since."""

    def purge(self, jobs: Sequence[Job]) -> int:
        found = [self.find(job.id) for job in jobs]
        return super().purge([job for job in found if job is not None])


class SweepsAll(Honest):
    """Sweeps without a bound."""

    def prune(self, limit: int, *, purges: bool = True) -> PruneResult:
        return super().prune(10**9, purges=purges)


class SweepsNoOutdated(Honest):
    """Leaves jobs that are outdated and not due for ever."""

    def prune(self, limit: int, *, purges: bool = True) -> PruneResult:
        self.table.expiring = type(self.table.expiring)()
        return super().prune(limit, purges=purges)


class RemembersTheDead(Honest):
    """Lists every worker there ever was."""

    def heartbeat(self, record: WorkerRecord) -> None:
        super().heartbeat(record)
        if record.state == "gone":
            self._workers[record.id] = record


class ListsTheEnded(Honest):
    """Takes what a worker left behind for a worker."""

    def workers(self) -> list[WorkerRecord]:
        return [*super().workers(), *self.ended_workers()]


class FiresThePaused(Honest):
    """Lists a paused schedule among those that fire next."""

    def next_schedules(self, limit: int) -> list[Schedule]:
        waiting = [each for each in self.schedules() if each.next_at is not None]
        return sorted(waiting, key=lambda each: each.next_at or 0.0)[:limit]


class FiresTwice(Honest):
    """Does not look whether another worker was faster."""

    def fire(
        self, name: str, expected: float, next_at: float | None, jobs: Sequence[NewJob]
    ) -> bool:
        found = {schedule.name: schedule for schedule in self.schedules()}[name]
        return super().fire(name, found.next_at or expected, next_at, jobs)


class FiresOrFails(Honest):
    """Fails a fire as a whole when one of its jobs is there."""

    def fire(
        self, name: str, expected: float, next_at: float | None, jobs: Sequence[NewJob]
    ) -> bool:
        if any(self.find(job.id) for job in jobs):
            raise DuplicateJobError("there is such a job")
        return super().fire(name, expected, next_at, jobs)


class NeverRings(Honest):
    """Leaves whoever waits to find out by looking."""

    @contextmanager
    def step(self) -> Iterator[JobTable]:
        with super().step() as table:
            yield table
            table.is_work = table.is_done = False


class RingsForever(Honest):
    """Takes every change for an end."""

    @contextmanager
    def step(self) -> Iterator[JobTable]:
        with super().step() as table:
            yield table
            table.is_done = True


class TakesJobsWhenClosed(Honest):
    """Accepts jobs after it was closed, and loses them."""

    @contextmanager
    def step(self) -> Iterator[JobTable]:
        self._is_closed = False
        with super().step() as table:
            yield table


class ClosesOnce(Honest):
    """Does not like to be closed twice."""

    def close(self) -> None:
        if self._is_closed:
            raise RuntimeError("closed")
        super().close()
