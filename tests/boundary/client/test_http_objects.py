from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Callable
from typing import Any

import pytest

from ergon_framework.boundary.http.client import HttpTransport
from ergon_framework.errors import (
    BoundaryNotFoundError,
    FactInvalidError,
    NodeUnavailableError,
    ObjectConflictError,
)
from tests.boundary.client.raw_server import Colour, Peer, echo, once_gone, reach, serving

BOTH = pytest.mark.parametrize("colour", ["threads", "tasks"])
pytestmark = pytest.mark.req("BOUNDARY:http")
METHOD = "bsfg.v1.Boundary/AppendFact"


@BOTH
@pytest.mark.req("BOUNDARY:objects")
def test_put_object(colour: Colour) -> None:
    """A blob is streamed with its length and digest, under a name with every odd letter encoded."""
    data = bytes(range(256)) * 20_000
    chunks = [data[n : n + 100_000] for n in range(0, len(data), 100_000)]

    def put(transport: Any) -> Any:
        return transport.put_object("b", "a/b c/ü%.pdf", chunks, size=len(data), digest="sha256:00")

    with serving(echo) as server:
        reach(colour, server, put)
        head, body = server.requests[0]
    assert head.startswith("PUT /v1/objects/b/a%2Fb%20c%2F%C3%BC%25.pdf HTTP/1.1\r\n")
    assert "Digest-SHA256: sha256:00" in head
    assert body == data


@BOTH
def test_put_object_refused_early(colour: Colour) -> None:
    """A node that refuses without reading on is understood all the same."""
    shape = {"code": "already_exists", "message": "no", "details": {"reason": "object_conflict"}}

    def refusing(peer: Peer) -> None:
        peer.take(with_body=False)
        peer.answer(json.dumps(shape).encode(), "409 Conflict", "Connection: close")
        peer.sock.shutdown(socket.SHUT_WR)
        while peer.sock.recv(65536):
            pass

    chunks = [b"x" * 100_000] * 100

    with serving(refusing) as server, pytest.raises(ObjectConflictError):
        reach(colour, server, lambda t: t.put_object("b", "k", chunks, size=10_000_000))


@BOTH
@pytest.mark.parametrize("size", [3, 5])
def test_put_object_that_changed(colour: Colour, size: int) -> None:
    """A blob that is not as long as announced is not taken for a whole one."""

    def put(transport: Any) -> Any:
        return transport.put_object("b", "k", [b"1234"], size=size)

    with serving(echo) as server, pytest.raises(FactInvalidError) as caught:
        reach(colour, server, put)
    assert caught.value.reason == "size_mismatch"


@BOTH
def test_put_object_over_a_stale_connection(colour: Colour) -> None:
    """No chunk goes over a kept connection that is dead."""

    def dying(peer: Peer) -> None:
        peer.take()
        peer.answer(b"1")

    def put(transport: Any) -> Any:
        return transport.put_object("b", "k", [b"12", b"34"], size=4)

    with serving(dying, echo) as server:
        put_then = once_gone(server, put)
        assert reach(colour, server, lambda t: t.call(METHOD, b"{}"), put_then) == [b"1", b"1234"]
        assert [body for _, body in server.requests] == [b"{}", b"1234"]


@BOTH
def test_a_name_that_cannot_be_said(colour: Colour) -> None:
    """Half a character is refused before anything is sent."""
    with serving(echo) as server, pytest.raises(FactInvalidError) as caught:
        reach(colour, server, lambda t: t.put_object("b", "k\ud800", [b"1"], size=1))
    assert (caught.value.reason, caught.value.details["field"]) == ("encoding", "key")
    assert server.requests == []


async def _drained(stream: Any) -> bytes:
    parts = []
    while part := await stream.read(1000):
        parts.append(part)
    await stream.close()
    return b"".join(parts)


def get(key: str = "k", **options: Any) -> Callable[[Any], Any]:
    """Read an object to its end."""

    def act(transport: Any) -> Any:
        if isinstance(transport, HttpTransport):
            with transport.get_object("b", key, **options) as stream:
                data = b"".join(iter(lambda: stream.read(1000), b""))
                return stream.size, stream.digest, data

        async def act_async() -> Any:
            stream = await transport.get_object("b", key, **options)
            data = await _drained(stream)
            return stream.size, stream.digest, data

        return act_async()

    return act


@BOTH
@pytest.mark.req("BOUNDARY:objects")
def test_get_object(colour: Colour) -> None:
    """An object is streamed, whole or from a byte on, and the connection is kept."""
    data = bytes(range(256)) * 10_000
    digest = hashlib.sha256(data).hexdigest()

    def objects(peer: Peer) -> None:
        assert "range" not in peer.take().lower()
        peer.answer(data, "200 OK", f"Digest-SHA256: {digest}")
        head = peer.take()
        assert head.startswith("GET /v1/objects/b/k?digest=0102 ")
        assert "Range: bytes=2500000-" in head
        peer.answer(
            data[2_500_000:],
            "206 Partial Content",
            f"Content-Range: bytes 2500000-{len(data) - 1}/{len(data)}",
        )
        peer.take()
        peer.answer(data)  # a server that knows no ranges

    with serving(objects) as server:
        whole, part, rest = reach(
            colour, server, get(), get(start=2_500_000, digest=b"\1\2"), get(start=2_500_000)
        )
        assert len(server.peers) == 1
    assert whole == (len(data), f"sha256:{digest}", data)
    assert part == rest == (len(data), "", data[2_500_000:])


@BOTH
def test_get_object_refused(colour: Colour) -> None:
    """An object that is not there is an error, and the connection is kept."""

    def objects(peer: Peer) -> None:
        peer.take()
        peer.answer(b'{"code":"not_found","message":"no","details":{}}', "404 Not Found")
        peer.take()
        peer.answer(b"1")

    def act(transport: Any) -> Any:
        if isinstance(transport, HttpTransport):
            with pytest.raises(BoundaryNotFoundError):
                transport.get_object("b", "k")
            return transport.call(METHOD, b"")

        async def act_async() -> Any:
            with pytest.raises(BoundaryNotFoundError):
                await transport.get_object("b", "k")
            return await transport.call(METHOD, b"")

        return act_async()

    with serving(objects) as server:
        assert reach(colour, server, act, connections=1) == [b"1"]
        assert len(server.peers) == 1


@BOTH
def test_get_object_cut_off(colour: Colour) -> None:
    """A stream that is cut raises, after what had come."""

    def cutting(peer: Peer) -> None:
        peer.take()
        peer.say(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n1234")

    with serving(cutting) as server, pytest.raises(NodeUnavailableError) as caught:
        reach(colour, server, get())
    assert caught.value.reason == "connection_lost"


@BOTH
def test_stream_closed_early(colour: Colour) -> None:
    """A stream that nobody reads to the end gives its place back, but not its connection."""

    def long(peer: Peer) -> None:
        peer.take()
        peer.say(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n")
        while True:
            peer.say(b"x" * 65536)

    def act(transport: Any) -> Any:
        if isinstance(transport, HttpTransport):
            stream = transport.get_object("b", "k")
            assert stream.read(10) == b"x" * 10
            stream.close()
            stream.close()
            return None

        async def act_async() -> None:
            stream = await transport.get_object("b", "k")
            assert await stream.read(10) == b"x" * 10
            await stream.close()
            await stream.close()

        return act_async()

    with serving(long, echo) as server:
        assert reach(colour, server, act, lambda t: t.call(METHOD, b"2"), connections=1) == [
            None,
            b"2",
        ]


@BOTH
@pytest.mark.req("BOUNDARY:objects")
def test_head_object(colour: Colour) -> None:
    """A head tells size and digest, or that there is no such object, without a body."""

    def heads(peer: Peer) -> None:
        assert peer.take().startswith("HEAD /v1/objects/b/k ")
        peer.say(b"HTTP/1.1 200 OK\r\nContent-Length: 77\r\nDigest-SHA256: sha256:ab\r\n\r\n")

    def none(peer: Peer) -> None:
        peer.take()
        peer.say(b"HTTP/1.1 404 Not Found\r\nContent-Length: 50\r\n\r\n")

    with serving(heads, none) as server:
        [found] = reach(colour, server, lambda t: t.head_object("b", "k"))
        assert (found.size, found.digest) == (77, "sha256:ab")
        with pytest.raises(BoundaryNotFoundError):
            reach(colour, server, lambda t: t.head_object("b", "k"))
