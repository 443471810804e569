from __future__ import annotations

import json
import threading
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergon_framework.errors import ConfigurationError
from ergon_framework.providers.circuit_breaker import CircuitBreaker
from ergon_framework.providers.errors import ERROR_OF
from ergon_framework.providers.execution import ProviderExecutionContext, ProviderExecutionResult
from ergon_framework.providers.quota import QuotaPolicy
from ergon_framework.providers.retry import RetryPolicy
from ergon_framework.providers.runner import ProviderTaskRunner
from ergon_framework.providers.synthetic import FaultProfile, SyntheticHTTPError, SyntheticProvider
from ergon_framework.providers.tasks import TaskCall
from ergon_framework.testing.clock import VirtualClock

ONCE = RetryPolicy(max_attempts=1)


def _call(
    provider: SyntheticProvider, operation: str = "fetch", **context: Any
) -> ProviderExecutionResult:
    return provider.execute(
        tenant_id="t",
        campaign_id=None,
        operation=operation,
        payload={"password": "S3CRET"},
        context=ProviderExecutionContext(**context),
    )


@pytest.mark.req("PROVIDERS:synthetic", "PEF:G-5")
def test_it_answers_with_the_operation_and_a_number(clock: VirtualClock) -> None:
    """And with nothing of what was sent to it."""
    provider = SyntheticProvider(clock=clock)
    answers = [_call(provider).unwrap() for _ in range(2)]
    assert answers == [
        {"operation": "fetch", "call": 1, "attempt": 1},
        {"operation": "fetch", "call": 2, "attempt": 1},
    ]
    assert "S3CRET" not in json.dumps(answers)
    assert provider.calls == 2
    assert (provider.provider_name, provider.capability) == ("synthetic", "synthetic")


@pytest.mark.req("PROVIDERS:synthetic")
@pytest.mark.parametrize(
    ("step", "code", "status", "retry_after"),
    [
        ("ok", None, None, None),
        ("slow:0.2", None, None, None),
        ("timeout", "timeout", None, None),
        ("refused", "connection_error", None, None),
        ("reset", "connection_error", None, None),
        ("http:404", "bad_request", 404, None),
        ("http:503", "dependency_unavailable", 503, None),
        ("http:503:4", "dependency_unavailable", 503, 4.0),
        ("http:429:2.5", "rate_limited", 429, 2.5),
        ("rate_limited:2.5", "rate_limited", None, 2.5),
        ("garbage", "response_invalid", None, None),
        ("crash", "internal_error", None, None),
        ("slow:0.1+http:500", "dependency_unavailable", 500, None),
    ],
)
def test_a_step_does_what_it_says(
    step: str, code: str | None, status: int | None, retry_after: float | None, clock: VirtualClock
) -> None:
    """Through the whole pipeline, with one attempt."""
    result = _call(SyntheticProvider([step], retry_policy=ONCE, clock=clock))
    assert (result.reason_code, result.http_status) == (code, status)
    assert result.error is None or result.error.retry_after_seconds == retry_after
    assert "S3CRET" not in str(result.error)


@pytest.mark.req("PROVIDERS:synthetic", "PEF:E-12")
@pytest.mark.parametrize("code", ERROR_OF)
def test_every_reason_can_be_scripted(code: str, clock: VirtualClock) -> None:
    """By its code."""
    result = _call(SyntheticProvider(code, retry_policy=ONCE, clock=clock))
    assert result.reason_code == code


@pytest.mark.req("PROVIDERS:synthetic", "PEF:X-2")
def test_trouble_that_passes_is_retried(clock: VirtualClock) -> None:
    """The third attempt of the call succeeds; each attempt takes the next step."""
    result = _call(SyntheticProvider("timeout http:503 ok", clock=clock))
    assert result.success
    assert result.attempts == 3
    assert result.data == {"operation": "fetch", "call": 3, "attempt": 3}
    assert [each.reason_code for each in result.attempt_log] == [
        "timeout",
        "dependency_unavailable",
        None,
    ]


def test_an_answer_takes_its_time_by_the_given_clock(clock: VirtualClock) -> None:
    """Nobody waits for real."""
    result = _call(SyntheticProvider("slow:30", clock=clock))
    assert result.success
    assert result.duration_ms == pytest.approx(30_000)
    assert clock.now() == pytest.approx(30)


def test_a_slow_answer_gives_up_when_the_attempts_time_is_up(clock: VirtualClock) -> None:
    """As a client does that was given the time-out."""
    provider = SyntheticProvider(
        "slow:30", attempt_timeout_seconds=2, retry_policy=ONCE, clock=clock
    )
    result = _call(provider)
    assert result.reason_code == "timeout"
    assert clock.now() == pytest.approx(2)


def test_a_hanging_answer_cares_for_no_time_out(clock: VirtualClock) -> None:
    """The deadline is cooperative: a success that comes late is one."""
    provider = SyntheticProvider(
        "hang:30", attempt_timeout_seconds=2, timeout_budget_seconds=3, clock=clock
    )
    result = _call(provider)
    assert result.success
    assert result.is_late


def test_a_slow_answer_runs_under_asyncio_too() -> None:
    """On a thread that takes part in the loop's time."""
    clock = VirtualClock()
    provider = SyntheticProvider("slow:5 ok", clock=clock)

    async def call() -> ProviderExecutionResult:
        return await provider.aexecute(
            tenant_id="t",
            campaign_id=None,
            operation="fetch",
            payload={},
            context=ProviderExecutionContext(),
        )

    assert clock.run(call()).success
    assert clock.now() == pytest.approx(5)


@pytest.mark.req("PROVIDERS:synthetic")
def test_operations_have_scripts_of_their_own(clock: VirtualClock) -> None:
    """Each goes its own way; the rest shares one."""
    provider = SyntheticProvider(
        {"fetch": "ok auth_failed", "store": FaultProfile(["bad_request"]), "*": "quota_exhausted"},
        clock=clock,
    )
    seen = [_call(provider, each).reason_code for each in ("fetch", "store", "fetch", "other")]
    assert seen == [None, "bad_request", "auth_failed", "quota_exhausted"]
    assert provider.calls == 4


def test_an_operation_without_a_script_succeeds(clock: VirtualClock) -> None:
    """Unless there is one for all."""
    assert _call(SyntheticProvider({"fetch": "crash"}, clock=clock), "other").success


@pytest.mark.req("PROVIDERS:synthetic", "PEF:B-7", "PEF:B-8")
def test_a_gate_that_refuses_spares_it(clock: VirtualClock) -> None:
    """An open circuit and a used-up quota are answered without a call."""
    provider = SyntheticProvider(
        "crash", circuit_breaker=CircuitBreaker(failure_threshold=2), clock=clock
    )
    assert [_call(provider).reason_code for _ in range(4)] == [
        *["internal_error"] * 2,
        *["circuit_open"] * 2,
    ]
    assert provider.calls == 2
    provider = SyntheticProvider(quota=QuotaPolicy(limit=1, window_seconds=60), clock=clock)
    assert [_call(provider).reason_code for _ in range(2)] == [None, "quota_exhausted"]
    assert provider.calls == 1


def test_it_can_go_by_another_name(clock: VirtualClock) -> None:
    """So that several of them have lanes of their own."""
    provider = SyntheticProvider(provider_name="rank", capability="rank_snapshot", clock=clock)
    assert (provider.provider_name, provider.capability) == ("rank", "rank_snapshot")
    assert SyntheticProvider.provider_name == "synthetic"


def test_many_threads_share_one_script(clock: VirtualClock) -> None:
    """Every call gets a number of its own."""
    provider = SyntheticProvider(retry_policy=ONCE)
    numbers: list[int] = []
    threads = [
        threading.Thread(target=lambda: numbers.append(_call(provider).unwrap()["call"]))
        for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(numbers) == list(range(1, 17))


def test_its_http_error_has_words() -> None:
    """And carries what the mapping looks for."""
    error = SyntheticHTTPError(429, 2.5)
    assert str(error) == "the synthetic provider answered with 429"
    assert error.headers == {"Retry-After": "2.5"}


# -- profiles --------------------------------------------------------------------------------------


def _words(profile: FaultProfile, calls: int) -> list[str]:
    return [profile.faults(call)[-1].word for call in range(calls)]


def test_a_profile_begins_again_or_stays_at_its_end() -> None:
    """As it is told."""
    assert _words(FaultProfile("ok crash"), 5) == ["ok", "crash", "ok", "crash", "ok"]
    assert _words(FaultProfile("crash ok", cycles=False), 4) == ["crash", "ok", "ok", "ok"]


def test_chances_follow_their_weights_and_their_seed() -> None:
    """The same seed gives the same calls, in whatever order they are asked for."""
    profile = FaultProfile.chances({"ok": 0.8, "timeout": 0.2, "crash": 0.0}, seed=7)
    words = _words(profile, 2000)
    assert words == _words(FaultProfile.chances({"ok": 8, "timeout": 2, "crash": 0}, seed=7), 2000)
    assert words[:100] != _words(FaultProfile.chances({"ok": 8, "timeout": 2}, seed=8), 100)
    counts = Counter(words)
    assert 300 < counts["timeout"] < 500
    assert counts["crash"] == 0


@pytest.mark.parametrize(
    "steps",
    [
        "",
        [],
        "explode",
        "slow",
        "slow:soon",
        "slow:-1",
        "slow:inf",
        "slow:nan",
        "ok:1",
        "http",
        "http:99",
        "http:600",
        "http:5.3",
        "http:503:1:2",
        "rate_limited:1:2",
        "slow:1+",
        [""],
    ],
)
def test_a_step_that_makes_no_sense_is_refused(steps: Any) -> None:
    """When the profile is written, with the words it may have."""
    with pytest.raises(ConfigurationError, match="fault profile"):
        FaultProfile(steps)


@pytest.mark.parametrize("weights", [[1.0], [0, 0], [1, -1], [1, float("nan")], [1, float("inf")]])
def test_weights_that_make_no_sense_are_refused(weights: list[float]) -> None:
    """One for each step, none negative, not all zero."""
    with pytest.raises(ConfigurationError, match="weights"):
        FaultProfile("ok crash", weights=weights)


@given(st.lists(st.sampled_from(["ok", "crash", "slow:1", "http:503"]), min_size=1), st.integers(0))
def test_every_call_has_a_step(steps: list[str], call: int) -> None:
    """However many there have been."""
    for cycles in (True, False):
        assert FaultProfile(steps, cycles=cycles).faults(call)
    assert FaultProfile(steps, weights=[1.0] * len(steps)).faults(call)


@pytest.mark.req("PEF:H-4")
@pytest.mark.parametrize("is_given", [False, True])
def test_the_last_hour_goes_with_virtual_time(clock: VirtualClock, is_given: bool) -> None:
    """What has just happened is in it, and what is older than an hour is not."""
    provider = SyntheticProvider("http:503 ok", clock=clock if is_given else None)
    rates = []
    for _ in range(2):
        _call(provider, max_attempts=1)
        rates.append(provider.health("t")[0].success_rate_1h)
        clock.sleep(7200.0)
        rates.append(provider.health("t")[0].success_rate_1h)
    assert rates == [0.0, None, 1.0, None]


def test_the_letters_of_a_task_go_with_virtual_time(clock: VirtualClock) -> None:
    """As its rows do."""
    provider = SyntheticProvider("timeout", retry_policy=ONCE)
    runner = ProviderTaskRunner(provider, task_name="t")
    instants = []
    for n in range(2):
        letter = runner.run(TaskCall("t", None, "fetch", {}, call_id=f"m{n}")).letter
        assert letter is not None
        instants.append(letter.occurred_at)
        clock.sleep(7200.0)
    assert instants[1] - instants[0] == pytest.approx(7200.0)
