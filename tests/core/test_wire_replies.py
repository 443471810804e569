"""The orchestrator's role: requests out, replies in, and a reason for every line that is none."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import Any

import pytest

from ergon_framework.core.executor_protocol import (
    ExecutorSession,
    OrchestratorSession,
    Reply,
    Request,
    Status,
    Stray,
    encode_request,
)

pytestmark = pytest.mark.req("EXEC:Outcome", "JOBS:wire")

GOOD = b'{"job_id":"j1","status":"success"}\n'
FIELDS: dict[str, Any] = {
    "job_id": "j1",
    "function_name": "resize",
    "args": b'["a.png"]',
    "kwargs": b'{"width":3}',
    "attempt": 2,
    "enqueued_at": 1735732800.25,
    "queue_name": "default",
    "deadline_at": 1735733100.0,
    "trace_context": {"traceparent": "00-ab"},
    "worker_id": "w1",
}


def read(data: bytes, limit: int = 1 << 20) -> list[Reply | Stray]:
    """All frames of an input that ends after these bytes."""
    session = OrchestratorSession(limit)
    return session.feed(data) + session.end()


def replied(data: bytes) -> Reply:
    """The only frame, which is a reply."""
    [frame] = read(data)
    assert isinstance(frame, Reply)
    return frame


def stray(data: bytes, limit: int = 1 << 20) -> Stray:
    """The stray that the only line makes; a good line after it must be read."""
    [frame, after] = read(data.removesuffix(b"\n") + b"\n" + GOOD, limit)
    assert isinstance(frame, Stray)
    assert isinstance(after, Reply)
    return frame


# --- replies ------------------------------------------------------------------------------------


def test_the_example_of_the_specification_is_read() -> None:
    """Nulls and all."""
    data = (
        b'{"job_id": "uuid", "status": "success", "result": {"ok": true},'
        b' "error_message": null, "error_type": null, "retry_after_seconds": null}\n'
    )
    assert replied(data) == Reply("uuid", Status.SUCCESS, b'{"ok": true}')


@pytest.mark.req("EXEC:status")
@pytest.mark.parametrize("status", list(Status))
def test_an_outcome_of_two_fields_is_enough(status: Status) -> None:
    """What is absent is null, the result too."""
    data = b'{"job_id":"j1","status":"%s"}\n' % status.encode()
    assert replied(data) == Reply("j1", status, b"null", None, None, None)


@pytest.mark.parametrize(
    "raw",
    [
        b"null",
        b"[1, 2]",
        b'{"b": 1, "a": 1}',
        b"12345678901234567890.1234567890",
        b'"\xe2\x80\xa8\xf0\x9f\x98\x80\\ud83d\\ude00"',
        b"1e3",
    ],
)
def test_a_result_stays_the_bytes_it_came_as(raw: bytes) -> None:
    """Order, digits and escapes are the executor's business; nobody here looks inside."""
    assert replied(b'{"job_id":"j1","status":"success","result": ' + raw + b" }").result == raw


@pytest.mark.req("EXEC:error_type", "EXEC:retry_after")
@pytest.mark.parametrize(
    ("raw", "seconds"),
    [(b"3", 3.0), (b"2.5", 2.5), (b"null", None), (b"-1", -1.0), (b"1e3", 1000.0)],
)
def test_a_delay_may_be_any_number_or_null(raw: bytes, seconds: float | None) -> None:
    """What it means is for the policy to say."""
    data = b'{"job_id":"j1","status":"retry","error_type":"held","retry_after_seconds":%s}' % raw
    reply = replied(data)
    assert reply.error_type == "held"
    assert reply.retry_after_seconds == seconds


@pytest.mark.req("X26")
def test_unknown_fields_are_ignored_and_of_duplicates_the_last_wins() -> None:
    """Later executors may say more."""
    data = b'{"job_id":"no","x":[{}],"status":"error","job_id":"j1","error":{"code":1}}'
    assert replied(data) == Reply("j1", Status.ERROR)


@pytest.mark.req("EXEC:Transport")
def test_blank_lines_crlf_and_a_missing_last_newline_are_tolerated() -> None:
    """As on the other side."""
    frames = read(b"\n \r\n" + GOOD[:-1] + b"\r\n\n" + GOOD[:-1])
    assert frames == [Reply("j1", Status.SUCCESS)] * 2


# --- strays -------------------------------------------------------------------------------------


@pytest.mark.req("X1", "EXEC:job_id")
@pytest.mark.parametrize(
    ("data", "reason", "job_id"),
    [
        (b"Hello from a print", "malformed", None),
        (b"{", "truncated", None),
        (b'{"job_id":"j1","status":"succ', "truncated", "j1"),
        (b'{"job_id":"j', "truncated", None),
        (b"[]", "array", None),
        (b"7", "int", None),
        (b"{}", "job_id", None),
        (b'{"status":"success"}', "job_id", None),
        (b'{"job_id":null,"status":"success"}', "job_id", None),
        (b'{"job_id":7,"status":"success"}', "job_id", None),
        (b'{"job_id":"j1"}', "status", "j1"),
        (b'{"job_id":"j1","status":null}', "status", "j1"),
        (b'{"job_id":"j1","status":"done"}', "success, retry, timeout, error", "j1"),
        (b'{"job_id":"j1","status":"SUCCESS"}', "success, retry, timeout, error", "j1"),
        (b'{"job_id":"j1","status":["success"]}', "status", "j1"),
        (b'{"job_id":"j1","status":"error","error_message":{}}', "error_message", "j1"),
        (b'{"job_id":"j1","status":"error","error_type":404}', "error_type", "j1"),
        (b'{"job_id":"j1","status":"retry","retry_after_seconds":"3"}', "retry_after", "j1"),
        (b'{"job_id":"j1","status":"retry","retry_after_seconds":true}', "retry_after", "j1"),
        (b'{"job_id":"j1","status":"retry","retry_after_seconds":1e999}', "retry_after", "j1"),
        (b'{"job_id":"j1","status":"retry","retry_after_seconds":NaN}', "malformed", "j1"),
        (b'{"job_id":"j1","status":"retry","retry_after_seconds":Infinity}', "malformed", "j1"),
        (b'{"job_id":"j1","status":"success","result":NaN}', "malformed", "j1"),
        (b'{"job_id":"j1","status":"success","result":"\\ud800"}', "half a surrogate", "j1"),
        (b'{"job_id":"j1","status":"success","result":["\\ud800"]}', "half a surrogate", "j1"),
        (b'{"job_id":"j1","status":"success","result":{"a":"\\\\ud800"}', "truncated", "j1"),
        (b'{"job_id":"j1","status":"success","result":}', "malformed", "j1"),
        (b'{"job_id":"j1","status":"success","result":"a\0b"}', "malformed", "j1"),
        (b'{"job_id":"j1","status":"success","result":"\xff"}', "UTF-8", "j1"),
        (b'{"job_id":"j1","status":"success","more":"\xed\xa0\x80"}', "UTF-8", "j1"),
        (b'{"job_id":"\xff","status":"success"}', "UTF-8", None),
        (b'{"job_id":"j1","status":"success","result":"\\udc00"}', "surrogate", "j1"),
        (b"\xff\xfe\x00", "malformed", None),
    ],
)
def test_a_line_that_is_no_outcome_is_stray_with_a_reason(
    data: bytes, reason: str, job_id: str | None
) -> None:
    """It harms nothing: the next line is read, and the job it names, if any, can be seen."""
    frame = stray(data)
    assert reason in frame.reason
    assert (frame.size, frame.job_id) == (len(data), job_id)


def test_a_last_line_that_was_cut_short_names_nobody() -> None:
    """Its writer died in the middle of it: no answer was given, so none was wrong."""
    cut = b'{"job_id":"j1","status":"succ'
    for frame in (*read(cut), *read(GOOD + cut)[1:]):
        assert isinstance(frame, Stray)
        assert frame.job_id is None


def test_a_deeply_nested_result_is_stray() -> None:
    """No executor can exhaust the orchestrator's stack."""
    nested = b"[" * 200_000 + b"]" * 200_000
    data = b'{"job_id":"j1","status":"success","result":' + nested + b"}"
    assert stray(data) == Stray("nested too deeply", len(data), "j1")


@pytest.mark.req("X2")
def test_an_outcome_over_the_limit_is_stray_before_it_ends() -> None:
    """It may never end; what it names at its start is told, and the rest is skipped."""
    session = OrchestratorSession(300)
    start = b'{"job_id":"j1","status":"success","result":"'
    frames = session.feed(start + b"x" * 1000)
    assert frames == [Stray("the line is longer than 300 bytes", 301, "j1")]
    assert session.feed(b"x" * 1000) == []
    assert session.feed(b'"}\n' + GOOD) == [Reply("j1", Status.SUCCESS)]
    assert stray(b"x" * 1000, limit=300).job_id is None


def test_reasons_and_reprs_do_not_show_content() -> None:
    """What an executor prints may be anybody's data."""
    for data in (
        b"secret",
        b'{"job_id":"j1","status":"secret"}',
        b'{"job_id":"j1","status":"error","error_type":["secret"]}',
        b'{"job_id":"j1","secret":"\xff","status":"error"}',
        b'{"job_id":"j1","status":"success","result":"secret","error_message":"secret"}',
    ):
        [frame] = read(data)
        assert "secret" not in repr(frame)


# --- requests -----------------------------------------------------------------------------------


@pytest.mark.req("EXEC:Request", "EXEC:Encoding", "EXEC:Tracing")
def test_a_request_is_one_line_of_the_specified_shape() -> None:
    """All fields, snake case, instants in UTC, the arguments as they were stored."""
    data = encode_request(**FIELDS)
    assert data.endswith(b"\n")
    assert b'"args":["a.png"],"kwargs":{"width":3}' in data
    assert json.loads(data) == {
        "protocol_version": "1",
        "job_id": "j1",
        "function_name": "resize",
        "args": ["a.png"],
        "kwargs": {"width": 3},
        "context": {
            "job_id": "j1",
            "attempt": 2,
            "enqueue_time": "2025-01-01T12:00:00.250000Z",
            "queue_name": "default",
            "deadline": "2025-01-01T12:05:00Z",
            "trace_context": {"traceparent": "00-ab"},
            "worker_id": "w1",
        },
    }


def test_what_is_optional_is_written_as_null() -> None:
    """And an executor reads it as absent."""
    data = encode_request(
        **{**FIELDS, "deadline_at": None, "trace_context": None, "worker_id": None}
    )
    [request] = ExecutorSession().feed(data)
    assert isinstance(request, Request)
    assert request.context.deadline is None
    assert request.context.trace_context is None
    assert request.context.worker_id is None


def test_any_mapping_may_carry_the_trace() -> None:
    """Frozen ones included."""
    data = encode_request(**{**FIELDS, "trace_context": MappingProxyType({"a": "b"})})
    assert json.loads(data)["context"]["trace_context"] == {"a": "b"}


@pytest.mark.req("EXEC:Transport")
def test_stored_arguments_laid_out_over_lines_are_still_one_line() -> None:
    """A person may have typed them so."""
    data = encode_request(**{**FIELDS, "args": b'[\n  1,\r\n  "a\\nb"\n]'})
    assert data.count(b"\n") == 1
    assert json.loads(data)["args"] == [1, "a\nb"]


@pytest.mark.parametrize("field", ["enqueued_at", "deadline_at"])
def test_an_instant_that_cannot_be_written_is_refused(field: str) -> None:
    """Better no request than one that no executor can read."""
    with pytest.raises(ValueError, match="between the years"):
        encode_request(**{**FIELDS, field: float("inf")})


@pytest.mark.req("X6")
@pytest.mark.parametrize("number", [b"NaN", b"-Infinity", b'{"a": [Infinity]}'])
def test_a_number_that_is_none_ends_the_right_attempt(number: bytes) -> None:
    """Some encoders write it: the job that is meant need not wait for its deadline."""
    [told] = read(b'{"job_id": "j1", "status": "success", "result": %b}\n' % number)
    assert isinstance(told, Stray)
    assert told.job_id == "j1"
