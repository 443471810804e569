"""Whatever bytes come, in whatever pieces, the server stays sensible."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ergon_framework.boundary.http.connection import Peer, ServerConnection
from ergon_framework.boundary.http.exchange import Exchange
from ergon_framework.boundary.http.server_state import ServerState
from ergon_framework.boundary.settings import LimitSettings

pytestmark = pytest.mark.req("BOUNDARY:http", "BOUNDARY:badinput")

LIMITS = LimitSettings(header_bytes=300, body_bytes=500)


class Paper:
    """A transport that writes down what happens to it."""

    def __init__(self) -> None:
        self.written = b""
        self.is_closed = False

    def write(self, data: bytes) -> None:
        assert not self.is_closed
        self.written += data

    def close(self) -> None:
        self.is_closed = True

    write_eof = abort = close

    def can_write_eof(self) -> bool:
        return True

    def is_closing(self) -> bool:
        return self.is_closed

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        raise AssertionError("every request is answered at once")


class Echo:
    def is_streamed(self, method: str, path: str) -> bool:
        return False

    def handle(self, exchange: Exchange) -> None:
        assert len(exchange.body) <= LIMITS.body_bytes
        exchange.reply(200, exchange.path.encode("latin-1") + b"=" + exchange.body)


def _fed(pieces: list[bytes]) -> Paper:
    def failed(exchange: Exchange, error: BaseException) -> None:
        raise error

    service = ServerState(Echo(), LIMITS, time.monotonic, lambda: 0.0, failed, None)
    paper: Any = Paper()
    connection = ServerConnection(service)
    connection.open(paper, Peer())
    for piece in pieces:
        if paper.is_closed:
            break
        connection.data_received(piece)
    result: Paper = paper
    return result


def _cut(text: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place % (len(text) + 1) for place in places} | {len(text)})
    starts = [0, *ends[:-1]]
    return [text[start:end] for start, end in zip(starts, ends, strict=True) if end > start]


def _request(body: bytes, is_chunked: bool) -> bytes:
    head = b"POST /a HTTP/1.1\r\nhost: here\r\n"
    if not is_chunked:
        return head + b"content-length: %d\r\n\r\n" % len(body) + body
    chunk = b"%x\r\n%s\r\n" % (len(body), body) if body else b""
    return head + b"transfer-encoding: chunked\r\n\r\n" + chunk + b"0\r\n\r\n"


_requests = st.lists(st.tuples(st.binary(max_size=40), st.booleans()), min_size=1, max_size=5)
_places = st.lists(st.integers(0, 10_000), max_size=12)


@given(_requests, _places)
@settings(max_examples=150, deadline=None)
def test_pieces_do_not_matter(requests: list[tuple[bytes, bool]], places: list[int]) -> None:
    """However a stream of requests is cut, its answers are the same, one for each, in order."""
    text = b"".join(_request(body, is_chunked) for body, is_chunked in requests)
    whole = _fed([text]).written
    assert _fed(_cut(text, places)).written == whole
    assert whole.count(b"HTTP/1.1 200 OK") == len(requests)
    for body, _ in requests:
        head, _, rest = whole.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK")
        assert rest.startswith(b"/a=" + body)
        whole = rest[3 + len(body) :]
    assert whole == b""


@given(_requests, st.lists(st.tuples(st.integers(0, 10_000), st.binary(max_size=3))), _places)
@settings(max_examples=100, deadline=None)
def test_damage_is_refused_or_harmless(
    requests: list[tuple[bytes, bool]], damage: list[tuple[int, bytes]], places: list[int]
) -> None:
    """Bytes that were changed never raise, and what is refused is refused once, as the last."""
    text = b"".join(_request(body, is_chunked) for body, is_chunked in requests)
    for place, new in damage:
        at = place % len(text)
        text = text[:at] + new + text[at + 1 :] or b"x"
    paper = _fed(_cut(text, places))
    refused = paper.written.count(b"connection: close\r\n")
    assert refused <= 1
    if refused:
        assert paper.is_closed


@given(st.binary(min_size=1, max_size=2000), _places)
@settings(max_examples=100, deadline=None)
def test_rubbish_is_refused(text: bytes, places: list[int]) -> None:
    """Random bytes are answered with an error or waited for, never with success."""
    assert b"200 OK" not in _fed(_cut(text, places)).written
