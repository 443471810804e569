"""A pause that the provider asks for holds for everybody, and what a call leaves in the store."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.errors import StoreUnavailableError
from ergon_framework.ports.notice import Notice
from ergon_framework.ports.providerstore import DeadLetter, RecordBatch
from ergon_framework.providers.circuit_breaker import CircuitBreaker
from ergon_framework.providers.errors import (
    ProviderDependencyError,
    ProviderRateLimitError,
)
from ergon_framework.providers.execution import ProviderExecutionContext, ProviderExecutionResult
from ergon_framework.providers.quota import QuotaPolicy
from ergon_framework.providers.retry import RetryPolicy
from ergon_framework.providers.shared_circuit import Circuit
from ergon_framework.telemetry import add_listener, remove_listener
from ergon_framework.testing import VirtualClock
from tests.providers.scripted import (
    EPOCH,
    LANE,
    ONCE,
    AsyncScripted,
    Scripted,
    WatchedStore,
    call,
    new_store,
    rows,
    used,
    wall_of,
)

DOWN = ProviderDependencyError("down", http_status=503)


# -- cooldown ------------------------------------------------------------------------------------


def limited(seconds: float | None = None) -> ProviderRateLimitError:
    """The provider asks for a pause."""
    return ProviderRateLimitError("wait", http_status=429, retry_after_seconds=seconds)


@pytest.mark.req("PEF:A-9")
def test_a_pause_holds_for_everybody(clock: VirtualClock) -> None:
    """Whoever comes meanwhile waits for its end, if there is time."""
    store = WatchedStore(clock)
    once = RetryPolicy(max_attempts=1, jitter_ratio=0.0)
    first = Scripted(limited(5.0), retry_policy=once, store=store)
    second = Scripted(store=store)
    call(first)
    assert call(first).success
    assert clock.now() == 5.0
    first.steps.append(limited(5.0))
    call(first)
    assert call(second).success
    assert clock.now() == 10.0


@pytest.mark.req("PEF:A-9")
def test_who_has_no_time_for_a_pause_is_told_so(clock: VirtualClock) -> None:
    """Without a call and without a wait."""
    provider = Scripted(limited(5.0), retry_policy=ONCE, quota=QuotaPolicy(limit=9))
    call(provider)
    result = call(provider, timeout_budget_seconds=4.0)
    assert (result.reason_code, result.stop_reason) == ("rate_limited", "cooldown")
    assert (result.attempts, result.retry_after_seconds) == (0, 5.0)
    assert (provider.calls, clock.now(), used(provider)) == (1, 0.0, 1)


@pytest.mark.req("PEF:A-9", "PEF:A-9")
def test_a_pause_is_never_shortened(clock: VirtualClock) -> None:
    """A later and shorter one changes nothing, whoever was asked for it."""
    store = WatchedStore(clock)
    circuits = [Circuit(store, LANE, CircuitBreaker().rule()) for _ in range(2)]
    for which, asked_for, held in ((0, 9.0, 9.0), (1, 3.0, 9.0), (0, 4.0, 9.0), (1, 12.0, 12.0)):
        circuits[which].extend_cooldown(asked_for)
        assert circuits[which].cooldown() == held
        assert store.lane_state(LANE).cooldown_until == EPOCH + held


@pytest.mark.req("PEF:A-9")
@pytest.mark.parametrize(
    ("asked_for", "held"), [(None, 2.0), (9.0, 9.0), (1e9, 100.0), (0.0, None), (-5.0, None)]
)
def test_a_pause_has_a_default_and_a_ceiling(
    clock: VirtualClock, asked_for: float | None, held: float | None
) -> None:
    """And none of no length."""
    store = WatchedStore(clock)
    provider = Scripted(
        limited(asked_for),
        retry_policy=ONCE,
        default_cooldown_seconds=2.0,
        max_cooldown_seconds=100.0,
        store=store,
    )
    call(provider)
    assert store.lane_state(LANE).cooldown_until == (EPOCH + held if held else 0.0)


@pytest.mark.req("PROVIDERS:badinput", "PEF:trap-clock-back")
def test_a_clock_that_is_set_back_lengthens_no_pause_beyond_the_ceiling(
    clock: VirtualClock,
) -> None:
    """The store's clock is: ours goes on, and the pause ends."""
    store = WatchedStore(clock)
    store.extend_cooldown(LANE, EPOCH + 1e6)
    provider = Scripted(store=store, max_cooldown_seconds=30.0, timeout_budget_seconds=20.0)
    result = call(provider)
    assert (result.stop_reason, result.retry_after_seconds) == ("cooldown", 30.0)


@pytest.mark.req("PEF:A-9")
def test_who_is_told_to_wait_longer_than_there_is_time_ends_now(clock: VirtualClock) -> None:
    """With the wait in the result."""
    provider = Scripted(limited(100.0), timeout_budget_seconds=50)
    result = call(provider)
    assert (result.attempts, result.stop_reason, clock.now()) == (1, "budget_spent", 0.0)
    assert (result.reason_code, result.retry_after_seconds) == ("rate_limited", 100.0)


@pytest.mark.req("PEF:A-9")
@pytest.mark.parametrize("asked_for", [None, 3.0])
def test_a_call_without_a_deadline_comes_back_after_its_pause(
    clock: VirtualClock, asked_for: float | None
) -> None:
    """Also when its own wait is over before the pause is."""
    provider = Scripted(
        limited(asked_for), timeout_budget_seconds=None, default_cooldown_seconds=7.0
    )
    result = call(provider)
    assert (result.success, clock.now()) == (True, asked_for or 7.0)


# -- rows ----------------------------------------------------------------------------------------


@pytest.mark.req("PEF:B-9", "PEF:M-2", "PEF:M-3", "PEF:M-4", "PEF:A-25")
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_every_attempt_has_a_row(kind: str, clock: VirtualClock, tmp_path: Path) -> None:
    """With every column that a call can fill."""
    with new_store(kind, clock, tmp_path) as store:
        provider = Scripted(DOWN, store=store, wall=wall_of(clock))
        call(
            provider,
            correlation_id="c",
            campaign_id="k",
            operation="look",
            idempotency_key="i",
        )
        first, second = rows(provider, "c")
        assert (first.tenant_id, first.provider_name, first.capability) == LANE
        assert (first.operation, first.campaign_id, first.idempotency_key) == ("look", "k", "i")
        assert (first.attempt_number, first.max_attempts) == (1, 3)
        assert (first.outcome, first.reason_code) == ("retry", "dependency_unavailable")
        assert (first.retryable, first.http_status) == (True, 503)
        assert (first.timeout_budget_ms, first.created_at) == (60_000, EPOCH)
        assert (second.attempt_number, second.outcome) == (2, "success")
        assert (second.reason_code, second.retryable, second.http_status) == (None, False, None)
        assert second.task_execution_id is None
        assert len({first.id, second.id}) == 2


@pytest.mark.req("PEF:M-2")
@pytest.mark.parametrize("ends_with", ["circuit", "quota", "cooldown", "deadline"])
def test_the_last_row_is_final_even_when_a_gate_ends_the_call(
    clock: VirtualClock, ends_with: str
) -> None:
    """A retry that was planned and did not come is a failure, and counts as one."""
    store = WatchedStore(clock)
    options: dict[str, Any] = {"retry_policy": RetryPolicy(base_delay_seconds=2, jitter_ratio=0)}

    def then(_: object) -> Exception:
        if ends_with == "cooldown":
            store.extend_cooldown(LANE, EPOCH + clock.now() + 500.0)
        if ends_with == "deadline":
            store.before = lambda name: clock.advance(60.0) if name == "lane_state" else None
        return DOWN

    if ends_with == "circuit":
        options["circuit_breaker"] = CircuitBreaker(1)
    if ends_with == "quota":
        options |= {"quota": QuotaPolicy(limit=1), "quota_unit": "attempt"}
    provider = Scripted(then, store=store, **options)
    result = call(provider, correlation_id="c")
    assert (provider.calls, result.attempts) == (1, 1)
    assert result.stop_reason in {"circuit_open", "quota_exhausted", "cooldown", "budget_spent"}
    assert [row.outcome for row in rows(provider, "c")] == ["failed"]
    assert result.attempt_log[-1].delay_seconds is None
    assert provider.health("t")[0].success_rate_1h == 0.0


@pytest.mark.req("PEF:A-29")
def test_refusals_have_rows_up_to_a_rate_and_exact_counts(clock: VirtualClock) -> None:
    """Ten thousand of them are not ten thousand rows."""
    provider = Scripted(DOWN, retry_policy=ONCE, circuit_breaker=CircuitBreaker(1, 1000))
    call(provider)
    for _ in range(500):
        call(provider, correlation_id="refused")
    found = rows(provider, "refused")
    assert 0 < len(found) < 100
    assert {(row.attempt_number, row.outcome, row.reason_code) for row in found} == {
        (0, "failed", "circuit_open")
    }
    assert provider.runtime.recorder.stats().refused_total == {"circuit_open": 500}


@pytest.mark.req("PEF:A-29")
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("gate", ["circuit", "quota"])
@pytest.mark.parametrize("has_ending", [False, True])
def test_every_refusal_is_counted_once(
    clock: VirtualClock, is_async: bool, gate: str, has_ending: bool
) -> None:
    """Whichever way it goes: a flood of them is turned away in a shorter one."""
    provider = (AsyncScripted if is_async else Scripted)(
        retry_policy=ONCE,
        circuit_breaker=CircuitBreaker(1, 1000),
        quota=QuotaPolicy(limit=1),
    )
    if gate == "circuit":
        provider.steps.append(DOWN)
    call(provider)
    ending = (lambda result: None) if has_ending else None
    found = []

    async def flood() -> None:
        for _ in range(100):
            context = ProviderExecutionContext()
            if is_async:
                result = await provider.aexecute_delivery(ending, "t", None, "x", {}, context)
            else:
                result = provider.execute_delivery(ending, "t", None, "x", {}, context)
            found.append((result.reason_code, result.stop_reason, result.attempts))

    clock.run(flood())
    reason = "circuit_open" if gate == "circuit" else "quota_exhausted"
    assert found == [(reason, reason, 0)] * 100
    assert provider.runtime.recorder.stats().refused_total == {reason: 100}


@pytest.mark.parametrize("is_async", [False, True])
def test_payloads_are_told_nowhere(
    clock: VirtualClock, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Not by a log, a notice, an error, a result or a row, whatever becomes of the call."""
    caplog.set_level(logging.DEBUG)
    heard: list[Notice] = []
    kind = AsyncScripted if is_async else Scripted
    provider = kind(
        DOWN, KeyError("?"), {"ok": 1}, limited(1e9), DOWN, circuit_breaker=CircuitBreaker(3, 1000)
    )
    given = {"card": "4111-secret", "nested": [{"pin": "secret"}]}
    add_listener(heard.append)
    try:
        results = [call(provider, payload=given, correlation_id="c") for _ in range(4)]
    finally:
        remove_listener(heard.append)
    assert {each.success for each in results} == {True, False}
    told = [repr(results), *(str(each.error) for each in results), repr(rows(provider, "c"))]
    told += [caplog.text, *(f"{each} {each.fields}" for each in heard)]
    assert heard
    assert "secret" not in str(told)


@pytest.mark.req("PEF:A-21", "PEF:B-9")
def test_refusals_are_no_verdict_on_the_provider(clock: VirtualClock) -> None:
    """The rate is that of calls that were made."""
    provider = Scripted({}, DOWN, retry_policy=ONCE, circuit_breaker=CircuitBreaker(1, 1000))
    for _ in range(50):
        call(provider)
    assert provider.health("t")[0].success_rate_1h == 0.5


@pytest.mark.req("PEF:B-11")
@pytest.mark.parametrize("durable", [False, True])
def test_a_store_that_does_not_write_fails_no_call(
    clock: VirtualClock, durable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows wait; what becomes of them is counted."""
    store = WatchedStore(clock)
    provider = Scripted(store=store, durable=durable)

    def refuse(_: RecordBatch) -> None:
        raise StoreUnavailableError("away")

    monkeypatch.setattr(store, "record", refuse)
    for _ in range(5):
        assert call(provider).success
    stats = provider.runtime.recorder.stats()
    assert stats.written_rows == 0
    assert stats.queued_rows + stats.lost_rows + stats.dropped_rows + stats.spilled_rows == 5


@pytest.mark.req("PROVIDERS:storage")
def test_durable_rows_are_there_before_the_call_returns(
    clock: VirtualClock, tmp_path: Path
) -> None:
    """Nobody needs to flush."""
    with new_store("sqlite", clock, tmp_path) as store:
        provider = Scripted(store=store, durable=True)
        for number in range(3):
            call(provider, correlation_id=f"c{number}")
            assert len(store.attempts_of(f"c{number}")) == 1


@pytest.mark.req("PEF:A-18")
def test_a_dead_letter_marks_the_last_row(clock: VirtualClock) -> None:
    """Recorded together; a call that succeeds has none."""

    def bury(result: ProviderExecutionResult) -> DeadLetter:
        return DeadLetter(
            dead_letter_id="d1",
            tenant_id="t",
            campaign_id=None,
            task_name="n",
            provider_name="scripted",
            capability="test",
            operation="fetch",
            idempotency_key="i",
            correlation_id=result.correlation_id,
            reason_code=result.reason_code or "",
            error_type="x",
            error_message="x",
            attempts=result.attempts,
            occurred_at=EPOCH,
        )

    provider = Scripted(DOWN, DOWN, DOWN)
    context = ProviderExecutionContext(correlation_id="c")
    result = provider.execute_delivery(bury, "t", None, "fetch", {}, context)
    assert result.dead_letter is not None
    assert [row.outcome for row in rows(provider, "c")] == ["retry", "retry", "dead_letter"]
    [stored] = provider.store.letters()
    assert stored.letter.attempts == 3
    fine = provider.execute_delivery(bury, "t", None, "fetch", {}, ProviderExecutionContext())
    assert (fine.success, fine.dead_letter) == (True, None)
