"""Checks of limits: of a queue (at once, per second) and of limit keys, held while a job runs."""

from __future__ import annotations

from typing import Any

from ergon_framework.core.job import CancelRequested, JobEvent
from ergon_framework.ports.jobstore import ClaimedJob
from ergon_framework.testing.suites.drivers import START
from ergon_framework.testing.suites.framework import Check, expect, register
from ergon_framework.testing.suites.jobstore.under_test import (
    FAILS_FOR_GOOD,
    FAILS_ONCE,
    RELEASED,
    SUCCEEDED,
    WAIT,
    JobStoreSubject,
    ids_of,
    new,
    same,
)

CHECKS: list[Check[JobStoreSubject]] = []
check = register(CHECKS)


# ---- how many of a queue at once ----------------------------------------------------------------


@check()
def queue_runs_no_more_than_its_limit(s: JobStoreSubject) -> None:
    """A queue never has more running jobs than its limit, whoever claims, and others go on."""
    s.store.set_queue("q", max_active=2)
    s.put("a", "b", "c", queue="q")
    s.put("free")
    came = s.claim(9)
    same(sorted(ids_of(came)), ["a", "b", "free"], "first claim")
    same(s.ids(9, worker="w2"), [], "second worker")


@check()
def queue_limit_is_freed(s: JobStoreSubject) -> None:
    """A job that stops running in any way makes room for another of its queue."""
    s.store.set_queue("q", max_active=1)
    s.put("a", "b", "c", "d", queue="q")
    for job_id, seen in (("a", SUCCEEDED), ("b", FAILS_FOR_GOOD), ("c", FAILS_ONCE)):
        s.must(s.take(job_id), seen)
    same(s.ids(9), ["d"], "at last")


@check()
def queue_limit_counts_each_queue(s: JobStoreSubject) -> None:
    """The limit of one queue says nothing about another."""
    s.store.set_queue("one", max_active=1)
    s.store.set_queue("two", max_active=1)
    s.put("a1", "a2", queue="one")
    s.put("b1", "b2", queue="two")
    same(sorted(s.ids(9)), ["a1", "b1"], "claimed")


@check()
def queue_limit_can_be_lifted(s: JobStoreSubject) -> None:
    """Raising or lifting a limit lets the jobs go that waited for it."""
    s.store.set_queue("q", max_active=1)
    s.put("a", "b", "c", "d", queue="q")
    s.take("a")
    s.store.set_queue("q", max_active=2)
    same(s.ids(9), ["b"], "after raising it")
    s.store.set_queue("q", max_active=None)
    same(s.ids(9), ["c", "d"], "after lifting it")


@check()
def queue_limit_holds_among_executors(s: JobStoreSubject) -> None:
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
def queue_limit_holds_among_threads(s: JobStoreSubject) -> None:
    """Several workers that claim at once do not exceed a queue's limit together."""
    s.store.set_queue("q", max_active=5)
    s.put(*(f"job-{n}" for n in range(40)), queue="q")
    came = s.together([lambda: s.ids(4)] * 6)
    same(sum(map(len, came)), 5, "claimed together")


# ---- how many of a queue per second -------------------------------------------------------------


@check()
def rate_begins_with_a_full_bucket(s: JobStoreSubject) -> None:
    """A queue with a rate starts with its burst, and no job more."""
    s.store.set_queue("q", rate=0.5, burst=3)
    s.put(*(f"job-{n}" for n in range(9)), queue="q")
    same(len(s.claim(9)), 3, "at first")
    same(s.ids(9), [], "right after")


@check()
def rate_gives_tokens_with_time(s: JobStoreSubject) -> None:
    """One job may start for each token, and tokens come at the rate."""
    s.store.set_queue("q", rate=0.5, burst=1)
    expect_token_every_other_second(s)


@check()
def rate_saves_no_more_than_its_burst(s: JobStoreSubject) -> None:
    """However long a queue rests, only its burst may start at once."""
    s.store.set_queue("q", rate=10.0, burst=2)
    s.put(*(f"job-{n}" for n in range(9)), queue="q")
    s.clock.forward(3600.0)
    same(len(s.claim(9)), 2, "after an hour")
    s.clock.forward(3600.0)
    same(len(s.claim(9)), 2, "after another hour")


@check()
def rate_says_when_to_come_again(s: JobStoreSubject) -> None:
    """Whoever finds no token learns when there is one, and gets a job at that very instant."""
    s.store.set_queue("q", rate=3.0, burst=2)
    expect_instant_of_next_token(s)


@check()
def rate_counts_every_start(s: JobStoreSubject) -> None:
    """A job that is delivered again takes a token again, and its end gives none back."""
    s.store.set_queue("q", rate=0.1, burst=2)
    expect_token_for_every_start(s)


@check()
def rate_holds_among_executors(s: JobStoreSubject) -> None:
    """The tokens of one queue are shared by all executors of a worker."""
    s.store.set_queue("q", rate=0.1, burst=2)
    for executor in ("python", "node", "deno", "cobol"):
        s.put(f"{executor}-1", f"{executor}-2", queue="q", executor=executor)
    slots = {"python": 3, "node": 3, "deno": 3}
    same(len(s.claim(slots)), 2, "started with two tokens")
    s.clock.forward(10.0)
    same(len(s.claim(slots)), 1, "started with one more token")


@check()
def rate_of_one_queue_holds_up_no_other(s: JobStoreSubject) -> None:
    """A queue without a token does not keep others waiting."""
    s.store.set_queue("q", rate=0.1, burst=1)
    s.put("a", "b", queue="q")
    s.clock.forward(1.0)
    s.put("c", "d")
    same(sorted(s.ids(9)), ["a", "c", "d"], "claimed")


@check()
def rate_can_be_lifted(s: JobStoreSubject) -> None:
    """A queue whose rate was taken away goes on at once."""
    s.store.set_queue("q", rate=0.1, burst=1)
    s.put("a", "b", "c", queue="q")
    s.claim(9)
    s.store.set_queue("q", rate=None)
    same(s.ids(9), ["b", "c"], "claimed")


@check()
def rate_heals_when_the_clock_is_set_back(s: JobStoreSubject) -> None:
    """A clock that was set back makes a queue wait no longer than an empty bucket does."""
    s.store.set_queue("q", rate=0.1)
    s.put("a", "b", "c", queue="q")
    s.clock.forward(86_400.0)
    same(s.ids(9), ["a"], "claimed with a token")
    s.clock.to(START)
    same(s.ids(9), [], "claimed right after the clock was set back")
    s.clock.forward(10.5)
    same(s.ids(9), ["b"], "claimed when the next token has come by the clock as it is now")


@check()
def key_limits_what_runs(s: JobStoreSubject) -> None:
    """At most as many jobs of one key run at once as it says; those of other keys go on."""
    s.put("a1", "a2", "a3", limit_key="a")
    s.put("b1", limit_key="b")
    s.put("free")
    same(sorted(s.ids(9)), ["a1", "b1", "free"], "claimed")
    same(s.ids(9, worker="w2"), [], "second worker")


@check()
def limited_job_says_so(s: JobStoreSubject) -> None:
    """A job that was passed over for its key says that it waits for that."""
    s.put("a", "b", limit_key="k")
    leased = s.claim(9)[0]
    same([s.get(each).is_limited for each in "ab"], [False, True], "is_limited")
    s.must(leased, SUCCEEDED)
    s.take("b")
    same(s.get("b").is_limited, False, "is_limited of the running job")


@check()
def key_may_allow_several(s: JobStoreSubject) -> None:
    """A limit above one is used up and no more."""
    s.put(*(f"job-{n}" for n in range(6)), limit_key="k", limit=3)
    jobs = s.claim(9)
    same(len(jobs), 3, "at first")
    for job in jobs[:2]:
        s.must(job, SUCCEEDED)
    same(s.ids(9), ["job-3", "job-4"], "after two have ended")


@check()
def key_counts_across_queues(s: JobStoreSubject) -> None:
    """Jobs of one key count together, in whatever queues they are."""
    s.put("a", queue="one", limit_key="k")
    s.put("b", queue="two", limit_key="k")
    first = s.claim(9)
    same(len(first), 1, "at once")
    s.must(first[0], SUCCEEDED)
    same(len(s.claim(9)), 1, "after the first has ended")


def _frees(s: JobStoreSubject, seen: JobEvent) -> None:
    s.put("a", "b", limit_key="k")
    leased = s.claim(9)[0]
    same((leased.id, s.ids(9)), ("a", []), "at first")
    s.must(leased, seen)
    came = s.ids(9)
    expect(came in (["a"], ["b"]), f"one of the key was to come, and {came} came")


@check()
def key_is_freed_when_completed(s: JobStoreSubject) -> None:
    """A completed job frees its limit key."""
    _frees(s, SUCCEEDED)


@check()
def key_is_freed_when_failed(s: JobStoreSubject) -> None:
    """A dead-lettered job frees its limit key."""
    _frees(s, FAILS_FOR_GOOD)


@check()
def key_is_freed_when_retrying(s: JobStoreSubject) -> None:
    """A job that waits for another attempt does not hold its limit key meanwhile."""
    _frees(s, FAILS_ONCE)


@check()
def key_is_freed_when_released(s: JobStoreSubject) -> None:
    """A job that was given back does not hold its limit key."""
    _frees(s, RELEASED)


@check()
def key_is_freed_when_rescued(s: JobStoreSubject) -> None:
    """A job that was taken from a lost worker does not hold its limit key."""
    s.put("a", "b", limit_key="k")
    s.claim(9)
    s.rescue_one()
    same(len(s.claim(9)), 1, "claimed")


@check()
def key_is_freed_in_the_same_call(s: JobStoreSubject) -> None:
    """The job that waited for the key comes in the call that frees it."""
    s.put("a", "b", limit_key="k")
    leased = s.claim(9)[0]
    _, claimed = s.settle_and_claim([s.told(leased, SUCCEEDED)], 9)
    same(ids_of(claimed.jobs), ["b"], "claimed")


@check()
def late_report_frees_no_key(s: JobStoreSubject) -> None:
    """A report that is refused does not free the key of whoever runs now."""
    s.put("a", "b", limit_key="k")
    lost = s.claim(9)[0]
    s.rescue_one()
    same(len(s.claim(9)), 1, "claimed after the rescue")
    expect(not s.settle(lost, SUCCEEDED), "the late report was applied")
    same(s.ids(9), [], "claimed after the late report")


@check()
def limited_jobs_keep_their_order(s: JobStoreSubject) -> None:
    """Jobs that waited for their key come in the order in which they would have come."""
    s.put("first", limit_key="k")
    s.put("b", "c", limit_key="k")
    s.put("urgent", priority=5, limit_key="k", delay=1.0)
    leased = s.claim(9)[0]
    s.clock.forward(1.0)
    s.claim(9)
    order = []
    for _ in range(3):
        s.must(leased, SUCCEEDED)
        leased = s.claim(9)[0]
        order.append(leased.id)
    same(order, ["urgent", "b", "c"], "order")


@check()
def cancelled_job_passes_its_turn_on(s: JobStoreSubject) -> None:
    """When the job that would have got the key is cancelled, the next one gets it."""
    s.put("a", "b", "c", limit_key="k")
    leased = s.claim(9)[0]
    s.must(leased, SUCCEEDED)
    s.must(s.get("b"), CancelRequested())
    same(s.ids(9), ["c"], "claimed")


@check()
def cancelled_while_limited(s: JobStoreSubject) -> None:
    """A job that is cancelled while it waits for its key never comes, and blocks nobody."""
    s.put("a", "b", "c", limit_key="k")
    leased = s.claim(9)[0]
    s.must(s.get("b"), CancelRequested())
    s.must(leased, SUCCEEDED)
    same(s.ids(9), ["c"], "claimed")


@check()
def expired_job_passes_its_turn_on(s: JobStoreSubject) -> None:
    """When the job that would have got the key is outdated, the next one gets it."""
    s.put("a", limit_key="k")
    s.put("b", limit_key="k", expires_at=START + 5.0)
    s.put("c", limit_key="k")
    leased = s.claim(9)[0]
    s.clock.forward(6.0)
    s.must(leased, SUCCEEDED)
    came = s.ids(9) or s.ids(9)
    same(came, ["c"], "claimed")


@check()
def paused_queue_does_not_keep_a_key(s: JobStoreSubject) -> None:
    """A key that is free does not wait for jobs that cannot run, however many come before."""
    leased = _others_wait(s)
    s.store.set_queue("paused", is_paused=True)
    for job_id in ("c1", "c2"):
        s.must(leased, SUCCEEDED)
        leased = s.take(job_id)


@check()
def queue_that_is_paused_late_does_not_keep_a_key(s: JobStoreSubject) -> None:
    """The same when the queue is paused after its job's turn has come."""
    leased = _others_wait(s)
    s.must(leased, SUCCEEDED)
    s.store.set_queue("paused", is_paused=True)
    same(s.ids(9), ["c1"], "claimed")


@check()
def queue_of_others_does_not_keep_a_key(s: JobStoreSubject) -> None:
    """The same for a queue whose workers are away."""
    leased = _others_wait(s)
    s.must(leased, SUCCEEDED)
    same(s.ids(9, queues=("open",)), ["c1"], "claimed")


@check()
def busy_executor_does_not_keep_a_key(s: JobStoreSubject) -> None:
    """The same for an executor without a slot."""
    s.put("a", limit_key="k", priority=10)
    s.put("b1", "b2", limit_key="k", executor="node", priority=9)
    s.put("c", limit_key="k")
    leased = s.claim({"python": 5, "node": 5})
    same(ids_of(leased), ["a"], "claimed at first")
    s.must(leased[0], SUCCEEDED)
    same(s.ids(5), ["c"], "claimed when the key is free")


@check()
def resumed_queue_goes_on_with_its_key(s: JobStoreSubject) -> None:
    """A job whose key was freed while its queue was paused goes when the queue is resumed."""
    leased = _others_wait(s)
    s.store.set_queue("paused", is_paused=True)
    s.must(leased, SUCCEEDED)
    same(s.ids(9, queues=("paused",)), [], "while the queue is paused")
    s.store.set_queue("paused", is_paused=False)
    for job_id in ("b1", "b2", "b3"):
        s.must(s.take(job_id, queues=("paused",)), SUCCEEDED)


def _others_wait(s: JobStoreSubject) -> ClaimedJob:
    """A running job, and others in two queues that wait for its key."""
    s.put("a", limit_key="k")
    s.put("b1", "b2", "b3", limit_key="k", queue="paused", priority=9)
    s.put("c1", "c2", limit_key="k", queue="open")
    leased = s.take("a", queues=("default",))
    same(s.ids(9), [], "while the key is held")
    return leased


@check()
def retried_job_waits_for_its_key(s: JobStoreSubject) -> None:
    """A job that is due again waits while another of its key runs."""
    s.put("a", "b", limit_key="k")
    s.must(s.take("a"), FAILS_ONCE)
    leased = s.take("b")
    s.clock.forward(WAIT)
    same(s.ids(9), [], "while the other runs")
    s.must(leased, SUCCEEDED)
    same(s.ids(9), ["a"], "afterwards")


@check()
def key_limit_holds_among_threads(s: JobStoreSubject) -> None:
    """Several workers that claim at once do not exceed a key's limit together."""
    s.put(*(f"job-{n}" for n in range(30)), limit_key="k", limit=4)
    came = s.together([lambda: s.ids(3)] * 6)
    together = sum(map(len, came))
    expect(together <= 4, f"{together} were claimed together, of a key that allows 4")
    # Whoever finds a row locked passes it by, so that one may be left for the next claim.
    same(together + len(s.ids(3)), 4, "claimed in all")


@check()
def many_keys_run_side_by_side(s: JobStoreSubject) -> None:
    """Jobs behind a long row of one busy key are found, in a few claims at most."""
    s.store.add([new(f"busy-{n}", limit_key="busy") for n in range(300)])
    s.store.add([new(f"key-{n}", limit_key=f"key-{n}") for n in range(20)])
    came: list[str] = []
    for _ in range(20):
        came += s.ids(21 - len(came))
    same(came, ["busy-0", *(f"key-{n}" for n in range(20))], "claimed")


# What the rate of a queue and the rate of each limit key of a queue promise alike. Each function
# needs a queue ``q`` that was given a rate; ``fields`` are those of the jobs that it adds there.


def expect_token_every_other_second(s: JobStoreSubject, **fields: Any) -> None:
    """With a rate of 0.5 and a burst of 1, one job starts every other second."""
    s.put(*(f"job-{n}" for n in range(9)), queue="q", **fields)
    came = []
    for _ in range(8):  # 1.0 s each: a token every other time
        came.append(len(s.claim(9)))
        s.clock.forward(1.0)
    same(came, [1, 0, 1, 0, 1, 0, 1, 0], "claimed each second")


def expect_instant_of_next_token(s: JobStoreSubject, **fields: Any) -> None:
    """With a rate of 3 and a burst of 2, a claim says when the next token comes, and it does."""
    s.put(*(f"job-{n}" for n in range(12)), queue="q", **fields)
    same(len(s.claim(9)), 2, "at first")
    for _ in range(9):
        claimed = s.settle_and_claim((), 9)[1]
        same(claimed.jobs, [], "without a token")
        at = claimed.next_at
        expect(at is not None and START < at <= s.store.now() + 0.34, f"next_at is {at}")
        s.clock.to(at or 0.0)
        same(len(s.claim(9)), 1, "at the instant given")
    expect(s.store.now() < START + 3.01, "nine jobs at three per second took longer")


def expect_token_for_every_start(s: JobStoreSubject, **fields: Any) -> None:
    """With a rate of 0.1 and a burst of 2, a job that is delivered twice takes two tokens."""
    s.put("a", "b", queue="q", **fields)
    s.ended("a", RELEASED)
    s.ended("a", SUCCEEDED)
    same(s.ids(9), [], "the third start")
    s.clock.forward(10.0)
    same(s.ids(9), ["b"], "ten seconds later")
