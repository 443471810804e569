"""Job stores with one realistic bug each about unique keys that are held by a rule."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from ergon_framework.core.job import JobStatus, Transition
from ergon_framework.core.unique import OnDuplicate, UniqueRule
from ergon_framework.errors import DuplicateJobError
from ergon_framework.jobs.stores.memory.job_table import JobTable
from ergon_framework.jobs.stores.memory.rows import MemoryJob
from ergon_framework.ports.jobstore import EnqueueResult, Job, NewJob, Search
from tests.jobs.planted_store_retention import KeepsKeys
from tests.jobs.planted_stores import Honest

change = msgspec.structs.replace


def _rule(record: MemoryJob) -> UniqueRule:
    return record.new.unique or UniqueRule()


class ForgetsRules(Honest):
    """Keeps the key and no more."""

    def add(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        return super().add([change(job, unique=None) for job in jobs])


class FreesAtTheEnd(Honest):
    """Lets go of a key when its job completes."""

    class PlantedJobTable(JobTable):
        def holder(self, key: str, now: float) -> MemoryJob | None:
            found = super().holder(key, now)
            return None if found is not None and found.status.is_final else found


class PeriodFromTheEnd(Honest):
    """Counts a period from the end of the job."""

    class PlantedJobTable(JobTable):
        def holder(self, key: str, now: float) -> MemoryJob | None:
            taker = self.takers.get(key)
            if taker is not None and taker.status is JobStatus.COMPLETED:
                return taker if now < taker.changed_at + (_rule(taker).period or 0.0) else None
            return super().holder(key, now)


class PeriodOfTheWaiting(Honest):
    """Takes a key away from a job that waits for longer than its period."""

    class PlantedJobTable(JobTable):
        def holder(self, key: str, now: float) -> MemoryJob | None:
            found = super().holder(key, now)
            until = None if found is None else _rule(found).until(found.created_at)
            return found if until is None or now < until else None


class EveryEndCounts(Honest):
    """Lets failed and cancelled jobs hold their keys."""

    class PlantedJobTable(JobTable):
        def holder(self, key: str, now: float) -> MemoryJob | None:
            taker = self.takers.get(key)
            until = None if taker is None else _rule(taker).until(taker.created_at)
            if taker is not None and taker.status.is_final and until is not None and now < until:
                return taker
            return super().holder(key, now)


class PurgesHolders(Honest):
    """Knows only how long results are kept."""

    class PlantedJobTable(JobTable):
        def purge_due(self, key: int, now: float) -> bool:
            self.remove(self.records[key])
            return True


class ArchivesHolders(Honest):
    """Tells of every job whose time has come, whether it holds its key or not."""

    def prunable(self, limit: int) -> list[Job]:
        ended = [job for job in self.search(Search()) if job.purge_at is not None]
        return [job for job in ended if (job.purge_at or 0.0) <= self.now()][:limit]


class HoldersHideOthers(Honest):
    """Looks at so many jobs, and then leaves out those that hold their keys."""

    def prunable(self, limit: int) -> list[Job]:
        free = {job.id for job in super().prunable(10**9)}
        due = [job for job in self.search(Search()) if (job.purge_at or self.now()) < self.now()]
        due.sort(key=lambda job: job.purge_at or 0.0)
        return [job for job in due[:limit] if job.id in free]


class ErasedHolds(Honest):
    """Erases a job, and leaves its key to who it was."""

    def erase(self, jobs: Sequence[Job]) -> int:
        with self.step() as table:
            before = {job.unique_key or "": copy.copy(table.records[job.key]) for job in jobs}
        number = super().erase(jobs)
        with self.step() as table:
            table.takers |= before
        return number


class ErasesKeysOfOthers(Honest):
    """Frees the key of a job that is erased, whoever has it by then."""

    def erase(self, jobs: Sequence[Job]) -> int:
        number = super().erase(jobs)
        with self.step() as table:
            for job in jobs:
                table.takers.pop(job.unique_key or "", None)
                table.holders.pop(job.unique_key or "", None)
        return number


class HoldsForTheGone(Honest):
    """Leaves the keys of purged jobs behind."""

    class PlantedJobTable(JobTable):
        def remove(self, record: MemoryJob) -> None:
            before = dict(self.takers)
            super().remove(record)
            self.takers = before


class TakesKeysOfOthersAlong(Honest):
    """Frees the key of a job that is purged, whoever has it by then."""

    class PlantedJobTable(JobTable):
        def remove(self, record: MemoryJob) -> None:
            super().remove(record)
            self.takers.pop(record.new.unique_key or "", None)


class HoldsWhileRunning(Honest):
    """Knows one way to hold a key."""

    class PlantedJobTable(JobTable):
        def holder(self, key: str, now: float) -> MemoryJob | None:
            taker = self.takers.get(key)
            if taker is not None and taker.status is JobStatus.ACTIVE:
                return taker
            return super().holder(key, now)


class RetryTakesTheKey(Honest):
    """Gives a key to whoever waits, not to who asked for it last."""

    class PlantedJobTable(JobTable):
        def _move(self, record: MemoryJob, move: Transition, entry: bytes, now: float) -> None:
            super()._move(record, move, entry, now)
            if not move.status.is_final:
                self._take_key(record)


class RetryingIsNotWaiting(Honest):
    """Looks for jobs that are pending."""

    class PlantedJobTable(JobTable):
        def holder(self, key: str, now: float) -> MemoryJob | None:
            found = super().holder(key, now)
            return None if found is not None and found.status is JobStatus.RETRYING else found


class ComesBackBeside(Honest):
    """Sends a job back though another waits with its key."""

    class PlantedJobTable(JobTable):
        def _is_key_taken(self, record: MemoryJob) -> bool:
            return (record.held_key or "") in self.holders


class ComesBackWithoutItsKey(Honest):
    """Sends a job back that holds nothing any more."""

    class PlantedJobTable(JobTable):
        def _move(self, record: MemoryJob, move: Transition, entry: bytes, now: float) -> None:
            before = dict(self.takers)
            super()._move(record, move, entry, now)
            self.takers = before


class TwoWorldsOfKeys(Honest):
    """Tells keys with a rule from those without."""

    def add(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        keys = [job.unique_key and f"{job.unique is None}/{job.unique_key}" for job in jobs]
        return super().add(
            [change(job, unique_key=key) for job, key in zip(jobs, keys, strict=True)]
        )


class ExtendsTheTimeOnly(Honest):
    """Keeps the arguments of the first call."""

    class PlantedJobTable(JobTable):
        def _extend(self, record: MemoryJob, job: NewJob, now: float) -> None:
            kept = change(job, args=record.new.args, kwargs=record.new.kwargs)
            super()._extend(record, kept, now)


class ExtendsTheArgumentsOnly(Honest):
    """Keeps the due time of the first call."""

    class PlantedJobTable(JobTable):
        def _extend(self, record: MemoryJob, job: NewJob, now: float) -> None:
            super()._extend(record, change(job, delay=0.0, run_at=None), now)


class HurriesTheExtended(Honest):
    """Takes the due time of the last call, even if it is sooner."""

    class PlantedJobTable(JobTable):
        def _extend(self, record: MemoryJob, job: NewJob, now: float) -> None:
            record.run_at = now
            super()._extend(record, job, now)


class KeepsTheOldExpiry(Honest):
    """Extends a job past the time at which it is given up."""

    class PlantedJobTable(JobTable):
        def _extend(self, record: MemoryJob, job: NewJob, now: float) -> None:
            super()._extend(record, change(job, expires_at=record.expires_at), now)


class BeginsTheExtendedAnew(Honest):
    """Forgets what happened to a job that it extends."""

    class PlantedJobTable(JobTable):
        def _extend(self, record: MemoryJob, job: NewJob, now: float) -> None:
            super()._extend(record, job, now)
            record.status, record.attempts = JobStatus.PENDING, 0


class ExtendsWhatRuns(Honest):
    """Answers that a running job was extended, and drops the call."""

    def add(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        try:
            return super().add(jobs)
        except DuplicateJobError:
            if any(job.on_duplicate is OnDuplicate.EXTEND for job in jobs):
                holder = self.holder(jobs[0].unique_key or "") or ""
                return [EnqueueResult(holder, False)]
            raise


class ExtendsForARefusedBatch(Honest):
    """Carries calls out one by one, and what came before a refused one stays."""

    def add(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        extending = [job for job in jobs if job.on_duplicate is OnDuplicate.EXTEND]
        if len(jobs) > 1 and extending:
            with suppress(DuplicateJobError):
                super().add(extending)
        return super().add(jobs)


class LoadsWithoutKeys(Honest):
    """Knows of no keys that jobs brought along."""

    class PlantedJobTable(JobTable):
        def put(self, record: MemoryJob) -> None:
            before = dict(self.takers)
            super().put(record)
            self.takers = before


class FirstOfABatchOnly(Honest):
    """Looks for holders once, before a batch is added."""

    def add(self, jobs: Sequence[NewJob]) -> list[EnqueueResult]:
        seen: set[str | None] = set()
        found = []
        for job in jobs:
            is_again = job.unique_key is not None and job.unique_key in seen
            seen.add(job.unique_key)
            found += super().add(
                [change(job, on_duplicate=OnDuplicate.EXISTING)] if is_again else [job]
            )
        return found


class ExtendsAnyHandler(Honest):
    """Puts the arguments of one handler into the job of another."""

    class PlantedJobTable(JobTable):
        def _check_extension(
            self, job: NewJob, record: MemoryJob | None, earlier: NewJob | None, now: float
        ) -> None:
            held = record.new if record is not None else earlier
            named = job if held is None else change(job, handler=held.handler)
            super()._check_extension(named, record, earlier, now)


class ExtendsBeyondTheExpiry(Honest):
    """Lets a job expire before it is due."""

    class PlantedJobTable(JobTable):
        def _check_extension(
            self, job: NewJob, record: MemoryJob | None, earlier: NewJob | None, now: float
        ) -> None:
            super()._check_extension(change(job, expires_at=None), record, earlier, now)


PLANTED: list[tuple[type[Honest], str]] = [
    (ForgetsRules, "rule_is_kept"),
    (FreesAtTheEnd, "completed_job_holds_its_key_for_its_period"),
    (PeriodFromTheEnd, "completed_job_holds_its_key_for_its_period"),
    (PeriodOfTheWaiting, "period_does_not_end_while_the_job_waits_or_runs"),
    (EveryEndCounts, "end_that_does_not_count_frees_the_key"),
    (PurgesHolders, "holder_outlives_its_retention"),
    (ArchivesHolders, "holder_is_not_prunable"),
    (HoldersHideOthers, "holder_is_not_prunable"),
    (ErasedHolds, "erased_holder_lets_go_of_its_key"),
    (ErasesKeysOfOthers, "erasing_leaves_the_key_of_the_next_holder"),
    (KeepsKeys, "erased_job_comes_back_without_its_key"),
    (HoldsForTheGone, "purging_by_hand_frees_the_key"),
    (TakesKeysOfOthersAlong, "next_holder_counts_from_its_own_beginning"),
    (HoldsWhileRunning, "waiting_only_frees_the_key_when_it_runs"),
    (RetryTakesTheKey, "waiting_only_goes_back_to_its_queue"),
    (RetryingIsNotWaiting, "retrying_job_holds_what_it_held_while_waiting"),
    (ComesBackBeside, "waiting_only_does_not_come_back_beside_another"),
    (ComesBackWithoutItsKey, "waiting_only_does_not_come_back_beside_another"),
    (TwoWorldsOfKeys, "keys_of_both_kinds_are_one_key"),
    (ExtendsTheTimeOnly, "extended_job_waits_for_the_new_time"),
    (ExtendsTheArgumentsOnly, "extended_job_waits_for_the_new_time"),
    (HurriesTheExtended, "extended_job_is_never_due_sooner"),
    (ExtendsAnyHandler, "job_of_another_handler_is_not_extended"),
    (ExtendsBeyondTheExpiry, "extended_job_does_not_expire_before_it_is_due"),
    (KeepsTheOldExpiry, "extended_job_takes_the_new_expiry"),
    (BeginsTheExtendedAnew, "extended_retry_keeps_its_attempts"),
    (ExtendsWhatRuns, "running_job_is_not_extended"),
    (ExtendsWhatRuns, "ended_holder_refuses_and_says_so"),
    (ExtendsForARefusedBatch, "refused_batch_leaves_rules_alone"),
    (FirstOfABatchOnly, "batch_meets_its_own_rules"),
    (LoadsWithoutKeys, "loaded_jobs_hold_their_keys_by_their_rules"),
]
"""Each bug with the check that is about it."""
