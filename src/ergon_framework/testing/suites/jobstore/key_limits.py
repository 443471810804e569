"""Checks of limits that a queue sets for each of its limit keys: at once, and per second."""

from __future__ import annotations

from ergon_framework.core.job import CancelRequested
from ergon_framework.testing.suites.drivers import START
from ergon_framework.testing.suites.framework import Check, expect, register
from ergon_framework.testing.suites.jobstore.limits import (
    expect_instant_of_next_token,
    expect_token_every_other_second,
    expect_token_for_every_start,
)
from ergon_framework.testing.suites.jobstore.under_test import (
    FAILS_FOR_GOOD,
    FAILS_ONCE,
    SUCCEEDED,
    JobStoreSubject,
    ids_of,
    same,
)

CHECKS: list[Check[JobStoreSubject]] = []
check = register(CHECKS)


# ---- how many of a key at once ------------------------------------------------------------------


@check()
def queue_limits_each_key(s: JobStoreSubject) -> None:
    """No more jobs of one key run in a queue than the queue allows a key, whoever claims."""
    s.store.set_queue("q", key_max_active=2)
    s.put("a1", "a2", "a3", queue="q", limit_key="a")
    s.put("b1", "b2", "b3", queue="q", limit_key="b")
    s.put("free1", "free2", "free3", queue="q")
    came = sorted(s.ids(20))
    same(came, ["a1", "a2", "b1", "b2", "free1", "free2", "free3"], "claimed")
    s.put("a4", queue="q", limit_key="a")
    same(s.ids(20, worker="w2"), [], "second worker")


@check()
def key_limit_of_a_queue_comes_before_the_jobs_own(s: JobStoreSubject) -> None:
    """Jobs that only carry their key are limited by their queue, and not to one at a time."""
    s.store.set_queue("q", key_max_active=3)
    s.put("a1", "a2", "a3", "a4", queue="q", limit_key="a")
    same(s.ids(9), ["a1", "a2", "a3"], "claimed")


@check()
def key_limit_of_a_queue_counts_there_alone(s: JobStoreSubject) -> None:
    """What runs of the same key in another queue leaves a queue's own limit of keys alone."""
    s.store.set_queue("one", key_max_active=1)
    s.store.set_queue("two", key_max_active=1)
    s.put("a1", "a2", queue="one", limit_key="k")
    s.put("b1", "b2", queue="two", limit_key="k")
    same(sorted(s.ids(9)), ["a1", "b1"], "claimed")


@check()
def key_limit_of_a_queue_is_freed(s: JobStoreSubject) -> None:
    """A job that stops running in any way makes room for another of its key."""
    s.store.set_queue("q", key_max_active=1)
    s.put("a", "b", "c", "d", queue="q", limit_key="k")
    for job_id, seen in (("a", SUCCEEDED), ("b", FAILS_FOR_GOOD), ("c", FAILS_ONCE)):
        leased = s.take(job_id)
        same(s.ids(9), [], f"claimed while {job_id} runs")
        s.must(leased, seen)
    s.take("d")
    s.rescue_one()
    came = s.ids(9)
    expect(len(came) == 1, f"one job of the key was to come after the rescue, and {came} came")


@check()
def key_limit_of_a_queue_can_be_raised(s: JobStoreSubject) -> None:
    """Raising the limit of keys lets the jobs go that waited for it, while others still run."""
    s.store.set_queue("q", key_max_active=1)
    s.put("a", "b", "c", "d", "e", queue="q", limit_key="k", limit=9)
    s.take("a")
    same(s.ids(9), [], "with the first limit")
    s.store.set_queue("q", key_max_active=3)
    same(s.ids(9) + s.ids(9), ["b", "c"], "after raising it")
    same(s.ids(9), [], "more than that")
    s.store.set_queue("q", key_max_active=None)
    came = s.ids(9) + s.ids(9)
    expect("d" in came, f"d was to come after the limit was lifted, and {came} came")


@check()
def limits_of_queue_and_key_hold_together(s: JobStoreSubject) -> None:
    """The limit of the queue and that of each key hold at the same time."""
    s.store.set_queue("q", max_active=4, key_max_active=2)
    s.put("a1", "a2", "a3", "a4", queue="q", limit_key="a")
    s.put("b1", queue="q", limit_key="b")
    came = s.claim(9)
    same(sorted(ids_of(came)), ["a1", "a2", "b1"], "with two keys")
    s.put("c1", "c2", queue="q", limit_key="c")
    same(s.ids(9), ["c1"], "with another key")
    s.must(came[0], SUCCEEDED)
    same(len(s.claim(9)), 1, "after one has ended")


@check()
def limited_key_of_a_queue_says_so(s: JobStoreSubject) -> None:
    """A job that was refused for the limit of its key is no candidate until that changes."""
    s.store.set_queue("q", key_max_active=1)
    s.put("a", "b", queue="q", limit_key="k")
    leased = s.claim(9)[0]
    same([s.get(each).is_limited for each in "ab"], [False, True], "is_limited")
    s.must(leased, SUCCEEDED)
    s.take("b")
    same(s.get("b").is_limited, False, "is_limited of the running job")


@check()
def key_limit_of_a_queue_holds_among_threads(s: JobStoreSubject) -> None:
    """Several workers that claim at once do not exceed the limit of a key together."""
    s.store.set_queue("q", key_max_active=4)
    s.put(*(f"job-{n}" for n in range(30)), queue="q", limit_key="k")
    came = s.together([lambda: s.ids(3)] * 6)
    together = sum(map(len, came))
    expect(together <= 4, f"{together} were claimed together, of a key that allows 4")
    same(together + len(s.ids(9)), 4, "claimed in all")


# ---- how many of a key per second ---------------------------------------------------------------


@check()
def rate_of_a_key_begins_with_a_full_bucket(s: JobStoreSubject) -> None:
    """Each key of a queue with a rate for keys starts with its burst, and no job more."""
    s.store.set_queue("q", key_rate=0.5, key_burst=3)
    s.put(*(f"a{n}" for n in range(9)), queue="q", limit_key="a")
    s.put(*(f"b{n}" for n in range(2)), queue="q", limit_key="b")
    same(sorted(s.ids(20)), ["a0", "a1", "a2", "b0", "b1"], "at first")
    s.put("a-late", queue="q", limit_key="a", priority=9)
    same(s.ids(20), [], "right after")


@check()
def rate_of_a_key_gives_tokens_with_time(s: JobStoreSubject) -> None:
    """One job of a key may start for each token of it, and tokens come at the rate."""
    s.store.set_queue("q", key_rate=0.5)
    expect_token_every_other_second(s, limit_key="k")


@check()
def rate_of_a_key_saves_no_more_than_its_burst(s: JobStoreSubject) -> None:
    """However long a key rests, only its burst may start at once."""
    s.store.set_queue("q", key_rate=10.0, key_burst=2)
    s.put(*(f"job-{n}" for n in range(9)), queue="q", limit_key="k")
    same(len(s.claim(9)), 2, "at first")
    s.clock.forward(3600.0)
    same(len(s.claim(9)), 2, "after an hour")
    s.clock.forward(3600.0)
    same(len(s.claim(9)), 2, "after another hour")


@check()
def rate_of_a_key_says_when_to_come_again(s: JobStoreSubject) -> None:
    """Whoever finds no token of a key learns when there is one, and gets a job at that instant."""
    s.store.set_queue("q", key_rate=3.0, key_burst=2)
    expect_instant_of_next_token(s, limit_key="k")


@check()
def next_token_of_a_key_is_told(s: JobStoreSubject) -> None:
    """An operator can ask when a limit key has the token that its jobs wait for."""
    s.store.set_queue("q", key_rate=0.5)
    s.put("a", "b", queue="q", limit_key="k")
    same(s.store.key_wakes_at("q", "k"), None, "before anybody waits")
    s.take("a")
    same(s.ids(9), [], "without a token")
    same(s.store.key_wakes_at("q", "k"), START + 2.0, "while one waits")
    same(s.store.key_wakes_at("q", "other"), None, "of another key")
    same(s.store.key_wakes_at("other", "k"), None, "in another queue")


@check()
def rate_of_a_key_counts_every_start(s: JobStoreSubject) -> None:
    """A job that is delivered again takes a token again, and its end gives none back."""
    s.store.set_queue("q", key_rate=0.1, key_burst=2)
    expect_token_for_every_start(s, limit_key="k")


@check()
def rate_of_a_key_holds_up_no_other(s: JobStoreSubject) -> None:
    """A key without a token keeps neither other keys of its queue nor jobs without one waiting."""
    s.store.set_queue("q", key_rate=0.1)
    s.put(*(f"a{n}" for n in range(200)), queue="q", limit_key="a")
    s.put("b", queue="q", limit_key="b")
    s.put("free", queue="q")
    came: list[str] = []
    for _ in range(5):
        came += s.ids(9)
    same(sorted(came), ["a0", "b", "free"], "claimed")


@check()
def rate_of_a_key_holds_among_executors(s: JobStoreSubject) -> None:
    """The tokens of one key are shared by all executors of a worker."""
    s.store.set_queue("q", key_rate=0.1, key_burst=2)
    for executor in ("python", "node", "deno"):
        s.put(f"{executor}-1", f"{executor}-2", queue="q", executor=executor, limit_key="k")
    slots = {"python": 3, "node": 3, "deno": 3}
    same(len(s.claim(slots)), 2, "started with two tokens")
    s.clock.forward(10.0)
    same(len(s.claim(slots)), 1, "started with one more token")
    same(len(s.claim(slots)), 0, "started without one")


@check()
def rate_of_a_key_holds_among_threads(s: JobStoreSubject) -> None:
    """Several workers that claim at once take no more tokens of a key together than there are."""
    s.store.set_queue("q", key_rate=0.1, key_burst=5)
    s.put(*(f"job-{n}" for n in range(40)), queue="q", limit_key="k")
    came = s.together([lambda: s.ids(4)] * 6)
    together = sum(map(len, came))
    expect(together <= 5, f"{together} were claimed together, of a key that has 5 tokens")
    same(together + len(s.ids(9)), 5, "claimed in all")


@check()
def rate_of_a_key_can_be_lifted(s: JobStoreSubject) -> None:
    """Keys whose rate was taken away go on at once, by the limit of the jobs themselves."""
    s.store.set_queue("q", key_rate=0.1)
    s.put("a", "b", "c", queue="q", limit_key="k", limit=9)
    s.claim(9)
    same(s.ids(9), [], "without a token")
    s.store.set_queue("q", key_rate=None)
    came = s.ids(9) + s.ids(9)
    expect("b" in came, f"b was to come, and {came} came")


@check()
def rate_of_a_key_heals_when_the_clock_is_set_back(s: JobStoreSubject) -> None:
    """A clock that was set back makes jobs of a key wait no longer than an empty bucket does."""
    s.store.set_queue("q", key_rate=0.1)
    s.put("a", "b", "c", queue="q", limit_key="k")
    s.clock.forward(86_400.0)
    same(s.ids(9), ["a"], "claimed with a token")
    same(s.ids(9), [], "claimed without one")
    s.clock.to(START)
    s.store.prune(100)
    same(s.ids(9), [], "claimed right after the clock was set back")
    s.clock.forward(10.5)
    same(s.ids(9), ["b"], "claimed when the next token has come by the clock as it is now")


@check()
def cancelled_job_passes_its_token_on(s: JobStoreSubject) -> None:
    """When the job whose turn it would be is cancelled, the next one of the key gets the token."""
    s.store.set_queue("q", key_rate=0.1)
    s.put("a", "b", "c", queue="q", limit_key="k")
    s.take("a")
    same(s.ids(9), [], "without a token")
    s.must(s.get("b"), CancelRequested())
    s.clock.forward(10.0)
    same(s.ids(9), ["c"], "claimed with the next token")


@check()
def worker_that_dies_leaves_the_token_spent(s: JobStoreSubject) -> None:
    """The place of a job whose worker died comes back with the rescue; its token does not."""
    s.store.set_queue("q", key_max_active=1, key_rate=0.001, key_burst=2)
    s.put("a", "b", queue="q", limit_key="k")
    s.take("a")
    s.rescue_one()
    second = s.claim(1)
    same(len(second), 1, "how many started with the second token")
    s.must(second[0], SUCCEEDED)
    same(s.ids(9), [], "started without a token")


@check()
def full_buckets_of_keys_are_forgotten(s: JobStoreSubject) -> None:
    """A prune forgets keys whose buckets are full again, and no token is given away twice."""
    s.store.set_queue("q", key_rate=1.0, key_burst=2)
    s.put(*(f"job-{n}" for n in range(9)), queue="q", limit_key="k")
    same(len(s.claim(9)), 2, "at first")
    s.store.prune(100)
    s.put("late", queue="q", limit_key="k")
    same(len(s.claim(9)), 0, "after a prune")
    s.clock.forward(60.0)
    s.store.prune(100)
    same(len(s.claim(9)), 2, "after a minute and a prune")


# ---- keys take turns ----------------------------------------------------------------------------


def _keys(ids: list[str]) -> list[str]:
    return sorted(each[0] for each in ids)


@check()
def keys_take_turns(s: JobStoreSubject) -> None:
    """A claim from a queue that limits its keys takes one job of each key in turn."""
    s.store.set_queue("q", key_max_active=50)
    s.put(*(f"a{n}" for n in range(200)), queue="q", limit_key="a")
    s.put(*(f"b{n}" for n in range(9)), queue="q", limit_key="b")
    s.put(*(f"c{n}" for n in range(9)), queue="q", limit_key="c")
    same(_keys(s.ids(6)), ["a", "a", "b", "b", "c", "c"], "keys of the first claim")
    same(_keys(s.ids(3)), ["a", "b", "c"], "keys of the second one")


@check()
def turns_go_on_with_the_next_claim(s: JobStoreSubject) -> None:
    """Between two jobs of one key each other key with due jobs gets one, however small a claim."""
    s.store.set_queue("q", key_max_active=50)
    s.put(*(f"a{n}" for n in range(50)), queue="q", limit_key="a")
    s.put(*(f"b{n}" for n in range(5)), queue="q", limit_key="b")
    s.put(*(f"c{n}" for n in range(5)), queue="q", limit_key="c")
    came = [s.ids(1)[0] for _ in range(12)]
    for first in range(0, 12, 3):
        same(_keys(came[first : first + 3]), ["a", "b", "c"], f"keys from {first} on")
    same(_keys([s.ids(1)[0] for _ in range(4)]), ["a", "a", "b", "c"], "keys of the last ones")


@check()
def turns_go_on_when_nothing_was_left(s: JobStoreSubject) -> None:
    """A claim that took all that was due does not give the first key its turn back."""
    s.store.set_queue("q", key_max_active=9)
    s.put("a1", queue="q", limit_key="a")
    same(s.ids(2), ["a1"], "all that is due")
    s.put("b1", queue="q", limit_key="b")
    s.put("a2", queue="q", limit_key="a")
    same(s.ids(1), ["b1"], "whose turn it is")


@check()
def many_jobs_of_one_key_starve_no_other(s: JobStoreSubject) -> None:
    """A key that comes with ten jobs behind thousands of another's gets every other turn."""
    s.store.set_queue("q", key_max_active=5000)
    s.put(*(f"a{n}" for n in range(3000)), queue="q", limit_key="a", priority=9)
    s.clock.forward(1.0)
    s.put(*(f"b{n}" for n in range(10)), queue="q", limit_key="b")
    same(_keys(s.ids(8)), ["a"] * 4 + ["b"] * 4, "keys of the first claim")
    same(_keys(s.ids(12)), ["a"] * 6 + ["b"] * 6, "keys of the second one")


@check()
def priority_counts_within_a_key(s: JobStoreSubject) -> None:
    """The higher priority comes first within a key, and does not come before another key's turn."""
    s.store.set_queue("q", key_max_active=50)
    s.put("a-low", queue="q", limit_key="a")
    s.put("a-high", "a-higher", queue="q", limit_key="a", priority=5)
    s.put("b-low", queue="q", limit_key="b", priority=-5)
    same(sorted(s.ids(2)), ["a-high", "b-low"], "first claim")
    same(s.ids(1), ["a-higher"], "second claim")
    same(s.ids(1), ["a-low"], "third claim")


@check()
def jobs_without_a_key_have_one_turn(s: JobStoreSubject) -> None:
    """Jobs without a key take turns with the keys of their queue, as if they had one together."""
    s.store.set_queue("q", key_max_active=50)
    s.put(*(f"a{n}" for n in range(10)), queue="q", limit_key="a")
    s.put(*(f"free{n}" for n in range(10)), queue="q")
    same(_keys(s.ids(6)), ["a", "a", "a", "f", "f", "f"], "keys of the first claim")
    same(_keys([s.ids(1)[0] for _ in range(4)]), ["a", "a", "f", "f"], "keys of the next four")


@check()
def job_without_a_key_is_found_behind_many(s: JobStoreSubject) -> None:
    """A job without a key that stands behind many of one key is found within some claims."""
    s.store.set_queue("q", key_max_active=5000)
    s.put(*(f"a{n}" for n in range(500)), queue="q", limit_key="a", priority=9)
    s.put("free", queue="q")
    came: list[str] = []
    for _ in range(40):
        came += s.ids(1)
    expect("free" in came, f"of 40 claims none brought it: {came}")


@check()
def used_up_keys_cost_no_turn(s: JobStoreSubject) -> None:
    """Keys that are used up leave their turns to the others, at once and until they have room."""
    s.store.set_queue("q", key_max_active=1)
    for key in "abcde":
        s.put(*(f"{key}{n}" for n in range(40)), queue="q", limit_key=key)
    running = s.claim(5)
    same(_keys(ids_of(running)), [*"abcde"], "keys of the first claim")
    same(s.ids(5), [], "claimed while every key is used up")
    s.must(next(each for each in running if each.id == "c0"), SUCCEEDED)
    same(s.ids(5), ["c1"], "claimed when one key has room")


@check()
def turns_are_kept_among_executors(s: JobStoreSubject) -> None:
    """Each executor of a worker gets its jobs, of the keys that have some for it."""
    s.store.set_queue("q", key_max_active=50)
    s.put(*(f"a{n}" for n in range(9)), queue="q", limit_key="a", executor="python")
    s.put(*(f"b{n}" for n in range(9)), queue="q", limit_key="b", executor="node")
    s.put(*(f"c{n}" for n in range(9)), queue="q", limit_key="c")
    came = _keys(s.ids({"python": 1, "node": 2}))
    same((len(came), came.count("b")), (3, 2), "how many came, and how many of node")
    same(_keys(s.ids({"python": 4})), ["a", "a", "c", "c"], "keys of python alone")


@check()
def keys_that_stop_taking_turns_are_found(s: JobStoreSubject) -> None:
    """Jobs of a queue whose keys are limited no more, or from now on, are claimed all the same."""
    s.store.set_queue("q", key_max_active=50)
    s.put("a0", "a1", queue="q", limit_key="a", limit=9)
    s.put("b0", "b1", queue="q", limit_key="b", limit=9)
    s.store.set_queue("q", key_max_active=None)
    same(s.ids(1), ["a0"], "the oldest, without turns")
    s.put("c0", queue="q", limit_key="c", limit=9)
    s.store.set_queue("q", key_max_active=50)
    s.put("d0", queue="q", limit_key="d", limit=9)
    came = [*s.ids(9), *s.ids(9)]
    same(sorted(came), ["a1", "b0", "b1", "c0", "d0"], "all others")
    oldest = s.store.queues()[0].oldest_due_at
    same(oldest, None, "since when a job is due")
