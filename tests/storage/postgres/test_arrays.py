"""Columns of a batch arrive at the server as they were."""

from __future__ import annotations

from typing import Any

import psycopg

from ergon_framework.jobs.stores.postgres.statements import numbers, texts
from ergon_framework.storage.postgres.pipeline import (
    Bigints,
    ByteaArray,
    Floats,
    Integers,
    taking_arrays,
)


def test_what_comes_out_is_what_went_in(postgres_url: str) -> None:
    """Every type, with its extremes, and without any value at all."""
    given: list[list[Any]] = [
        [b"", b"\0\xff", b"x" * 5000],
        [0, -1, (1 << 63) - 1, -(1 << 63)],
        [0, -1, (1 << 31) - 1],
        [0.0, -1.5, 1e300],
    ]
    with psycopg.connect(postgres_url) as connection:
        nothing: list[list[Any]] = [[], [], [], []]
        alike: list[list[Any]] = [[b"ab", b"cd", b"\0\0"], *given[1:]]
        blank: list[list[Any]] = [[b"", b""], *given[1:]]
        one: list[list[Any]] = [[b"x" * 70_000], *given[1:]]
        for values in (given, nothing, alike, blank, one):
            cursor = taking_arrays(psycopg.RawCursor(connection))
            packed = (
                ByteaArray(values[0]),
                Bigints(values[1]),
                Integers(values[2]),
                Floats(values[3]),
            )
            cursor.execute("SELECT $1, $2, $3, $4", packed)
            assert cursor.fetchone() == tuple(values)


def test_texts_and_numbers_of_one_kind_and_of_many(postgres_url: str) -> None:
    """Whatever is written in a shorter way for being all the same reads as it was given."""
    words: list[list[str | None]] = [
        ["ab", "cd"], ["ä", "bc"], ["a", "long one"], ["ab", None], [None, None], [""], [],
    ]  # fmt: skip
    figures: list[list[float | None]] = [
        [1.5, 1.5], [1.0, 2.25], [0.0, None], [None, None], [1e300], [],
    ]  # fmt: skip
    with psycopg.connect(postgres_url) as connection:
        cursor = taking_arrays(psycopg.RawCursor(connection))
        for some in words:
            assert cursor.execute("SELECT $1::text[]", [texts(some)]).fetchone() == (some,)
        for few in figures:
            assert cursor.execute("SELECT $1::float8[]", [numbers(few)]).fetchone() == (few,)
        big = [(1 << 63) - 1] * 3
        assert cursor.execute("SELECT $1::bigint[]", [numbers(big)]).fetchone() == (big,)
