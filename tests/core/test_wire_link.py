"""Both roles joined by a fake link that cuts what is sent wherever the test says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ergon_framework.core.executor_protocol import (
    HANDLER_NOT_FOUND,
    HELD,
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
from ergon_framework.core.rfc3339 import parse_rfc3339

pytestmark = pytest.mark.req("EXEC:Transport", "JOBS:wire")

CALM = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # busy machines

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
CUTS = st.lists(st.integers(1, 40), max_size=20)
MOMENTS = st.integers(0, 4_000_000_000_000_000).map(lambda micros: micros / 1e6)
REQUESTS = st.fixed_dictionaries(
    {
        "job_id": st.text(max_size=10),
        "function_name": st.text(max_size=10),
        "args": st.lists(JSON, max_size=3),
        "kwargs": st.dictionaries(st.text(), JSON, max_size=3),
        "attempt": st.integers(1, 2**70),
        "enqueued_at": MOMENTS,
        "queue_name": st.text(max_size=10),
        "deadline_at": st.none() | MOMENTS,
        "trace_context": st.none() | st.dictionaries(st.text(), st.text(), max_size=2),
        "worker_id": st.none() | st.text(max_size=10),
    }
)
OUTCOMES = st.builds(
    Outcome,
    job_id=st.text(max_size=10),
    status=st.sampled_from(Status),
    result=JSON,
    error_message=st.none() | st.text(),
    error_type=st.none() | st.text(),
    retry_after_seconds=st.none() | st.floats(allow_nan=False, allow_infinity=False),
)


def cut(data: bytes, sizes: Iterable[int]) -> Iterator[bytes]:
    """The bytes in pieces of these sizes, and then the rest."""
    start = 0
    for size in sizes:
        yield data[start : start + size]
        start += size
    yield data[start:]


class Link:
    """An orchestrator and an executor with two pipes between them, and nothing else."""

    def __init__(self, handler: Callable[[Request], Outcome], sizes: Iterable[int] = ()) -> None:
        self.orchestrator = OrchestratorSession()
        self.executor = ExecutorSession()
        self.received: list[Request | Refusal] = []
        self._handler = handler
        self._sizes = list(sizes)

    def send(self, data: bytes) -> list[Reply | Stray]:
        """Write to the executor; what comes back from it."""
        answers = [self._serve(piece) for piece in cut(data, self._sizes)]
        return self._back(b"".join(answers))

    def close(self) -> list[Reply | Stray]:
        """End both pipes, the executor's input first."""
        return self._back(self._answer(self.executor.end())) + self.orchestrator.end()

    def _serve(self, piece: bytes) -> bytes:
        return self._answer(self.executor.feed(piece))

    def _answer(self, frames: list[Request | Refusal]) -> bytes:
        self.received += frames
        outcomes = (f.outcome if isinstance(f, Refusal) else self._handler(f) for f in frames)
        return b"".join(map(encode_outcome, outcomes))

    def _back(self, data: bytes) -> list[Reply | Stray]:
        return [f for piece in cut(data, self._sizes) for f in self.orchestrator.feed(piece)]


def encoded(wanted: dict[str, Any]) -> bytes:
    """The request, its arguments laid out over lines as a person might store them."""
    args, kwargs = (json.dumps(wanted[name], indent=1).encode() for name in ("args", "kwargs"))
    return encode_request(**{**wanted, "args": args, "kwargs": kwargs})


def plain(job_id: str, function_name: str = "echo", args: bytes = b"[]") -> bytes:
    """A request in which nothing else matters."""
    return encode_request(
        job_id=job_id,
        function_name=function_name,
        args=args,
        kwargs=b"{}",
        attempt=1,
        enqueued_at=0.0,
        queue_name="default",
        deadline_at=None,
        trace_context=None,
        worker_id=None,
    )


def echo(request: Request) -> Outcome:
    """Gives its arguments back; knows no other handler."""
    if request.function_name == "wait":
        return Outcome(
            request.job_id, Status.RETRY, error_type=HELD, retry_after_seconds=request.args[0]
        )
    if request.function_name != "echo":
        return Outcome(request.job_id, Status.ERROR, error_type=HANDLER_NOT_FOUND)
    return Outcome(request.job_id, Status.SUCCESS, result=request.args)


@pytest.mark.parametrize("sizes", [(), (1,) * 5000, (7,) * 500], ids=["whole", "bytes", "sevens"])
def test_a_conversation(sizes: tuple[int, ...]) -> None:
    """Requests are answered in order, however the pipes cut them, and the last without newline."""
    link = Link(echo, sizes)
    sent = plain("a", args='["\u2028😀"]'.encode()) + plain("b", "wait", b"[2]") + plain("c", "x")
    assert link.send(sent + plain("d")[:-1]) == [
        Reply("a", Status.SUCCESS, '["\u2028😀"]'.encode()),
        Reply("b", Status.RETRY, error_type="held", retry_after_seconds=2.0),
        Reply("c", Status.ERROR, error_type="handler_not_found"),
    ]
    assert link.close() == [Reply("d", Status.SUCCESS, b"[]")]


@pytest.mark.req("X6")
def test_a_spoilt_request_comes_back_to_its_own_job() -> None:
    """The answer to a refused line is an outcome like any other."""
    link = Link(echo)
    spoilt = plain("a").replace(b'"attempt":1', b'"attempt":0')
    [refused, other, served] = link.send(spoilt + b"garbage\n" + plain("b"))
    assert isinstance(refused, Reply)
    assert (refused.job_id, refused.status, refused.error_type) == (
        "a",
        Status.ERROR,
        "invalid_request",
    )
    assert isinstance(other, Reply)
    assert other.job_id == "unknown"
    assert served == Reply("b", Status.SUCCESS, b"[]")


@CALM
@given(st.lists(REQUESTS, max_size=3), CUTS)
def test_every_request_arrives_as_it_was_sent(
    wanted: list[dict[str, Any]], sizes: list[int]
) -> None:
    """All that the orchestrator says is read by the executor, in order, through any cuts."""
    link = Link(lambda request: Outcome(request.job_id, Status.SUCCESS, request.args), sizes)
    replies = link.send(b"".join(map(encoded, wanted)))
    assert len(link.received) == len(replies) == len(wanted)
    for sent, got, reply in zip(wanted, link.received, replies, strict=True):
        assert isinstance(got, Request)
        context = got.context
        assert (got.job_id, got.function_name) == (sent["job_id"], sent["function_name"])
        assert (got.args, got.kwargs) == (sent["args"], sent["kwargs"])
        assert (context.job_id, context.attempt) == (sent["job_id"], sent["attempt"])
        assert (context.queue_name, context.worker_id) == (sent["queue_name"], sent["worker_id"])
        assert context.trace_context == sent["trace_context"]
        assert parse_rfc3339(context.enqueue_time) == sent["enqueued_at"]
        deadline = None if context.deadline is None else parse_rfc3339(context.deadline)
        assert deadline == sent["deadline_at"]
        assert isinstance(reply, Reply)
        assert json.loads(reply.result) == sent["args"]


@CALM
@given(st.lists(OUTCOMES, max_size=4), CUTS)
def test_every_outcome_arrives_as_it_was_sent(outcomes: list[Outcome], sizes: list[int]) -> None:
    """All that an executor answers is read by the orchestrator, in order, through any cuts."""
    session = OrchestratorSession()
    data = b"".join(map(encode_outcome, outcomes))
    replies = [frame for piece in cut(data, sizes) for frame in session.feed(piece)]
    assert session.end() == []
    for sent, got in zip(outcomes, replies, strict=True):
        assert isinstance(got, Reply)
        assert (got.job_id, got.status) == (sent.job_id, sent.status)
        assert (got.error_message, got.error_type) == (sent.error_message, sent.error_type)
        assert got.retry_after_seconds == sent.retry_after_seconds
        assert json.loads(got.result) == sent.result
