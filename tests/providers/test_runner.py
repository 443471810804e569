"""The queue-neutral runner: what becomes of a message, and what it carries on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from ergon_framework.errors import ConfigurationError
from ergon_framework.ports.providerstore import AttemptRow, LetterStatus, StoredLetter
from ergon_framework.providers.circuit_breaker import CircuitBreaker
from ergon_framework.providers.errors import ERROR_OF, ProviderError, Reason
from ergon_framework.providers.quota import QuotaPolicy
from ergon_framework.providers.recorder import recorder_of
from ergon_framework.providers.retry import RetryPolicy
from ergon_framework.providers.runner import ProviderTaskRunner
from ergon_framework.providers.tasks import (
    CallProgress,
    TaskCall,
    TaskEnd,
    TaskEnding,
    TaskGate,
    TaskOptions,
)
from ergon_framework.testing import VirtualClock
from tests.providers.scripted_tasks import (
    FlakyStore,
    call,
    fingerprint_of,
    on_another_machine,
    provider,
    runner,
)

pytestmark = [pytest.mark.req("PROVIDERS:celery"), pytest.mark.usefixtures("own_place", "clock")]


def noon() -> float:
    """An instant shortly after the start of every window that the tests use."""
    return 1_800_000_010.0


def letters(run: ProviderTaskRunner) -> list[StoredLetter]:
    """What was buried."""
    return run.provider.store.letters()


def attempts(run: ProviderTaskRunner) -> list[AttemptRow]:
    """The rows of the only message."""
    run.provider.flush()
    return run.provider.store.attempts_of("message-1")


def again(first: TaskCall, ending: TaskEnding) -> TaskCall:
    """The next delivery, as a queue makes it of an ending."""
    assert not ending.is_final
    carried = CallProgress.from_dict(json.loads(json.dumps(ending.carried.to_dict())))
    return replace(first, carried=carried)


def nested(depth: int) -> dict[str, Any]:
    """A payload of so many levels."""
    inner: list[Any] = []
    for _ in range(depth):
        inner = [inner]
    return {"x": inner}


def test_a_call_that_succeeds_is_done() -> None:
    """Its data is in the result, its key in the ending."""
    ending = runner("timeout ok").run(call(idempotency_key="k"))
    assert (ending.end, ending.idempotency_key, ending.letter) == (TaskEnd.DONE, "k", None)
    assert ending.result.attempts == 2
    assert ending.is_final


@pytest.mark.req("PEF:T-7", "PEF:D-1", "PEF:A-18")
def test_exhaustion_becomes_a_dead_letter_with_the_last_row() -> None:
    """The letter says what was tried, and the last row that it was buried."""
    run = runner("timeout")
    ending = run.run(call({"q": 1, "token": "s3cret"}, correlation_id="c", traceparent="00-a-b-01"))
    assert (ending.end, ending.undelivered) == (TaskEnd.DEAD, False)
    (stored,) = letters(run)
    letter = stored.letter
    assert stored.status is LetterStatus.PENDING
    assert letter == ending.letter == ending.result.dead_letter
    assert (letter.task_name, letter.provider_name, letter.capability) == (
        "synthetic.fetch",
        run.provider.provider_name,
        run.provider.capability,
    )
    assert (letter.reason_code, letter.error_type) == ("timeout", "ProviderTimeoutError")
    assert (letter.attempts, letter.retryable, letter.correlation_id) == (3, True, "c")
    assert (letter.payload, letter.has_secrets, letter.traceparent) == ({"q": 1}, True, "00-a-b-01")
    run.provider.flush()
    rows = run.provider.store.attempts_of("c")
    assert [row.outcome for row in rows] == ["retry", "retry", "dead_letter"]


def test_a_payload_that_is_too_large_is_not_kept() -> None:
    """The letter says so by having none."""
    run = runner("timeout", max_payload_bytes=20)
    run.run(call({"q": "x" * 50}))
    assert letters(run)[0].letter.payload is None


@pytest.mark.req("PEF:A-17")
@pytest.mark.parametrize("reason", sorted(set(Reason)))
def test_what_is_buried(reason: Reason) -> None:
    """Retryable reasons when they are exhausted; the others only when the task asks for it."""
    plain = runner(reason.value, max_deferrals=0).run(call())
    asked = runner(reason.value, max_deferrals=0, bury_on={reason.value}).run(call())
    retryable = reason in {"timeout", "connection_error", "dependency_unavailable", "rate_limited"}
    assert plain.end is (TaskEnd.DEAD if retryable else TaskEnd.FAILED)
    assert asked.end is TaskEnd.DEAD
    assert plain.result.reason_code == asked.result.reason_code == reason


@pytest.mark.req("PEF:A-1")
def test_an_open_circuit_defers_and_spends_no_attempt(clock: VirtualClock) -> None:
    """The call waits for the circuit, then is made with all its attempts."""
    breaker = CircuitBreaker(failure_threshold=3, open_cooldown_seconds=30)
    run = runner("timeout timeout timeout ok", provider_options={"circuit_breaker": breaker})
    run.run(call(call_id="other"))
    first = call({"q": 2})
    ending = run.run(first)
    assert (ending.end, ending.gate) == (TaskEnd.DEFER, TaskGate.CIRCUIT)
    assert ending.seconds == pytest.approx(30, abs=1)
    assert (ending.carried.attempts, ending.carried.deferrals) == (0, 1)
    clock.advance(ending.seconds)
    done = run.run(again(first, ending))
    assert (done.end, done.result.attempts) == (TaskEnd.DONE, 1)


@pytest.mark.req("PEF:M-2", "PEF:A-21")
@pytest.mark.parametrize("way", ["deferred", "requeued"])
def test_a_call_that_goes_on_later_has_not_failed(clock: VirtualClock, way: str) -> None:
    """Its rows are those of one execution, and only the last one says how that ended."""
    breaker = CircuitBreaker(failure_threshold=2, open_cooldown_seconds=5)
    run = (
        runner("timeout timeout ok", provider_options={"circuit_breaker": breaker})
        if way == "deferred"
        else runner("crash ok", requeue_on={"internal_error"}, max_requeues=1)
    )
    first = call(correlation_id="c")
    ending = run.run(first)
    assert ending.end is (TaskEnd.DEFER if way == "deferred" else TaskEnd.REQUEUE)
    clock.advance(ending.seconds)
    assert run.run(again(first, ending)).end is TaskEnd.DONE
    run.provider.flush()
    outcomes = [row.outcome for row in run.provider.store.attempts_of("c")]
    assert outcomes == ["retry"] * (len(outcomes) - 1) + ["success"]
    assert len(outcomes) > 1


@pytest.mark.req("PEF:A-9")
def test_nobody_is_told_to_wait_for_years() -> None:
    """Whoever reads the result or catches the error may wait as long as that."""
    ending = runner("rate_limited:999999999", max_deferrals=0).run(call())
    assert ending.result.retry_after_seconds == pytest.approx(3600.0)
    assert ending.result.error is not None
    assert ending.result.error.retry_after_seconds == 3600.0


@pytest.mark.req("PEF:A-9")
def test_a_policy_without_a_bound_waits_as_long_as_it_was_asked_to(clock: VirtualClock) -> None:
    """The bound on what is told is none on when the provider is called again."""
    policy = RetryPolicy(max_attempts=2, max_retry_after_seconds=None)
    options = {
        "retry_policy": policy,
        "max_cooldown_seconds": 10.0,
        "timeout_budget_seconds": 900.0,
    }
    script = "dependency_unavailable:500 ok"
    run = runner(script, provider_options=options, timeout_budget_seconds=None)
    began = clock.now()
    assert run.run(call()).end is TaskEnd.DONE
    assert clock.now() - began >= 500.0


@pytest.mark.req("PEF:A-1")
def test_deferrals_have_a_cap_and_then_there_is_a_letter(clock: VirtualClock) -> None:
    """A circuit that opens again and again ends in a dead letter with its own reason."""
    breaker = CircuitBreaker(failure_threshold=1, open_cooldown_seconds=50)
    run = runner("crash", provider_options={"circuit_breaker": breaker}, max_deferrals=2)
    delivery, gates = call({"q": 2}, idempotency_key="k"), []
    ending = run.run(call(call_id="probe", idempotency_key="probe"))
    for number in range(3):
        run.run(call(call_id=f"probe {number}", idempotency_key=f"probe {number}"))
        ending = run.run(delivery)
        gates.append(ending.gate)
        if not ending.is_final:
            delivery = again(delivery, ending)
            clock.advance(ending.seconds)
            carried = msgspec.structs.replace(delivery.carried, waits_until=0.0)
            delivery = replace(delivery, carried=carried)  # the clock on the wall stood still
    assert gates == [TaskGate.CIRCUIT, TaskGate.CIRCUIT, None]
    assert (ending.end, ending.result.reason_code) == (TaskEnd.DEAD, "circuit_open")
    assert ending.letter is not None
    assert ending.letter.attempts == 0


def test_a_circuit_that_opens_between_attempts_carries_those_made() -> None:
    """The attempts before and after the wait are never more than the policy allows."""
    breaker = CircuitBreaker(failure_threshold=2, open_cooldown_seconds=5)
    with VirtualClock() as clock:
        run = runner("timeout", provider_options={"circuit_breaker": breaker})
        first = call()
        ending = run.run(first)
        assert (ending.end, ending.gate) == (TaskEnd.DEFER, TaskGate.CIRCUIT)
        assert (ending.result.reason_code, ending.carried.attempts) == ("timeout", 2)
        clock.advance(ending.seconds)
        last = run.run(again(first, ending))
    assert (last.end, last.result.attempts) == (TaskEnd.DEAD, 1)
    assert last.letter is not None
    assert last.letter.attempts == 3


def test_a_cooldown_longer_than_the_budget_defers(clock: VirtualClock) -> None:
    """The provider said when to come back; the attempt that heard it is counted."""
    run = runner("http:429:100 ok", timeout_budget_seconds=10.0)
    first = call()
    ending = run.run(first)
    assert (ending.end, ending.gate, ending.carried.attempts) == (
        TaskEnd.DEFER,
        TaskGate.COOLDOWN,
        1,
    )
    early = run.run(again(first, ending))
    assert (early.end, early.result.attempts, early.carried.deferrals) == (TaskEnd.DEFER, 0, 1)
    clock.advance(early.seconds)
    assert run.run(again(first, early)).end is TaskEnd.DONE


def test_a_long_window_takes_several_messages_and_counts_once() -> None:
    """Brokers cannot hold a message for hours; the wait is cut into pieces."""
    quota = QuotaPolicy(limit=1, window_seconds=36_000)
    run = runner("ok", provider_options={"quota": quota, "wall": noon}, max_deferrals=1)
    run.run(call(idempotency_key="first"))
    delivery = call({"q": 2})
    for _ in range(5):
        ending = run.run(delivery)
        assert (ending.end, ending.gate) == (TaskEnd.DEFER, TaskGate.WINDOW)
        assert (ending.seconds, ending.carried.deferrals) == (900, 1)
        delivery = again(delivery, ending)


def test_the_queue_bounds_a_deferral() -> None:
    """Below the visibility timeout, or others would get the message as well."""
    breaker = CircuitBreaker(failure_threshold=1, open_cooldown_seconds=300)
    run = runner(
        "timeout ok", longest_wait=lambda: 20.0, provider_options={"circuit_breaker": breaker}
    )
    assert run.run(call()).seconds == 20


@pytest.mark.parametrize("gate", ["circuit", "window"])
def test_a_task_may_choose_not_to_wait(gate: str) -> None:
    """Without deferrals, an open circuit and a spent quota fail at once."""
    quota = QuotaPolicy(limit=1, window_seconds=3600)
    breaker = CircuitBreaker(failure_threshold=1, open_cooldown_seconds=300)
    window, circuit = {"quota": quota, "wall": noon}, {"circuit_breaker": breaker}
    options: dict[str, Any] = window if gate == "window" else circuit
    run = runner("bad_request" if gate == "window" else "internal_error", provider_options=options)
    run.run(call())
    for waits in ({"may_wait": False}, {}):
        kept = ProviderTaskRunner(
            run.provider, task_name="t", options=TaskOptions(defer_on={"duplicate"})
        )
        ending = kept.run(call({"q": 2}, call_id="m2", **waits))
        assert ending.end is TaskEnd.FAILED
        assert ending.result.reason_code in {"circuit_open", "quota_exhausted"}


@pytest.mark.req("PEF:A-6", "PEF:R-7")
def test_requeues_never_make_more_attempts_than_the_policy() -> None:
    """Each delivery has time for one attempt of three; the fourth never comes."""
    policy = RetryPolicy(max_attempts=3, base_delay_seconds=50, max_delay_seconds=50)
    run = runner(
        "timeout",
        provider_options={"retry_policy": policy},
        timeout_budget_seconds=10.0,
        max_requeues=10,
    )
    delivery, made = call(), 0
    ending = run.run(delivery)
    ends = [ending.end]
    while not ending.is_final:
        made += ending.result.attempts
        delivery = again(delivery, ending)
        ending = run.run(delivery)
        ends.append(ending.end)
    made += ending.result.attempts
    assert (made, ends) == (3, [TaskEnd.REQUEUE, TaskEnd.REQUEUE, TaskEnd.DEAD])
    assert ending.letter is not None
    assert ending.letter.attempts == 3
    spent = run.run(replace(delivery, carried=CallProgress(attempts=3)))
    assert (spent.end, spent.result.attempts) == (TaskEnd.DEAD, 0)


def test_by_default_nothing_is_requeued() -> None:
    """A call that ran out of time with attempts left is buried."""
    policy = RetryPolicy(base_delay_seconds=50, max_delay_seconds=50)
    run = runner("timeout", provider_options={"retry_policy": policy}, timeout_budget_seconds=10.0)
    ending = run.run(call())
    assert (ending.end, ending.result.stop_reason) == (TaskEnd.DEAD, "budget_spent")


def test_internal_errors_go_back_only_when_asked() -> None:
    """As the table says: opt in."""
    assert runner("crash", max_requeues=1).run(call()).end is TaskEnd.FAILED
    asked = runner("crash", max_requeues=1, requeue_on={"internal_error"})
    assert asked.run(call()).end is TaskEnd.REQUEUE
    assert (
        runner("bad_request", max_requeues=1, requeue_on={"bad_request"}).run(call()).end
        is TaskEnd.FAILED
    )


@pytest.mark.req("PEF:T-2")
def test_the_budget_is_one_deadline_for_everything() -> None:
    """No wait goes beyond it, and the attempt is told what is left."""
    policy = RetryPolicy(max_attempts=9, base_delay_seconds=4, max_delay_seconds=4, jitter_ratio=0)
    run = runner("timeout", provider_options={"retry_policy": policy}, timeout_budget_seconds=10.0)
    ending = run.run(call())
    assert ending.result.attempts == 3
    assert ending.result.duration_ms == pytest.approx(8_000)


def test_a_store_that_is_away_defers() -> None:
    """Nobody can say whether the call was made before: it is put off, not lost."""
    store = FlakyStore()
    run = runner(provider(store=store), max_deferrals=1)
    store.refuses = {"claim"}
    first = call()
    ending = run.run(first)
    assert (ending.end, ending.gate, ending.result.attempts) == (TaskEnd.DEFER, TaskGate.STORE, 0)
    store.refuses.clear()
    assert run.run(again(first, ending)).end is TaskEnd.DONE


def test_a_result_stays_a_success_when_the_key_cannot_be_finished() -> None:
    """The provider did its work; that the store is away changes nothing about it."""
    store = FlakyStore()
    run = runner(provider(store=store))
    store.refuses = {"finish"}
    assert run.run(call()).end is TaskEnd.DONE


@pytest.mark.req("PEF:A-19")
def test_a_letter_that_nobody_can_keep_is_not_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The message carries the end with it; the next delivery writes it and calls nobody."""
    run = runner("timeout")
    first = call(idempotency_key="k")
    with monkeypatch.context() as away:
        away.setattr(recorder_of(run.provider.store), "write_now", lambda _batch: False)
        lost = run.run(first)
        assert (lost.end, lost.undelivered, lost.is_final) == (TaskEnd.DEAD, True, False)
        still = run.run(again(first, lost))
        assert (still.undelivered, still.result.attempts) == (True, 0)
    kept = run.run(again(first, still))
    assert (kept.end, kept.undelivered, kept.result.reason_code) == (TaskEnd.DEAD, False, "timeout")
    (stored,) = letters(run)
    assert lost.letter is not None
    assert stored.letter == lost.letter
    assert stored.letter.attempts == 3


@pytest.mark.req("PEF:trap-worker-lost")
def test_a_message_that_loses_its_worker_too_often_is_given_up() -> None:
    """Also when the queue takes hours to deliver it again, and its key was forgotten meanwhile."""

    class Lost(type(provider())):  # type: ignore[misc]
        def _execute_impl(self, **given: Any) -> dict[str, Any]:
            raise SystemExit

    now = [1_000_000.0]
    run = runner(Lost(store=FlakyStore(lambda: now[0])), max_redeliveries=2)
    for number in range(3):
        with pytest.raises(SystemExit):
            run.run(call(is_redelivered=number > 0))
        now[0] += 20_000
    last = run.run(call(is_redelivered=True))
    assert (last.end, last.result.reason_code) == (TaskEnd.DEAD, "internal_error")
    assert last.letter is not None
    assert last.letter.attempts == 3  # one at least by each worker
    with pytest.raises(SystemExit):
        run.run(call(call_id="another", is_redelivered=True))


@pytest.mark.req("PEF:trap-worker-lost")
def test_workers_that_are_lost_on_other_machines_are_counted_too() -> None:
    """The message that comes back finds the key in use, and is put off as another message."""
    run = runner("ok", max_redeliveries=2)
    message = call(idempotency_key="k")
    store = run.provider.store
    store.claim("t", "k", fingerprint_of(run.provider), "elsewhere", 3600.0, 3600.0)
    ends = [run.run(replace(message, is_redelivered=True)).end for _ in range(3)]
    assert ends == [TaskEnd.DEFER, TaskEnd.DEFER, TaskEnd.DEAD]


@pytest.mark.req("PEF:trap-worker-lost")
def test_a_delivery_that_ended_lost_no_worker() -> None:
    """However often a queue says that it delivers a message again."""
    run = runner("timeout", max_redeliveries=1, max_requeues=50, timeout_budget_seconds=0.1)
    message = call(is_redelivered=True)
    for _ in range(5):
        assert run.run(message).end is TaskEnd.REQUEUE
    store = FlakyStore()
    away = runner(provider("ok", store=store), max_redeliveries=1)
    store.refuses = {"finish"}
    assert away.run(message).end is TaskEnd.DONE  # it stays counted, and nothing else


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        ({"tenant_id": ""}, "tenant_id"),
        ({"operation": None}, "operation"),
        ({"operation": {"note": "hush"}}, "operation"),
        ({"tenant_id": "*"}, "tenant_id"),
        ({"tenant_id": object()}, "tenant_id"),
        ({"campaign_id": object()}, "campaign_id"),
        ({"correlation_id": object()}, "correlation_id"),
        ({"payload": nested(101)}, "payload"),
        ({"payload": nested(100_000)}, "payload"),
        ({"payload": [1]}, "payload"),
        ({"payload": {"a": object()}}, "payload"),
        ({"idempotency_key": ""}, "idempotency_key"),
        ({"idempotency_key": "a\nb"}, "idempotency_key"),
        ({"idempotency_key": "k" * 256}, "idempotency_key"),
        ({"correlation_id": "c" * 300}, "correlation_id"),
    ],
)
@pytest.mark.req("PROVIDERS:badinput", "PEF:T-5")
def test_a_wrong_call_is_a_bad_request(
    wrong: dict[str, Any], where: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It fails at once, with the name of what is wrong and not with what that is."""
    caplog.set_level(logging.INFO)
    ending = runner().run(replace(call(), **wrong))
    assert (ending.end, ending.result.reason_code) == (TaskEnd.FAILED, "bad_request")
    assert where in str(ending.result.error)
    assert "bad_request" in caplog.text
    assert "hush" not in caplog.text


@pytest.mark.req("PEF:T-4", "PEF:T-8")
def test_the_log_has_one_record_with_all_fields(caplog: pytest.LogCaptureFixture) -> None:
    """Failures are warnings; nothing of the payload is in it."""
    ten = {
        *("tenant_id", "campaign_id", "provider_name", "capability", "operation"),
        *("correlation_id", "idempotency_key", "attempt", "reason_code", "outcome"),
    }
    with caplog.at_level(logging.INFO, "ergon_framework.providers.task"):
        run = runner("ok timeout timeout timeout crash")
        for number in range(3):
            run.run(call({"password": "hunter2", "n": number}, campaign_id="c"))
    assert len(caplog.records) == 3
    for record, outcome in zip(caplog.records, ["success", "dead_letter", "failed"], strict=True):
        fields = record.ergon  # type: ignore[attr-defined]
        assert fields.keys() >= ten
        assert fields["outcome"] == outcome
        assert json.loads(record.getMessage()) == fields
        assert (record.levelname == "WARNING") is (outcome != "success")
    assert "hunter2" not in caplog.text
    assert "synthetic.py" in str(caplog.records[2].ergon["where"])  # type: ignore[attr-defined]


def test_the_async_twin_does_the_same() -> None:
    """Success, replay and burial."""

    async def all_of_it() -> list[TaskEnd]:
        run = runner("ok bad_request")
        first = await run.arun(call(idempotency_key="k"))
        replay = await run.arun(call(idempotency_key="k"))
        failed = await run.arun(call(idempotency_key="other"))
        return [first.end, replay.end, failed.end]

    assert asyncio.run(all_of_it()) == [TaskEnd.DONE, TaskEnd.REPLAYED, TaskEnd.FAILED]


def test_a_call_that_is_broken_off_frees_its_key() -> None:
    """Ctrl-C in the provider: whoever comes next does not wait for the lease."""

    class Broken(type(provider())):  # type: ignore[misc]
        def _execute_impl(self, **given: Any) -> dict[str, Any]:
            raise KeyboardInterrupt

    run = runner(Broken())
    with pytest.raises(KeyboardInterrupt):
        run.run(call(idempotency_key="k"))
    claim = run.provider.store.claim("t", "k", "x", "somebody", 1.0, 1.0)
    assert claim.state in {"mine", "conflict"}


def test_a_task_that_is_cancelled_frees_its_key_too() -> None:
    """The async twin hears a cancellation while the provider works."""

    class Endless(type(provider())):  # type: ignore[misc]
        async def _execute_impl(self, **given: Any) -> dict[str, Any]:
            began.set()
            await asyncio.Event().wait()
            return {}

    began = asyncio.Event()
    run = runner(Endless(timeout_budget_seconds=None), timeout_budget_seconds=None)

    async def cancelled() -> None:
        task = asyncio.create_task(run.arun(call(idempotency_key="k")))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    ending = run.provider.store.claim("t", "k", "another", "somebody", 1.0, 1.0)
    assert ending.state == "conflict"  # remembered, but nobody holds it
    free = run.provider.store.finish("t", "k", "somebody", {}, None)
    assert not free


def test_a_key_that_somebody_else_took_meanwhile_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The call outlasted its lease; it succeeded all the same."""

    class Late(type(provider())):  # type: ignore[misc]
        def _execute_impl(self, *, context: Any, **given: Any) -> dict[str, Any]:
            now[0] += 1_000
            with on_another_machine():
                store.claim("t", "k", fingerprint_of(self), "somebody", 60.0, 60.0)
            return {}

    now = [1_000.0]
    store = FlakyStore(lambda: now[0])
    ending = runner(Late(store=store)).run(call(idempotency_key="k"))
    assert ending.end is TaskEnd.DONE
    assert "key.lost" in caplog.text


@pytest.mark.req("PEF:A-16", "PEF:T-3")
@pytest.mark.parametrize("reason", ["timeout", "bad_request"])
@pytest.mark.parametrize("other", ["succeeded", "failed", "is_running", "went_away"])
def test_a_delivery_that_was_overtaken_says_not_how_the_call_ended(
    reason: str, other: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It stood still for longer than its lease, and failed then: another one has the last word."""

    class Stopped(type(provider())):  # type: ignore[misc]
        def _execute_impl(self, *, context: Any, **given: Any) -> dict[str, Any]:
            now[0] += 1_000
            if other != "went_away":
                with on_another_machine():
                    store.claim("t", "k", fingerprint_of(self), "somebody", 60.0, 6_000.0)
            if other == "succeeded":
                store.finish("t", "k", "somebody", {"by": "the other"}, None)
            if other == "failed":
                store.finish("t", "k", "somebody", None, "auth_failed", "denied")
            raise ERROR_OF[reason]("no")

    now = [1_000.0]
    store = FlakyStore(lambda: now[0])
    once = RetryPolicy(max_attempts=1)
    run = runner(Stopped(store=store, retry_policy=once), bury_on={"bad_request"})
    ending = run.run(call(idempotency_key="k"))
    assert bool(letters(run)) == (other == "went_away")
    assert ("key.lost" in caplog.text) == (other != "went_away")
    if other == "succeeded":
        assert (ending.end, ending.result.data) == (TaskEnd.REPLAYED, {"by": "the other"})
    elif other == "failed":
        assert (ending.end, ending.result.reason_code) == (TaskEnd.FAILED, "auth_failed")
    elif other == "is_running":
        assert (ending.end, ending.gate) == (TaskEnd.DEFER, TaskGate.DUPLICATE)
    else:
        assert (ending.end, ending.result.reason_code) == (TaskEnd.DEAD, reason)
    assert [row.outcome for row in attempts(run)] == ["dead_letter" if letters(run) else "failed"]


@pytest.mark.req("PEF:D-1", "PEF:T-7")
def test_a_message_that_was_given_up_is_not_called_when_it_is_delivered_again() -> None:
    """Its worker died between the dead letter and the acknowledgement, say: one message, one end.

    A redrive is another message, and makes the call.
    """
    run = runner("timeout timeout timeout ok")
    message = call({"q": 1}, idempotency_key="k")
    first = run.run(message)
    late = run.run(replace(message, is_redelivered=True))
    assert first.letter is not None
    assert (late.end, late.letter, late.is_final) == (TaskEnd.DEAD, first.letter, True)
    assert (late.result.reason_code, late.result.attempts) == ("timeout", 0)
    assert [stored.letter for stored in letters(run)] == [first.letter]
    assert len(attempts(run)) == 3
    redrive = replace(message, call_id="redrive", carried=CallProgress(redrive_count=1))
    assert run.run(redrive).end is TaskEnd.DONE
    replayed = run.run(replace(message, is_redelivered=True))
    assert replayed.end is TaskEnd.REPLAYED  # the call under the key has succeeded since


@pytest.mark.req("PEF:D-1", "PEF:T-7")
@pytest.mark.parametrize("held_up_by", ["nothing else", "the store"])
def test_a_copy_that_was_put_off_ends_as_the_delivery_it_waited_for(held_up_by: str) -> None:
    """A worker stood still until the queue delivered its message to another one, and gave it up.

    The copy is sent as a new message, which the queue does not call redelivered.
    """

    class Stopped(type(provider())):  # type: ignore[misc]
        def _execute_impl(self, **given: Any) -> dict[str, Any]:
            made.append(1)
            if len(made) > 1:
                return {}
            copies.append(run.run(replace(message, is_redelivered=True)))
            raise ERROR_OF["timeout"]("no")

    made: list[int] = []
    copies: list[TaskEnding] = []
    message, store = call(idempotency_key="k"), FlakyStore()
    run = runner(Stopped(store=store, retry_policy=RetryPolicy(max_attempts=1)))
    first = run.run(message)
    (copy,) = copies
    assert (first.end, copy.end, copy.gate) == (TaskEnd.DEAD, TaskEnd.DEFER, TaskGate.DUPLICATE)
    if held_up_by == "the store":
        store.refuses = {"claim"}
        copy = run.run(again(message, copy))
        assert copy.gate is TaskGate.STORE
        store.refuses = set()
    last = run.run(again(message, copy))
    assert (last.end, last.letter, len(made)) == (TaskEnd.DEAD, first.letter, 1)


@pytest.mark.parametrize("is_broken_off", [False, True])
def test_a_store_that_is_away_at_the_end_is_told(
    caplog: pytest.LogCaptureFixture, is_broken_off: bool
) -> None:
    """Nothing else can be done: the lease of the key runs out."""

    class Away(type(provider())):  # type: ignore[misc]
        def _execute_impl(self, **given: Any) -> dict[str, Any]:
            store.refuses = {"finish"}
            if is_broken_off:
                raise KeyboardInterrupt
            return {}

    store = FlakyStore()
    run = runner(Away(store=store))
    with contextlib.suppress(KeyboardInterrupt):
        assert run.run(call()).end is TaskEnd.DONE
    assert "key.left_open" in caplog.text


@pytest.mark.parametrize(
    "wrong",
    [
        {"timeout_budget_seconds": 0},
        {"timeout_budget_seconds": float("nan")},
        {"max_deferrals": -1},
        {"max_requeues": 1.5},
        {"max_redeliveries": True},
        {"keep_key_seconds": 0},
        {"lease_grace_seconds": -1},
        {"longest_deferral_seconds": "long"},
        {"bury_on": "timeout"},
        {"bury_on": {"tiemout"}},
        {"defer_on": {"circuit_open"}},
        {"requeue_on": 3},
    ],
)
def test_wrong_options_are_refused(wrong: dict[str, Any]) -> None:
    """With the name of the option."""
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        TaskOptions(**wrong)


@pytest.mark.parametrize("wrong", [{"attempts": -1}, {"attempts": "x"}, [], 3, {"given_up": {}}])
def test_what_a_message_carries_is_checked(wrong: Any) -> None:
    """Anybody can write to a queue."""
    with pytest.raises(ProviderError, match="carries"):
        CallProgress.from_dict(wrong)


def test_a_runner_keeps_no_recorder_of_its_own() -> None:
    """Rows and letters go through the one recorder of the store."""
    run = runner("timeout")
    run.run(call())
    assert recorder_of(run.provider.store).stats().queued_rows == 0
