"""The executor's role: requests in, outcomes out, and an answer to every line that is neither."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest

from ergon_framework.core.executor_protocol import (
    ExecutorSession,
    Outcome,
    Refusal,
    Request,
    RequestContext,
    Status,
    encode_outcome,
)

pytestmark = pytest.mark.req("EXEC:Request", "JOBS:wire")

CONTEXT: dict[str, Any] = {
    "job_id": "j1",
    "attempt": 1,
    "enqueue_time": "2025-01-01T12:00:00Z",
    "queue_name": "default",
}
WANTED: dict[str, Any] = {"job_id": "j1", "function_name": "resize", "context": CONTEXT}
GONE = object()


def line(wanted: Any = None, **changes: Any) -> bytes:
    """A request with some fields replaced, or left out when they are GONE."""
    shape = {**WANTED, **changes} if wanted is None else wanted
    return json.dumps({k: v for k, v in shape.items() if v is not GONE}).encode() + b"\n"


def context(**changes: Any) -> dict[str, Any]:
    """The context of a request, changed the same way."""
    return {k: v for k, v in {**CONTEXT, **changes}.items() if v is not GONE}


def read(data: bytes, limit: int = 1 << 20) -> list[Request | Refusal]:
    """All frames of an input that ends after these bytes."""
    session = ExecutorSession(limit)
    return session.feed(data) + session.end()


def served(data: bytes) -> Request:
    """The only frame, which is a request."""
    [frame] = read(data)
    assert isinstance(frame, Request)
    return frame


def refused(data: bytes, limit: int = 1 << 20) -> Outcome:
    """The answer to the only line; a good line after it must be served."""
    [frame, after] = read(data.removesuffix(b"\n") + b"\n" + line(), limit)
    assert isinstance(frame, Refusal)
    assert isinstance(after, Request)
    assert frame.outcome.status is Status.ERROR
    assert frame.outcome.result is None
    return frame.outcome


# --- requests -----------------------------------------------------------------------------------


def test_the_example_of_the_specification_is_read() -> None:
    """Every field lands where it belongs."""
    data = b"""{"protocol_version": "1", "job_id": "uuid", "function_name": "my_handler",
     "args": [1, "two"], "kwargs": {"flag": true}, "context": {"job_id": "uuid", "attempt": 1,
     "enqueue_time": "2025-01-01T12:00:00Z", "queue_name": "default",
     "deadline": "2025-01-01T12:05:00Z", "trace_context": {"traceparent": "..."},
     "worker_id": "rrq_worker_123"}}""".replace(b"\n", b"")
    assert served(data) == Request(
        job_id="uuid",
        function_name="my_handler",
        args=[1, "two"],
        kwargs={"flag": True},
        context=RequestContext(
            job_id="uuid",
            attempt=1,
            enqueue_time="2025-01-01T12:00:00Z",
            queue_name="default",
            deadline="2025-01-01T12:05:00Z",
            trace_context={"traceparent": "..."},
            worker_id="rrq_worker_123",
        ),
    )


def test_what_may_be_missing_has_a_default() -> None:
    """Arguments are empty, optional fields None, and the version is the only one there was."""
    request = served(line())
    assert (request.args, request.kwargs, request.protocol_version) == ([], {}, "1")
    optional = (request.context.deadline, request.context.trace_context, request.context.worker_id)
    assert optional == (None, None, None)


def test_optional_fields_may_be_null() -> None:
    """Null and absent are the same."""
    nulls = context(deadline=None, trace_context=None, worker_id=None)
    assert served(line(context=nulls)) == served(line())


def test_defaults_are_not_shared_between_requests() -> None:
    """A handler that changes its arguments changes only its own."""
    served(line()).args.append(1)
    assert served(line()).args == []


@pytest.mark.req("X26")
def test_unknown_fields_are_ignored() -> None:
    """Later versions may add what they like."""
    more = line(correlation="x", request_id=[1, {"a": None}], context=context(labels={"a": [1]}))
    assert served(more) == served(line())


def test_of_duplicate_keys_the_last_wins() -> None:
    """As in every reader the executors of that time used."""
    data = line().replace(b'"resize"', b'"first", "function_name": "last"')
    assert served(data).function_name == "last"


@pytest.mark.req("EXEC:Encoding")
@pytest.mark.parametrize("escaped", [True, False], ids=["escaped", "raw"])
def test_unicode_arrives_intact(escaped: bool) -> None:
    """Escaped or raw; a reader that cuts at U+2028 would see two broken lines."""
    text = "\u2028\u2029\u0085 é 😀 \x7f\x00"
    shape = {**WANTED, "args": [text], "kwargs": {text: text}}
    data = json.dumps(shape, ensure_ascii=escaped).encode() + b"\n"
    assert served(data).args == [text]
    assert served(data).kwargs == {text: text}


@pytest.mark.req("EXEC:Encoding")
@pytest.mark.parametrize(
    "text", ["2025-01-01T12:00:00.123456789Z", "2025-01-01T14:00:00+02:00", "2016-12-31T23:59:60Z"]
)
def test_instants_may_have_any_offset_and_nine_digits(text: str) -> None:
    """The text is handed on as it came."""
    request = served(line(context=context(enqueue_time=text, deadline=text)))
    assert (request.context.enqueue_time, request.context.deadline) == (text, text)


@pytest.mark.req("EXEC:Transport")
def test_blank_lines_and_crlf_are_tolerated() -> None:
    """An empty line asks for nothing, so nothing is answered."""
    frames = read(b"\n  \t\r\n\r\n" + line().replace(b"\n", b"\r\n") + b"\n\n \n")
    assert [type(frame) for frame in frames] == [Request]


@pytest.mark.req("EXEC:Transport")
def test_a_last_request_without_a_newline_is_served() -> None:
    """End of input ends the line."""
    session = ExecutorSession()
    assert session.feed(line()[:-1]) == []
    assert session.end() == [served(line())]


def test_a_megabyte_of_arguments_is_served() -> None:
    """Far above what a pipe holds."""
    assert served(line(args=["x" * 1_000_000])).args == ["x" * 1_000_000]


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.req("X6")
@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"function_name": GONE}, "function_name"),
        ({"function_name": None}, "function_name"),
        ({"function_name": 7}, "function_name"),
        ({"args": None}, "args"),
        ({"args": {}}, "args"),
        ({"kwargs": None}, "kwargs"),
        ({"kwargs": []}, "kwargs"),
        ({"context": GONE}, "context"),
        ({"context": None}, "context"),
        ({"context": []}, "context"),
        ({"context": context(job_id=GONE)}, "job_id"),
        ({"context": context(job_id="j2")}, "context.job_id"),
        ({"context": context(attempt=GONE)}, "attempt"),
        ({"context": context(attempt=0)}, "attempt"),
        ({"context": context(attempt=-1)}, "attempt"),
        ({"context": context(attempt="1")}, "attempt"),
        ({"context": context(attempt=1.5)}, "attempt"),
        ({"context": context(attempt=True)}, "attempt"),
        ({"context": context(enqueue_time=GONE)}, "enqueue_time"),
        ({"context": context(enqueue_time=1735732800)}, "enqueue_time"),
        ({"context": context(enqueue_time="yesterday")}, "enqueue_time"),
        ({"context": context(enqueue_time="2025-01-01T12:00:00")}, "enqueue_time"),
        ({"context": context(enqueue_time="2025-02-30T12:00:00Z")}, "enqueue_time"),
        ({"context": context(queue_name=GONE)}, "queue_name"),
        ({"context": context(deadline="soon")}, "deadline"),
        ({"context": context(deadline=300)}, "deadline"),
        ({"context": context(trace_context={"traceparent": 1})}, "trace_context"),
        ({"context": context(trace_context=["x"])}, "trace_context"),
        ({"context": context(worker_id=5)}, "worker_id"),
        ({"protocol_version": 1}, "protocol_version"),
        ({"protocol_version": None}, "protocol_version"),
        ({"protocol_version": ["1"]}, "protocol_version"),
    ],
)
def test_a_readable_malformed_request_is_answered_with_its_own_job_id(
    changes: dict[str, Any], where: str
) -> None:
    """The orchestrator can tell which job it spoilt, and the message names the field."""
    outcome = refused(line(**changes))
    assert outcome.job_id == "j1"
    assert outcome.error_type == "invalid_request"
    assert outcome.error_message is not None
    assert outcome.error_message.startswith("Invalid request: ")
    assert where in outcome.error_message


@pytest.mark.req("X6")
@pytest.mark.parametrize(
    "data",
    [
        b"not json",
        b"{",
        b'{"job_id": "j1", "function_name"',
        b'{"job_id": "j1"} {"job_id": "j1"}',
        b"[]",
        b'["j1"]',
        b"null",
        b"42",
        b'"j1"',
        b"\xff\xfe",
        b"\xef\xbb\xbf{}",
        b"{\"job_id\": 'j1'}",
        b'{"job_id": "\xff"}',
        b'{"job_id": "\\ud800"}',
        b'{"args": [NaN], "job_id": "j1"}',
        b'{"job_id": "j1", "args": [NaN]}',
        b'{"job_id": "j1", "args": [Infinity]}',
        b'{"job_id": "j1", "args": [-Infinity]}',
        b'{"job_id": "j1", "args": [01]}',
        b'{"job_id": "j\x00"}',
        b"\x00",
        line(job_id=GONE),
        line(job_id=None),
        line(job_id=7),
        line({}),
        line({"context": CONTEXT}),
    ],
)
def test_a_line_without_a_readable_job_id_is_answered_to_unknown(data: bytes) -> None:
    """Every line that is not blank has an answer."""
    outcome = refused(data)
    assert outcome.job_id == "unknown"
    assert outcome.error_type == "invalid_request"
    assert (outcome.error_message or "").startswith("Invalid request: ")


@pytest.mark.req("X6", "EXEC:Encoding")
@pytest.mark.parametrize(
    "data",
    [
        line(function_name="ü").replace(b"\\u00fc", b"\xff"),
        line(args=["x"]).replace(b'"x"', b'"\xed\xa0\x80"'),
        line(more="x").replace(b'"x"', b'"\xff"'),
        line(args=["\ud800"]),
        line(args=["\udc00 lone"]),
        line(more="\ud83d and no more"),
    ],
    ids=["name", "surrogate bytes", "unknown field", "high", "low", "high and text"],
)
def test_broken_text_is_refused_with_the_job_id_it_stands_beside(data: bytes) -> None:
    """Bytes that are no UTF-8, and escapes that are half a character."""
    assert refused(data).job_id == "j1"


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
@pytest.mark.parametrize("depth", [2_000, 200_000])
def test_deep_nesting_is_refused_and_harms_nobody(
    opening: bytes, closing: bytes, depth: int
) -> None:
    """Proper JSON, but no stack is deep enough for everything."""
    nested = opening * depth + b"1" + closing * depth
    data = b'{"job_id": "j1", "args": [' + nested + b'], "function_name": "f"}'
    assert refused(data, limit=4 << 20).job_id == "j1"
    assert refused(opening * depth, limit=4 << 20).job_id == "unknown"


@pytest.mark.req("X26")
@pytest.mark.parametrize("version", ["2", "1.0", "", "01", "x" * 10_000])
def test_another_protocol_version_is_answered_clearly(version: str) -> None:
    """With its own job id and a type of its own, so that nobody guesses."""
    outcome = refused(line(protocol_version=version))
    assert outcome.job_id == "j1"
    assert outcome.error_type == "unsupported_protocol_version"
    assert outcome.error_message == (f"Unsupported protocol version {version[:20]!r}, expected '1'")


@pytest.mark.req("X26")
def test_another_version_is_named_even_when_its_requests_look_different() -> None:
    """That the shape is strange is a consequence, not the reason."""
    outcome = refused(line({"protocol_version": "2", "job_id": "j1", "params": {"a": 1}}))
    assert (outcome.job_id, outcome.error_type) == ("j1", "unsupported_protocol_version")


def test_refusals_do_not_show_what_the_line_holds() -> None:
    """Answers are logged and stored; arguments are private."""
    for data in (
        line(args="secret"),
        line(kwargs={"secret": 1}, context=context(deadline="secret")),
        line(context=context(trace_context={"secret": 1})),
        line(context=context(job_id="secret")),
        b'{"args": ["secret\xff"]}',
        b"secret",
    ):
        [refusal] = read(data)
        assert "secret" not in repr(refusal)
        assert isinstance(refusal, Refusal)
        assert "secret" not in (refusal.outcome.error_message or "")


# --- lines over the limit -----------------------------------------------------------------------


@pytest.mark.req("X2")
@pytest.mark.parametrize(
    "start",
    [
        b'{"job_id":"j1",',
        b'{"protocol_version":"1","job_id":"j1",',
        b' { "x" : -1.5e3 , "y":null, "z" : "\\"job_id\\":\\"no\\"", "job_id" : "j1" ,',
        b'{"job_id":"j0","job_id":"\\u006a1",',
    ],
)
def test_a_request_over_the_limit_is_answered_with_the_job_id_at_its_start(start: bytes) -> None:
    """Its answer comes before its end does; the request after it is served."""
    session = ExecutorSession(300)
    [refusal] = session.feed(start + b'"args":["' + b"x" * 400)
    assert isinstance(refusal, Refusal)
    assert refusal.outcome.job_id == "j1"
    assert refusal.outcome.error_type == "invalid_request"
    assert refusal.outcome.error_message == "Invalid request: the line is longer than 300 bytes"
    assert session.feed(b"x" * 400) == []
    [after] = session.feed(b'"]}\n' + line())
    assert isinstance(after, Request)


@pytest.mark.req("X2")
@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"[",
        b'{"args":["',
        b'{"context":{"job_id":"j1"},"args":["',
        b'{"args":[{"job_id":"j1"},"',
        b'"job_id":"j1",',
        b'{"job_id":7,"args":["',
        b'{"job_id":"\\ud800","args":["',
        b'{"job_id":"\xff","args":["',
        b'{"job_id":"',
    ],
)
def test_a_request_over_the_limit_without_a_sure_job_id_is_answered_to_unknown(
    start: bytes,
) -> None:
    """A job id inside the arguments or cut short is not the request's."""
    assert refused(start + b"x" * 1000, limit=300).job_id == "unknown"


# --- outcomes -----------------------------------------------------------------------------------


@pytest.mark.req("EXEC:Outcome", "EXEC:status")
@pytest.mark.parametrize("status", list(Status))
def test_an_outcome_is_one_line_with_all_six_fields(status: Status) -> None:
    """Present even when null: some readers insist."""
    data = encode_outcome(Outcome("j1", status, result={"ok": True}, retry_after_seconds=2.5))
    assert data.endswith(b"\n")
    assert json.loads(data) == {
        "job_id": "j1",
        "status": str(status),
        "result": {"ok": True},
        "error_message": None,
        "error_type": None,
        "retry_after_seconds": 2.5,
    }


@pytest.mark.req("EXEC:Transport")
def test_an_outcome_never_holds_a_second_newline() -> None:
    """Neither text nor ready-made JSON laid out over lines can break the framing."""
    result = {"a": "x\ny\u2028", "b": msgspec.Raw(b'[1,\n 2\r\n,"\xe2\x80\xa8"]')}
    data = encode_outcome(Outcome("j1", Status.SUCCESS, result=result))
    assert data.count(b"\n") == 1
    assert json.loads(data)["result"] == {"a": "x\ny\u2028", "b": [1, 2, "\u2028"]}


def test_numbers_that_json_lacks_are_written_as_null() -> None:
    """A NaN token would make the whole line unreadable to a strict peer."""
    values = [math.nan, math.inf, -math.inf]
    data = encode_outcome(Outcome("j1", Status.SUCCESS, values, retry_after_seconds=math.nan))
    assert json.loads(data)["result"] == [None] * 3
    assert json.loads(data)["retry_after_seconds"] is None


def endless() -> list[Any]:
    """A list that holds itself."""
    around: list[Any] = []
    around.append(around)
    return around


@pytest.mark.req("X3")
@pytest.mark.parametrize(
    "result", [object(), "\ud800", {"\ud800": 1}, {(1, 2): 3}, endless(), 1j, lambda: None]
)
def test_what_json_cannot_hold_raises_what_a_caller_can_catch(result: Any) -> None:
    """The runtime turns it into a proper outcome; nothing was half written."""
    expected = (TypeError, ValueError, RecursionError, msgspec.MsgspecError)
    with pytest.raises(expected):
        encode_outcome(Outcome("j1", Status.SUCCESS, result=result))


def test_reprs_do_not_show_arguments_results_or_messages() -> None:
    """They end in logs and tracebacks."""
    request = served(line(args=["secret"], kwargs={"secret": 1}))
    outcome = Outcome("j1", Status.ERROR, "secret", error_message="secret", error_type="E")
    assert repr(request) == "Request(job_id='j1', function_name='resize')"
    for frame in (request, outcome, Refusal(outcome)):
        assert "secret" not in repr(frame)
    assert "secret" not in str(request.__rich_repr__())
