from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from ergon_framework.boundary.client.effects import RETRY_RULE
from ergon_framework.boundary.client.producer import AsyncProducer, Producer
from ergon_framework.boundary.http.async_client import AsyncHttpTransport
from ergon_framework.boundary.http.client import HttpTransport
from ergon_framework.boundary.http.codec import ResponseReader
from ergon_framework.core.retry import Backoff
from ergon_framework.errors import (
    ArtifactError,
    BoundaryError,
    BoundaryNotFoundError,
    BufferFullError,
    ConfigurationError,
    ConflictingDuplicateError,
    ConsumerHeldError,
    DataLossError,
    FactInvalidError,
    NodeUnavailableError,
    NotPermittedError,
    ObjectConflictError,
)
from tests.boundary.client.raw_server import PATIENCE, Colour, Peer, echo, once_gone, reach, serving
from tests.boundary.client.scripted import ENVELOPE, FACT

BOTH = pytest.mark.parametrize("colour", ["threads", "tasks"])
pytestmark = pytest.mark.req("BOUNDARY:http")
METHOD = "bsfg.v1.Boundary/AppendFact"


def call(body: bytes = b'{"n":1}', timeout: float | None = None) -> Callable[[Any], Any]:
    """A call to be made."""
    return lambda transport: transport.call(METHOD, body, timeout=timeout)


@BOTH
def test_call_and_keep_alive(colour: Colour) -> None:
    """Calls go out as JSON posts, one after the other over the same connection."""
    with serving(echo) as server:
        assert reach(colour, server, call(b"1"), call(b"22")) == [b"1", b"22"]
        assert len(server.peers) == 1
        head = server.requests[0][0].split("\r\n")
    assert head[0] == f"POST /{METHOD} HTTP/1.1"
    assert f"Host: {server.url.removeprefix('http://')}" in head
    assert "Content-Type: application/json" in head


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_has_connections_of_its_own() -> None:
    """On a shared one, each process would read answers to what the other has asked."""
    with serving(echo) as server, HttpTransport(server.url) as transport:
        assert transport.call(METHOD, b"0") == b"0"
        pid = os.fork()
        if pid == 0:
            is_own = False
            with suppress(BaseException):
                is_own = transport.call(METHOD, b"1") == b"1"
            os._exit(0 if is_own else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert transport.call(METHOD, b"2") == b"2"
        assert [[body for _, body in peer.requests] for peer in server.peers] == [
            [b"0", b"2"],
            [b"1"],
        ]


@BOTH
def test_path_prefix(colour: Colour) -> None:
    """A node may live under a path."""
    with serving(echo) as server:
        reach(colour, f"{server.url}/zone-a/", call())
        assert server.requests[0][0].startswith(f"POST /zone-a/{METHOD} ")


@BOTH
def test_pieces_and_chunks(colour: Colour) -> None:
    """An answer may come byte by byte, in chunks, or end with the connection."""

    def drip(peer: Peer) -> None:
        peer.take()
        for byte in b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok":
            peer.say(bytes([byte]))
        peer.take()
        peer.say(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
        )
        peer.take()
        peer.say(b"HTTP/1.0 200 OK\r\n\r\nto the end")

    with serving(drip) as server:
        assert reach(colour, server, call(), call(), call()) == [b"ok", b"abcde", b"to the end"]


@BOTH
def test_large_answer(colour: Colour) -> None:
    """An answer of some megabytes arrives whole."""
    data = b"x" * (5 << 20)

    def large(peer: Peer) -> None:
        peer.take()
        peer.answer(data)

    with serving(large) as server:
        assert reach(colour, server, call()) == [data]


@BOTH
@pytest.mark.parametrize("manner", ["closed", "reset", "announced"])
def test_stale_connection(colour: Colour, manner: str) -> None:
    """A kept connection that died meanwhile is noticed, and nothing is sent over it."""

    def dying(peer: Peer) -> None:
        peer.take()
        peer.answer(b"1", "200 OK", *(["Connection: close"] if manner == "announced" else []))
        if manner == "reset":
            peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    with serving(dying, echo) as server:
        assert reach(colour, server, call(b"1"), once_gone(server, call(b"2"))) == [b"1", b"2"]
        assert [body for _, body in server.requests] == [b"1", b"2"]


@BOTH
def test_stale_connection_with_a_request_in_it(colour: Colour) -> None:
    """A kept connection that swallows a request and dies is an error: nothing is sent twice."""

    def swallowing(peer: Peer) -> None:
        peer.take()
        peer.answer(b"1")
        peer.take()

    with serving(swallowing, echo) as server:
        with pytest.raises(NodeUnavailableError) as caught:
            reach(colour, server, call(b"1"), call(b"2"))
        assert caught.value.reason == "connection_lost"
        assert [body for _, body in server.requests] == [b"1", b"2"]


def appending(*, is_once: bool = False) -> Callable[[Any], Any]:
    """A producer's append, with the attempts of the schedule and none of its waits."""

    def append(transport: Any) -> Any:
        kind = Producer if isinstance(transport, HttpTransport) else AsyncProducer
        producer = kind(transport, retry=replace(RETRY_RULE, backoff=Backoff(base=0.1, free=4)))
        return (producer.once() if is_once else producer).append_fact(ENVELOPE, FACT)

    return append


@BOTH
@pytest.mark.req("P5", "BSFG:Retry")
def test_four_attempts_are_four_requests(colour: Colour) -> None:
    """Whether a connection is new or kept when it is cut: each request is an attempt."""

    def busy_then_cut(peer: Peer) -> None:
        peer.take()
        peer.answer(b'{"code":"unavailable","message":"later"}', "503 Service Unavailable")
        peer.take()

    with serving(busy_then_cut) as server:
        with pytest.raises(NodeUnavailableError) as caught:
            reach(colour, server, appending())
        assert caught.value.reason == "connection_lost"
        assert len({body for _, body in server.requests}) == 1
        assert len(server.requests) == 4


@BOTH
def test_once_is_one_request(colour: Colour) -> None:
    """Also over a kept connection that is cut; one that was closed before is not even used."""

    def cut(peer: Peer) -> None:
        peer.take()
        peer.answer()
        peer.take()

    def closed(peer: Peer) -> None:
        peer.take()
        peer.answer()

    def served(peer: Peer) -> None:
        peer.take()
        peer.answer(b'{"offset":7}')

    with serving(cut, served) as server:
        with pytest.raises(NodeUnavailableError):
            reach(colour, server, call(), appending(is_once=True))
        assert len(server.requests) == 2
    with serving(closed, served) as server:
        act = once_gone(server, appending(is_once=True))
        assert reach(colour, server, call(), act)[1].offset == 7
        assert len(server.requests) == 2


KEPT = 6


def calls_at_once(transport: Any) -> Any:
    """As many as there are to be kept connections afterwards; all are answered together."""
    if isinstance(transport, HttpTransport):
        with ThreadPoolExecutor(KEPT) as pool:
            return list(pool.map(lambda n: transport.call(METHOD, b"%d" % n), range(KEPT)))
    return asyncio.gather(*(transport.call(METHOD, b"%d" % n) for n in range(KEPT)))


def forgotten(manner: str) -> Callable[[Peer], None]:
    """Connections that die without a word once all are kept: the next request finds out."""
    together = threading.Barrier(KEPT)

    def talk(peer: Peer) -> None:
        peer.take()
        together.wait(PATIENCE)
        peer.answer()
        peer.take()
        if manner == "reset":
            peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        elif manner == "silent":
            peer.sock.recv(1)  # until the client gives up

    return talk


def given_up(act: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Do something that fails."""

    def acting(transport: Any) -> Any:
        if isinstance(transport, HttpTransport):
            with pytest.raises(NodeUnavailableError):
                act(transport)
            return None

        async def act_async() -> None:
            with pytest.raises(NodeUnavailableError):
                await act(transport)

        return act_async()

    return acting


def append_served(peer: Peer) -> None:
    """A healthy node."""
    while True:
        peer.take()
        peer.answer(b'{"offset":7}')


@BOTH
@pytest.mark.req("BSFG:Retry")
def test_one_dead_connection_costs_one_attempt(colour: Colour) -> None:
    """Its siblings died as it did: they are not tried one by one until no attempt is left."""
    with serving(*[forgotten("reset")] * KEPT, append_served) as server:
        assert reach(colour, server, calls_at_once, appending())[1].offset == 7
        assert len(server.requests) == KEPT + 2


@BOTH
@pytest.mark.parametrize("manner", ["closed", "reset", "silent"])
def test_after_a_dead_connection_comes_a_new_one(colour: Colour, manner: str) -> None:
    """However it died; also for those who have no second attempt."""
    with serving(*[forgotten(manner)] * KEPT, append_served) as server:
        lost = given_up(call(b"lost", timeout=0.2 if manner == "silent" else None))
        once = appending(is_once=True)
        assert reach(colour, server, calls_at_once, lost, once)[2].offset == 7


@BOTH
def test_nobody_there(colour: Colour) -> None:
    """A port that nobody listens on is a failed connect, which may be tried again."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # and kept, or another process might listen there
        with pytest.raises(NodeUnavailableError) as caught:
            reach(colour, f"http://127.0.0.1:{silent.getsockname()[1]}", call())
    assert (caught.value.code, caught.value.reason) == ("unavailable", "connect_failed")
    assert caught.value.is_retryable


@BOTH
def test_slow_answer(colour: Colour) -> None:
    """An answer that does not come in time leaves the outcome unknown, and the next call works."""
    gone = threading.Event()

    def slow(peer: Peer) -> None:
        peer.take()
        peer.say(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")
        peer.sock.recv(1)  # until the client gives up
        gone.set()

    with serving(slow, echo) as server:
        with pytest.raises(NodeUnavailableError) as caught:
            reach(colour, server, call(b"", timeout=2.0))  # time enough for the request to go out
        assert gone.wait(10)
    assert (caught.value.code, caught.value.reason) == ("deadline_exceeded", "timeout")
    assert caught.value.is_retryable


@BOTH
@pytest.mark.parametrize(
    "said",
    [b"", b"HTTP/1.1 200 OK\r\nContent-Le", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"],
    ids=["nothing", "half a head", "half a body"],
)
def test_cut_answer(colour: Colour, said: bytes) -> None:
    """An answer that ends too early is a lost connection, never half an answer."""

    def cutting(peer: Peer) -> None:
        peer.take()
        peer.say(said)

    with serving(cutting) as server, pytest.raises(NodeUnavailableError) as caught:
        reach(colour, server, call())
    assert caught.value.reason == "connection_lost"


@BOTH
@pytest.mark.parametrize(
    "said",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"220 smtp ready\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 70_000,
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 5\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    ],
    ids=["tls", "smtp", "endless head", "two lengths", "bad chunk", "upgrade"],
)
def test_garbage(colour: Colour, said: bytes) -> None:
    """Whatever is not HTTP is a clear error that is bounded in memory."""

    def rude(peer: Peer) -> None:
        peer.take()
        peer.say(said)
        peer.sock.recv(1)

    with serving(rude) as server, pytest.raises(NodeUnavailableError) as caught:
        reach(colour, server, call())
    assert caught.value.reason == "bad_answer"


@BOTH
def test_endless_answer(colour: Colour, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer without an end is given up at the limit."""
    for module in ("client", "async_client"):
        name = f"ergon_framework.boundary.http.{module}.ResponseReader"

        monkeypatch.setattr(name, lambda **_: ResponseReader(limit=1 << 20))

    def endless(peer: Peer) -> None:
        peer.take()
        peer.say(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            peer.say(b"x" * 65536)

    with serving(endless) as server, pytest.raises(BoundaryError) as caught:
        reach(colour, server, call())
    assert caught.value.reason == "answer_too_large"
    assert not caught.value.is_retryable


ERRORS: list[tuple[int, str, str, type[BoundaryError]]] = [
    (409, "already_exists", "conflicting_duplicate", ConflictingDuplicateError),
    (409, "already_exists", "object_conflict", ObjectConflictError),
    (409, "already_exists", "consumer_exists", BoundaryError),
    (400, "invalid_argument", "pattern", FactInvalidError),
    (400, "failed_precondition", "artifact_missing", ArtifactError),
    (400, "failed_precondition", "artifact_mismatch", ArtifactError),
    (400, "failed_precondition", "not_served", BoundaryError),
    (400, "out_of_range", "truncated", BoundaryError),
    (401, "unauthenticated", "", NotPermittedError),
    (403, "permission_denied", "", NotPermittedError),
    (404, "not_found", "", BoundaryNotFoundError),
    (404, "unimplemented", "", BoundaryError),
    (409, "aborted", "consumer_held", ConsumerHeldError),
    (413, "invalid_argument", "body_too_large", FactInvalidError),
    (429, "resource_exhausted", "buffer_full", BufferFullError),
    (500, "internal", "", BoundaryError),
    (500, "data_loss", "corrupted", DataLossError),
    (503, "unavailable", "stopping", NodeUnavailableError),
    (504, "deadline_exceeded", "", NodeUnavailableError),
]


@BOTH
@pytest.mark.req("BSFG:Errors")
@pytest.mark.parametrize(("status", "code", "reason", "kind"), ERRORS)
def test_errors(
    colour: Colour, status: int, code: str, reason: str, kind: type[BoundaryError]
) -> None:
    """Each refusal becomes its exception, with reason, remedy, details and when to come back."""
    details = {"reason": reason, "remedy": "do so", "field": "f", "retry_after_ms": 1500}
    shape = {"code": code, "message": "no", "details": details}

    def refusing(peer: Peer) -> None:
        for _ in range(2):
            peer.take()
            peer.answer(json.dumps(shape).encode(), f"{status} No")

    def act(transport: Any) -> Any:
        return transport.call(METHOD, b"{}")

    with serving(refusing) as server:
        with pytest.raises(BoundaryError) as caught:
            reach(colour, server, act)
        error = caught.value
    assert type(error) is kind
    assert (error.code, error.reason, error.remedy) == (code, reason or kind.reason, "do so")
    assert error.details == {"field": "f"}
    assert error.retry_after == 1.5


@BOTH
@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (404, BoundaryError, "unimplemented"),
        (429, BufferFullError, "resource_exhausted"),
        (502, NodeUnavailableError, "unavailable"),
        (503, NodeUnavailableError, "unavailable"),
        (504, NodeUnavailableError, "deadline_exceeded"),
        (302, BoundaryError, "unknown"),
        (204, BoundaryError, "unknown"),
    ],
)
def test_answers_that_are_no_nodes(
    colour: Colour, status: int, kind: type[BoundaryError], code: str
) -> None:
    """A proxy's page is understood by its status; its 404 does not mean that a fact is unknown."""

    def proxy(peer: Peer) -> None:
        peer.take()
        body = b"" if status == 204 else b"<html>"
        peer.answer(body, f"{status} X", "Retry-After: 7")

    with serving(proxy) as server, pytest.raises(BoundaryError) as caught:
        reach(colour, server, call())
    assert type(caught.value) is kind
    assert (caught.value.code, caught.value.retry_after) == (code, 7.0)
    assert caught.value.reason == "bad_answer"
    assert "check the URL" in caught.value.remedy


@BOTH
def test_refused_before_it_was_sent(colour: Colour) -> None:
    """A node that refuses a long request without reading on is understood all the same."""
    shape = {"code": "invalid_argument", "message": "no", "details": {"reason": "body_too_large"}}

    def refusing(peer: Peer) -> None:
        peer.take(with_body=False)
        peer.answer(json.dumps(shape).encode(), "413 Too Large", "Connection: close")
        peer.sock.shutdown(socket.SHUT_WR)
        while peer.sock.recv(65536):
            pass

    with serving(refusing) as server, pytest.raises(FactInvalidError) as caught:
        reach(colour, server, call(b"x" * (20 << 20)))
    assert caught.value.reason == "body_too_large"


# ---- many at once, and the end ----


def test_many_threads() -> None:
    """More threads than connections share them, and every answer reaches who asked."""
    with serving(echo) as server, HttpTransport(server.url, connections=3) as transport:
        wrong: list[Any] = []

        def ask(n: int) -> None:
            for m in range(50):
                body = b"%d" % (n * 1000 + m)
                if transport.call(METHOD, body) != body:
                    wrong.append(body)

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(1, 9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert wrong == []
        assert len(server.peers) <= 3


def test_many_tasks() -> None:
    """More tasks than connections share them; a cancelled one does not spoil its connection."""
    waiting = threading.Event()

    def patient(peer: Peer) -> None:
        peer.take()
        waiting.set()
        peer.sock.recv(1)

    async def main() -> None:
        with serving(patient, echo) as server:
            async with AsyncHttpTransport(server.url, connections=3) as transport:
                lost = asyncio.create_task(transport.call(METHOD, b"0"))
                assert await asyncio.to_thread(waiting.wait, 10)
                lost.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await lost
                bodies = [b"%d" % n for n in range(1, 200)]
                answers = await asyncio.gather(*(transport.call(METHOD, b) for b in bodies))
                assert answers == bodies
                assert len(server.peers) <= 4

    asyncio.run(main())


@BOTH
def test_closed_transport(colour: Colour) -> None:
    """A closed transport says so, and closing again is fine."""

    def act(transport: Any) -> Any:
        if isinstance(transport, HttpTransport):
            transport.close()
            return transport.call(METHOD, b"")

        async def act_async() -> Any:
            await transport.close()
            return await transport.call(METHOD, b"")

        return act_async()

    with serving(echo) as server, pytest.raises(NodeUnavailableError, match="closed"):
        reach(colour, server, act)


def test_all_connections_in_use() -> None:
    """A stream that is not closed keeps its place, and who waits too long is told why."""

    def stream(peer: Peer) -> None:
        peer.take()
        peer.say(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        peer.sock.recv(1)

    with (
        serving(stream) as server,
        HttpTransport(server.url, connections=1) as transport,
        transport.get_object("b", "k"),
    ):
        with pytest.raises(NodeUnavailableError) as caught:
            transport.call(METHOD, b"", timeout=0.01)
        assert caught.value.reason == "connections_busy"


@pytest.mark.req("BOUNDARY:security")
@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("ftp://127.0.0.1", {}),
        ("127.0.0.1:9443", {}),
        ("http://127.0.0.1:99999", {}),
        ("http://", {}),
        ("http://plant-a.example:9443", {}),
        ("http://127.0.0.1:1", {"expected_zone": "plant-a"}),
        ("http://127.0.0.1:1", {"tls": lambda: None}),
    ],
)
def test_wrong_addresses(url: str, options: dict[str, Any]) -> None:
    """What is no node's URL is refused, and so is sending facts in the clear over a network."""
    with pytest.raises(ConfigurationError):
        HttpTransport(url, **options)
