"""Context of real engine calls: spans of the user, logs, lineage, and metrics beside them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import baggage
from opentelemetry.context import attach, detach
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import get_current_span

from ergon_framework.connector.transaction import Transaction
from ergon_framework.ports.notice import CATALOGUE, Notice
from ergon_framework.telemetry import (
    TelemetrySettings,
    add_listener,
    configure,
    extract,
    make_sink,
    remove_listener,
)
from ergon_framework.telemetry.logs import FIELDS
from ergon_framework.testing.scripted import ScriptedConnector, Takes, transactions
from tests.engine.bodies import consumer, nap, producer, rules, settled
from tests.engine.colours import Colour, consume, produce
from tests.telemetry.conftest import Numbers, Recorder
from tests.telemetry.whole import Watch, hybrid, watch_process

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"


@pytest.fixture(params=["sync", "async"])
def colour(request: pytest.FixtureRequest) -> str:
    """The colour of the engine."""
    return str(request.param)


@pytest.fixture
def watch(recorder: Recorder, numbers: Numbers, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """A process that records spans and metrics."""
    yield from watch_process(recorder, numbers, monkeypatch)


@pytest.mark.req("R0-C1", "R0-C2", "R0-C3", "R1-CX2", "R1-CX3", "RFC-005:14h", "T3.16")
def test_spans_of_the_user_stand_below_their_own_attempt(colour: Colour, watch: Watch) -> None:
    """With work side by side and retries, each hook's spans stand below that very attempt."""

    async def process(transaction: Any) -> None:
        with watch.tracer.start_as_current_span("inside", attributes={"of": transaction.id}):
            await nap(1.0)
            with watch.tracer.start_as_current_span("deeper", attributes={"of": transaction.id}):
                await nap(1.0)
        if transaction.attempt_count == 1:
            raise ValueError("again")

    async def success(transaction: Any, _result: Any) -> None:
        watch.tracer.start_span("handler", attributes={"of": transaction.id}).end()

    source = ScriptedConnector([transactions(6)])
    task = consumer(colour, source, process=process, success=success)
    policy = rules(size=6, concurrency=3, steps={"process": {"max_attempts": 2}})
    assert consume(colour, source, policy, task=task).report.succeeded == 6

    above = {span.context.span_id: span for span in watch.spans()}
    attempts = []
    for name, parent in (
        ("inside", "process.attempt"),
        ("deeper", "inside"),
        ("handler", "handle_success.attempt"),
    ):
        for span in watch.named(name):
            assert span.parent is not None
            found = above[span.parent.span_id]
            said = dict(found.attributes or {})
            assert found.name == parent
            assert said.get("of", said.get("transaction_id")) == dict(span.attributes or {})["of"]
            attempts.append(span.parent.span_id)
    assert len(attempts) == len(set(attempts)) == 12 + 12 + 6
    assert not get_current_span().get_span_context().is_valid


@pytest.mark.req(
    "RFC-004:3i", "RFC-004:10d", "RFC-004:14b", "RFC-005:3e", "RFC-005:10.2b", "RFC-005:10.3b",
    "RFC-005:12d", "RFC-005:16b", "R0-I5",
)  # fmt: skip
@pytest.mark.parametrize("role", ["consumer", "producer"])
@pytest.mark.parametrize("is_traced", [True, False])
def test_every_attempt_runs_in_the_callers_opentelemetry_context(
    colour: Colour, role: str, is_traced: bool, watch: Watch
) -> None:
    """Its baggage and its trace, in first attempts, retries and handlers, on whatever worker."""
    seen: list[tuple[str, object, int]] = []

    def note(hook: str, transaction: Any) -> None:
        found = get_current_span().get_span_context().trace_id
        seen.append((f"{transaction.id}:{hook}", baggage.get_baggage("tenant"), found))

    async def work(transaction: Any) -> None:
        note("work", transaction)
        await nap(1.0)
        note("work", transaction)
        if transaction.payload == 1 or transaction.attempt_count == 1:
            raise ConnectionError("down")

    async def handle(transaction: Any, _given: Any) -> None:
        note("handle", transaction)
        if transaction.attempt_count == 1:
            raise ConnectionError("down")

    configure(TelemetrySettings(spans=is_traced))
    retry = {"max_attempts": 2, "backoff": 1.0}
    first = "process" if role == "consumer" else "produce"
    steps = dict.fromkeys((first, "success", "exception"), retry)
    policy = rules(size=3, concurrency=2, steps=steps)
    hooks: Any = {first: work, "success": handle, "exception": handle}
    token = attach(baggage.set_baggage("tenant", "acme"))
    try:
        with watch.tracer.start_as_current_span("caller") as caller:
            if role == "consumer":
                source = ScriptedConnector([transactions(3)])
                task = consumer(colour, source, **hooks)
                outcome = consume(colour, source, policy, task=task)
            else:
                outcome = produce(colour, transactions(3), policy, task=producer(colour, **hooks))
    finally:
        detach(token)
    assert (outcome.report.succeeded, outcome.report.failed) == (2, 1)
    here = caller.get_span_context().trace_id
    calls = sorted(call for call, _tenant, _trace in seen)
    assert calls == sorted(
        f"t{n}:{hook}" for n in (1, 2, 3) for hook in [*["work"] * 4, *["handle"] * 2]
    )
    assert {(tenant, trace) for _call, tenant, trace in seen} == {("acme", here)}


@pytest.mark.req("RFC-005:18a")
@pytest.mark.parametrize("is_traced", [True, False])
def test_a_producers_hooks_see_the_metadata_of_their_own_transaction_only(
    colour: Colour, is_traced: bool, watch: Watch
) -> None:
    """Whoever comes before, beside or behind, also in the attempts that follow a failure."""
    given = [Transaction(f"t{n}", metadata={f"token-{n}": f"secret-{n}"}) for n in range(1, 6)]
    seen: list[tuple[str, dict[str, Any]]] = []

    async def send(transaction: Any) -> None:
        await nap(1.0)
        own = {name: each for name, each in transaction.metadata.items() if "trace" not in name}
        seen.append((transaction.id, own))
        if transaction.attempt_count == 1:
            raise ConnectionError("down")

    configure(TelemetrySettings(spans=is_traced))
    policy = rules(size=5, concurrency=2, steps={"produce": {"max_attempts": 2}})
    produce(colour, given, policy, task=producer(colour, produce=send))
    wanted = [(each.id, dict(each.metadata)) for each in given for _ in range(2)]
    assert sorted(seen, key=str) == sorted(wanted, key=str)


class Guarded:
    """A connector or a service whose credentials are everywhere they usually are."""

    def __init__(self, url: str) -> None:
        self.url = self.password = url
        self.sent: list[Transaction] = []

    def __repr__(self) -> str:
        return f"Guarded({self.url!r})"

    def dispatch_transactions(self, items: Any) -> None:
        self.sent += items
        if len(self.sent) == 1:
            raise ConnectionError("down")


@pytest.mark.req("RFC-005:18c")
def test_credentials_of_connectors_and_services_stay_inside(
    colour: Colour, watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    """No span, log, notice, exception, report or transaction of a producer has them."""
    caplog.set_level(logging.DEBUG)
    secret = "hunter2-is-the-password"  # noqa: S105 - what must not be seen
    out, mail = Guarded(f"amqp://user:{secret}@broker/"), Guarded(secret)
    heard: list[Notice] = []
    told: list[object] = []

    async def send(transaction: Any) -> None:
        task.connectors["out"].dispatch_transactions([transaction])
        if transaction.payload == 2:
            raise ValueError("refused")
        if transaction.payload == 3:
            await nap(1000.0)

    async def exception(_transaction: Any, exc: Any) -> None:
        told.extend((str(exc), repr(exc), exc.details))
        raise OSError("handler")

    task = producer(colour, {"out": out}, produce=send, exception=exception)
    task.services = {"mail": mail}
    policy = rules(size=4, timeout=7.0, steps={"produce": {"max_attempts": 2, "timeout": 5.0}})
    add_listener(heard.append)
    try:
        outcome = produce(colour, [*transactions(6), *transactions(1)], policy, task=task)
    finally:
        remove_listener(heard.append)
    assert isinstance(outcome.error, TimeoutError)
    told += [caplog.text, str(outcome.error), repr(outcome.report), [str(each) for each in heard]]
    told += [span.to_json() for span in watch.spans()]
    told += [(each.to_dict(), repr(each)) for each in out.sent]
    assert len(told) > 20
    assert secret not in str(told)


@pytest.mark.req("T3.16", "R0-C3", "R1-CX2")
def test_code_that_was_given_up_keeps_its_own_span(watch: Watch) -> None:
    """A thread that comes back late adds its spans to its own attempt, not to the next one."""

    async def process(transaction: Any) -> None:
        mine = get_current_span().get_span_context().span_id
        await nap(6.0 if transaction.attempt_count == 1 else 3.0)
        assert get_current_span().get_span_context().span_id == mine
        watch.tracer.start_span("late").end()

    source = ScriptedConnector([transactions(1)])
    task = consumer("sync", source, process=process)
    policy = rules(max_abandoned=9, steps={"process": {"max_attempts": 2, "timeout": 5.0}})
    assert consume("sync", source, policy, task=task).report.succeeded == 1

    attempts = [span.context.span_id for span in watch.named("process.attempt")]
    late = [span.parent and span.parent.span_id for span in watch.named("late")]
    assert late == attempts  # the first one came back at 6 s, the second at 8 s


@pytest.mark.req("R0-LG1", "R1-O3", "R0-C1", "R0-I11")
def test_log_records_of_hooks_carry_the_ids(
    colour: Colour, watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    """A plain logging call inside a hook is tied to transaction, trace, span, phase and attempt."""

    async def process(transaction: Any) -> None:
        logging.getLogger("shop").warning("working on it")
        if transaction.attempt_count == 1:
            raise ValueError("again")

    source = ScriptedConnector([transactions(2)])
    task = consumer(colour, source, process=process)
    consume(colour, source, rules(size=2, steps={"process": {"max_attempts": 2}}), task=task)

    records = [record for record in caplog.records if record.name == "shop"]
    seen = [tuple(getattr(record, name) for name in FIELDS) for record in records]
    wanted = [
        (
            (span.attributes or {})["transaction_id"],
            f"{span.context.trace_id:032x}",
            f"{span.context.span_id:016x}",
            "Scene",
            "consumer",
            "process",
            (span.attributes or {})["attempt"],
        )
        for span in watch.named("process.attempt")
    ]
    assert sorted(map(str, seen)) == sorted(map(str, wanted))
    assert len(seen) == 4


@pytest.mark.req("R0-LG1", "R1-E3")
def test_log_records_of_the_engine_carry_the_id(
    colour: Colour, watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    """What the engine logs about one transaction names it."""
    consume(colour, [transactions(1)], process=ValueError("x"), exception=ValueError("y"))

    (record,) = (record for record in caplog.records if "handler failed" in record.getMessage())
    assert record.__dict__["transaction_id"] == "t1"


@pytest.mark.req("R1-CX1", "R1-O1", "T3.14")
@pytest.mark.parametrize("parent", ["link", "parent"])
def test_trace_context_that_comes_in(colour: Colour, watch: Watch, parent: str) -> None:
    """It becomes a link of the lifecycle below the loop; or, if so wished, the parent."""
    configure(TelemetrySettings(parent=parent))
    consume(colour, [[Transaction("t1", metadata={"traceparent": PARENT})]])

    call, lifecycle = watch.one("consume_transactions"), watch.one("start_processing")
    assert lifecycle.parent is not None
    far = (int(TRACE, 16), int(SPAN, 16))
    here = (call.context.trace_id, call.context.span_id)
    above = (lifecycle.parent.trace_id, lifecycle.parent.span_id)
    linked = [(link.context.trace_id, link.context.span_id) for link in lifecycle.links]
    assert (above, linked) == ((here, [far]) if parent == "link" else (far, [here]))
    attempt = watch.one("process.attempt")
    assert attempt.context.trace_id == above[0]


@pytest.mark.req("R1-I4", "R0-C2", "R1-CX1", "RFC-005:14g", "RFC-005:14h")
def test_a_hybrid_hands_its_trace_on(colour: Colour, watch: Watch) -> None:
    """What a consumer produces is below its attempt, and leaves with the sending span's context."""
    sent: list[Transaction] = []

    async def process(transaction: Any) -> None:
        child = Transaction(f"{transaction.id}-child")
        await settled(task.produce_transactions([child]))

    async def send(transaction: Any) -> None:
        sent.append(transaction)

    source = ScriptedConnector([transactions(2)])
    task = hybrid(colour, source, process_transaction=process, produce_transaction=send)
    assert consume(colour, source, rules(size=2), task=task).report.succeeded == 2

    outer = {
        str((span.attributes or {})["transaction_id"]): span.context
        for span in watch.named("process.attempt")
    }
    calls = [span.parent for span in watch.named("produce_transactions")]
    assert calls == [outer["t1"], outer["t2"]]
    assert [each.parent_id for each in sent] == ["t1", "t2"]
    sending = [span.context for span in watch.named("produce.attempt")]
    found = [extract(each) for each in sent]
    assert [(each.trace_id, each.span_id) for each in found if each] == [
        (each.trace_id, each.span_id) for each in sending
    ]
    assert [each.trace_id for each in sent] == [f"{each.trace_id:032x}" for each in sending]


@pytest.mark.req("R1-I4", "R1-CX3")
def test_each_attempt_to_send_carries_its_own_span(colour: Colour, watch: Watch) -> None:
    """A repeated send names the attempt that made it."""
    seen: list[str] = []

    async def send(transaction: Any) -> None:
        seen.append(transaction.metadata["traceparent"].split("-")[2])
        if len(seen) == 1:
            raise ConnectionError("down")

    policy = rules(steps={"produce": {"max_attempts": 2}})
    produce(colour, transactions(1), policy, task=producer(colour, produce=send))

    wanted = [f"{span.context.span_id:016x}" for span in watch.named("produce.attempt")]
    assert seen == wanted
    assert len(set(seen)) == 2


@pytest.mark.req("R0-MT1", "R0-I11")
def test_all_families_of_metrics(colour: Colour, watch: Watch) -> None:
    """One call with everything in it leaves outcomes, timeouts, retries, waits and durations."""
    policy = rules(
        size=4,
        concurrency=2,
        max_abandoned=9,
        steps={
            "process": {"max_attempts": 2, "backoff": 3.0, "timeout": 5.0},
            "fetch": {"max_attempts": 2},
        },
    )
    hooks = {
        "t1": Takes(1.0, "ok"),
        "t2": [ConnectionError("down"), "ok"],
        "t3": ValueError("always"),
        "t4": Takes(1000.0),
    }
    outcome = consume(colour, [ConnectionError("down"), transactions(4)], policy, process=hooks)
    report = outcome.report
    assert (report.succeeded, report.failed, report.timed_out) == (2, 1, 1)

    kind = type(outcome.task).__name__
    who = {"task": kind, "role": "consumer"}

    def value(name: str, **labels: object) -> Any:
        return watch.numbers.points(name).get(tuple(sorted({**who, **labels}.items())))

    assert value("ergon.transactions", outcome="succeeded") == 2
    assert value("ergon.transactions", outcome="failed") == 1
    assert value("ergon.transactions", outcome="timed_out") == 1
    assert value("ergon.timeouts", scope="process") == 2
    assert value("ergon.retries", step="process") == 3
    assert value("ergon.retries", step="fetch") == 1
    assert value("ergon.backoff", step="process") == (3, 9.0)
    assert value("ergon.step.duration", step="process", outcome="timeout") == (2, 10.0)
    assert value("ergon.lifecycle.duration", outcome="timed_out") == (1, 13.0)
    assert value("ergon.fetch.duration", outcome="ok")[0] == 2
    assert value("ergon.batch.size") == (2, 4.0)
    assert value("ergon.in_flight") == 0
    assert value("ergon.concurrency.limit") == 0


def test_a_batching_processor_loses_nothing(
    colour: Colour, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five spans per transaction and those of the loop arrive when the provider shuts down."""
    kept = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(kept))
    monkeypatch.setattr("opentelemetry.trace.get_tracer_provider", lambda: provider)
    report = consume(colour, [transactions(50)], rules(size=50, concurrency=4)).report
    provider.shutdown()

    assert report.succeeded == 50
    names = [span.name for span in kept.get_finished_spans()]
    assert len(names) == 5 * 50 + 4 + 1
    assert len({span.context.span_id for span in kept.get_finished_spans()}) == len(names)


class Plain:
    """The least a sink can be."""

    def __init__(self) -> None:
        self.heard: list[Notice] = []

    def emit(self, notice: Notice) -> None:
        self.heard.append(notice)

    def enter(self, attempt: object, context: object) -> None:
        """Nothing to make current."""


class Broken:
    """A sink that fails whatever it is told."""

    def fail(self, *_: object) -> None:
        raise RuntimeError("broken sink")

    emit = enter = began = left = ended = fail


def everything(colour: Colour) -> Any:
    """A call with a success, a retry, a failure and a failing handler."""
    hooks = {"t1": "ok", "t2": [ValueError("again"), "ok"], "t3": ValueError("always")}
    policy = rules(size=3, steps={"process": {"max_attempts": 2, "backoff": 1.0}})
    handler = {"t3": ValueError("handler")}
    return consume(colour, [transactions(3)], policy, process=hooks, exception=handler)


def test_every_kind_of_sink_hears_the_same(colour: Colour, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sink with nothing but emit is told what listeners beside the spans are told."""
    plain, listened = Plain(), list[Notice]()
    for sink in (plain, make_sink(listeners=[listened.append])):
        monkeypatch.setattr("ergon_framework.task.calls.make_sink", lambda made=sink, **_: made)
        everything(colour)

    def shape(notice: Notice) -> tuple[object, ...]:
        wanted = CATALOGUE[notice.name][1]
        assert set(wanted) <= set(notice.fields)
        fields = notice.fields
        return notice.name, notice.at, fields.get("ending"), str(fields.get("failure"))

    assert [shape(notice) for notice in plain.heard] == [shape(notice) for notice in listened]
    names = [notice.name for notice in listened]
    assert names.count("transaction.began") == names.count("transaction.ended") == 3
    assert names.count("attempt.ended") == 1 + 1 + 2 + 1 + 2 + 1


def test_a_broken_sink_harms_nobody(
    colour: Colour, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever a sink raises is logged, and every transaction gets its outcome."""
    monkeypatch.setattr("ergon_framework.task.calls.make_sink", lambda **_: Broken())
    report = everything(colour).report
    assert (report.succeeded, report.failed, report.handler_failures) == (2, 1, 1)
    assert any("a listener failed" in record.getMessage() for record in caplog.records)


@pytest.mark.req("RFC-004:15f", "RFC-005:17a", "R0-I6")
@pytest.mark.parametrize(
    ("first", "lifecycle"), [("process", "start_processing"), ("produce", "start_producing")]
)
def test_spans_of_transactions_side_by_side_do_not_mix(
    colour: Colour, watch: Watch, first: str, lifecycle: str
) -> None:
    """Whatever stands below a lifecycle names its transaction, however many run at once."""
    policy = {
        "loop": {"batch": {"size": 6}, "concurrency": {"value": 3}},
        "steps": {first: {"retry": {"max_attempts": 2, "backoff": 1.0}}},
    }
    hook: Any = [Takes(2.0, OSError("once")), "done"]
    if first == "process":
        consume(colour, [transactions(6)], policy, process=hook)
    else:
        produce(colour, transactions(6), policy, produce=hook)
    spans = {span.context.span_id: span for span in watch.spans()}
    assert len(watch.named(lifecycle)) == 6
    below = 0
    for span in spans.values():
        above = span
        while above.parent is not None and above.name != lifecycle:
            above = spans[above.parent.span_id]
        if above.name == lifecycle and span is not above:
            below += 1
            assert (span.attributes or {})["transaction_id"] == (above.attributes or {})[
                "transaction_id"
            ]
    assert below == 6 * 5  # two steps and three attempts each
