from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ergon_framework.core.executor_protocol import MAX_LINE, LineSplitter, TooLong

pytestmark = pytest.mark.req("EXEC:Transport", "JOBS:wire")

CALM = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # busy machines


def test_lines_end_at_the_newline_byte_and_nowhere_else() -> None:
    """U+2028, U+0085, form feed and friends are part of the text: other readers cut there."""
    odd = "a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg😀".encode()
    assert LineSplitter().feed(odd + b"\nnext\n") == [odd, b"next"]


def test_a_line_may_come_in_pieces() -> None:
    """Pipes cut where they like, also inside a character."""
    lines = LineSplitter()
    assert [lines.feed(bytes([byte])) for byte in "é\n".encode()] == [[], [], ["é".encode()]]


def test_one_carriage_return_before_the_newline_is_taken_off() -> None:
    """CRLF is tolerated; a carriage return elsewhere belongs to the line."""
    assert LineSplitter().feed(b"a\r\nb\r\r\n\r\nc\rd\n") == [b"a", b"b\r", b"", b"c\rd"]


def test_a_carriage_return_may_be_cut_off_from_its_newline() -> None:
    """Where the pieces meet makes no difference."""
    lines = LineSplitter()
    assert lines.feed(b"a\r") == []
    assert lines.feed(b"\nb") == [b"a"]
    assert lines.end() == [b"b"]


def test_many_lines_in_one_piece_come_out_in_order() -> None:
    """A busy pipe gives many at once."""
    assert LineSplitter().feed(b"1\n2\n\n3\n4") == [b"1", b"2", b"", b"3"]


def test_the_last_line_needs_no_newline() -> None:
    """At the end of input what is left is a line; after that, nothing is."""
    lines = LineSplitter()
    assert lines.feed(b"one\ntwo\r") == [b"one"]
    assert lines.end() == [b"two"]
    assert lines.end() == []


def test_an_empty_end_is_no_line() -> None:
    """Input that ends with a newline has no further line."""
    lines = LineSplitter()
    assert lines.feed(b"one\n") == [b"one"]
    assert lines.feed(b"") == []
    assert lines.end() == []


def test_a_line_of_exactly_the_limit_is_served() -> None:
    """The limit counts the bytes before the newline."""
    assert LineSplitter(4).feed(b"1234\n") == [b"1234"]


@pytest.mark.req("X2")
def test_the_default_limit_is_far_above_the_usual_pipe() -> None:
    """Answers above 64 KiB are ordinary; a megabyte passes in one piece or in many."""
    big = b"x" * (1 << 20)
    assert MAX_LINE == 16 * 1024 * 1024
    lines = LineSplitter()
    for start in range(0, len(big), 65536):
        assert lines.feed(big[start : start + 65536]) == []
    assert lines.feed(b"\n" + big + b"\n") == [big, big]


@pytest.mark.req("X2")
def test_a_line_over_the_limit_is_reported_once_and_the_next_one_is_served() -> None:
    """It is reported as soon as it is too long: its end may never come."""
    lines = LineSplitter(4)
    assert lines.feed(b"123") == []
    assert lines.feed(b"45") == [TooLong(5, b"1234")]
    assert lines.feed(b"6789" * 1000) == []
    assert lines.feed(b"0\nok\n") == [b"ok"]


def test_lines_over_the_limit_among_others_in_one_piece() -> None:
    """Each keeps its place in the order."""
    frames = LineSplitter(4).feed(b"a\n12345\nb\n123456789\nc\n12345")
    five, nine = TooLong(5, b"1234"), TooLong(5, b"1234")
    assert frames == [b"a", five, b"b", nine, b"c", five]


def test_nothing_is_kept_of_a_line_that_is_being_skipped() -> None:
    """A peer that never ends its line costs no memory."""
    lines = LineSplitter(1000)
    for _ in range(100):
        lines.feed(b"x" * 600)
        assert lines.buffered <= 1000
    assert lines.buffered == 0
    assert lines.end() == []
    assert lines.feed(b"fresh\n") == [b"fresh"]


def test_the_repr_of_a_line_too_long_does_not_show_it() -> None:
    """It may hold anybody's data."""
    assert repr(TooLong(5, b"secret")) == "TooLong(seen=5)"


@CALM
@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=8), st.integers(1, 12))
def test_the_lines_do_not_depend_on_how_the_bytes_were_cut(
    data: bytes, cuts: list[int], limit: int
) -> None:
    """All at once, byte by byte or anyhow: the same lines, and the same ones too long."""
    data = data.replace(b"\x00", b"\n").replace(b"\x01", b"\r\n")
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    cut = LineSplitter(limit)
    pieces = [data[start:end] for start, end in pairwise(edges)]
    got = [line for piece in pieces for line in cut.feed(piece)] + cut.end()

    expected: list[bytes | TooLong] = []
    whole = data.split(b"\n")
    for line in whole if whole[-1] else whole[:-1]:
        short = line.removesuffix(b"\r")
        expected.append(short if len(line) <= limit else TooLong(limit + 1, line[:limit]))
    assert got == expected
