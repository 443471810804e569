"""Whatever a server sends, in whatever pieces, is a response or a ``BoundaryError``."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ergon_framework.boundary.http.codec import HEAD_LIMIT, ResponseReader, answer_of
from ergon_framework.errors import BoundaryError

pytestmark = pytest.mark.req("BOUNDARY:http", "BOUNDARY:badinput")

LIMIT = 2000

_bodies = st.binary(max_size=200)
_places = st.lists(st.integers(0, 10_000), max_size=12)
_framings = st.sampled_from(["length", "chunked", "close"])
_statuses = st.sampled_from([200, 206, 400, 404, 429, 500, 503])


def _response(status: int, body: bytes, framing: str) -> bytes:
    head = b"HTTP/1.1 %d Some\r\ncontent-type: application/json\r\n" % status
    if framing == "length":
        return head + b"content-length: %d\r\n\r\n" % len(body) + body
    if framing == "close":
        return head + b"\r\n" + body
    chunk = b"%x\r\n%s\r\n" % (len(body), body) if body else b""
    return head + b"transfer-encoding: chunked\r\n\r\n" + chunk + b"0\r\n\r\n"


def _cut(text: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place % (len(text) + 1) for place in places} | {len(text)})
    starts = [0, *ends[:-1]]
    return [text[start:end] for start, end in zip(starts, ends, strict=True) if end > start]


def _read(pieces: list[bytes], reader: ResponseReader) -> ResponseReader:
    """What a client does with what it receives until the server hangs up."""
    for piece in pieces:
        reader.feed(piece)
        if reader.is_done:
            return reader
    reader.end()
    return reader


@given(_statuses, _bodies, _framings, _places)
@settings(max_examples=150, deadline=None)
def test_pieces_do_not_matter(status: int, body: bytes, framing: str, places: list[int]) -> None:
    """However a response is cut, it is read as a whole, and no more than it."""
    text = _response(status, body, framing)
    reader = _read(_cut(text, places), ResponseReader())
    assert (reader.status, reader.body()) == (status, body)
    assert reader.keeps_alive == (framing != "close")


@given(
    _statuses,
    _bodies,
    _framings,
    st.lists(st.tuples(st.integers(0, 10_000), st.binary(max_size=3)), min_size=1),
    _places,
    st.sampled_from([LIMIT, None]),
)
@settings(max_examples=200, deadline=None)
def test_damage_is_a_response_or_an_error_of_ours(
    status: int,
    body: bytes,
    framing: str,
    damage: list[tuple[int, bytes]],
    places: list[int],
    limit: int | None,
) -> None:
    """Bytes that were changed raise nothing but a ``BoundaryError``, and memory stays bounded."""
    text = _response(status, body, framing)
    for place, new in damage:
        at = place % len(text)
        text = text[:at] + new + text[at + 1 :] or b"x"
    reader = ResponseReader(limit=limit)
    with suppress(BoundaryError):
        answer_of(_read(_cut(text, places), reader))
    assert reader.held <= len(text)


@given(st.binary(min_size=1, max_size=2000), _places, st.booleans())
@settings(max_examples=150, deadline=None)
def test_rubbish_is_an_error_of_ours(text: bytes, places: list[int], is_head: bool) -> None:
    """Random bytes are never taken for a response."""
    with pytest.raises(BoundaryError):
        _read(_cut(text, places), ResponseReader(is_head=is_head))


@given(st.integers(1, 50), st.booleans())
@settings(max_examples=20, deadline=None)
def test_what_never_ends_is_cut_off(size: int, is_head: bool) -> None:
    """Headers and bodies without an end are refused before they fill the memory."""
    reader = ResponseReader(limit=LIMIT)
    reader.feed(b"HTTP/1.1 200 OK\r\n" + (b"" if is_head else b"\r\n"))
    line = b"name: " + b"x" * size + b"\r\n"
    pieces = [line] * (2 * HEAD_LIMIT // len(line))
    with pytest.raises(BoundaryError):
        _read(pieces, reader)
