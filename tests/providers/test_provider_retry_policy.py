"""The retry policy: its delays, when it stops, and what it tells of the attempts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ergon_framework.engine.clocks import restore_clock, use_clock
from ergon_framework.errors import ConfigurationError
from ergon_framework.ports.dice import loaded_dice
from ergon_framework.providers.errors import (
    ERROR_OF,
    ProviderDependencyError,
    ProviderRateLimitError,
    ProviderTimeoutError,
)
from ergon_framework.providers.retry import RetryPolicy
from ergon_framework.testing import VirtualClock
from tests.providers.scripted import PLAIN, Scripted, call, new_store, rows, wall_of

DOWN = ProviderDependencyError("down", http_status=503)
POLICIES = st.builds(
    RetryPolicy,
    max_attempts=st.integers(1, 50),
    base_delay_seconds=st.floats(0, 100),
    max_delay_seconds=st.floats(0, 1000),
    jitter_ratio=st.floats(0, 0.99),
)


class Failing:
    """Fails as told, then succeeds; says when it was called."""

    def __init__(self, clock: VirtualClock, *errors: Exception, lasts: float = 0.0) -> None:
        self.clock = clock
        self.errors = list(errors)
        self.lasts = lasts
        self.called_at: list[float] = []

    def __call__(self) -> str:
        self.called_at.append(self.clock.now())
        self.clock.sleep(self.lasts)
        if self.errors:
            raise self.errors.pop(0)
        return "done"


# -- the delays ----------------------------------------------------------------------------------


@pytest.mark.req("PEF:R-1")
def test_the_inputs_are_the_four_of_the_specification() -> None:
    """With the defaults that were pinned."""
    policy = RetryPolicy(
        max_attempts=3, base_delay_seconds=0.5, max_delay_seconds=8, jitter_ratio=0.2
    )
    assert policy == RetryPolicy()


@pytest.mark.req("PEF:R-2", "PEF:X-1")
def test_the_delay_doubles_up_to_its_cap() -> None:
    """After the attempt that just failed, counted from one."""
    policy = RetryPolicy(base_delay_seconds=0.5, max_delay_seconds=8, jitter_ratio=0)
    delays = [policy.delay_seconds(n, 0.5) for n in range(1, 8)]
    assert delays == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]


@pytest.mark.req("PEF:R-3", "PEF:A-10", "PEF:X-1")
@settings(deadline=None)
@given(policy=POLICIES, attempt=st.integers(1, 200), dice=st.floats(0, 1, exclude_max=True))
def test_the_jitter_is_a_symmetric_window_around_the_capped_delay(
    policy: RetryPolicy, attempt: int, dice: float
) -> None:
    """Also at the cap, which it may exceed: clipping again would make the window lopsided."""
    plain = min(policy.max_delay_seconds, policy.base_delay_seconds * 2.0 ** (attempt - 1))
    width = plain * policy.jitter_ratio
    slack = plain * 1e-12
    assert plain - width - slack <= policy.delay_seconds(attempt, dice) <= plain + width + slack


@pytest.mark.req("PEF:R-3", "PEF:A-10")
def test_both_ends_of_the_jitter_are_reached_even_at_the_cap() -> None:
    """Twenty per cent less, and nearly twenty per cent more."""
    policy = RetryPolicy(base_delay_seconds=8, max_delay_seconds=8, jitter_ratio=0.2)
    assert policy.delay_seconds(5, 0.0) == pytest.approx(6.4)
    assert policy.delay_seconds(5, math.nextafter(1.0, 0.0)) == pytest.approx(9.6)


@pytest.mark.req("PEF:R-8", "PEF:trap-overflow")
def test_attempt_ten_thousand_does_not_overflow() -> None:
    """The cap holds where a float does not."""
    policy = RetryPolicy(max_attempts=20_000, base_delay_seconds=0.5, max_delay_seconds=60)
    assert 48 <= policy.delay_seconds(10_000) <= 72


@pytest.mark.req("PEF:R-2")
@settings(deadline=None)
@given(base=st.floats(0.001, 60), cap=st.floats(0.001, 600), attempts=st.integers(1, 60))
def test_tenacity_waits_as_long_without_jitter(base: float, cap: float, attempts: int) -> None:
    """The same formula, written by others."""
    tenacity = pytest.importorskip("tenacity")
    policy = RetryPolicy(base_delay_seconds=base, max_delay_seconds=cap, jitter_ratio=0)
    theirs = tenacity.wait_exponential(multiplier=base, max=cap, exp_base=2)
    state = tenacity.RetryCallState(tenacity.Retrying(), None, (), {})
    for attempt in range(1, attempts + 1):
        state.attempt_number = attempt
        assert policy.delay_seconds(attempt, 0.5) == pytest.approx(theirs(state))


@pytest.mark.req("PEF:R-8", "PEF:trap-jitter")
def test_two_callers_do_not_draw_the_same_jitter() -> None:
    """A jitter that depends on the attempt alone would bring all of them back at once."""
    policy = RetryPolicy(max_attempts=4, base_delay_seconds=10, max_delay_seconds=80)
    found = []
    for _ in range(2):
        with VirtualClock() as clock:
            failing = Failing(clock, DOWN, DOWN, DOWN)
            policy.run(failing)
            found.append(failing.called_at)
    assert found[0] != found[1]


@pytest.mark.req("PEF:R-8")
def test_the_jitter_comes_from_the_dice_of_the_process() -> None:
    """Which every process rolls anew."""
    policy = RetryPolicy(base_delay_seconds=10, max_delay_seconds=80, jitter_ratio=0.5)
    for dice, wait in ((0.0, 5.0), (0.5, 10.0)):
        with loaded_dice(dice), VirtualClock() as clock:
            provider = Scripted(DOWN, retry_policy=policy)
            call(provider)
            assert clock.now() == wait


# -- what is retried -----------------------------------------------------------------------------


@pytest.mark.req("PEF:R-4", "PEF:X-1")
@pytest.mark.parametrize("reason", sorted(ERROR_OF))
def test_only_what_may_pass_is_retried(reason: str) -> None:
    """What is not ends at once, without a wait."""
    retryable = {"timeout", "connection_error", "rate_limited", "dependency_unavailable"}
    with VirtualClock() as clock:
        failing = Failing(clock, *(ERROR_OF[reason]("x") for _ in range(3)))
        outcome = PLAIN.run(failing)
        assert not outcome.success
        if reason in retryable:
            assert (len(failing.called_at), outcome.stop_reason) == (3, "attempts_spent")
        else:
            assert (failing.called_at, clock.now()) == ([0.0], 0.0)
            assert outcome.stop_reason == "not_retryable"


@pytest.mark.req("PEF:R-4", "PEF:E-13")
def test_raw_errors_are_mapped_first() -> None:
    """A timeout of the socket is retried, a bug is not."""
    with VirtualClock() as clock:
        outcome = PLAIN.run(Failing(clock, TimeoutError("slow"), ConnectionResetError("gone")))
        assert outcome.unwrap() == "done"
        assert [each.reason_code for each in outcome.attempts] == [
            "timeout",
            "connection_error",
            None,
        ]
    with VirtualClock() as clock:
        outcome = PLAIN.run(Failing(clock, KeyError("bug")))
        assert (len(outcome.attempts), outcome.error and outcome.error.reason_code) == (
            1,
            "internal_error",
        )


@pytest.mark.req("PEF:R-4")
def test_an_interrupt_is_not_a_failure() -> None:
    """It passes through, and nothing is tried again."""
    with VirtualClock() as clock:
        failing = Failing(clock)
        failing.errors = [KeyboardInterrupt()]  # type: ignore[list-item]
        with pytest.raises(KeyboardInterrupt):
            PLAIN.run(failing)
        assert len(failing.called_at) == 1


# -- the budget ----------------------------------------------------------------------------------


@pytest.mark.req("PEF:R-5", "PEF:A-7", "PEF:R-5")
def test_a_wait_that_would_reach_the_deadline_is_not_begun() -> None:
    """The second wait of a second would end exactly there."""
    with VirtualClock() as clock:
        failing = Failing(clock, DOWN, DOWN, DOWN)
        outcome = PLAIN.run(failing, deadline=1.5)
        assert failing.called_at == [0.0, 0.5]
        assert (clock.now(), outcome.stop_reason) == (0.5, "budget_spent")
        assert outcome.error is DOWN


@pytest.mark.req("PEF:R-5")
def test_no_attempt_begins_without_time() -> None:
    """A deadline that has passed is a timeout, and nothing was sent."""
    with VirtualClock() as clock:
        failing = Failing(clock)
        outcome = PLAIN.run(failing, deadline=0.0)
        assert (failing.called_at, outcome.attempts) == ([], ())
        assert isinstance(outcome.error, ProviderTimeoutError)
        assert outcome.error.never_sent
        with pytest.raises(ProviderTimeoutError):
            outcome.unwrap()


@pytest.mark.req("PEF:A-7")
def test_a_success_after_the_deadline_is_a_success() -> None:
    """A side effect that happened is not tried again."""
    with VirtualClock() as clock:
        failing = Failing(clock, lasts=100.0)
        assert PLAIN.run(failing, deadline=1.0).unwrap() == "done"
        assert len(failing.called_at) == 1


@pytest.mark.req("PEF:A-9")
def test_nobody_comes_back_before_the_provider_said() -> None:
    """Its wait holds where it is longer than ours, and ours where it is not."""
    for asked_for, waited in ((5.0, 5.0), (0.1, 0.5)):
        with VirtualClock() as clock:
            error = ProviderRateLimitError("wait", retry_after_seconds=asked_for)
            failing = Failing(clock, error)
            PLAIN.run(failing)
            assert failing.called_at == [0.0, waited]


@pytest.mark.req("PEF:A-9")
def test_the_jitter_of_an_asked_wait_only_adds() -> None:
    """However the dice fall."""
    policy = RetryPolicy(max_attempts=2, jitter_ratio=0.5)
    for dice, waited in ((0.0, 10.0), (0.9, 14.5)):
        with loaded_dice(dice), VirtualClock() as clock:
            failing = Failing(clock, ProviderRateLimitError("wait", retry_after_seconds=10.0))
            policy.run(failing)
            assert failing.called_at == [0.0, waited]


@pytest.mark.req("PEF:A-9")
def test_a_provider_cannot_ask_for_ever() -> None:
    """Its wait is clamped."""
    policy = RetryPolicy(max_attempts=2, jitter_ratio=0, max_retry_after_seconds=30)
    with VirtualClock() as clock:
        failing = Failing(clock, ProviderRateLimitError("wait", retry_after_seconds=1e12))
        policy.run(failing)
        assert failing.called_at == [0.0, 30.0]


# -- what it tells -------------------------------------------------------------------------------


@pytest.mark.req("PEF:R-6", "PEF:X-1")
def test_every_attempt_is_told_of() -> None:
    """Number, start, duration, reason, whether it may pass, the wait after it, and the status."""
    with VirtualClock() as clock:
        outcome = PLAIN.run(Failing(clock, DOWN, TimeoutError("slow"), lasts=2.0))
    first, second, third = outcome.attempts
    assert (first.number, first.started_at, first.duration_ms) == (1, 0.0, 2000.0)
    assert (first.reason_code, first.retryable) == ("dependency_unavailable", True)
    assert (first.delay_seconds, first.http_status) == (0.5, 503)
    assert (second.number, second.started_at, second.delay_seconds) == (2, 2.5, 1.0)
    assert (second.reason_code, second.http_status) == ("timeout", None)
    assert (third.number, third.reason_code, third.retryable) == (3, None, False)
    assert (third.delay_seconds, outcome.stop_reason) == (None, "succeeded")


@pytest.mark.req("PEF:R-6", "PEF:M-2", "PEF:X-1")
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_provider_keeps_the_schedule_and_writes_it_down(kind: str, tmp_path: Path) -> None:
    """Two failures, then success: three rows, and the waits of the policy between them."""
    with VirtualClock() as clock, new_store(kind, clock, tmp_path) as store:
        provider = Scripted(DOWN, DOWN, store=store, wall=wall_of(clock))
        result = call(provider, correlation_id="c")
        assert (result.success, result.attempts, clock.now()) == (True, 3, 1.5)
        assert [each.delay_seconds for each in result.attempt_log] == [0.5, 1.0, None]
        found = rows(provider, "c")
        assert [(row.attempt_number, row.outcome) for row in found] == [
            (1, "retry"),
            (2, "retry"),
            (3, "success"),
        ]
        assert [row.created_at - found[0].created_at for row in found] == [0.0, 0.5, 1.5]


@pytest.mark.req("PEF:R-7", "PEF:A-6")
def test_attempts_made_elsewhere_count() -> None:
    """However many layers call each other, there are no more than allowed in all."""
    for offset, left in ((0, 3), (1, 2), (2, 1), (3, 0), (7, 0)):
        with VirtualClock():
            provider = Scripted({}, *[DOWN] * 9)
            call(provider)
            result = call(provider, attempt_offset=offset)
            assert (provider.calls, result.attempts) == (1 + left, left)
            assert result.stop_reason == "attempts_spent"
            assert result.reason_code == "dependency_unavailable"
            numbers = [each.number for each in result.attempt_log]
            assert numbers == list(range(offset + 1, offset + left + 1))


# -- wrong settings ------------------------------------------------------------------------------


@pytest.mark.req("PROVIDERS:badinput")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_attempts", 0),
        ("max_attempts", -1),
        ("max_attempts", 2.0),
        ("max_attempts", True),
        ("base_delay_seconds", -0.1),
        ("base_delay_seconds", math.nan),
        ("max_delay_seconds", math.inf),
        ("max_delay_seconds", "8"),
        ("jitter_ratio", 1),
        ("jitter_ratio", 1.5),
        ("jitter_ratio", -0.1),
        ("max_retry_after_seconds", -1),
    ],
)
def test_wrong_settings_are_named(name: str, value: Any) -> None:
    """When the policy is made, not at the first failure."""
    with pytest.raises(ConfigurationError, match=name):
        RetryPolicy(**{name: value})


@pytest.mark.req("PEF:R-6", "PEF:X-1")
def test_the_policy_alone_goes_on_after_a_wait_by_a_clock_that_never_stands_still() -> None:
    """Real clocks move between two readings; a wait that is over must be over."""
    clock = Restless()
    token = use_clock(clock)
    calls: Iterator[Exception | int] = iter([TimeoutError(), TimeoutError(), 7])

    def call() -> int:
        found = next(calls)
        if isinstance(found, Exception):
            raise found
        return found

    try:
        outcome = RetryPolicy(3, 0.1, 8, 0.0).run(call)
    finally:
        restore_clock(token)
    assert (outcome.unwrap(), len(outcome.attempts)) == (7, 3)


class Restless(VirtualClock):
    """A clock that shows a later instant each time it is read."""

    def now(self) -> float:
        self.advance(1e-6)
        return super().now()


@pytest.mark.req("PEF:R-3", "PEF:R-8")
def test_a_delay_that_is_asked_for_has_its_jitter() -> None:
    """Without dice of one's own they are rolled: two workers do not wait equally long."""
    policy = RetryPolicy(base_delay_seconds=1.0, jitter_ratio=0.2)
    found = {policy.delay_seconds(1) for _ in range(20)}
    assert len(found) > 1
    assert all(0.8 <= each <= 1.2 for each in found)
