"""The floors on PostgreSQL: one writer that inserts what has come together, and checks nothing.

A grouped insert can be written in several ways, which differ by more than a factor of two: as one
statement that is given an array, as the driver's ``executemany`` in a transaction, and as
a statement that also keeps the ids of all facts and refuses those it has. We race all of them.
"""

from __future__ import annotations

from typing import ClassVar

from boundary_parts.group_commit import GroupCommit
from boundary_parts.messages import message_id_in


class ArrayInsert(GroupCommit):
    """One statement is one transaction; the server unpacks the rows. Nothing we know is faster."""

    table: ClassVar = "bare_array"
    columns: ClassVar = "body bytea NOT NULL"

    def __init__(self, url: str) -> None:
        self._url = url
        super().__init__()

    def open(self) -> None:
        """A table of its own."""
        import psycopg

        self._connection = psycopg.connect(self._url, autocommit=True)
        self._connection.execute(f"DROP TABLE IF EXISTS {self.table}".encode())
        self._connection.execute(
            f"CREATE TABLE {self.table}"
            f" (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, {self.columns})".encode()
        )

    def commit(self, bodies: list[bytes]) -> None:
        """All in one round trip."""
        self._connection.execute(
            "INSERT INTO bare_array (body) SELECT unnest(%b::bytea[])", (bodies,)
        )

    def end(self) -> None:
        """Let go of the connection."""
        self._connection.close()


class ManyInsert(ArrayInsert):
    """What the driver offers for many rows: one statement for each, sent without waiting."""

    table = "bare_many"

    def commit(self, bodies: list[bytes]) -> None:
        """One transaction, as the floor on SQLite has it."""
        with self._connection.transaction(), self._connection.cursor() as cursor:
            cursor.executemany("INSERT INTO bare_many (body) VALUES (%b)", [(x,) for x in bodies])


class KeyedInsert(ArrayInsert):
    """An array again, with ids that are taken once, and the numbers that the rows were given."""

    table = "bare_keyed"
    columns = "message_id text NOT NULL UNIQUE, body bytea NOT NULL"

    def commit(self, bodies: list[bytes]) -> None:
        """All in one round trip."""
        ids = [message_id_in(body) for body in bodies]
        found = self._connection.execute(
            "INSERT INTO bare_keyed (message_id, body)"
            " SELECT * FROM unnest(%b::text[], %b::bytea[]) ON CONFLICT DO NOTHING RETURNING id",
            (ids, bodies),
        ).fetchall()
        if len(found) != len(bodies):
            raise ValueError(f"{len(bodies) - len(found)} of {len(bodies)} ids were there before")
