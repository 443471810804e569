"""Hostile bytes: nothing raises, nothing is lost after them, nothing depends on the cuts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any, TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ergon_framework.core.executor_protocol import (
    ExecutorSession,
    OrchestratorSession,
    Outcome,
    Refusal,
    Reply,
    Request,
    Status,
    Stray,
    encode_outcome,
    encode_request,
)

pytestmark = [pytest.mark.slow, pytest.mark.req("JOBS:wire", "JOBS:badinput", "X1", "X6")]

CALM = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # busy machines

Session: TypeAlias = ExecutorSession | OrchestratorSession
SESSIONS: list[Callable[[int], Session]] = [ExecutorSession, OrchestratorSession]
LIMIT = 600

REQUEST = encode_request(
    job_id="j1",
    function_name="f",
    args=b'[1,"two"]',
    kwargs=b'{"flag":true}',
    attempt=1,
    enqueued_at=1735732800.5,
    queue_name="default",
    deadline_at=1735733100.0,
    trace_context={"traceparent": "00-ab"},
    worker_id="w",
)
OUTCOME = encode_outcome(Outcome("j1", Status.SUCCESS, {"ok": [1, None, "é"]}))

TOKENS = st.sampled_from(
    rb'{ } [ ] : , " \ \u d800 \udc00 null true NaN 1e999 - 0 "job_id" "j1" "status"'.split()
    + rb'"success" "context" "protocol_version" "deadline" \ud83d\ude00'.split()
    + b"\xff/\x00/ /\r/\n/\xe2\x80\xa8/\xf0\x9f/\x0c".split(b"/")
    + [b"[" * 300, b'{"a":' * 100, b"9" * 300]
)
NOISE = st.binary(max_size=80) | st.lists(TOKENS, max_size=30).map(b"".join)


NAMES = [
    *("job_id", "function_name", "args", "kwargs", "context", "protocol_version", "attempt"),
    *("deadline", "status", "result", "error_message", "error_type", "retry_after_seconds"),
]


@st.composite
def mutants(draw: st.DrawFn) -> bytes:
    """A good line in which something was replaced, cut out or put in."""
    line = draw(st.sampled_from([REQUEST, OUTCOME]))
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(line)))
        end = draw(st.integers(start, min(len(line), start + 20)))
        line = line[:start] + draw(NOISE) + line[end:]
    return line


@st.composite
def odd_documents(draw: st.DrawFn) -> bytes:
    """Proper JSON with the right names and any values."""
    names = st.sampled_from(NAMES)
    values = st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text()
        | st.sampled_from(["1", "2", "j1", "success", "2025-01-01T12:00:00Z"]),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=6),
        max_leaves=12,
    )
    document = draw(st.dictionaries(names, values, max_size=8))
    return json.dumps(document, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")


HOSTILE = st.lists(NOISE | mutants() | odd_documents(), max_size=4).map(b"\n".join)


def run(session: Session, pieces: list[bytes]) -> list[Any]:
    """All frames of an input that comes in these pieces."""
    frames: list[Any] = []
    for piece in pieces:
        frames += session.feed(piece)
    return frames + session.end()


def is_well_formed(frame: Any) -> bool:
    """Whether the frame can be handed on without a second look."""
    if isinstance(frame, Refusal):
        [reply] = OrchestratorSession().feed(encode_outcome(frame.outcome))
        return isinstance(reply, Reply) and reply.status is Status.ERROR
    if isinstance(frame, Request):
        return frame.context.attempt >= 1 and frame.job_id == frame.context.job_id
    if isinstance(frame, Reply):
        return bool(frame.result.decode())
    return isinstance(frame, Stray) and bool(frame.reason) and frame.size > 0


@pytest.mark.parametrize("make", SESSIONS)
@CALM
@given(data=HOSTILE)
def test_no_bytes_raise_and_the_next_line_is_served(
    make: Callable[[int], Session], data: bytes
) -> None:
    """Whatever came before, a good line after a newline is read."""
    good = REQUEST if make is ExecutorSession else OUTCOME
    [expected] = make(LIMIT).feed(good)
    frames = run(make(LIMIT), [data + b"\n" + good])
    assert frames[-1] == expected
    assert all(map(is_well_formed, frames))


@pytest.mark.parametrize("make", SESSIONS)
@CALM
@given(data=HOSTILE)
def test_every_line_that_is_not_blank_makes_one_frame(
    make: Callable[[int], Session], data: bytes
) -> None:
    """No line is swallowed and none is answered twice."""
    lines = [line for line in data.split(b"\n") if len(line) > LIMIT or line.strip()]
    assert len(run(make(LIMIT), [data])) == len(lines)


@pytest.mark.parametrize("make", SESSIONS)
@CALM
@given(data=HOSTILE, cuts=st.lists(st.integers(0, 1500), max_size=10), limit=st.integers(1, LIMIT))
def test_the_frames_do_not_depend_on_how_the_bytes_were_cut(
    make: Callable[[int], Session], data: bytes, cuts: list[int], limit: int
) -> None:
    """A pipe may cut anywhere: in a character, before a newline, after a carriage return."""
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[start:end] for start, end in pairwise(edges)]
    whole = run(make(limit), [data])
    assert run(make(limit), pieces) == whole
    assert run(make(limit), [data[at : at + 1] for at in range(len(data))]) == whole


@CALM
@given(data=mutants() | odd_documents())
def test_a_refusal_never_names_a_job_that_the_line_does_not(data: bytes) -> None:
    """An answer to the wrong job would settle it; ``unknown`` settles nothing."""
    data = data.replace(b"\n", b" ")
    for frame in run(ExecutorSession(1 << 20), [data]):
        if isinstance(frame, Refusal) and frame.outcome.job_id != "unknown":
            assert frame.outcome.job_id in named_jobs(data)


def named_jobs(data: bytes) -> list[Any]:
    """The job ids at the top level of a line, as another reader sees them."""
    text = data.decode("utf-8", "surrogateescape")
    try:
        pairs = json.loads(text, object_pairs_hook=list)
    except (ValueError, RecursionError):
        # Not JSON to the end: then only what comes before the first bracket counts.
        return re.findall(r'"job_id" *: *"([^"]*)"', re.split(r"(?<!^)[\[{]", text)[0])
    return [value for name, value in pairs if name == "job_id"]
