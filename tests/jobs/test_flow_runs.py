"""Lists of steps as runs: nothing is lost, and numbers at equal distances take one entry."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergon_framework.ports.flow import RUN, as_runs, from_runs

SOURCES = st.integers(1, 40) | st.lists(st.integers(1, 9), max_size=3)


@given(st.lists(SOURCES, max_size=30))
def test_a_list_comes_back(sources: list[Any]) -> None:
    """Whatever the numbers, and whatever stands between them."""
    assert list(from_runs(as_runs(sources))) == sources


@given(first=st.integers(1, 99), count=st.integers(4, 50), distance=st.integers(1, 9))
def test_one_run_is_one_entry(first: int, count: int, distance: int) -> None:
    """A group of very many steps takes no room."""
    numbers = [first + distance * n for n in range(count)]
    assert as_runs(iter(numbers)) == [{RUN: [first, count, distance]}]


@pytest.mark.parametrize(
    ("sources", "runs"),
    [
        ([], []),
        ([3], [3]),
        ([1, 2, 3], [1, 2, 3]),
        ([1, 2, 3, 4, 9], [{RUN: [1, 4, 1]}, 9]),
        ([2, 2, 2, 2], [{RUN: [2, 4, 0]}]),
        ([9, 7, 5, 3], [{RUN: [9, 4, -2]}]),
        ([[1], 2, 3, 4, 5], [[1], {RUN: [2, 4, 1]}]),
    ],
)
def test_what_is_written(sources: list[Any], runs: list[Any]) -> None:
    """A run is broken by anything else, and three numbers make none."""
    assert as_runs(sources) == runs
