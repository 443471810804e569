"""Checks of subscriptions: whoever waits is woken, and not more often than needed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from ergon_framework.core.job import CancelAsked, RequeueAsked, RunAsked
from ergon_framework.ports.jobstore import OnDuplicate, Topic
from ergon_framework.testing.suites.drivers import START
from ergon_framework.testing.suites.framework import Check, expect, register
from ergon_framework.testing.suites.jobstore.schedules import schedule
from ergon_framework.testing.suites.jobstore.subject import (
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

BRIEF = 0.05  # seconds in which a second ring would have come


def _is_rung(s: JobStoreSubject, topic: Topic, call: Callable[[], object]) -> bool:
    bell = s.store.listen(topic)
    try:
        s.together([call])
        return bool(s.hurry(lambda: bell.wait(s.patience), "a wait"))
    finally:
        bell.close()


@check()
def adding_rings(s: JobStoreSubject) -> None:
    """Whoever waits for work is woken when another thread adds a job."""
    bell = s.store.listen(Topic.WORK)
    threading.Thread(target=lambda: s.put("a"), daemon=True).start()
    expect(bell.wait(s.patience), "nothing rang")
    same(s.ids(), ["a"], "claimed")
    bell.close()


@check()
def ring_before_the_wait_counts(s: JobStoreSubject) -> None:
    """A ring between listening and waiting is not lost."""
    expect(_is_rung(s, Topic.WORK, lambda: s.put("a")), "nothing rang")


@check()
def every_end_rings(s: JobStoreSubject) -> None:
    """Whoever waits for results is woken by each kind of end."""
    s.put("a", "b", "c")
    first, second = s.claim(2)
    waiting = s.get("c")
    done = {
        "success": lambda: s.must(first, SUCCEEDED),
        "failure": lambda: s.must(second, FAILS_FOR_GOOD),
        "cancelling": lambda: s.must(waiting, CancelAsked()),
    }
    for what, call in done.items():
        expect(_is_rung(s, Topic.DONE, call), f"nothing rang after {what}")


@check()
def ends_by_the_store_ring(s: JobStoreSubject) -> None:
    """Whoever waits for results is woken when the store itself ends a job."""
    s.put("swept", expires_at=START + 5.0)
    s.put("old", unique_key="k")
    s.clock.forward(6.0)
    expect(_is_rung(s, Topic.DONE, lambda: s.store.sweep(100)), "nothing after a sweep")
    call = partial(s.put, "new", unique_key="k", on_duplicate=OnDuplicate.REPLACE)
    expect(_is_rung(s, Topic.DONE, call), "nothing for the replaced job")


@check()
def later_work_rings(s: JobStoreSubject) -> None:
    """Whoever waits for work is woken for a delayed job too: it may be due before the others."""
    expect(_is_rung(s, Topic.WORK, partial(s.put, "a", delay=60.0)), "nothing rang")


@check()
def operators_ring(s: JobStoreSubject) -> None:
    """Whoever waits for work is woken when somebody hurries a job or sends it back."""
    s.put("dead")
    failed = s.ended("dead", FAILS_FOR_GOOD)
    s.put("late", delay=60.0)
    late = s.get("late")
    expect(_is_rung(s, Topic.WORK, lambda: s.must(late, RunAsked())), "nothing after hurrying")
    call = lambda: s.must(failed, RequeueAsked())  # noqa: E731
    expect(_is_rung(s, Topic.WORK, call), "nothing after a requeue")


@check()
def firing_rings(s: JobStoreSubject) -> None:
    """Whoever waits for work is woken when a schedule fires."""
    s.store.put_schedule(schedule("a"))
    call = partial(s.store.fire, "a", START + 60.0, None, [new("x")])
    expect(_is_rung(s, Topic.WORK, call), "nothing rang")


@check()
def giving_back_rings(s: JobStoreSubject) -> None:
    """Whoever waits for work is woken when a job is given back or retried."""
    s.put("a", "b")
    first, second = s.claim(2)
    expect(_is_rung(s, Topic.WORK, lambda: s.must(first, RELEASED)), "nothing after a release")
    expect(_is_rung(s, Topic.WORK, lambda: s.must(second, FAILS_ONCE)), "nothing after a retry")


@check()
def freed_key_rings(s: JobStoreSubject) -> None:
    """Whoever waits for work is woken when a limit key is freed that a job waited for."""
    s.put("a", "b", limit_key="k")
    leased = s.claim(9)[0]
    expect(_is_rung(s, Topic.WORK, lambda: s.must(leased, SUCCEEDED)), "nothing rang")


@check(required=False)
def freed_queue_rings(s: JobStoreSubject) -> None:
    """Whoever waits for work is woken when a full queue has room again."""
    s.store.set_queue("q", max_active=1)
    s.put("a", "b", queue="q")
    leased = s.claim(9)[0]
    expect(_is_rung(s, Topic.WORK, lambda: s.must(leased, SUCCEEDED)), "nothing rang")


@check()
def queue_change_rings(s: JobStoreSubject) -> None:
    """Whoever waits for work is woken when a queue is resumed."""
    s.put("a")
    s.store.set_queue("default", is_paused=True)
    call = lambda: s.store.set_queue("default", is_paused=False)  # noqa: E731
    expect(_is_rung(s, Topic.WORK, call), "nothing rang")


@check()
def every_listener_is_rung(s: JobStoreSubject) -> None:
    """All bells of a topic ring, not just one."""
    bells = [s.store.listen(Topic.WORK) for _ in range(3)]
    s.put("a")
    same([bell.wait(s.patience) for bell in bells], [True] * 3, "rung")
    for bell in bells:
        bell.close()


@check()
def many_rings_are_one(s: JobStoreSubject) -> None:
    """A waiter is not woken once for each of a hundred changes it slept through."""
    bell = s.store.listen(Topic.WORK)
    for n in range(100):
        s.put(f"job-{n}")
    expect(bell.wait(s.patience), "nothing rang")
    again = 0
    while again < 100 and bell.wait(BRIEF):
        again += 1
    expect(again < 10, f"it rang {again} more times")
    bell.close()


@check()
def silence_is_silent(s: JobStoreSubject) -> None:
    """A bell does not ring for nothing, nor for what happened before somebody listened."""
    s.put("a")
    leased = s.take("a")
    bell = s.store.listen(Topic.DONE)
    s.put("b")
    s.store.renew([hold(leased)], 30.0)
    same(bell.wait(0.0), False, "rung for no end")
    bell.close()


@check()
def own_ring_wakes(s: JobStoreSubject) -> None:
    """A waiter can be woken by its own process."""
    bell = s.store.listen(Topic.WORK)
    threading.Thread(target=bell.ring, daemon=True).start()
    expect(bell.wait(s.patience), "nothing rang")
    bell.close()


@check()
def closed_bell_is_left_alone(s: JobStoreSubject) -> None:
    """The store works on after a bell was closed, once or twice."""
    bell, other = s.store.listen(Topic.WORK), s.store.listen(Topic.WORK)
    bell.close()
    bell.close()
    s.put("a")
    expect(other.wait(s.patience), "the other bell did not ring")
    other.close()
