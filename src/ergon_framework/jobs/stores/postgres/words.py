"""What is said to the server within one transaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg import Cursor
from psycopg.rows import tuple_row

from ergon_framework.jobs.stores.postgres.rows import Answer, Row
from ergon_framework.storage.postgres.pipeline import Batch, taking_arrays, tell_unheard
from ergon_framework.storage.postgres.pool import Connection


class Words:
    """Who listens, and the instant, which is None where the server's own is meant."""

    __slots__ = ("_batch", "connection", "now")

    def __init__(
        self, connection: Connection, now: float | None, batch: Batch | None = None
    ) -> None:
        self.connection = connection
        self.now = now
        self._batch = batch

    def say(self, statement: bytes, values: Mapping[str, Any] | None = None) -> Answer:
        """Execute a statement: with the next answer that is read, or at once without a batch."""
        told = {"now": self.now, **(values or {})}
        if self._batch is not None:
            return self._batch.say(statement, told)
        # A cursor of ours: what the owner of the connection makes of rows is not asked.
        cursor: Cursor[Row] = Cursor(self.connection, row_factory=tuple_row)
        cursor.format = psycopg.pq.Format.BINARY
        return taking_arrays(cursor).execute(statement, told, prepare=False)

    def hint(self, statement: bytes, values: Mapping[str, Any] | None = None) -> None:
        """Say something when all is done, and never mind whether it is heard."""
        if self._batch is not None:
            self._batch.hint(statement, {"now": self.now, **(values or {})})
            return
        try:
            self.say(statement, values)
        except psycopg.Error as error:
            tell_unheard(error)


def is_conflict(error: BaseException) -> bool:
    """Whether the server refused a second row of the same id or key."""
    return isinstance(error.__cause__, psycopg.errors.UniqueViolation)
