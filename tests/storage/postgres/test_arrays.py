"""Columns of a batch arrive at the server as they were."""

from __future__ import annotations

from typing import Any

import psycopg

from ergon_framework.storage.postgres.arrays import (
    Bigints,
    Bytes,
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
            packed = (Bytes(values[0]), Bigints(values[1]), Integers(values[2]), Floats(values[3]))
            cursor.execute("SELECT $1, $2, $3, $4", packed)
            assert cursor.fetchone() == tuple(values)
