"""Checks of the clock and of closing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from ergon_framework.core.breaker import Breaker
from ergon_framework.errors import StoreError
from ergon_framework.ports.providerstore import LetterStatus
from ergon_framework.testing.suites.framework import Check, expect, register
from ergon_framework.testing.suites.providerstore.subject import (
    CLOCK,
    HOUR,
    LANE,
    SUCCESS,
    TENANT,
    Subject,
    same,
)

CHECKS: list[Check[Subject]] = []
check = register(CHECKS)


@check(CLOCK)
def clock_is_the_one_given(s: Subject) -> None:
    """The store's time is that of its clock, also when that is set back."""
    for seconds in (0.25, HOUR, -2 * HOUR):
        s.clock.forward(seconds)
        same(s.store.now(), s.clock(), "now")


@check()
def time_does_not_run_backwards(s: Subject) -> None:
    """Two looks at the clock, nothing having been done to it, are in order."""
    seen = [s.store.now() for _ in range(100)]
    same(seen, sorted(seen), "the times that were seen")


@check()
def closes_twice(s: Subject) -> None:
    """Closing a store again does nothing."""
    s.ran(SUCCESS)
    for _ in range(3):
        s.hurry(s.store.close, "close")


@check()
def closes_unused(s: Subject) -> None:
    """A store that nobody has used can be closed."""
    s.hurry(s.store.close, "close")


@check()
def closed_store_refuses(s: Subject) -> None:
    """Every call on a closed store is refused with an error of stores."""
    calls = _calls(s)
    for call in calls.values():
        call()
    s.store.close()
    for name, call in calls.items():
        s.must_fail(call, f"{name} after closing")


@check()
def closing_among_calls(s: Subject) -> None:
    """Calls that are under way when the store is closed are answered or refused, and none hangs."""
    calls = list(_calls(s).values())
    begun = threading.Semaphore(0)

    def work(number: int) -> Exception | None:
        error = None
        for n in range(40):
            error = s.refusal(calls[(number + n) % len(calls)])
            begun.release()
            if error is not None:
                break
        return error

    def close() -> None:
        for _ in range(10):
            begun.acquire(timeout=s.patience)
        s.store.close()

    *errors, _ = s.together([*(partial(work, n) for n in range(6)), close])
    for error in errors:
        expect(error is None or isinstance(error, StoreError), f"a call raised {error!r:.200}")


def _calls(s: Subject) -> dict[str, Callable[[], Any]]:
    """A call of each method."""
    store = s.store
    return {
        "standing": lambda: store.standing(LANE),
        "swap": lambda: store.swap(LANE, 0, Breaker()),
        "cool": lambda: store.cool(LANE, s.start),
        "reserve": lambda: store.reserve(LANE, s.window(), 5, 1),
        "refund": lambda: store.refund(LANE, s.window(), 1),
        "record": lambda: s.record(s.attempt(), letters=[s.letter(1)]),
        "health": lambda: store.health(TENANT),
        "attempts_of": lambda: store.attempts_of("c"),
        "prune": lambda: store.prune(s.start),
        "claim": s.claim,
        "finish": s.finish,
        "letters": store.letters,
        "due_letters": lambda: store.due_letters(LetterStatus.PENDING),
        "move_letter": lambda: s.move(1, LetterStatus.PUBLISHED, LetterStatus.PENDING),
        "delete_letters": lambda: store.delete_letters(["letter-1"]),
    }
