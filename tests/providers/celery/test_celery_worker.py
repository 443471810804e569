"""Provider tasks on a real Celery worker with two child processes and a real Redis."""

from __future__ import annotations

import base64
import json
import os
import signal

import pytest

from ergon_framework.cli import invoke
from ergon_framework.ports.providerstore import DeadLetter, LetterStatus, RecordBatch, StoredLetter
from ergon_framework.providers.errors import (
    ProviderBadRequestError,
    ProviderTimeoutError,
)
from ergon_framework.providers.store_urls import open_store
from tests.providers.celery.conftest import WAIT_TIMEOUT, Stage
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240), pytest.mark.req("PROVIDERS:celery")]

THIRTEEN = {
    *("tenant_id", "campaign_id", "task_name", "provider_name", "capability", "operation"),
    *("idempotency_key", "correlation_id", "reason_code", "error_type", "error_message"),
    *("attempts", "occurred_at"),
}


def stored(stage: Stage, letter_id: str) -> StoredLetter:
    """A letter as the store has it."""
    (found,) = open_store(stage.store).letters(ids=[letter_id])
    return found


def left_behind(letter_id: str) -> DeadLetter:
    """A letter of a worker that is no more."""
    return DeadLetter(
        dead_letter_id=letter_id,
        tenant_id="t",
        campaign_id=None,
        task_name="puppet.act",
        provider_name="puppet",
        capability="act",
        operation="act",
        idempotency_key=letter_id,
        correlation_id="c",
        reason_code="timeout",
        error_type="ProviderTimeoutError",
        error_message="no answer",
        attempts=3,
        occurred_at=1_700_000_000.0,
        retryable=True,
        payload={"name": letter_id, "script": ["ok"]},
    )


@pytest.mark.req("PEF:T-1", "PEF:T-3", "PEF:T-4")
def test_calls_succeed_retry_and_are_replayed(worker: Stage) -> None:
    """One call, one with a transient error, and one that is sent twice under a key."""
    plain = worker.send("plain", idempotency_key="k-1", correlation_id="c-1")
    shaky = worker.send("shaky", "timeout", "connection_error", "ok", correlation_id="c-2")
    assert plain.get(timeout=WAIT_TIMEOUT) == {"call": 1, "key": "k-1"}
    assert shaky.get(timeout=WAIT_TIMEOUT)["call"] == 3
    again = worker.send("plain", idempotency_key="k-1", correlation_id="c-3")
    assert again.get(timeout=WAIT_TIMEOUT) == {"call": 1, "key": "k-1"}
    assert worker.calls("plain") == 1
    other = worker.send("plain", "hold", idempotency_key="k-1")
    with pytest.raises(ProviderBadRequestError, match="another request"):
        other.get(timeout=WAIT_TIMEOUT)
    worker.stop()
    store = open_store(worker.store)
    rows = store.attempts_of("c-2")
    assert [(row.attempt_number, row.outcome, row.reason_code) for row in rows] == [
        (1, "retry", "timeout"),
        (2, "retry", "connection_error"),
        (3, "success", None),
    ]
    assert store.attempts_of("c-3") == []
    assert '"outcome":"replayed"' in worker.log()


@pytest.mark.req("PEF:T-7", "PEF:D-1", "PEF:D-2", "PEF:A-1", "PEF:A-19")
def test_exhaustion_is_buried_and_the_open_circuit_defers(stage: Stage) -> None:
    """The letter is on the Redis list; the next call waits for the circuit, and then succeeds."""
    # It is to be open still when the next call comes. With one child it opens at once; where
    # several are heard of, only after its failures have gone on for a while.
    stage.start(concurrency=1, PUPPET_COOLDOWN="8")
    dead = stage.send("dead", "timeout", tenant="t", idempotency_key="k", correlation_id="c-1")
    with pytest.raises(ProviderTimeoutError, match="the puppet was told timeout"):
        dead.get(timeout=WAIT_TIMEOUT)
    next_one = stage.send("next", tenant="t", correlation_id="c-2")
    found = stage.redis.blpop(["queue.deadletter"], timeout=WAIT_TIMEOUT)
    letter = json.loads(base64.b64decode(json.loads(found[1])["body"]))
    assert letter.keys() >= THIRTEEN
    assert (letter["attempts"], letter["reason_code"], letter["tenant_id"]) == (3, "timeout", "t")
    assert (letter["idempotency_key"], letter["task_name"]) == ("k", "puppet.act")
    assert next_one.get(timeout=WAIT_TIMEOUT)["call"] == 1
    stage.stop()
    assert stored(stage, letter["dead_letter_id"]).status is LetterStatus.PUBLISHED
    store = open_store(stage.store)
    assert [row.outcome for row in store.attempts_of("c-1")] == ["retry", "retry", "dead_letter"]
    rows = store.attempts_of("c-2")
    assert [row.attempt_number for row in rows if row.attempt_number] == [1]
    assert {row.reason_code for row in rows if not row.attempt_number} == {"circuit_open"}
    assert '"outcome":"deferred"' in stage.log()


@pytest.mark.req("PEF:A-16")
def test_a_duplicate_waits_for_the_call_under_way(worker: Stage) -> None:
    """The second message does not call the provider: it has the first one's result."""
    first = worker.send("held", "hold", idempotency_key="k")
    worker.event("held")
    second = worker.send("held", "hold", idempotency_key="k", correlation_id="second")
    third = worker.send("other")
    assert third.get(timeout=WAIT_TIMEOUT)["call"] == 1  # so the second was looked at, too
    worker.redis.rpush("go:held", "go")
    assert first.get(timeout=WAIT_TIMEOUT) == {"call": 1, "key": "k"}
    assert second.get(timeout=WAIT_TIMEOUT) == {"call": 1, "key": "k"}
    assert worker.calls("held") == 1
    assert '"waits_for":"duplicate"' in worker.log()


@pytest.mark.req("PEF:trap-worker-lost")
def test_a_child_that_is_killed_in_the_middle_of_a_call(worker: Stage) -> None:
    """The message comes back, its own lease is taken over, and the call is made again."""
    sent = worker.send("killed", "hold", "hold", idempotency_key="k")
    os.kill(worker.event("killed")["pid"], signal.SIGKILL)
    assert worker.event("killed")["call"] == 2
    worker.redis.rpush("go:killed", "go", "go")
    assert sent.get(timeout=WAIT_TIMEOUT)["call"] == 2


@pytest.mark.req("PEF:trap-worker-lost", "PEF:T-3")
def test_a_child_that_is_killed_after_the_key_was_finished(stage: Stage) -> None:
    """The message comes back, and nobody calls the provider a second time."""
    stage.start(ERGON_FAILPOINTS="providers.finish.after=kill")
    sent = stage.send("finished", idempotency_key="k")
    assert sent.get(timeout=WAIT_TIMEOUT) == {"call": 1, "key": "k"}
    assert stage.calls("finished") == 1


SOON = "1"
"""The broker delivers again what a killed worker had: the next worker gets it when it starts."""


@pytest.mark.req("PEF:trap-worker-lost")
@pytest.mark.parametrize("key", ["k", None])
def test_a_worker_that_is_killed_with_its_children_in_the_middle_of_a_call(
    stage: Stage, key: str | None
) -> None:
    """Nobody knows the end of that call: it is made again, and one outcome is recorded."""
    killed = stage.start(PUPPET_VISIBILITY=SOON)
    sent = stage.send("lost", "hold", "ok", idempotency_key=key, correlation_id="c-1")
    assert stage.event("lost")["call"] == 1
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    until(stage.is_due_again, "the broker may deliver it again")
    stage.start(PUPPET_VISIBILITY=SOON)
    assert sent.get(timeout=WAIT_TIMEOUT)["call"] == 2
    assert stage.calls("lost") == 2
    again = stage.send("lost", "hold", "ok", idempotency_key=key or "other", correlation_id="c-2")
    assert again.get(timeout=WAIT_TIMEOUT)["call"] == (2 if key else 3), "its own result alone"
    stage.stop()
    outcomes = [row.outcome for row in open_store(stage.store).attempts_of("c-1")]
    assert outcomes == ["success"]


@pytest.mark.req("PEF:trap-worker-lost", "PEF:A-16")
def test_a_child_outlives_its_main_process_that_was_killed(stage: Stage) -> None:
    """Its call goes on, and keeps its key: whoever has the message again waits for that result."""
    killed = stage.start(PUPPET_VISIBILITY=SOON, PUPPET_OUTLIVES="1")
    sent = stage.send("orphan", "hold", "ok", idempotency_key="k", correlation_id="c-1")
    stage.event("orphan")
    killed.kill()
    killed.wait()
    try:
        until(stage.is_due_again, "the broker may deliver it again")
        stage.start(PUPPET_VISIBILITY=SOON)
        until(lambda: '"waits_for":"duplicate"' in stage.log(), "it came again, and waits")
        stage.redis.rpush("go:orphan", "go")
        assert sent.get(timeout=WAIT_TIMEOUT) == {"call": 1, "key": "k"}
        assert stage.calls("orphan") == 1
        stage.stop()
    finally:
        os.killpg(killed.pid, signal.SIGKILL)  # Celery's children know nothing of their parent
    outcomes = [row.outcome for row in open_store(stage.store).attempts_of("c-1")]
    assert outcomes == ["success"]


@pytest.mark.req("PEF:trap-worker-lost")
def test_a_call_that_kills_every_worker_is_given_up(worker: Stage) -> None:
    """Two redeliveries are allowed here: after three calls there is a dead letter."""
    worker.send("poison", "die", idempotency_key="k")
    letter = worker.dead_letter()
    assert (letter["reason_code"], letter["idempotency_key"]) == ("internal_error", "k")
    assert "was lost 3 times" in letter["error_message"]
    assert worker.calls("poison") == letter["attempts"] == 3
    assert worker.send("healthy").get(timeout=WAIT_TIMEOUT)["call"] == 1


@pytest.mark.req("PEF:T-2")
def test_a_call_that_ignores_its_budget_is_ended_and_given_up(worker: Stage) -> None:
    """Celery kills the child at the hard limit; the message is not acknowledged for that."""
    worker.send("endless", "hold", task="puppet.hurry", idempotency_key="k")
    letter = worker.dead_letter()
    assert (letter["reason_code"], letter["task_name"]) == ("internal_error", "puppet.hurry")
    assert worker.calls("endless") <= 2  # a slow machine may not even come to the call in time


@pytest.mark.req("PEF:A-19")
def test_letters_that_were_left_behind_are_published(stage: Stage) -> None:
    """At least once and under one id, though the relay dies before it could tell the store."""
    stage.start(ERGON_FAILPOINTS="providers.publish.after=kill")
    stage.wait_until_ready()  # Celery gives up when a child dies before that
    open_store(stage.store).record(RecordBatch([], [left_behind("old")]))
    assert [stage.dead_letter()["dead_letter_id"] for _ in range(2)] == ["old", "old"]
    stage.stop()
    stage.redis.delete("queue.deadletter")
    stage.start()
    assert stage.dead_letter()["dead_letter_id"] == "old"
    stage.stop()
    assert stored(stage, "old").status is LetterStatus.PUBLISHED


@pytest.mark.req("PROVIDERS:cli")
def test_a_dead_letter_is_sent_again_by_the_command(worker: Stage) -> None:
    """The workers' relay sends what the operator asked for; the call is made under its key."""
    dead = worker.send("again", "timeout", "timeout", "timeout", "ok", idempotency_key="k")
    with pytest.raises(ProviderTimeoutError):
        dead.get(timeout=WAIT_TIMEOUT)
    letter_id = worker.dead_letter()["dead_letter_id"]
    assert invoke(["dlq", "requeue", letter_id, "--kind", "provider", "--url", worker.store]) == 0
    assert [worker.event("again")["call"] for _ in range(4)] == [1, 2, 3, 4]
    worker.stop()
    assert stored(worker, letter_id).status is LetterStatus.REDRIVEN
    replay = worker.task.runner().provider.store.claim("again", "k", "x", "me", 1.0, 1.0)
    assert replay.state == "conflict"  # the key is there, with the result of the second call


def test_an_unknown_keyword_is_refused(worker: Stage) -> None:
    """What the task cannot use is not silently dropped."""
    with pytest.raises(ProviderBadRequestError, match="does not take more"):
        worker.send("odd", more=1).get(timeout=WAIT_TIMEOUT)
