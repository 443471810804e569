"""Job stores that keep the limits of keys in one queue wrongly, in one way each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ergon_framework.core.claim import ClaimRequest
from ergon_framework.core.quota import TokenBucket
from ergon_framework.jobs.stores.memory.job_table import JobTable
from ergon_framework.jobs.stores.memory.queues import Heap, MemoryQueue, Offer, QueueSet
from ergon_framework.jobs.stores.memory.records import MemoryJobRecords
from ergon_framework.jobs.stores.memory.rows import MemoryJob
from ergon_framework.ports.jobstore import ClaimResult, PruneResult, Queue
from tests.jobs.planted_stores import Honest


class _Queues(QueueSet):
    """Queues of which every one is changed when it is made."""

    def change(self, queue: MemoryQueue) -> None:
        raise NotImplementedError

    def get(self, name: str) -> MemoryQueue:
        is_new = name not in self._queues
        queue = super().get(name)
        if is_new:
            self.change(queue)
        return queue


class KeysUnlimited(Honest):
    """Keeps the limit of keys for show."""

    class Lanes(QueueSet):
        def _is_full(self, record: MemoryJob, now: float) -> bool:
            return not self.get(record.new.queue).limits_keys and super()._is_full(record, now)


class JobsLimitCountsToo(Honest):
    """Keeps a job to its own limit in a queue that limits its keys."""

    class Lanes(QueueSet):
        def _is_full(self, record: MemoryJob, now: float) -> bool:
            key = record.new.limit_key
            is_own = key is not None and self.running[key] >= record.new.limit
            return is_own or super()._is_full(record, now)


class KeyOfAllQueues(Honest):
    """Counts what runs of a key in all queues against the limit of one."""

    class Lanes(QueueSet):
        def _is_full(self, record: MemoryJob, now: float) -> bool:
            queue, key = self.get(record.new.queue), record.new.limit_key
            most = queue.settings.key_max_active
            is_full = key is not None and most is not None and self.running[key] >= most
            return is_full or super()._is_full(record, now)


class KeyPlaceLeaks(Honest):
    """Does not give the place of a job back that was lost with its worker."""

    class PlantedJobTable(JobTable):
        def _move(self, record: MemoryJob, move: Any, entry: bytes, now: float) -> None:
            key = record.new.limit_key
            if key is not None and move.event == "lost":
                self.queues.get(record.new.queue).running[key] += 1
            super()._move(record, move, entry, now)


class RaisedLimitWakesNobody(Honest):
    """Lets jobs wait for a limit that was raised until another one ends."""

    class Lanes(QueueSet):
        def wake_all(self) -> None:
            pass


class OneBucketForAll(Honest):
    """Takes the tokens of all keys from one bucket."""

    class Lanes(_Queues):
        def change(self, queue: MemoryQueue) -> None:
            bucket, take = queue.key_bucket, queue.take_key_token
            queue.key_bucket = lambda key, rate: bucket("", rate)  # type: ignore[method-assign]
            queue.take_key_token = lambda key, now: take("", now)  # type: ignore[method-assign]


class KeyTokensNeverCome(Honest):
    """Forgets to look again at a key that waits for a token."""

    class Lanes(QueueSet):
        def _wake_later(self, record: MemoryJob, now: float) -> None:
            pass


class KeyTokensComeLate(Honest):
    """Says that a key has a token a little after it has one."""

    class Lanes(_Queues):
        def change(self, queue: MemoryQueue) -> None:
            next_at = queue.next_key_token

            def late(key: str, now: float) -> float | None:
                at = next_at(key, now)
                return None if at is None else at + 0.25

            queue.next_key_token = late  # type: ignore[method-assign]


class NobodyIsToldOfTokens(Honest):
    """Does not say when a key has a token."""

    def key_wakes_at(self, queue: str, limit_key: str) -> float | None:
        return None


class TokenComesBack(Honest):
    """Gives the token of a job back when the job is given back."""

    class PlantedJobTable(JobTable):
        def _move(self, record: MemoryJob, move: Any, entry: bytes, now: float) -> None:
            super()._move(record, move, entry, now)
            queue, key = self.queues.get(record.new.queue), record.new.limit_key
            if key in queue.key_buckets and move.event in {"released", "lost"}:
                queue.key_buckets[key] = queue.key_buckets[key].take(-1, now)


class PruneFillsBuckets(Honest):
    """Forgets all keys with a prune, not only those with full buckets."""

    def prune(self, limit: int, *, purges: bool = True) -> PruneResult:
        for queue in self.table.queues:
            queue.key_buckets.clear()
        return super().prune(limit, purges=purges)


class KeysNeverHeal(Honest):
    """Waits for a token at the instant that a clock said which was put right since."""

    class Lanes(QueueSet):
        def shorten_key_waits(self, now: float) -> None:
            pass


class QueuesNeverHeal(Honest):
    """Takes an instant for when a bucket is full that a clock said which was put right since."""

    class Lanes(_Queues):
        def change(self, queue: MemoryQueue) -> None:
            def has_token(now: float) -> bool:
                settings, full_at = queue.settings, queue.full_at
                if settings.rate is None or full_at is None:
                    return True
                return TokenBucket(settings.rate, settings.burst, full_at).free(now) > 0

            queue.has_token = has_token  # type: ignore[method-assign]


class LiftedRateIsKept(Honest):
    """Goes on waiting for tokens when there is no rate any more."""

    def set_queue(self, name: str, **changes: Any) -> Queue:
        if changes.get("key_rate", 0.0) is None:
            return next(each for each in self.queues() if each.name == name)
        return super().set_queue(name, **changes)


class MovesNoTokens(Honest):
    """Leaves the tokens of keys behind in a move."""

    def __init__(self, clock: Any) -> None:
        super().__init__(clock)
        self.records = _MovesNoTokens(self.step, self)


class _MovesNoTokens(MemoryJobRecords):
    def fill_key_buckets(self, full_at: Mapping[str, dict[str, float]]) -> None:
        pass


class NoTurns(Honest):
    """Takes jobs of all keys by priority and age alone."""

    class Lanes(QueueSet):
        def _first(self, queue: MemoryQueue, offer: Offer) -> int | None:
            firsts = [first for group in queue.due.values() if (first := group.first())]
            return min(firsts)[1] if firsts else None


class TurnsBeginAnew(Honest):
    """Begins with the first key at every claim."""

    class PlantedJobTable(JobTable):
        def claim(self, request: ClaimRequest, now: float) -> ClaimResult:
            for queue in self.queues:
                for turn in sorted(queue.turns):
                    queue.turns.move_to_end(turn)
            return super().claim(request, now)


class TurnsByName(Honest):
    """Gives the first key by name its turn, whoever had the last one."""

    class Lanes(QueueSet):
        def _first(self, queue: MemoryQueue, offer: Offer) -> int | None:
            for turn in sorted(queue.turns):
                queue.turns.move_to_end(turn)
            return super()._first(queue, offer)


class AgeWithinAKey(Honest):
    """Forgets priorities where keys take turns."""

    class Lanes(QueueSet):
        def _join_turns(self, queue: MemoryQueue, record: MemoryJob) -> None:
            turn = (record.new.limit_key or "", record.new.executor)
            queue.turns.setdefault(turn, Heap()).push(record.key, (record.run_at, record.key))


class FreeJobsComeLast(Honest):
    """Takes jobs without a key when no other is left."""

    class Lanes(QueueSet):
        def _first(self, queue: MemoryQueue, offer: Offer) -> int | None:
            for turn in [each for each in queue.turns if not each[0]]:
                queue.turns.move_to_end(turn)
            return super()._first(queue, offer)


class UsedUpKeysTakeATurn(Honest):
    """Gives up a claim at the first key that is used up."""

    class Lanes(QueueSet):
        def next(self, queue: MemoryQueue, offer: Offer, now: float) -> MemoryJob | None:
            first = self._first(queue, offer)
            if first is not None and self._is_full(self._records[first], now):
                return None
            return super().next(queue, offer, now)


class TurnsForAnyExecutor(Honest):
    """Stops at a key whose jobs are for an executor without a slot."""

    class Lanes(QueueSet):
        def _first(self, queue: MemoryQueue, offer: Offer) -> int | None:
            turn = next(iter(queue.turns), None) if queue.limits_keys else None
            if turn is not None and not offer.takes(queue.settings.name, turn[1]):
                return None
            return super()._first(queue, offer)


class OldTurnsAreLost(Honest):
    """Does not find jobs that were due before the keys of their queue took turns."""

    class Lanes(QueueSet):
        def take_turns(self, queue: MemoryQueue) -> None:
            queue.turns.clear()


PLANTED: list[tuple[type[Honest], str]] = [
    (KeysUnlimited, "queue_limits_each_key"),
    (KeysUnlimited, "limits_of_queue_and_key_hold_together"),
    (KeysUnlimited, "limited_key_of_a_queue_says_so"),
    (KeysUnlimited, "key_limit_of_a_queue_holds_among_threads"),
    (KeysUnlimited, "rate_of_a_key_begins_with_a_full_bucket"),
    (KeysUnlimited, "rate_of_a_key_holds_among_executors"),
    (KeysUnlimited, "rate_of_a_key_holds_among_threads"),
    (JobsLimitCountsToo, "key_limit_of_a_queue_comes_before_the_jobs_own"),
    (KeyOfAllQueues, "key_limit_of_a_queue_counts_there_alone"),
    (KeyPlaceLeaks, "key_limit_of_a_queue_is_freed"),
    (RaisedLimitWakesNobody, "key_limit_of_a_queue_can_be_raised"),
    (OneBucketForAll, "rate_of_a_key_holds_up_no_other"),
    (KeyTokensNeverCome, "rate_of_a_key_gives_tokens_with_time"),
    (KeyTokensNeverCome, "rate_of_a_key_saves_no_more_than_its_burst"),
    (KeyTokensNeverCome, "cancelled_job_passes_its_token_on"),
    (KeyTokensComeLate, "rate_of_a_key_says_when_to_come_again"),
    (NobodyIsToldOfTokens, "next_token_of_a_key_is_told"),
    (TokenComesBack, "rate_of_a_key_counts_every_start"),
    (TokenComesBack, "worker_that_dies_leaves_the_token_spent"),
    (PruneFillsBuckets, "full_buckets_of_keys_are_forgotten"),
    (KeysNeverHeal, "rate_of_a_key_heals_when_the_clock_is_set_back"),
    (QueuesNeverHeal, "rate_heals_when_the_clock_is_set_back"),
    (LiftedRateIsKept, "rate_of_a_key_can_be_lifted"),
    (MovesNoTokens, "tokens_of_keys_stay_taken"),
    (NoTurns, "keys_take_turns"),
    (NoTurns, "many_jobs_of_one_key_starve_no_other"),
    (TurnsBeginAnew, "turns_go_on_with_the_next_claim"),
    (TurnsByName, "turns_go_on_when_nothing_was_left"),
    (AgeWithinAKey, "priority_counts_within_a_key"),
    (FreeJobsComeLast, "jobs_without_a_key_have_one_turn"),
    (FreeJobsComeLast, "job_without_a_key_is_found_behind_many"),
    (UsedUpKeysTakeATurn, "used_up_keys_cost_no_turn"),
    (TurnsForAnyExecutor, "turns_are_kept_among_executors"),
    (OldTurnsAreLost, "keys_that_stop_taking_turns_are_found"),
]
"""Each with the check that rejects it."""
