"""Notices as plain values: who it is about, what went wrong, and never a payload."""

from __future__ import annotations

import json
from typing import Any

import pytest
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.job import JobStatus
from ergon_framework.errors import StoreError
from ergon_framework.ports.journal import JournalEntry
from ergon_framework.ports.notice import CATALOGUE, Notice, Routine
from ergon_framework.ports.transaction import Transaction
from ergon_framework.telemetry import add_listener, remove_listener
from ergon_framework.telemetry.journal import MAX_TEXT, entry_of, is_routine, plain
from tests.engine.bodies import rules
from tests.engine.colours import consume

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def flat(name: str, **fields: Any) -> JournalEntry:
    """A notice as an entry."""
    return entry_of(Notice(name, 0.0, fields), "test", 5.0)


def test_the_unit_is_the_id_it_is_about() -> None:
    """Jobs, facts and transactions are found again by their own id."""
    assert flat("job.late", job_id="j1").unit == "j1"
    assert flat("fact.refused", message_id="m1", code="x", why="y").unit == "m1"
    assert flat("transaction.stranded", transaction_id="t1").unit == "t1"
    assert flat("store.back").unit == ""


def test_a_failure_is_told_with_its_message() -> None:
    """Errors are told; kind and code are words, and nothing is longer than it may be."""
    failure = Failure(Kind.THROTTLED, "quota", "x" * 2 * MAX_TEXT, 3.0)
    fields = flat("job.retrying", job_id="j1", failure=failure, delay=3.0, why="").fields
    assert fields["failure"] == {
        "kind": "throttled",
        "code": "quota",
        "message": "x" * MAX_TEXT,
        "retry_after": 3.0,
    }
    assert fields["delay"] == 3.0


def test_plain_values_are_safe_for_json() -> None:
    """Whatever is in a field, it becomes words and numbers; strangers are named by their type."""

    class Stranger:
        def __repr__(self) -> str:
            return "a payload"

    told = plain(
        {
            "a": [1, 2.5, None, True, JobStatus.FAILED],
            "b": Stranger(),
            "c": ValueError("bad"),
            "d": StoreError("away", remedy="wait"),
            "e": b"payload",
            3: {"x"},
        }
    )
    assert told == {
        "a": [1, 2.5, None, True, "failed"],
        "b": "Stranger",
        "c": "ValueError: bad",
        "d": "away (wait)",
        "e": "bytes",
        "3": ["x"],
    }
    assert json.loads(json.dumps(told)) == told


def test_the_current_trace_is_noted() -> None:
    """An entry made inside a span knows its trace."""
    context = SpanContext(int(TRACE, 16), 1, False, TraceFlags(1))
    with use_span(NonRecordingSpan(context)):
        assert flat("store.back").trace_id == TRACE
    assert flat("store.back").trace_id == ""


@pytest.mark.req("ONE:notices")
def test_a_whole_call_becomes_entries_without_payloads() -> None:
    """A retry and a failure are kept with their transaction, and nothing else."""
    heard: list[Notice] = []
    add_listener(heard.append)
    try:
        header = f"00-{TRACE}-00f067aa0ba902b7-01"
        given = [
            Transaction("t1", {"secret": "payload"}),
            Transaction("t2", {"secret": "payload"}, metadata={"traceparent": header}),
        ]
        hooks = {"t1": "ok", "t2": ValueError("always")}
        policy = rules(size=2, steps={"process": {"max_attempts": 2, "backoff": 1.0}})
        consume("sync", [given], policy, process=hooks)
    finally:
        remove_listener(heard.append)
    entries = [entry_of(each, "test", 5.0) for each in heard if not is_routine(each)]
    assert [each.name for each in entries] == [
        "attempt.ended",
        "retry.scheduled",
        "attempt.ended",
        "transaction.ended",
    ]
    assert {each.unit for each in entries} == {"t2"}
    assert {each.trace_id for each in entries} == {TRACE}
    first, retry, _, last = entries
    assert (first.fields["phase"], first.fields["attempt"]) == ("process", 1)
    assert (retry.fields["attempt"], retry.fields["delay"]) == (1, 1.0)
    assert last.fields["ending"] == "failed"
    assert "always" in last.fields["failure"]["message"]
    assert "payload" not in json.dumps([entry_of(each, "t", 0.0).fields for each in heard])


def test_every_notice_says_who_tells_it() -> None:
    """The catalogue is whole: a sentence, a part and, for the happy path, that it is routine."""
    for name, known in CATALOGUE.items():
        assert known.text.endswith("."), name
        assert known.part, name
        assert known.routine in Routine
    assert is_routine(Notice("fact.appended", 0.0, {}))
    assert is_routine(Notice("fetch.ended", 0.0, {"failure": None}))
    assert not is_routine(Notice("fetch.ended", 0.0, {"failure": Failure(Kind.TIMEOUT, "x")}))
    assert not is_routine(Notice("transaction.ended", 0.0, {"ending": "parked"}))
