"""Checks of a queue's limits: so many jobs at once, and so many per second."""

from __future__ import annotations

from ergon_framework.testing.suites.drivers import START
from ergon_framework.testing.suites.framework import Check, expect, register
from ergon_framework.testing.suites.jobstore.subject import (
    FAILS_FOR_GOOD,
    FAILS_ONCE,
    RELEASED,
    SUCCEEDED,
    Subject,
    ids_of,
    same,
)

CHECKS: list[Check[Subject]] = []
check = register(CHECKS)


# ---- how many of a queue at once ----------------------------------------------------------------


@check()
def queue_runs_no_more_than_its_limit(s: Subject) -> None:
    """A queue never has more running jobs than its limit, whoever claims, and others go on."""
    s.store.set_queue("q", max_active=2)
    s.put("a", "b", "c", queue="q")
    s.put("free")
    came = s.claim(9)
    same(sorted(ids_of(came)), ["a", "b", "free"], "first claim")
    same(s.ids(9, worker="w2"), [], "second worker")


@check()
def queue_limit_is_freed(s: Subject) -> None:
    """A job that stops running in any way makes room for another of its queue."""
    s.store.set_queue("q", max_active=1)
    s.put("a", "b", "c", "d", queue="q")
    for job_id, seen in (("a", SUCCEEDED), ("b", FAILS_FOR_GOOD), ("c", FAILS_ONCE)):
        s.must(s.take(job_id), seen)
    same(s.ids(9), ["d"], "at last")


@check()
def queue_limit_counts_each_queue(s: Subject) -> None:
    """The limit of one queue says nothing about another."""
    s.store.set_queue("one", max_active=1)
    s.store.set_queue("two", max_active=1)
    s.put("a1", "a2", queue="one")
    s.put("b1", "b2", queue="two")
    same(sorted(s.ids(9)), ["a1", "b1"], "claimed")


@check()
def queue_limit_can_be_lifted(s: Subject) -> None:
    """Raising or lifting a limit lets the jobs go that waited for it."""
    s.store.set_queue("q", max_active=1)
    s.put("a", "b", "c", "d", queue="q")
    s.take("a")
    s.store.set_queue("q", max_active=2)
    same(s.ids(9), ["b"], "after raising it")
    s.store.set_queue("q", max_active=None)
    same(s.ids(9), ["c", "d"], "after lifting it")


@check()
def queue_limit_holds_among_executors(s: Subject) -> None:
    """What one queue may run is shared by all executors of a worker."""
    s.store.set_queue("q", max_active=2)
    for executor in ("python", "node", "deno", "cobol"):
        s.put(f"{executor}-1", f"{executor}-2", queue="q", executor=executor)
    slots = {"python": 3, "node": 3, "deno": 3}
    jobs = s.claim(slots)
    same(len(jobs), 2, "running jobs of a queue that may run two")
    same(s.claim(slots), [], "claimed while two were running")
    s.must(jobs[0], SUCCEEDED)
    same(len(s.claim(slots)), 1, "claimed after one had ended")


@check()
def queue_limit_holds_among_threads(s: Subject) -> None:
    """Several workers that claim at once do not exceed a queue's limit together."""
    s.store.set_queue("q", max_active=5)
    s.put(*(f"job-{n}" for n in range(40)), queue="q")
    came = s.together([lambda: s.ids(4)] * 6)
    same(sum(map(len, came)), 5, "claimed together")


# ---- how many of a queue per second -------------------------------------------------------------


@check()
def rate_begins_with_a_full_bucket(s: Subject) -> None:
    """A queue with a rate starts with its burst, and no job more."""
    s.store.set_queue("q", rate=0.5, burst=3)
    s.put(*(f"job-{n}" for n in range(9)), queue="q")
    same(len(s.claim(9)), 3, "at first")
    same(s.ids(9), [], "right after")


@check()
def rate_gives_tokens_with_time(s: Subject) -> None:
    """One job may start for each token, and tokens come at the rate."""
    s.store.set_queue("q", rate=0.5, burst=1)
    s.put(*(f"job-{n}" for n in range(9)), queue="q")
    came = []
    for _ in range(8):  # 1.0 s each: a token every other time
        came.append(len(s.claim(9)))
        s.clock.forward(1.0)
    same(came, [1, 0, 1, 0, 1, 0, 1, 0], "claimed each second")


@check()
def rate_saves_no_more_than_its_burst(s: Subject) -> None:
    """However long a queue rests, only its burst may start at once."""
    s.store.set_queue("q", rate=10.0, burst=2)
    s.put(*(f"job-{n}" for n in range(9)), queue="q")
    s.clock.forward(3600.0)
    same(len(s.claim(9)), 2, "after an hour")
    s.clock.forward(3600.0)
    same(len(s.claim(9)), 2, "after another hour")


@check()
def rate_says_when_to_come_again(s: Subject) -> None:
    """Whoever finds no token learns when there is one, and gets a job at that very instant."""
    s.store.set_queue("q", rate=3.0, burst=2)
    s.put(*(f"job-{n}" for n in range(12)), queue="q")
    same(len(s.claim(9)), 2, "at first")
    for _ in range(9):
        claimed = s.exchange((), 9)[1]
        same(claimed.jobs, [], "without a token")
        at = claimed.next_at
        expect(at is not None and START < at <= s.store.now() + 0.34, f"next_at is {at}")
        s.clock.to(at or 0.0)
        same(len(s.claim(9)), 1, "at the instant given")
    expect(s.store.now() < START + 3.01, "nine jobs at three per second took longer")


@check()
def rate_counts_every_start(s: Subject) -> None:
    """A job that is delivered again takes a token again, and its end gives none back."""
    s.store.set_queue("q", rate=0.1, burst=2)
    s.put("a", "b", queue="q")
    s.ended("a", RELEASED)
    s.ended("a", SUCCEEDED)
    same(s.ids(9), [], "the third start")
    s.clock.forward(10.0)
    same(s.ids(9), ["b"], "ten seconds later")


@check()
def rate_holds_among_executors(s: Subject) -> None:
    """The tokens of one queue are shared by all executors of a worker."""
    s.store.set_queue("q", rate=0.1, burst=2)
    for executor in ("python", "node", "deno", "cobol"):
        s.put(f"{executor}-1", f"{executor}-2", queue="q", executor=executor)
    slots = {"python": 3, "node": 3, "deno": 3}
    same(len(s.claim(slots)), 2, "started with two tokens")
    s.clock.forward(10.0)
    same(len(s.claim(slots)), 1, "started with one more token")


@check()
def rate_of_one_queue_holds_up_no_other(s: Subject) -> None:
    """A queue without a token does not keep others waiting."""
    s.store.set_queue("q", rate=0.1, burst=1)
    s.put("a", "b", queue="q")
    s.clock.forward(1.0)
    s.put("c", "d")
    same(sorted(s.ids(9)), ["a", "c", "d"], "claimed")


@check()
def rate_can_be_lifted(s: Subject) -> None:
    """A queue whose rate was taken away goes on at once."""
    s.store.set_queue("q", rate=0.1, burst=1)
    s.put("a", "b", "c", queue="q")
    s.claim(9)
    s.store.set_queue("q", rate=None)
    same(s.ids(9), ["b", "c"], "claimed")
