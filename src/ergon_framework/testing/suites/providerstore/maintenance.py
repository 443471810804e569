"""Checks of pruning, of the store's clock and of closing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from ergon_framework.core.circuit_breaker import Breaker
from ergon_framework.core.quota import QuotaUsage
from ergon_framework.errors import StoreError
from ergon_framework.ports.providerstore import ClaimState, LetterStatus
from ergon_framework.testing.suites.framework import Check, expect, register
from ergon_framework.testing.suites.providerstore.under_test import (
    CLOCK,
    DAY,
    FAILED,
    HOUR,
    KEEP,
    LANE,
    LEASE,
    MINUTE,
    SUCCESS,
    TENANT,
    ProviderStoreSubject,
    numbers_of,
    same,
)

CHECKS: list[Check[ProviderStoreSubject]] = []
check = register(CHECKS)


@check()
def nothing_to_prune(s: ProviderStoreSubject) -> None:
    """An empty store, and one with nothing old in it, have nothing to prune."""
    same(s.store.prune(s.start), 0, "of an empty store")
    s.record(s.attempt(correlation_id="c"), letters=[s.letter(1)])
    s.take(1)
    s.must_claim()
    same(s.store.prune(s.start - DAY), 0, "of a young one")
    same(len(s.store.attempts_of("c")), 1, "attempts")


@check()
def old_attempts_are_pruned(s: ProviderStoreSubject) -> None:
    """Attempts that are older go, those of that instant and younger ones stay."""
    before = s.start - DAY
    rows = [
        s.attempt(correlation_id="c", created_at=before + seconds)
        for seconds in (-DAY, -1.0, 0.0, 1.0, DAY)
    ]
    s.record(*rows)
    expect(s.store.prune(before) >= 2, "it says that there were fewer than two")
    same(s.store.attempts_of("c"), rows[2:], "the attempts")
    same(s.store.prune(before), 0, "when it is asked again")


@check()
def attempts_of_all_lanes_are_pruned(s: ProviderStoreSubject) -> None:
    """Old attempts go in whatever lane they were made."""
    for n in range(5):
        lane = LANE._replace(tenant_id=f"tenant-{n}", capability=f"lane-{n}")
        s.ran(SUCCESS, FAILED, key=lane, correlation_id="c", created_at=s.start - 2 * DAY)
    same(len(s.store.attempts_of("c")), 10, "attempts before")
    s.store.prune(s.start - DAY)
    same(s.store.attempts_of("c"), [], "the attempts")


@check()
def pruning_is_bounded(s: ProviderStoreSubject) -> None:
    """No more goes at once than was asked, so that nobody waits long; in the end all has gone."""
    s.record(*(s.attempt(correlation_id="c", created_at=s.start - 2 * DAY - n) for n in range(25)))
    left = 25
    for _ in range(50):
        count = s.store.prune(s.start - DAY, 10)
        expect(count <= 10, f"{count} were pruned at once")
        now_left = len(s.store.attempts_of("c"))
        expect(left - now_left <= count, f"{left - now_left} are gone, and {count} were told of")
        left = now_left
        if not count:
            break
    same(left, 0, "attempts that are left")


@check()
def settled_letters_are_pruned(s: ProviderStoreSubject) -> None:
    """Old letters that wait for nothing go; those that wait stay, however old they are."""
    for number, status in enumerate(LetterStatus):
        s.bury_as(number, status, occurred_at=s.start - 2 * DAY)
        s.bury_as(10 + number, status)
    same(s.store.prune(s.start - DAY), 3, "how many")
    left = numbers_of(s.store.letters(limit=50))
    same(sorted(left), [0, 2, 10, 11, 12, 13, 14], "the letters")


@check()
def pruning_letters_is_bounded(s: ProviderStoreSubject) -> None:
    """Letters are pruned no more at once than was asked."""
    for number in range(5):
        s.bury_as(number, LetterStatus.PUBLISHED, occurred_at=s.start - 2 * DAY)
    same([s.store.prune(s.start - DAY, 2) for _ in range(4)], [2, 2, 1, 0], "how many each time")


@check(CLOCK)
def forgotten_keys_are_pruned(s: ProviderStoreSubject) -> None:
    """Keys that were to be remembered until then go, the others stay."""
    s.must_claim("me", key="short", keep=100.0)
    s.finish("me", {"n": 1}, key="short")
    s.must_claim("me", key="long")
    s.finish("me", {"n": 2}, key="long")
    s.clock.forward(KEEP / 2)
    s.must_claim("me", key="held", lease=LEASE, keep=LEASE)
    same(s.store.prune(s.clock()), 1, "how many")
    same(s.claim("you", key="long").result, {"n": 2}, "a result that is to be remembered")
    same(s.claim("you", key="held").state, ClaimState.RUNNING, "a key that is held")
    s.clock.forward(KEEP)
    same(s.store.prune(s.clock()), 2, "how many a day later")


@check(CLOCK)
def keys_may_be_pruned_sooner(s: ProviderStoreSubject) -> None:
    """Keys have an end of their own, which may be given beside that of the records."""
    s.must_claim("me", key="short", keep=100.0)
    s.finish("me", {"n": 1}, key="short")
    s.record(s.attempt(correlation_id="c"))
    s.clock.forward(200.0)
    same(s.store.prune(s.start - DAY, keys_before=s.clock()), 1, "how many")
    same(len(s.store.attempts_of("c")), 1, "attempts")


@check()
def pruning_leaves_the_gates_alone(s: ProviderStoreSubject) -> None:
    """Circuits, cooldowns, running budgets and what was last heard are not pruned."""
    s.must_swap(0, s.probing())
    s.store.extend_cooldown(LANE, s.start + 60.0)
    s.take(4)
    s.ran(SUCCESS, FAILED, created_at=s.start - 2 * DAY)
    standing = s.store.lane_state(LANE)
    s.store.prune(s.start + MINUTE)
    same(s.store.lane_state(LANE), standing, "the standing")
    lane = s.lane()
    same(lane.account, QuotaUsage(s.window(), 10, 4), "the account")
    same((lane.last_success_at, lane.last_error_code), (s.start - 2 * DAY, "timeout"), "last heard")
    same(s.take(6), 10, "used")


@check(CLOCK)
def pruning_reopens_no_window(s: ProviderStoreSubject) -> None:
    """After a clean-up long after its end, a window that was used up still is."""
    s.take(10, window=-1)
    s.take(10)
    s.clock.forward(30 * DAY)
    s.store.prune(s.clock())
    s.must_refuse()
    same(s.must_refuse(window=-1).account, QuotaUsage(s.window(), 10, 10), "the account")


@check()
def pruned_minutes_are_in_no_rate(s: ProviderStoreSubject) -> None:
    """Rates are of what is left."""
    s.ran(FAILED, created_at=s.start - 50 * MINUTE, duration_ms=900)
    s.ran(SUCCESS)
    same(s.rates(), (0.5, 900), "before")
    s.store.prune(s.start - 30 * MINUTE)
    same(s.rates(), (1.0, 20), "afterwards")


@check(CLOCK)
def clock_is_the_one_given(s: ProviderStoreSubject) -> None:
    """The store's time is that of its clock, also when that is set back."""
    for seconds in (0.25, HOUR, -2 * HOUR):
        s.clock.forward(seconds)
        same(s.store.now(), s.clock(), "now")


@check()
def time_does_not_run_backwards(s: ProviderStoreSubject) -> None:
    """Two looks at the clock, nothing having been done to it, are in order."""
    seen = [s.store.now() for _ in range(100)]
    same(seen, sorted(seen), "the times that were seen")


@check()
def closes_twice(s: ProviderStoreSubject) -> None:
    """Closing a store again does nothing."""
    s.ran(SUCCESS)
    for _ in range(3):
        s.hurry(s.store.close, "close")


@check()
def closes_unused(s: ProviderStoreSubject) -> None:
    """A store that nobody has used can be closed."""
    s.hurry(s.store.close, "close")


@check()
def closed_store_refuses(s: ProviderStoreSubject) -> None:
    """Every call on a closed store is refused with an error of stores."""
    calls = _calls(s)
    for call in calls.values():
        call()
    s.store.close()
    for name, call in calls.items():
        s.must_fail(call, f"{name} after closing")


@check()
def closing_among_calls(s: ProviderStoreSubject) -> None:
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


def _calls(s: ProviderStoreSubject) -> dict[str, Callable[[], Any]]:
    """A call of each method."""
    store = s.store
    return {
        "standing": lambda: store.lane_state(LANE),
        "swap": lambda: store.compare_and_set(LANE, 0, Breaker()),
        "cool": lambda: store.extend_cooldown(LANE, s.start),
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
