"""What OpenTelemetry's semantic conventions ask for, beside the names of our own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry import metrics
from opentelemetry.semconv._incubating.attributes import messaging_attributes, rpc_attributes
from opentelemetry.semconv._incubating.metrics import messaging_metrics, rpc_metrics
from opentelemetry.semconv.schemas import Schemas

from ergon_framework.jobs import JobClient
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.ports.transaction import Transaction
from ergon_framework.providers import Provider, ProviderConnectionError
from ergon_framework.providers.retry import RetryPolicy
from ergon_framework.telemetry import TelemetrySettings, conventions, make_sink
from tests.jobs.real_worker import worker
from tests.providers.scripted import Scripted
from tests.telemetry.conftest import Numbers
from tests.telemetry.fake_engine import DOWN, FakeEngine

SYSTEM = ("messaging.system", "ergon")
GROUP = ("messaging.consumer.group.name", "Orders")
QUEUE = ("messaging.destination.name", "mail")


def operation(name: str, kind: str = "") -> tuple[tuple[str, str], ...]:
    """The labels of an operation."""
    named = ("messaging.operation.name", name)
    return (named, ("messaging.operation.type", kind)) if kind else (named,)


def labels(*pairs: tuple[str, object]) -> tuple[tuple[str, object], ...]:
    """As they are sorted."""
    return tuple(sorted(pairs))


@pytest.fixture
def everywhere(numbers: Numbers, monkeypatch: pytest.MonkeyPatch) -> Numbers:
    """The meter provider of the process."""
    monkeypatch.setattr(metrics, "get_meter_provider", lambda: numbers.provider)
    return numbers


def test_the_names_are_those_of_the_conventions(numbers: Numbers) -> None:
    """As the package that the SDK brings has them; the page says which version."""
    assert Schemas.V1_44_0.value.endswith("/1.44.0")
    assert "1.44.0" in (conventions.__doc__ or "")
    made = conventions.messaging_instruments(numbers.provider)
    assert made is not None
    place = conventions.queue_place("mail")
    made.sent("enqueue", place)
    made.consumed("run", place)
    made.operated("enqueue", "send", place, 0.1, None)
    made.processed(place, 0.1, "timeout")
    assert {name for name in numbers.names() if name.startswith("messaging.")} == {
        messaging_metrics.MESSAGING_CLIENT_SENT_MESSAGES,
        messaging_metrics.MESSAGING_CLIENT_CONSUMED_MESSAGES,
        messaging_metrics.MESSAGING_CLIENT_OPERATION_DURATION,
        messaging_metrics.MESSAGING_PROCESS_DURATION,
    }
    told = conventions.messaging_attributes("run", "process", "mail", "j1")
    assert set(told) == {
        messaging_attributes.MESSAGING_SYSTEM,
        messaging_attributes.MESSAGING_OPERATION_NAME,
        messaging_attributes.MESSAGING_OPERATION_TYPE,
        messaging_attributes.MESSAGING_DESTINATION_NAME,
        messaging_attributes.MESSAGING_MESSAGE_ID,
    }
    assert set(conventions.call_attributes("rates", "exchange", "quote")) == {
        rpc_attributes.RPC_SYSTEM_NAME,
        rpc_attributes.RPC_METHOD,
    }


def test_transactions(numbers: Numbers) -> None:
    """Deliveries, attempts of process and settlements, with the kind of what went wrong."""
    settings = TelemetrySettings(spans=False, conventions=True)
    engine = FakeEngine(make_sink(settings, meter_provider=numbers.provider))
    engine.begin()
    engine.fetch(2)
    engine.succeed(Transaction("a"))
    run = engine.take(Transaction("b"))
    engine.attempt(run, "process", failure=DOWN)
    engine.finish(run, "failed", DOWN)
    engine.end()

    receive = labels(SYSTEM, GROUP, *operation("receive"))
    assert numbers.points("messaging.client.consumed.messages") == {receive: 2}
    received = labels(SYSTEM, GROUP, *operation("receive", "receive"))
    assert list(numbers.points("messaging.client.operation.duration")) == [received]
    process = (SYSTEM, GROUP, *operation("process", "process"))
    assert numbers.points("messaging.process.duration") == {
        labels(*process): (1, 1.0),
        labels(*process, ("error.type", "transient")): (1, 1.0),
    }


def test_single_transactions_are_measured_on_request(numbers: Numbers) -> None:
    """A record of the SDK costs more than a transaction: our own histograms tell the same."""
    engine = FakeEngine(make_sink(TelemetrySettings(spans=False), meter_provider=numbers.provider))
    engine.begin()
    engine.fetch(1)
    engine.succeed(Transaction("a"))
    engine.end()
    assert not numbers.points("messaging.process.duration")
    assert numbers.points("messaging.client.consumed.messages")


@pytest.mark.slow
def test_jobs(everywhere: Numbers) -> None:
    """Sent where they are enqueued, consumed and processed where they run."""
    store = MemoryJobStore()
    client = JobClient(store=store)
    client.enqueue("python#echo", [1], queue="mail")
    client.enqueue("python#fail", queue="mail", max_attempts=1)
    worker(store, burst=True).run()

    sent = labels(SYSTEM, QUEUE, *operation("enqueue"))
    assert everywhere.points("messaging.client.sent.messages") == {sent: 2}
    consumed = labels(SYSTEM, QUEUE, *operation("run"))
    assert everywhere.points("messaging.client.consumed.messages") == {consumed: 2}
    process = (SYSTEM, QUEUE, *operation("process", "process"))
    assert set(everywhere.points("messaging.process.duration")) == {
        labels(*process),
        labels(*process, ("error.type", "defect")),
    }


def test_provider_calls(everywhere: Numbers) -> None:
    """Each attempt, by what was asked; a failed one has its reason."""
    with Scripted(ConnectionError(), retry_policy=RetryPolicy(base_delay_seconds=0.0)) as provider:
        provider.execute(tenant_id="t", operation="quote", payload={})
        provider.flush()
    method = (("rpc.method", "scripted/test/quote"), ("rpc.system.name", "ergon"))
    found = everywhere.points(rpc_metrics.RPC_CLIENT_CALL_DURATION)
    failed = labels(*method, ("error.type", "connection_error"))
    assert set(found) == {labels(*method), failed}


def test_streams_are_measured_as_calls(everywhere: Numbers) -> None:
    """One attempt each, whether read to its end, left by its reader, or broken."""
    provider = Provider("feed", attempts=1)

    @provider.stream
    def ticks(*, breaks: bool) -> Iterator[int]:
        yield 1
        if breaks:
            raise ConnectionResetError
        yield 2

    assert list(ticks(breaks=False)) == [1, 2]
    next(ticks(breaks=False))
    with pytest.raises(ProviderConnectionError):
        list(ticks(breaks=True))
    provider.close()
    method = (("rpc.method", "feed/feed/ticks"), ("rpc.system.name", "ergon"))
    found = everywhere.points(rpc_metrics.RPC_CLIENT_CALL_DURATION)
    failed = labels(*method, ("error.type", "connection_error"))
    counts: dict[object, int] = {key: value[0] for key, value in found.items()}  # type: ignore[index]
    left = labels(*method, ("error.type", "abandoned"))
    assert counts == {labels(*method): 1, left: 1, failed: 1}


def test_names_without_number_are_measured_together(numbers: Numbers) -> None:
    """A process that is given ever new queues and operations keeps so many series and no more."""
    made = conventions.messaging_instruments(numbers.provider)
    assert made is not None
    for number in range(conventions.MAX_NAMES + 5):
        place = conventions.queue_place(f"q{number}")
        made.sent("enqueue", place)
        made.operated("enqueue", "send", place, 0.1, None)
    others = ("messaging.destination.name", conventions.OTHERS)
    sent = numbers.points("messaging.client.sent.messages")
    assert len(sent) == conventions.MAX_NAMES + 1
    assert sent[labels(SYSTEM, others, *operation("enqueue"))] == 5
    assert len(numbers.points("messaging.client.operation.duration")) == len(sent)


def test_without_a_meter_provider_nothing_is_made() -> None:
    """The stand-in of the API counts as none."""
    assert conventions.messaging_instruments(metrics.NoOpMeterProvider()) is None
    assert conventions.call_instruments() is None
