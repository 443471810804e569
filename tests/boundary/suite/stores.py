"""How the suite gets at each store: making, reopening, damaging and restoring it."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ergon_framework.boundary.factstore.memory import MemoryFactStore
from ergon_framework.boundary.factstore.sqlite import SqliteFactStore
from ergon_framework.ports.factstore import FactStore

ZONE = "plant-a"
Clock = Callable[[], float]


class Kind(Protocol):
    """A store as the tests handle it."""

    def make(self, clock: Clock) -> FactStore:
        """A fresh one."""

    def ways(self) -> dict[str, Any]:
        """What else can be done to it, as arguments of ``exercise_fact_store``."""


@dataclass
class Memory:
    """The memory store: it cannot be opened anew."""

    folder: Path

    def make(self, clock: Clock) -> FactStore:
        return MemoryFactStore(ZONE, clock=clock)

    def ways(self) -> dict[str, Any]:
        return {"corrupt": damage_memory}


@dataclass
class Sqlite:
    """The SQLite store, in files of their own."""

    folder: Path
    made: int = 0
    opened: dict[int, tuple[Path, Clock]] = field(default_factory=dict)

    def make(self, clock: Clock) -> FactStore:
        self.made += 1
        return self._open(self.folder / f"{self.made}.db", clock)

    def ways(self) -> dict[str, Any]:
        return {"corrupt": self.corrupt, "reopen": self.reopen, "restore": self.restore}

    def reopen(self, store: FactStore) -> FactStore:
        path, clock = self.opened[id(store)]
        store.close()
        return self._open(path, clock)

    def restore(self, folder: str, clock: Clock) -> FactStore:
        return self._open(Path(folder) / "facts.db", clock)

    def corrupt(self, store: FactStore, log: str, offset: int) -> None:
        path, _ = self.opened[id(store)]
        with contextlib.closing(sqlite3.connect(path, timeout=10.0)) as other, other:
            where = "id & 0xFFFFFFFFFF = ? AND id >> 40 = (SELECT id FROM ergon_boundary_logs"
            found = other.execute(
                "UPDATE ergon_boundary_facts SET fact = CAST('x' || substr(fact, 2) AS BLOB) "  # noqa: S608
                f"WHERE {where} WHERE name = ?)",
                (offset, log),
            )
            assert found.rowcount == 1

    def _open(self, path: Path, clock: Clock) -> FactStore:
        store = SqliteFactStore(path, zone=ZONE, clock=clock)
        self.opened[id(store)] = path, clock
        return store


def damage_memory(store: FactStore, log: str, offset: int) -> None:
    """Change a fact behind the memory store's back."""
    assert isinstance(store, MemoryFactStore)
    row = store.database.state.logs[log].row(offset)
    assert row is not None
    row.fact.fact = b"x" + row.fact.fact[1:]


KINDS: list[Callable[[Path], Kind]] = [Memory, Sqlite]
