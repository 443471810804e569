"""Rows that are written together lie in the file as if each had been written alone."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ergon_framework.boundary.factstore.sqlite import SqliteFactStore
from ergon_framework.boundary.factstore.sqlite.append import MAX_ROWS
from ergon_framework.ports.factstore import OUTBOUND, Appended, NewFact
from ergon_framework.testing.suites.factstore.under_test import new
from tests.boundary.sqlite.conftest import ZONE

pytestmark = pytest.mark.req("BOUNDARY:store")

WRITTEN = (
    "SELECT * FROM ergon_boundary_facts",
    "SELECT * FROM ergon_boundary_runs",
    "SELECT * FROM ergon_boundary_views",
)


def kept(path: Path) -> list[list[tuple[Any, ...]]]:
    """All that appends write."""
    with closing(sqlite3.connect(path)) as connection:
        return [sorted(connection.execute(each).fetchall()) for each in WRITTEN]


def appended(path: Path, groups: list[list[NewFact]]) -> list[list[tuple[Any, ...]]]:
    """What lies in a new store after these were appended, and that nothing is wrong with it."""
    with closing(SqliteFactStore(path, zone=ZONE, clock=lambda: 1000.5)) as store:
        outcomes = [outcome for group in groups for outcome in store.append(OUTBOUND, group)]
        assert outcomes == [Appended(number) for number in range(1, len(outcomes) + 1)]
        assert [each for each in store.verify(OUTBOUND) if not isinstance(each, int)] == []
    return kept(path)


@given(st.lists(st.sampled_from(["plant-b", "plant-c", "Werk Süd"]), min_size=1, max_size=150))
@example(["plant-b"] * (MAX_ROWS - 1))
@example(["plant-b"] * MAX_ROWS)
@example(["plant-b"] * (2 * MAX_ROWS + 3))
@settings(max_examples=10, deadline=None)
def test_together_and_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, zones: list[str]
) -> None:
    """Rows, chain, runs and views are the same to the byte, for any number of facts."""
    folder = tmp_path_factory.mktemp("stores")
    facts = [new(f"id-{number}", to_zone=zone) for number, zone in enumerate(zones)]
    together = appended(folder / "together.db", [facts])
    assert together == appended(folder / "alone.db", [[each] for each in facts])
    assert len(together[0]) == len(facts)


@pytest.mark.parametrize("place", [1, MAX_ROWS, MAX_ROWS + 2])
def test_nothing_of_a_group_stays_when_a_statement_fails(tmp_path: Path, place: int) -> None:
    """Whichever statement it is, those before it are undone, and the group can come again."""
    path = tmp_path / "facts.db"
    facts = [new(f"id-{number}") for number in range(MAX_ROWS + 3)]
    with closing(SqliteFactStore(path, zone=ZONE)) as store:
        with closing(sqlite3.connect(path)) as other, other:
            other.execute(
                "CREATE TRIGGER stop BEFORE INSERT ON ergon_boundary_facts"
                f" WHEN new.id & 0xffffffff = {place} BEGIN SELECT RAISE(ABORT, 'stopped'); END"
            )
        with pytest.raises(sqlite3.IntegrityError, match="stopped"):
            store.append(OUTBOUND, facts)
        assert store.logs()[0].head == 0
        with closing(sqlite3.connect(path)) as other, other:
            other.execute("DROP TRIGGER stop")
        assert store.append(OUTBOUND, facts)[-1] == Appended(len(facts))
