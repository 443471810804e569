"""Job stores that look at queues wrongly, in one way each."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ergon_framework.core.job import JobStatus
from ergon_framework.jobs.stores.bounded_counts import next_names
from ergon_framework.ports.jobstore import MOST_COUNTED, MOST_SAMPLED, Queue, Search, StatusCounts
from tests.jobs.planted_stores import Honest

change = msgspec.structs.replace


class NamesNoQueueWithoutJobs(Honest):
    """Finds names among jobs, and forgets queues that have settings alone."""

    def queue_names(
        self, *, prefix: str = "", after: str = "", limit: int = 100, is_due: bool = False
    ) -> list[str]:
        found = super().queue_names(prefix=prefix, after=after, limit=limit, is_due=is_due)
        return [name for name in found if any(self.search(Search(queue=name), 1))]


class FindsNamesAnywhere(Honest):
    """Takes the beginning of a name for any part of it."""

    def queue_names(
        self, *, prefix: str = "", after: str = "", limit: int = 100, is_due: bool = False
    ) -> list[str]:
        found = super().queue_names(after=after, limit=1000, is_due=is_due)
        named = [each for each in found if prefix.lower() in each]
        return next_names(named, prefix="", after=after, limit=limit)


class DueOnceClaimed(Honest):
    """Takes no job for due before a worker has asked for it."""

    def queue_names(
        self, *, prefix: str = "", after: str = "", limit: int = 100, is_due: bool = False
    ) -> list[str]:
        found = super().queue_names(prefix=prefix, after=after, limit=limit, is_due=is_due)
        return [name for name in found if not is_due or name != "later"]


class LooksInOrder(Honest):
    """Answers by name, in whatever order it was asked."""

    def look_at_queues(
        self, names: Sequence[str], *, most: int = MOST_COUNTED, sample: int = MOST_SAMPLED
    ) -> list[Queue]:
        return super().look_at_queues(sorted(names), most=most, sample=sample)


class CutsInSilence(Honest):
    """Ends a count at the bound, and does not say so."""

    def look_at_queues(
        self, names: Sequence[str], *, most: int = MOST_COUNTED, sample: int = MOST_SAMPLED
    ) -> list[Queue]:
        return [
            change(each, counts={status: min(n, most) for status, n in each.counts.items()})
            for each in super().look_at_queues(names, most=most, sample=sample)
        ]

    def count_by_status(self, *, most: int = MOST_COUNTED) -> StatusCounts:
        found = super().count_by_status(most=most)
        return change(found, counts={status: min(n, most) for status, n in found.counts.items()})


class OldestOfTheUrgent(Honest):
    """Takes the job that goes next for the one that has waited longest."""

    def look_at_queues(
        self, names: Sequence[str], *, most: int = MOST_COUNTED, sample: int = MOST_SAMPLED
    ) -> list[Queue]:
        found = []
        for queue in super().look_at_queues(names, most=most, sample=sample):
            waiting = self.search(Search(statuses=(JobStatus.PENDING,), queue=queue.name))
            due = [job for job in waiting if job.run_at <= self.now()]
            first = max(due, key=lambda job: job.priority, default=None)
            found.append(change(queue, oldest_due_at=None if first is None else first.run_at))
        return found


PLANTED: list[tuple[type[Honest], str]] = [
    (NamesNoQueueWithoutJobs, "queue_names_come_page_by_page"),
    (FindsNamesAnywhere, "queue_names_are_found_by_their_beginning"),
    (DueOnceClaimed, "queues_with_due_jobs_are_named"),
    (LooksInOrder, "queues_are_looked_at_by_name"),
    (CutsInSilence, "counts_of_a_queue_may_end_at_a_bound"),
    (CutsInSilence, "store_is_counted_by_status"),
    (OldestOfTheUrgent, "look_at_a_queue_tells_what_has_waited_longest"),
]
