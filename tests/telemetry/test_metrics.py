from __future__ import annotations

import threading

import pytest
from opentelemetry.metrics import NoOpMeterProvider

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.errors import ConsumerLoopTimeoutException
from ergon_framework.ports.context import Attempt
from ergon_framework.ports.notice import Sink
from ergon_framework.ports.transaction import Transaction
from ergon_framework.telemetry import TelemetrySettings, make_sink
from ergon_framework.telemetry.metrics import LabelledSums
from tests.telemetry.conftest import Numbers
from tests.telemetry.fake_engine import DOWN, FakeEngine

TASK = ("task", "Orders")
CONSUMER = ("role", "consumer")
STEP_TIMEOUT = Failure(Kind.TIMEOUT, "step_timeout")
LIFECYCLE_TIMEOUT = Failure(Kind.TIMEOUT, "lifecycle_timeout")


def sink(numbers: Numbers) -> Sink | None:
    """A sink that only counts."""
    return make_sink(TelemetrySettings(spans=False), meter_provider=numbers.provider)


@pytest.mark.req("R0-MT1", "R0-G5")
def test_outcomes_and_durations(numbers: Numbers) -> None:
    """Every transaction is counted with its outcome and measured from start to end."""
    engine = FakeEngine(sink(numbers))
    engine.begin()
    engine.succeed(Transaction("a"))
    engine.succeed(Transaction("b"))
    run = engine.take(Transaction("c"))
    engine.attempt(run, "process", failure=DOWN)
    engine.attempt(run, "exception", failure=DOWN)
    engine.finish(run, "failed", DOWN, DOWN)
    engine.end()

    assert numbers.points("ergon.transactions") == {
        (("outcome", "succeeded"), CONSUMER, TASK): 2,
        (("outcome", "failed"), CONSUMER, TASK): 1,
    }
    assert numbers.points("ergon.handler.failures") == {(CONSUMER, TASK): 1}
    assert numbers.points("ergon.lifecycle.duration") == {
        (("outcome", "succeeded"), CONSUMER, TASK): (2, 4.0),
        (("outcome", "failed"), CONSUMER, TASK): (1, 2.0),
    }
    assert numbers.points("ergon.step.duration") == {
        (("outcome", "ok"), CONSUMER, ("step", "process"), TASK): (2, 2.0),
        (("outcome", "ok"), CONSUMER, ("step", "success"), TASK): (2, 2.0),
        (("outcome", "transient"), CONSUMER, ("step", "process"), TASK): (1, 1.0),
        (("outcome", "transient"), CONSUMER, ("step", "exception"), TASK): (1, 1.0),
    }


@pytest.mark.req("R0-MT1")
def test_retries_and_backoff(numbers: Numbers) -> None:
    """Attempts after the first are counted, and the waits before them measured."""
    engine = FakeEngine(sink(numbers))
    engine.begin()
    engine.fetch(0, 0, failure=DOWN)
    engine.fetch(1, 1)
    run = engine.take(Transaction("a"))
    for number in range(2):
        engine.attempt(run, "process", number, failure=DOWN)
        engine.retry(run, "process", number, delay=2.0**number)
    engine.attempt(run, "process", 2)
    engine.finish(run)
    engine.emit("queue.empty", empties=1, delay=0.5)
    engine.end()

    assert numbers.points("ergon.retries") == {
        (CONSUMER, ("step", "fetch"), TASK): 1,
        (CONSUMER, ("step", "process"), TASK): 2,
    }
    assert numbers.points("ergon.backoff") == {
        (CONSUMER, ("step", "process"), TASK): (2, 3.0),
        (CONSUMER, ("step", "empty_queue"), TASK): (1, 0.5),
    }


@pytest.mark.req("R0-MT1")
def test_timeouts_by_scope(numbers: Numbers) -> None:
    """A deadline is counted once, for the scope it belongs to."""
    engine = FakeEngine(sink(numbers))
    engine.begin()
    engine.fetch(0, failure=Failure(Kind.TIMEOUT, "fetch_timeout"))
    run = engine.take(Transaction("a"))
    engine.attempt(run, "process", 0, failure=STEP_TIMEOUT)
    engine.attempt(run, "process", 1, failure=LIFECYCLE_TIMEOUT)
    engine.finish(run, "timed_out", LIFECYCLE_TIMEOUT)
    run = engine.take(Transaction("b"))
    engine.attempt(run, "process", failure=STEP_TIMEOUT)
    engine.finish(run, "timed_out", STEP_TIMEOUT)
    engine.end(error=ConsumerLoopTimeoutException("over"))

    assert numbers.points("ergon.timeouts") == {
        (CONSUMER, ("scope", "fetch"), TASK): 1,
        (CONSUMER, ("scope", "process"), TASK): 2,
        (CONSUMER, ("scope", "transaction"), TASK): 1,
        (CONSUMER, ("scope", "loop"), TASK): 1,
    }


@pytest.mark.req("R0-MT1")
def test_concurrency(numbers: Numbers) -> None:
    """What is in flight, what may be, and what was abandoned can be read at any moment."""
    engine = FakeEngine(sink(numbers))

    def levels() -> list[object]:
        names = ("ergon.in_flight", "ergon.concurrency.limit", "ergon.abandoned")
        return [numbers.points(name).get((CONSUMER, TASK)) for name in names]

    engine.begin()
    first, second = engine.take(Transaction("a")), engine.take(Transaction("b"))
    stuck = Attempt(engine.call, first, "process", 0)
    engine.emit("attempt.abandoned", attempt=stuck, abandoned=1)
    assert levels() == [2, 4, 1]
    engine.finish(first, "timed_out", STEP_TIMEOUT)
    assert levels() == [1, 4, 1]
    engine.emit("attempt.late", attempt=stuck)
    engine.finish(second)
    engine.end()
    assert levels() == [0, 0, 0]


@pytest.mark.req("R0-MT1")
def test_fetches(numbers: Numbers) -> None:
    """Fetches are measured in time and in size, empty ones included."""
    engine = FakeEngine(sink(numbers))
    engine.begin()
    engine.fetch(7)
    engine.fetch(0)
    engine.fetch(0, failure=DOWN)
    engine.end()

    assert numbers.points("ergon.fetch.duration") == {
        (("outcome", "ok"), CONSUMER, TASK): (2, 0.5),
        (("outcome", "transient"), CONSUMER, TASK): (1, 0.25),
    }
    assert numbers.points("ergon.batch.size") == {(CONSUMER, TASK): (2, 7)}


def test_a_wait_that_was_cut_off_is_no_attempt(numbers: Numbers) -> None:
    """The end of a wait between attempts does not count as a call of a hook."""
    engine = FakeEngine(sink(numbers))
    engine.begin()
    run = engine.take(Transaction("a"))
    engine.tell(Attempt(engine.call, run, "backoff", 0), Failure(Kind.CANCELLED, "aborted"))

    assert numbers.points("ergon.step.duration") == {}


def test_labels_stay_few(numbers: Numbers) -> None:
    """Many transactions with many ids, waits and sizes make no more series than one."""
    engine = FakeEngine(sink(numbers))
    engine.begin()

    def series() -> int:
        return sum(len(numbers.points(name)) for name in sorted(numbers.names()))

    counts = []
    for round_ in range(2):
        for number in range(1, 30):
            engine.fetch(number)
            engine.emit("queue.empty", empties=number, delay=float(number))
            engine.succeed(Transaction(f"t{round_}-{number}"))
        counts.append(series())
    assert counts[0] == counts[1]


def test_instruments_are_made_once(numbers: Numbers, caplog: pytest.LogCaptureFixture) -> None:
    """Sinks of one meter provider share their instruments, and add up."""
    for _ in range(3):
        engine = FakeEngine(sink(numbers))
        engine.begin()
        engine.succeed(Transaction("a"))
        engine.end()

    points = numbers.points("ergon.transactions")
    assert points == {(("outcome", "succeeded"), CONSUMER, TASK): 3}
    assert "already" not in caplog.text


def test_no_metrics_without_a_real_provider() -> None:
    """A no-op meter provider is as good as none."""
    assert make_sink(TelemetrySettings(spans=False), meter_provider=NoOpMeterProvider()) is None


def test_totals_lose_nothing_between_threads() -> None:
    """Sums stay exact when threads add at the same time."""
    totals = LabelledSums("task")
    start = threading.Barrier(4)

    def add() -> None:
        start.wait()
        for _ in range(2000):
            totals.add(("a",))

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [(o.value, o.attributes) for o in totals.observe(None)] == [(8000, {"task": "a"})]  # type: ignore[arg-type]
