"""The SQLite fact store under the behaviour suite."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from ergon_framework.boundary.factstore.hashchain import OFFSET_BITS
from ergon_framework.boundary.factstore.sqlite import SqliteFactStore
from ergon_framework.ports.factstore import FactStore
from ergon_framework.testing.suites.factstore import FACT_STORE_CHECKS, exercise_fact_store

ZONE = "plant-a"
DAMAGE = """
UPDATE ergon_boundary_facts SET fact = CAST(fact || 'x' AS BLOB)
WHERE id = ((SELECT id FROM ergon_boundary_logs WHERE name = ?) << ?) + ?
"""


def damage(store: FactStore, log: str, offset: int) -> None:
    """Change a stored fact as a failing disk might."""
    assert isinstance(store, SqliteFactStore)
    with closing(sqlite3.connect(store.path)) as connection, connection:
        assert connection.execute(DAMAGE, (log, OFFSET_BITS, offset)).rowcount == 1


@pytest.mark.req("BOUNDARY:store")
@pytest.mark.parametrize("check", [check.name for check in FACT_STORE_CHECKS])
def test_the_sqlite_store_keeps_its_promises(check: str, tmp_path: Path) -> None:
    """Each check of the suite, also the recommended ones; none is skipped."""
    numbers = itertools.count()
    clocks: dict[Path, Callable[[], float]] = {}

    def make(clock: Callable[[], float]) -> SqliteFactStore:
        path = tmp_path / f"{next(numbers)}.db"
        clocks[path] = clock
        return SqliteFactStore(path, zone=ZONE, clock=clock)

    def reopen(store: FactStore) -> SqliteFactStore:
        assert isinstance(store, SqliteFactStore)
        store.close()
        return SqliteFactStore(store.path, zone=ZONE, clock=clocks[store.path])

    def restore(folder: str, clock: Callable[[], float]) -> SqliteFactStore:
        return SqliteFactStore(Path(folder) / "facts.db", zone=ZONE, clock=clock)

    report = exercise_fact_store(make, reopen=reopen, corrupt=damage, restore=restore, only={check})
    report.raise_for_failures(recommended=True)
    assert not report.skipped


def test_the_store_serves_the_port(tmp_path: Path) -> None:
    """A type checker accepts it wherever the port is asked for."""
    store: FactStore = SqliteFactStore(tmp_path / "facts.db", zone=ZONE)
    assert "power cut" in store.acknowledgement
    store.close()
