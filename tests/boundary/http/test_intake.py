"""The short ways past the parser: known heads and blobs. They agree with the parser."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ergon_framework.boundary.http.connection import ServerConnection
from ergon_framework.boundary.http.exchange import Caller, Exchange, HttpRequest
from ergon_framework.boundary.http.parser import RequestParser
from ergon_framework.boundary.http.server_state import (
    MAX_HEAD_BYTES,
    MAX_HEADS,
    Head,
    HeadCache,
    ServerState,
)
from ergon_framework.boundary.settings import LimitSettings

pytestmark = pytest.mark.req("BOUNDARY:http")

LIMITS = LimitSettings(header_bytes=400, body_bytes=300, object_bytes=2000)


class Deposit:
    """An application to which blobs are put."""

    def is_streamed(self, method: str, path: str) -> bool:
        return method == "PUT"

    def handle(self, exchange: Exchange) -> None:
        raise AssertionError("nobody asks it")


class ParserOnly(RequestParser):
    """An intake that lets the parser see every byte."""

    def _straight(self, request: HttpRequest) -> int:
        return 0


class Reading:
    """One connection's bytes, and what became of them."""

    def __init__(self, kind: type[RequestParser], service: ServerState) -> None:
        self.requests: list[HttpRequest] = []
        line = cast("ServerConnection", None)
        caller = Caller(address="somewhere")
        self.intake = kind(service, caller, line, self.requests.append, lambda: None)

    def feed(self, pieces: Sequence[bytes]) -> list[Any]:
        for piece in pieces:
            if not self.intake.is_deaf:
                self.intake.feed(piece)
        told = [_shape(each) for each in self.requests]
        return [*told, self.intake.is_deaf, self.intake.is_receiving]


def _shape(request: HttpRequest) -> tuple[Any, ...]:
    upload = request.upload
    body = request.body if upload is None else b"".join(upload.take())
    known = ("host", "content-length", "connection", "expect", "origin", "transfer-encoding")
    return (
        (request.method, request.path, request.query, body, request.received),
        tuple(request.header(name) for name in known),
        (request.is_kept, request.is_complete, request.is_chunked, request.expects_continue),
        str(request.refusal),
        upload is not None and (upload.is_ended, str(upload.error)),
    )


class CountedHeads(HeadCache):
    """A cache that counts the requests that it recognises."""

    recognised = 0

    def known_request(self, data: bytes) -> tuple[Head, bytes] | None:
        """The head and the body, if the head is known."""
        found = super().known_request(data)
        self.recognised += found is not None
        return found


def service(heads: HeadCache | None = None) -> ServerState:
    """What connections share."""
    made = ServerState(Deposit(), LIMITS, time.monotonic, time.time, None, None)
    made.heads = HeadCache(MAX_HEADS) if heads is None else heads
    return made


METHODS = st.sampled_from(["POST", "POST", "PUT", "PUT", "GET"])
TARGETS = st.sampled_from(["/a", "/a?b=c", "/a?", "/c%20d"])
EXTRAS = st.sampled_from(
    [
        *["", "", "", ""],
        "connection: keep-alive\r\n",
        "Connection: close\r\n",
        "expect: 100-continue\r\n",
        "origin: http://elsewhere\r\n",
        "host: twice\r\n",
        f"x-long: {'x' * 300}\r\n",
    ]
)
LENGTHS = st.sampled_from([0, 1, 5, 5, 5, 40, 290, 301, 1900, 2001])


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """One request, mostly a good one."""
    version = draw(st.sampled_from(["1.1", "1.1", "1.1", "1.0"]))
    first = f"{draw(METHODS)} {draw(TARGETS)} HTTP/{version}\r\nhost: here\r\n{draw(EXTRAS)}"
    body = b"\r\n\r\n" + bytes(draw(LENGTHS))
    kind = draw(st.sampled_from(["length", "length", "length", "chunked", "none", "garbage"]))
    if kind == "length":
        return f"{first}content-length: {len(body)}\r\n\r\n".encode() + body
    if kind == "chunked":
        head = f"{first}transfer-encoding: chunked\r\n\r\n{len(body):x}\r\n".encode()
        return head + body + b"\r\n0\r\n\r\n"
    return f"{first}\r\n".encode() if kind == "none" else b"\r\n" + body


@st.composite
def streams(draw: st.DrawFn) -> list[bytes]:
    """Requests of which some come again, cut where they end or anywhere."""
    few = draw(st.lists(messages(), min_size=1, max_size=3))
    sent = draw(st.lists(st.sampled_from(few), min_size=1, max_size=8))
    if draw(st.booleans()):
        return sent
    whole = b"".join(sent)
    cuts = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    return [piece for piece in pieces if piece]


PLAIN = b"POST /a HTTP/1.1\r\nhost: here\r\ncontent-length: 2\r\n\r\nhi"
LAST = PLAIN.replace(b"host", b"connection: close\r\nhost")
BLOB = b"PUT /a HTTP/1.1\r\nhost: here\r\ncontent-length: 6\r\n\r\nabcdef"


@given(streams())
@example([PLAIN, PLAIN, PLAIN])
@example([PLAIN, LAST, PLAIN])
@example([PLAIN, PLAIN[:-1], b"i", PLAIN + PLAIN])
@example([BLOB[:-4], BLOB[-4:] + PLAIN, PLAIN])
@example([BLOB[:-4], BLOB[-4:-2], BLOB[-2:] + BLOB[:-1], BLOB[-1:] + PLAIN[:20], PLAIN[20:]])
@settings(max_examples=400, deadline=None)
def test_the_short_ways_agree_with_the_parser(pieces: list[bytes]) -> None:
    """Requests, refusals and what is still to come are the same, wherever the bytes are cut."""

    async def main() -> None:
        shared = service()
        Reading(RequestParser, shared).feed(
            pieces
        )  # another connection may have taught it the heads
        short = Reading(RequestParser, shared).feed(pieces)
        assert short == Reading(ParserOnly, service(HeadCache(0))).feed(pieces)

    asyncio.run(main())


def test_a_known_head_is_not_parsed_again() -> None:
    """The second request with the same head goes past the parser, on any connection."""

    async def main() -> None:
        heads = CountedHeads()
        shared = service(heads)
        Reading(RequestParser, shared).feed([PLAIN])
        assert heads.recognised == 0
        reading = Reading(RequestParser, shared)
        reading.feed([PLAIN, PLAIN[:-2] + b"ho"])
        assert [request.body for request in reading.requests] == [b"hi", b"ho"]
        assert heads.recognised == 2

    asyncio.run(main())


def test_a_blob_is_not_copied() -> None:
    """The bytes of a blob are handed on as they came from the socket."""

    async def main() -> None:
        reading = Reading(RequestParser, service())
        piece = BLOB[-4:]
        reading.intake.feed(BLOB[:-4])
        reading.intake.feed(piece)
        upload = reading.requests[0].upload
        assert upload is not None
        assert upload.take()[-1] is piece

    asyncio.run(main())


def test_heads_are_remembered_within_bounds() -> None:
    """Neither many heads nor long ones fill the memory."""
    heads = HeadCache(max_heads=10)
    head = Head("POST", "/a", {}, 0)
    for number in range(100):
        heads.remember(b"POST /%d HTTP/1.1\r\n\r\n" % number, head)
        assert len(heads) <= 10
    long = b"POST /" + b"a" * MAX_HEAD_BYTES + b" HTTP/1.1\r\n\r\n"
    heads.remember(long, head)
    assert heads.known_request(long) is None
