"""Checks of subscriptions: whoever waits is woken, and not more often than needed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from ergon_framework.core.job import CancelRequested, RequeueRequested, RunRequested
from ergon_framework.core.unique import OnDuplicate
from ergon_framework.ports.jobstore import Topic
from ergon_framework.testing.suites.drivers import START
from ergon_framework.testing.suites.framework import Check, expect, register
from ergon_framework.testing.suites.jobstore.schedules import schedule
from ergon_framework.testing.suites.jobstore.under_test import (
    FAILS_FOR_GOOD,
    FAILS_ONCE,
    RELEASED,
    SUCCEEDED,
    JobStoreSubject,
    hold,
    new,
    same,
)

CHECKS: list[Check[JobStoreSubject]] = []
check = register(CHECKS)

BRIEF = 0.05  # seconds in which a second notification would have come


def _is_notified(s: JobStoreSubject, topic: Topic, call: Callable[[], object]) -> bool:
    subscription = s.store.subscribe(topic)
    try:
        s.together([call])
        return bool(s.hurry(lambda: subscription.wait(s.patience), "a wait"))
    finally:
        subscription.close()


@check()
def adding_rings(s: JobStoreSubject) -> None:
    """Whoever waits for work is woken when another thread adds a job."""
    subscription = s.store.subscribe(Topic.WORK)
    threading.Thread(target=lambda: s.put("a"), daemon=True).start()
    expect(subscription.wait(s.patience), "nothing rang")
    same(s.ids(), ["a"], "claimed")
    subscription.close()


@check()
def ring_before_the_wait_counts(s: JobStoreSubject) -> None:
    """A notification between subscribing and waiting is not lost."""
    expect(_is_notified(s, Topic.WORK, lambda: s.put("a")), "nothing rang")


@check()
def every_end_rings(s: JobStoreSubject) -> None:
    """Whoever waits for results is woken by each kind of end."""
    s.put("a", "b", "c")
    first, second = s.claim(2)
    waiting = s.get("c")
    done = {
        "success": lambda: s.must(first, SUCCEEDED),
        "failure": lambda: s.must(second, FAILS_FOR_GOOD),
        "cancelling": lambda: s.must(waiting, CancelRequested()),
    }
    for what, call in done.items():
        expect(_is_notified(s, Topic.DONE, call), f"nothing rang after {what}")


@check()
def ends_by_the_store_ring(s: JobStoreSubject) -> None:
    """Whoever waits for results is woken when the store itself ends a job."""
    s.put("swept", expires_at=START + 5.0)
    s.put("old", unique_key="k")
    s.clock.forward(6.0)
    expect(_is_notified(s, Topic.DONE, lambda: s.store.prune(100)), "nothing after a sweep")
    call = partial(s.put, "new", unique_key="k", on_duplicate=OnDuplicate.REPLACE)
    expect(_is_notified(s, Topic.DONE, call), "nothing for the replaced job")


@check()
def later_work_rings(s: JobStoreSubject) -> None:
    """Whoever waits for work is woken for a delayed job too: it may be due before the others."""
    expect(_is_notified(s, Topic.WORK, partial(s.put, "a", delay=60.0)), "nothing rang")


@check()
def operators_ring(s: JobStoreSubject) -> None:
    """Whoever waits for work is woken when somebody hurries a job or sends it back."""
    s.put("dead")
    failed = s.ended("dead", FAILS_FOR_GOOD)
    s.put("late", delay=60.0)
    late = s.get("late")
    expect(
        _is_notified(s, Topic.WORK, lambda: s.must(late, RunRequested())), "nothing after hurrying"
    )
    call = lambda: s.must(failed, RequeueRequested())  # noqa: E731
    expect(_is_notified(s, Topic.WORK, call), "nothing after a requeue")


@check()
def firing_rings(s: JobStoreSubject) -> None:
    """Whoever waits for work is woken when a schedule fires."""
    s.store.put_schedule(schedule("a"))
    call = partial(s.store.fire, "a", START + 60.0, None, [new("x")])
    expect(_is_notified(s, Topic.WORK, call), "nothing rang")


@check()
def giving_back_rings(s: JobStoreSubject) -> None:
    """Whoever waits for work is woken when a job is given back or retried."""
    s.put("a", "b")
    first, second = s.claim(2)
    expect(_is_notified(s, Topic.WORK, lambda: s.must(first, RELEASED)), "nothing after a release")
    expect(_is_notified(s, Topic.WORK, lambda: s.must(second, FAILS_ONCE)), "nothing after a retry")


@check()
def freed_key_rings(s: JobStoreSubject) -> None:
    """Whoever waits for work is woken when a limit key is freed that a job waited for."""
    s.put("a", "b", limit_key="k")
    leased = s.claim(9)[0]
    expect(_is_notified(s, Topic.WORK, lambda: s.must(leased, SUCCEEDED)), "nothing rang")


@check(required=False)
def freed_queue_rings(s: JobStoreSubject) -> None:
    """Whoever waits for work is woken when a full queue has room again."""
    s.store.set_queue("q", max_active=1)
    s.put("a", "b", queue="q")
    leased = s.claim(9)[0]
    expect(_is_notified(s, Topic.WORK, lambda: s.must(leased, SUCCEEDED)), "nothing rang")


@check()
def queue_change_rings(s: JobStoreSubject) -> None:
    """Whoever waits for work is woken when a queue is resumed."""
    s.put("a")
    s.store.set_queue("default", is_paused=True)
    call = lambda: s.store.set_queue("default", is_paused=False)  # noqa: E731
    expect(_is_notified(s, Topic.WORK, call), "nothing rang")


@check()
def every_listener_is_rung(s: JobStoreSubject) -> None:
    """All subscribers of a topic are notified, not just one."""
    subscriptions = [s.store.subscribe(Topic.WORK) for _ in range(3)]
    s.put("a")
    same([subscription.wait(s.patience) for subscription in subscriptions], [True] * 3, "rung")
    for subscription in subscriptions:
        subscription.close()


@check()
def many_rings_are_one(s: JobStoreSubject) -> None:
    """A waiter is not woken once for each of a hundred changes it slept through."""
    subscription = s.store.subscribe(Topic.WORK)
    for n in range(100):
        s.put(f"job-{n}")
    expect(subscription.wait(s.patience), "nothing rang")
    again = 0
    while again < 100 and subscription.wait(BRIEF):
        again += 1
    expect(again < 10, f"it rang {again} more times")
    subscription.close()


@check()
def silence_is_silent(s: JobStoreSubject) -> None:
    """A subscriber is not notified for nothing, nor of what happened before it subscribed."""
    s.put("a")
    leased = s.take("a")
    subscription = s.store.subscribe(Topic.DONE)
    s.put("b")
    s.store.renew([hold(leased)], 30.0)
    same(subscription.wait(0.0), False, "rung for no end")
    subscription.close()


@check()
def own_ring_wakes(s: JobStoreSubject) -> None:
    """A waiter can be woken by its own process."""
    subscription = s.store.subscribe(Topic.WORK)
    threading.Thread(target=subscription.wake, daemon=True).start()
    expect(subscription.wait(s.patience), "nothing rang")
    subscription.close()


@check()
def closed_bell_is_left_alone(s: JobStoreSubject) -> None:
    """The store works on after a subscription was closed, once or twice."""
    subscription, other = s.store.subscribe(Topic.WORK), s.store.subscribe(Topic.WORK)
    subscription.close()
    subscription.close()
    s.put("a")
    expect(other.wait(s.patience), "the other subscription did not ring")
    other.close()
