"""Spans of real engine calls, in both colours and through both writers, on a virtual clock."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace

from ergon_framework.connector.transaction import Transaction
from ergon_framework.errors import ConsumerLoopTimeoutException, FetchException
from ergon_framework.testing.scripted import ScriptedConnector, Takes, transactions
from tests.engine.bodies import refusal, rules
from tests.engine.colours import Colour, consume, produce
from tests.engine.test_settlement import Settling
from tests.telemetry.conftest import Numbers, Recorder
from tests.telemetry.whole import Watch, failed, lines, seconds, watch_process

HANGS = Takes(1000.0, "too late")
DOWN = ConnectionError("the host is down")


@pytest.fixture(params=["sync", "async"])
def colour(request: pytest.FixtureRequest) -> str:
    """The colour of the engine."""
    return str(request.param)


@pytest.fixture
def watch(recorder: Recorder, numbers: Numbers, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """A process that records spans and metrics."""
    yield from watch_process(recorder, numbers, monkeypatch)


@pytest.mark.req(
    "RFC-004:3c", "RFC-004:12a", "RFC-004:12g", "RFC-004:17c", "R0-TR1", "R0-I11", "R1-O1", "T3.14"
)
def test_the_tree_of_a_consumer(colour: Colour, watch: Watch) -> None:
    """The call holds its fetches and lifecycles, a lifecycle its steps, a step its attempts."""
    consume(colour, [transactions(1)])

    assert watch.tree() == lines("""
        consume_transactions
          fetch_transactions
            fetch_transactions.attempt
          start_processing
            process
              process.attempt
            handle_success
              handle_success.attempt
          fetch_transactions
            fetch_transactions.attempt
    """)
    assert len({span.context.trace_id for span in watch.spans()}) == 1
    assert [failed(span) for span in watch.spans()] == [None] * 10


@pytest.mark.req("RFC-005:14a", "RFC-005:14h", "RFC-005:19c", "R0-TR1")
def test_the_tree_of_a_producer(colour: Colour, watch: Watch) -> None:
    """The call holds one lifecycle per transaction, with the names of the producer's steps."""
    produce(colour, transactions(1))

    assert watch.tree() == lines("""
        produce_transactions
          start_producing
            produce
              produce.attempt
            handle_produce_success
              handle_produce_success.attempt
    """)
    assert len({span.context.trace_id for span in watch.spans()}) == 1


@pytest.mark.req("RFC-004:12b", "RFC-004:12c", "RFC-004:12d", "RFC-004:12e", "R1-O2")
def test_what_the_spans_of_a_consumer_say(colour: Colour, watch: Watch) -> None:
    """Task, step, attempt, policy and the transaction's identity, each on its span."""
    retry = {"timeout": 5.0, "backoff": 1.0, "backoff_multiplier": 2.0, "backoff_cap": 9.0}
    steps = {
        name: {"max_attempts": number, **retry}
        for number, name in enumerate(("fetch", "process", "success"), 2)
    }
    policy = rules(size=7, concurrency=2, steps=steps)
    consume(colour, [[Transaction("t1", source="orders")]], policy, process=42)

    attempt = watch.says("process.attempt")
    assert attempt["task"].endswith("ScriptedConsumer")
    for name, step in (
        ("fetch_transactions.attempt", "fetch"),
        ("process.attempt", "process"),
        ("handle_success.attempt", "success"),
    ):
        said = dict(watch.named(name)[0].attributes or {})
        assert (steps[step] | {"step": step}).items() <= said.items()
    expected = {"step": "process", "attempt": 0, "attempt_number": 1, "transaction_id": "t1"}
    assert expected.items() <= attempt.items()
    assert attempt["result"] == "int"
    assert watch.says("process")["attempts"] == 1
    expected = {"transaction.id": "t1", "transaction.source": "orders", "transaction.attempt": 1}
    assert expected.items() <= watch.says("start_processing").items()
    expected = {"concurrency": 2, "batch_size": 7, "transactions.succeeded": 1}
    assert expected.items() <= watch.says("consume_transactions").items()
    fetches = watch.named("fetch_transactions.attempt")
    assert [dict(span.attributes or {})["delivered"] for span in fetches] == [1, 0]


@pytest.mark.req("RFC-005:14b", "RFC-005:14c", "RFC-005:14d", "RFC-005:14e", "RFC-005:14f")
def test_what_the_spans_of_a_producer_say(colour: Colour, watch: Watch) -> None:
    """The same for producing: identity, outcome, attempt, policy, concurrency and batch."""
    retry = {"max_attempts": 2, "timeout": 4.0, "backoff": 0.5, "backoff_cap": 9.0}
    handler = {**retry, "max_attempts": 3}
    policy = rules(size=3, concurrency=2, steps={"produce": retry, "success": handler})
    produce(colour, transactions(1), policy, produce=[DOWN, "sent"])

    first, second = (dict(span.attributes or {}) for span in watch.named("produce.attempt"))
    assert {name: first[name] for name in retry} == retry
    assert (first["transaction_id"], second["transaction_id"]) == ("t1", "t1")
    assert (first["attempt_number"], second["attempt_number"]) == (1, 2)
    assert "the host is down" in str(first["exception.message"])
    assert second["result"] == "str"
    lifecycle, last = watch.says("start_producing"), watch.says("handle_produce_success.attempt")
    assert (lifecycle["outcome"], lifecycle["transaction_id"]) == ("succeeded", "t1")
    assert (handler | {"transaction_id": "t1"}).items() <= last.items()
    expected = {"concurrency": 2, "batch_size": 3}
    assert expected.items() <= watch.says("produce_transactions").items()


@pytest.mark.req("RFC-004:12c", "RFC-004:3c", "RFC-004:12a", "RFC-004:12f", "R1-CX3", "R0-TR1")
def test_retries_are_siblings_in_one_trace(colour: Colour, watch: Watch) -> None:
    """Each attempt has a span below its step; waits belong to the step and to no attempt."""
    retry = {"max_attempts": 3, "backoff": 2.0, "backoff_multiplier": 1.0}
    policy = rules(steps={"process": retry})
    takes = [Takes(1.0, DOWN), Takes(1.0, DOWN), Takes(1.0, "ok")]
    consume(colour, [transactions(1)], policy, process=takes)

    attempts = watch.named("process.attempt")
    numbers = [(dict(span.attributes or {})["attempt"]) for span in attempts]
    assert numbers == [0, 1, 2]
    assert [seconds(span) for span in attempts] == [1.0, 1.0, 1.0]
    assert ["host is down" in (failed(span) or "") for span in attempts] == [True, True, False]
    step = watch.one("process")
    assert {span.parent and span.parent.span_id for span in attempts} == {step.context.span_id}
    assert (seconds(step), failed(step)) == (7.0, None)
    assert watch.says("process")["attempts"] == 3
    assert watch.says("start_processing")["transaction.attempt"] == 3
    assert len({span.context.trace_id for span in watch.spans()}) == 1


@pytest.mark.req("RFC-004:17c", "RFC-004:12f", "RFC-004:12g")
def test_a_business_failure(colour: Colour, watch: Watch) -> None:
    """It is not tried again, goes to the exception handler, and says so."""
    policy = rules(steps={"process": {"max_attempts": 3}})
    consume(colour, [transactions(1)], policy, process=refusal("no stock"))

    assert watch.tree("start_processing") == lines("""
        start_processing
          process
            process.attempt
          handle_exception
            handle_exception.attempt
    """)
    for name in ("process.attempt", "process", "start_processing"):
        assert watch.says(name)["exception.category"] == "business"
        assert "no stock" in watch.says(name)["exception.message"]
        assert "no stock" in (failed(watch.one(name)) or "")
    assert failed(watch.one("handle_exception")) is None
    assert watch.says("start_processing")["outcome"] == "failed"


@pytest.mark.req("RFC-005:19c", "RFC-005:14a", "RFC-005:14c")
def test_a_failing_handler(colour: Colour, watch: Watch) -> None:
    """The outcome keeps its reason; the handler's own failure stands beside it."""
    policy = rules(steps={"exception": {"max_attempts": 2}})
    produce(colour, transactions(1), policy, produce=DOWN, exception=ValueError("handler broke"))

    assert watch.tree("start_producing") == lines("""
        start_producing
          produce
            produce.attempt
          handle_produce_exception
            handle_produce_exception.attempt
            handle_produce_exception.attempt
    """)
    lifecycle = watch.says("start_producing")
    assert "the host is down" in lifecycle["exception.message"]
    assert "handler broke" in lifecycle["handler.exception.message"]
    assert "handler broke" in (failed(watch.one("handle_produce_exception")) or "")


@pytest.mark.req("RFC-004:12a", "RFC-004:12f", "T3.16")
def test_an_attempt_that_is_given_up(colour: Colour, watch: Watch) -> None:
    """A hook that hangs ends its span at the deadline; what it does later adds nothing to it."""
    policy = rules(max_abandoned=9, steps={"process": {"max_attempts": 2, "timeout": 5.0}})
    outcome = consume(colour, [transactions(1)], policy, process=HANGS)

    assert outcome.report.timed_out == 1
    attempts = watch.named("process.attempt")
    assert [seconds(span) for span in attempts] == [5.0, 5.0]
    for span in attempts:
        said = dict(span.attributes or {})
        assert (said["exception.category"], said["exception.type"]) == ("timeout", "step_timeout")
        assert "result" not in said
    assert seconds(watch.one("start_processing")) == 10.0
    assert watch.says("start_processing")["outcome"] == "timed_out"


@pytest.mark.req("RFC-004:12a", "RFC-004:12g")
def test_a_call_cut_off_by_its_timeout(colour: Colour, watch: Watch) -> None:
    """Everything open ends with the call: no span is lost, none outlives its parent."""
    policy = rules(size=2, concurrency=2, timeout=3.0)
    outcome = consume(
        colour, [transactions(2)], policy, process={"t1": Takes(1.0, "ok"), "t2": HANGS}
    )

    assert isinstance(outcome.error, ConsumerLoopTimeoutException)
    outcomes = {
        str(said["transaction_id"]): said["outcome"]
        for said in (dict(span.attributes or {}) for span in watch.named("start_processing"))
    }
    assert outcomes == {"t1": "succeeded", "t2": "aborted"}
    call = watch.one("consume_transactions")
    assert "loop timeout" in (failed(call) or "")
    assert seconds(call) == 3.0
    assert len(watch.named("process.attempt")) == len(watch.named("process")) == 2
    assert all((span.end_time or 0) <= (call.end_time or 0) for span in watch.spans())
    cut = watch.named("process.attempt")[-1]
    assert (seconds(cut), failed(cut)) == (3.0, "aborted")


@pytest.mark.req("RFC-004:3c", "RFC-004:12a", "RFC-004:12b", "RFC-004:12f", "RFC-004:12g")
def test_fetches_that_fail(colour: Colour, watch: Watch) -> None:
    """Attempts to fetch are siblings below one fetch, which fails when the last of them does."""
    policy = rules(steps={"fetch": {"max_attempts": 2, "backoff": 1.0}})
    outcome = consume(colour, [DOWN, transactions(1), DOWN, DOWN], policy)

    assert isinstance(outcome.error, FetchException)
    assert [line.strip() for line in watch.tree().splitlines() if "fetch" in line] == [
        "fetch_transactions", "fetch_transactions.attempt", "fetch_transactions.attempt",
        "fetch_transactions", "fetch_transactions.attempt", "fetch_transactions.attempt",
    ]  # fmt: skip
    good, bad = watch.named("fetch_transactions")
    assert failed(good) is None
    assert "host is down" in (failed(bad) or "")
    assert dict(bad.attributes or {})["step"] == "fetch"
    assert "host is down" in (failed(watch.one("consume_transactions")) or "")


@pytest.mark.req("T3.15", "RFC-004:16b")
def test_nothing_private_is_shown(colour: Colour, watch: Watch) -> None:
    """Payloads, metadata, results and arguments for the connector appear on no span."""
    private = Transaction("t1", {"card": "4111-1111"}, {"token": "hush"})
    consume(colour, [[private]], rules(extra={"password": "swordfish"}), process=["a secret"])

    shown = repr([(span.name, dict(span.attributes or {})) for span in watch.spans()])
    assert not any(word in shown for word in ("4111-1111", "hush", "swordfish", "a secret"))
    assert watch.says("process.attempt")["result"] == "str"


class Guarded(ScriptedConnector):
    """A connector whose credentials are everywhere they usually are."""

    def __init__(self, answers: Any) -> None:
        super().__init__(answers, settling=True)
        self.password = SECRET
        self.url = f"amqp://user:{SECRET}@broker/"

    def __repr__(self) -> str:
        return f"Guarded({self.url!r})"


SECRET = "hunter2-is-the-password"  # noqa: S105 - what must not be seen


@pytest.mark.req("RFC-004:16a", "R0-SEC", "T3.15")
def test_no_span_shows_credentials_or_metadata(colour: Colour, watch: Watch) -> None:
    """Neither of the connector, nor of ``extra``, nor of what it delivered, however that ends."""
    delivered = [
        Transaction(f"t{n}", {"token": SECRET}, {"authorization": SECRET, "url": SECRET})
        for n in range(1, 5)
    ]
    source = Guarded([DOWN, delivered, OSError("gone")])
    hooks: dict[str, Any] = {
        "process": {"t2": [refusal()], "t3": [DOWN, "ok"], "t4": [HANGS]},
        "success": {"t3": [ValueError("no")]},
    }
    retry = {"max_attempts": 2}
    steps = {"process": retry, "fetch": retry}
    policy = rules(
        size=4, steps=steps, transaction_timeout=5.0, max_abandoned=9, extra={"password": SECRET}
    )
    outcome = consume(colour, source, policy, **hooks)

    assert source.fetches[0] == (4, {"password": SECRET})
    assert outcome.report.failed == 2
    assert len(watch.spans()) > 20
    for span in watch.spans():
        assert SECRET not in span.to_json()
        assert "authorization" not in span.to_json()


def test_no_span_or_record_shows_a_secret_of_an_exception(
    colour: Colour, watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    """What hooks and sources raise is told without what looks like a secret, however it ends."""
    loud = OSError(f"cannot reach db://svc:{SECRET}@host, password={SECRET}")
    source = Guarded([loud, [Transaction("t1", {}), Transaction("t2", {})]])
    hooks: dict[str, Any] = {"process": {"t1": [loud], "t2": [loud]}, "exception": [loud]}
    policy = rules(size=2, steps={"fetch": {"max_attempts": 2}})
    outcome = consume(colour, source, policy, **hooks)

    assert outcome.report.failed == 2
    assert "db://***@host" in "".join(span.to_json() for span in watch.spans())
    for span in watch.spans():
        assert SECRET not in span.to_json()
    told = [record.getMessage() for record in caplog.records]
    assert told
    assert not [text for text in told if SECRET in text]


@pytest.mark.req("R0-G5")
def test_a_settlement_has_a_span_and_a_duration(colour: Colour, watch: Watch) -> None:
    """One span with all of its attempts, current while the source is told."""
    current: list[str] = []

    def failing() -> None:
        current.append(f"{trace.get_current_span().get_span_context().span_id:x}")
        raise OSError("busy")

    source = Settling([transactions(1)], ack=[failing, failing, 0.5])
    consume(colour, source, rules())

    assert watch.tree("start_processing") == lines("""
        start_processing
          process
            process.attempt
          handle_success
            handle_success.attempt
          settle
    """)
    span, says = watch.one("settle"), watch.says("settle")
    assert (says["settlement.verb"], says["attempts"], says["transaction_id"]) == ("ack", 3, "t1")
    assert (seconds(span), failed(span)) == (0.9, None)
    assert current == [f"{span.context.span_id:x}"] * 2
    assert seconds(watch.one("handle_success")) == 0.0
    labels = (("role", "consumer"), ("task", watch.says("process")["task"]))
    assert watch.numbers.points("ergon.settlement.duration") == {
        (("outcome", "ok"), *labels, ("verb", "ack")): (1, pytest.approx(0.9))
    }
    settle = (labels[0], ("step", "settle"), labels[1])
    assert watch.numbers.points("ergon.retries") == {settle: 2}


@pytest.mark.req("R0-G5")
def test_settlements_that_fail_hang_or_are_cut_off_say_so(colour: Colour, watch: Watch) -> None:
    """In their spans and in the labels of their durations; a release has its span at the call."""
    source = Settling(
        [transactions(5)],
        ack={"t1": ConnectionResetError("reset"), "t2": 1000.0, "t3": OSError("busy")},
        release={"t5": TimeoutError("no answer")},
    )
    policy = rules(size=5, timeout=5.2, settlement_timeout=5.0, max_abandoned=9)
    consume(colour, source, policy)

    spans = watch.named("settle")
    told = [(dict(span.attributes or {}), failed(span) or "") for span in spans]
    seen = {
        str(says["transaction_id"]): (says["settlement.verb"], says["attempts"], error)
        for says, error in told
    }
    assert seen == {
        "t1": ("ack", 1, "ConnectionResetError: reset"),
        "t2": ("ack", 1, "TimeoutError: no answer"),
        "t3": ("ack", 2, seen["t3"][2]),
        "t4": ("release", 1, ""),
        "t5": ("release", 1, "TimeoutError: no answer"),
    }
    assert seen["t3"][2]
    outcomes = {
        (dict(labels)["verb"], dict(labels)["outcome"])
        for labels in watch.numbers.points("ergon.settlement.duration")
    }
    assert {("ack", "lost"), ("ack", "timeout"), ("release", "ok")} <= outcomes
    assert ("release", "timeout") in outcomes
