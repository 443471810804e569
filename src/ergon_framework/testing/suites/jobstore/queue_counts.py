"""Checks of looks at queues that cost the same however many jobs there are: names page by page, and
counts that end at a bound.
"""

from __future__ import annotations

from collections.abc import Mapping

from ergon_framework.core.job import CancelRequested, JobEvent
from ergon_framework.ports.jobstore import Queue
from ergon_framework.testing.suites.framework import Check, expect, register
from ergon_framework.testing.suites.jobstore.under_test import (
    FAILS_FOR_GOOD,
    FAILS_ONCE,
    SUCCEEDED,
    JobStoreSubject,
    same,
)

CHECKS: list[Check[JobStoreSubject]] = []
check = register(CHECKS)


def _fill(s: JobStoreSubject) -> None:
    """Queues that have jobs of one state, of all of them, or settings alone."""
    s.put("done", "done2", queue="ended")
    for job in s.claim(2):
        s.must(job, SUCCEEDED)
    s.put("runs", queue="running")
    s.claim(1)
    s.put("d1", "d2", "d3", queue="due")
    s.put("x1", queue="due.other", executor="other")
    s.put("l1", "l2", queue="later", delay=60.0)
    s.put("k1", "k2", queue="limited", limit_key="k")
    s.claim(1, queues=("limited",))
    s.claim(1, queues=("limited",))  # finds that the other has to wait
    s.store.set_queue("set", max_active=3)
    s.put(*(f"m{n}" for n in range(6)), queue="mixed", priority=5)
    endings: dict[str, JobEvent] = {"m0": SUCCEEDED, "m1": FAILS_ONCE, "m2": FAILS_FOR_GOOD}
    for job_id, seen in endings.items():
        s.must(s.take(job_id, queues=("mixed",)), seen)
    s.must(s.get("m3"), CancelRequested())
    s.take("m4", queues=("mixed",))


_ALL = ["due", "due.other", "ended", "later", "limited", "mixed", "running", "set"]


def _counts(counts: Mapping[str, int]) -> dict[str, int]:
    return {status: number for status, number in counts.items() if number}


def _exactly(queue: Queue) -> tuple[object, ...]:
    return queue.name, _counts(queue.counts), queue.oldest_due_at, queue.is_paused, queue.max_active


@check()
def queue_names_come_page_by_page(s: JobStoreSubject) -> None:
    """Each queue that has a job in any state, or settings, is listed once, in order."""
    same(s.store.queue_names(), [], "of an empty store")
    _fill(s)
    same(s.store.queue_names(), _ALL, "all")
    found: list[str] = []
    while page := s.store.queue_names(after=found[-1] if found else "", limit=3):
        expect(len(page) <= 3, "a page is too long")
        found += page
    same(found, _ALL, "page by page")


@check()
def queue_names_are_found_by_their_beginning(s: JobStoreSubject) -> None:
    """Also behind another name, which may stand before all of them or among them."""
    _fill(s)
    same(s.store.queue_names(prefix="due"), ["due", "due.other"], "with the beginning")
    same(s.store.queue_names(prefix="due", after="due"), ["due.other"], "behind the first")
    same(s.store.queue_names(prefix="l", after="a"), ["later", "limited"], "behind an earlier one")
    same(s.store.queue_names(prefix="l", after="z"), [], "behind a later one")
    same(s.store.queue_names(prefix="l", limit=1), ["later"], "one of them")
    same(s.store.queue_names(prefix="L"), [], "in capitals")


@check()
def queues_with_due_jobs_are_named(s: JobStoreSubject) -> None:
    """Those of any executor, and those whose time came while nobody asked for them."""
    _fill(s)
    wanted = ["due", "due.other", "limited", "mixed"]
    same(s.store.queue_names(is_due=True), wanted, "at first")
    s.clock.forward(61.0)
    wanted.insert(2, "later")
    same(s.store.queue_names(is_due=True), wanted, "after the delay")
    same(s.store.queue_names(is_due=True, after="due", limit=2), ["due.other", "later"], "a page")


@check()
def queues_are_looked_at_by_name(s: JobStoreSubject) -> None:
    """They come in the order that was asked for, with the counts and limits of the whole list."""
    _fill(s)
    listed = {each.name: each for each in s.store.queues()}
    same(sorted(listed), _ALL, "the whole list")
    found = s.store.look_at_queues([*reversed(_ALL), "none"])
    same([each.name for each in found], [*reversed(_ALL), "none"], "names")
    for queue in found[:-1]:
        same(_exactly(queue), _exactly(listed[queue.name]), queue.name)
        same(queue.more, (), f"{queue.name}: what is not exact")
    same(_counts(found[-1].counts), {}, "one that is not there")
    same(s.store.look_at_queues([]), [], "none")


@check()
def counts_of_a_queue_may_end_at_a_bound(s: JobStoreSubject) -> None:
    """A count is exact, or its state is told as one that has at least as many jobs."""
    _fill(s)
    s.put("late1", "late2", "late3", queue="later", delay=70.0)
    listed = {each.name: each for each in s.store.queues()}
    for most, sample in ((1, 100), (2, 100), (5, 2)):
        for queue in s.store.look_at_queues(_ALL, most=most, sample=sample):
            whole = listed[queue.name].counts
            for status in {*whole, *queue.counts}:
                number, real = queue.counts.get(status, 0), whole.get(status, 0)
                if status not in queue.more:
                    same(number, real, f"{status} of {queue.name} with a bound of {most}")
            sums = [
                counts.get("pending", 0) + counts.get("retrying", 0)
                for counts in (queue.counts, whole)
            ]
            expect(sums[0] <= sums[1], f"more wait in {queue.name} than there are")


@check()
def look_at_a_queue_tells_what_has_waited_longest(s: JobStoreSubject) -> None:
    """Whatever its priority, its executor and the limit key that it waits for."""
    s.put("low", queue="q", priority=-1)
    s.clock.forward(10.0)
    s.put("high", queue="q", priority=5)
    s.put("other", queue="q", priority=9, executor="other")

    def oldest() -> float | None:
        return s.store.look_at_queues(["q"])[0].oldest_due_at

    since = s.get("low").run_at
    same(oldest(), since, "with one of low priority")
    s.must(s.get("low"), CancelRequested())
    same(oldest(), since + 10.0, "without it")
    for job_id in ("high", "other"):
        s.must(s.get(job_id), CancelRequested())
    same(oldest(), None, "with none")
    s.put("soon", queue="q", delay=5.0)
    same(oldest(), None, "before its time")
    s.clock.forward(6.0)
    same(oldest(), since + 15.0, "after its time, with no worker that asked")


@check()
def store_is_counted_by_status(s: JobStoreSubject) -> None:
    """The jobs of all queues together; with a bound, a state that has more is told as such."""
    same(_counts(s.store.count_by_status().counts), {}, "of an empty store")
    _fill(s)
    whole: dict[str, int] = {}
    for queue in s.store.queues():
        for status, number in queue.counts.items():
            whole[status] = whole.get(status, 0) + number
    found = s.store.count_by_status()
    same((_counts(found.counts), found.more), (_counts(whole), ()), "exactly")
    for most in (1, 2, 3):
        found = s.store.count_by_status(most=most)
        for status, number in whole.items():
            if status not in found.more:
                same(found.counts.get(status, 0), number, f"{status} with a bound of {most}")
            expect(found.counts.get(status, 0) <= number, f"too many {status}")


@check("spoil")
def rows_set_aside_are_counted_apart(s: JobStoreSubject) -> None:
    """A look at their queue and at the whole store tells how many there are; it stays listed."""
    s.put("a", "bad", queue="q")
    s.spoil("bad")
    s.claim(5)
    wanted = {"active": 1, "unreadable": 1}
    [queue] = s.store.look_at_queues(s.store.queue_names())
    same((queue.name, _counts(queue.counts)), ("q", wanted), "the queue")
    same(_counts(s.store.count_by_status().counts), wanted, "the store")
