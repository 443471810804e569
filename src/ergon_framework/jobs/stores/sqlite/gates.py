"""The gates of queues, read and written within one transaction."""

from __future__ import annotations

import sqlite3

from ergon_framework.jobs.stores.gates import NONE, Gate, Settings, settings_from
from ergon_framework.jobs.stores.sqlite.rows import SQL
from ergon_framework.storage.sql_files import load

_SQL = load(SQL, "claim.sql")


def settings_of(cursor: sqlite3.Cursor, queue: str) -> Settings:
    """The settings of a queue; one that has none may do everything."""
    row = cursor.execute(_SQL["queue"], (queue,)).fetchone()
    return NONE if row is None else settings_from(row)


class Gates:
    """The queues that one claim has to do with."""

    def __init__(self, cursor: sqlite3.Cursor, now: float) -> None:
        self._cursor = cursor
        self._now = now
        self._gates: dict[str, Gate] = {}

    def __getitem__(self, queue: str) -> Gate:
        gate = self._gates.get(queue)
        if gate is None:
            settings = settings_of(self._cursor, queue)
            active = 0
            if settings.max_active is not None:
                [active] = self._cursor.execute(_SQL["running_in_queue"], (queue,)).fetchone()
            gate = self._gates[queue] = Gate(queue, settings, active)
        return gate

    def save(self) -> None:
        """Write down what the claim used."""
        for gate in self._gates.values():
            if gate.full_at is not None:
                self._cursor.execute(_SQL["set_full_at"], (gate.full_at, gate.name))
