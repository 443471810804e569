"""What we write and read by hand for PostgreSQL, Redis and NATS is what their drivers do."""

from __future__ import annotations

from typing import Any

import redis
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg.adapt import PyFormat, Transformer
from psycopg.types.numeric import Int4, Int8

from ergon_framework.storage.nats.connect import read_headers
from ergon_framework.storage.postgres.pipeline import Bigints, ByteaArray, Floats, Integers, Packed
from ergon_framework.storage.redis.client import packed

_LONG = 1 << 63
_INT = 1 << 31


def dumped(values: list[Any]) -> bytes:
    """A list as psycopg sends it."""
    dumper = Transformer().get_dumper(values, PyFormat.BINARY)
    return bytes(dumper.dump(values) or b"")


columns = st.one_of(
    st.lists(st.binary(max_size=40), min_size=1).map(lambda them: (ByteaArray(them), them)),
    st.lists(st.integers(-_LONG, _LONG - 1), min_size=1).map(
        lambda them: (Bigints(them), [Int8(each) for each in them])
    ),
    st.lists(st.integers(-_INT, _INT - 1), min_size=1).map(
        lambda them: (Integers(them), [Int4(each) for each in them])
    ),
    st.lists(st.floats(allow_nan=False), min_size=1).map(lambda them: (Floats(them), them)),
)


@given(columns)
@settings(max_examples=200, deadline=None)
def test_an_array_is_what_the_driver_makes_of_a_list(column: tuple[Packed, list[Any]]) -> None:
    """Every type that we pack ourselves."""
    ours, values = column
    assert ours.data == dumped(values)


driver: Any = redis.Connection()  # type: ignore[no-untyped-call]


@given(st.lists(st.binary(max_size=100), max_size=20))
@settings(max_examples=200, deadline=None)
def test_words_are_what_the_driver_sends(values: list[bytes]) -> None:
    """With the number of words before them."""
    words = [b"EVALSHA", *values]
    theirs = b"".join(driver.pack_command(*words))
    assert b"*%d\r\n%b" % (len(words), packed(words)) == theirs


_names = st.from_regex(r"[A-Za-z][A-Za-z0-9-]{0,20}", fullmatch=True)
_values = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Zs"]), max_size=40)


@given(st.dictionaries(_names, _values, max_size=6), st.sampled_from([":", ": ", ":\t"]))
@settings(max_examples=200, deadline=None)
def test_headers_are_read_as_they_were_written(headers: dict[str, str], mark: str) -> None:
    """Whatever stands in a value, colons included."""
    lines = [f"{name}{mark}{value}\r\n" for name, value in headers.items()]
    assert read_headers("".join([*lines, "\r\n"]).encode()) == headers


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_headers_that_are_none_raise_nothing(raw: bytes) -> None:
    """A message that nobody of ours has written is read as far as it makes sense."""
    assert all(isinstance(value, str) for value in read_headers(raw).values())
