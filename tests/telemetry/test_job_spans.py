"""The spans of jobs: enqueued once, a span for each attempt, and the executor's below it."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.core.rfc3339 import parse_rfc3339
from ergon_framework.errors import JobError
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.scheduler import Scheduler, ScheduleSettings
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.ports.journal import SpanRecord
from ergon_framework.storage.journal import SqliteJournal
from ergon_framework.telemetry.journal import VARIABLE
from ergon_framework.telemetry.tracing import SpanKind, span_at_edge
from tests.executor.link import PATIENCE, Child, request, runtime_command
from tests.jobs.real_worker import at_work, get, wait_until, worker

pytestmark = pytest.mark.req("ONE:trace")

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


def client() -> JobClient:
    """A client of a store of its own."""
    return JobClient(store=MemoryJobStore())


def named(kept: list[SpanRecord], name: str) -> list[SpanRecord]:
    """The spans of one name."""
    return [span for span in kept if span.name == name]


def worked(jobs: JobClient, *ids: str, **options: Any) -> None:
    """Let a worker run until these jobs have ended."""
    with at_work(worker(jobs.store, **options)):
        for each in ids:
            wait_until(lambda each=each: get(jobs.store, each).status.is_final)  # type: ignore[misc]


def test_enqueuing_begins_a_trace_that_the_job_carries(kept: list[SpanRecord]) -> None:
    """The span says which job it was, and nothing of its arguments."""
    with client() as jobs:
        job = jobs.enqueue("resize", ["secret"], queue="images")
        carried = jobs.find(job).trace_context
    (span,) = kept
    assert carried == {"traceparent": f"00-{span.trace_id}-{span.span_id}-01"}
    assert (span.name, span.unit) == ("job.enqueue", job.id)
    assert span.attributes["rrq.function"] == "resize"
    assert "secret" not in repr(span)


def test_a_refused_job_is_a_failed_span(kept: list[SpanRecord]) -> None:
    """It is told by the class of the error."""
    with client() as jobs, pytest.raises(JobError):
        jobs.enqueue("")
    (span,) = kept
    assert span.failure == "JobError"


def test_many_jobs_join_a_trace_and_begin_none(kept: list[SpanRecord]) -> None:
    """Jobs that are only stored together have nothing else in common."""
    with client() as jobs:
        (alone,) = jobs.enqueue_many([("resize", [])])
        assert jobs.find(alone).trace_context is None
        with span_at_edge("boundary.publish", SpanKind.PRODUCER, {}):
            together = jobs.enqueue_many([("resize", []), ("resize", [])])
        traces = [jobs.find(each).trace_context for each in together]
    enqueue, publish = kept
    assert enqueue.parent_id == publish.span_id
    assert enqueue.attributes == {"ergon.jobs": 2}
    assert traces == [{"traceparent": f"00-{enqueue.trace_id}-{enqueue.span_id}-01"}] * 2


def test_a_given_trace_goes_on_below_the_enqueuing(kept: list[SpanRecord]) -> None:
    """What a caller puts into ``trace_context`` is the parent; other names in it stay."""
    with client() as jobs:
        job = jobs.enqueue("resize", trace_context={"traceparent": PARENT, "vendor": "1"})
        carried = jobs.find(job).trace_context
    (span,) = kept
    assert (span.trace_id, span.parent_id) == (TRACE, PARENT[36:52])
    assert carried == {"traceparent": f"00-{TRACE}-{span.span_id}-01", "vendor": "1"}


def test_a_duplicate_keeps_the_trace_of_the_first(kept: list[SpanRecord]) -> None:
    """The second enqueuing finds the job that is there."""
    with client() as jobs:
        first = jobs.enqueue("resize", unique="k")
        carried = jobs.find(first).trace_context
        assert jobs.enqueue("resize", unique="k") == first
        assert jobs.find(first).trace_context == carried
    assert [span.attributes["ergon.is_new"] for span in kept] == [True, False]
    assert {span.unit for span in kept} == {first.id}


def test_a_scheduled_job_begins_a_trace(kept: list[SpanRecord]) -> None:
    """When it is stored; a worker that comes too late has no span."""
    at = [parse_rfc3339("2026-06-01T12:00:00Z")]
    store = MemoryJobStore(lambda: at[0])
    hourly = {"hourly": ScheduleSettings(cron="@hourly", handler="report")}
    first, second = Scheduler(store, hourly), Scheduler(store, hourly)
    first.sync()
    at[0] += 3600
    first.fire_due()
    second.fire_due()
    (span,) = kept
    job = get(store, span.unit)
    assert job.trace_context == {"traceparent": f"00-{span.trace_id}-{span.span_id}-01"}
    assert span.attributes["ergon.schedule"] == "hourly"
    store.close()


@pytest.mark.slow
def test_attempts_stand_side_by_side(kept: list[SpanRecord]) -> None:
    """Each is below the enqueuing; a failed one says so by its code, a dead one as well."""
    with client() as jobs:
        jobs.enqueue("fail", id="fails", max_attempts=2)
        jobs.enqueue("crash", id="dies", max_attempts=1, max_deliveries=1)
        worked(jobs, "fails", "dies")
    (enqueue,) = [span for span in named(kept, "job.enqueue") if span.unit == "fails"]
    runs = [span for span in named(kept, "job.run") if span.unit == "fails"]
    assert [span.parent_id for span in runs] == [enqueue.span_id] * 2
    assert [span.attributes["rrq.attempt"] for span in runs] == [1, 2]
    assert all(span.failure for span in runs)
    died = [span for span in named(kept, "job.run") if span.unit == "dies"]
    assert {span.failure for span in died} == {"executor_died"}


@pytest.mark.slow
def test_a_job_without_a_trace_has_no_spans(kept: list[SpanRecord]) -> None:
    """Neither has one whose trace context cannot be read; both run."""
    with client() as jobs:
        odd = {"handler": "echo", "id": "odd", "trace_context": {"traceparent": "?"}}
        jobs.enqueue_many([{"handler": "echo", "id": "plain"}, odd])
        worked(jobs, "plain", "odd")
    assert kept == []


@pytest.mark.slow
@pytest.mark.parametrize("way", ["end of input", "SIGTERM"])
def test_an_executor_writes_its_spans_before_it_ends(way: str, tmp_path: Path) -> None:
    """To the journal that its environment names; nothing of arguments or errors is in them."""
    path = tmp_path / "journal.db"
    with Child(runtime_command("handlers:registry"), {VARIABLE: f"sqlite:///{path}"}) as child:
        child.send(request("echo", "secret", job_id="j1", _trace_context={"traceparent": PARENT}))
        child.outcome()
        if way == "SIGTERM":
            child.process.send_signal(signal.SIGTERM)
        elif child.process.stdin is not None:
            child.process.stdin.close()
        assert child.process.wait(PATIENCE) == 0
    with SqliteJournal(path, read_only=True) as journal:
        (span,) = journal.trace(TRACE)
    assert (span.name, span.parent_id, span.unit) == ("rrq.executor", PARENT[36:52], "j1")
    assert span.source.startswith("executor ")
    assert "secret" not in repr(span)


@pytest.mark.slow
def test_an_executor_whose_journal_cannot_be_written_works_on(tmp_path: Path) -> None:
    """It says so, once, and answers every request."""
    (tmp_path / "journal.db").write_text("this is no database, but long enough to be read" * 100)
    named = {VARIABLE: f"sqlite:///{tmp_path}/journal.db"}
    with Child(runtime_command("handlers:registry"), named) as child:
        for number in range(3):
            told = child.ask("echo", job_id=f"j{number}", _trace_context={"traceparent": PARENT})
            assert told["status"] == "success"
        child.end_input()
        assert child.code() == 0
        assert child.errors().count("the journal cannot be written") == 1
