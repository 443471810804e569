"""What a move needs of the ledger and of the logs in a database."""

from __future__ import annotations

from collections.abc import Sequence

from ergon_framework.boundary.logs.moving import BARRED
from ergon_framework.boundary.logs.postgres.books import PostgresBooks
from ergon_framework.boundary.logs.postgres.entering import CarefulEntry, Memory, Wanted
from ergon_framework.boundary.logs.postgres.logs import PostgresLogs
from ergon_framework.boundary.logs.records import new_of, prepare
from ergon_framework.boundary.logs.tables.moving import TableMoving
from ergon_framework.boundary.logs.tables.rows import LAST
from ergon_framework.ports.copies import FactCopy, IdCopy
from ergon_framework.storage.freeze import postgres_bars
from ergon_framework.storage.postgres.pipeline import Bigints, Bytes


class PostgresMoving(TableMoving, PostgresLogs):
    """The part of the store that is copied."""

    def _dump_ids(self, after: bytes, limit: int) -> list[IdCopy]:
        rows = self._read(lambda books: books.all("moving.ids", after, limit))
        return [IdCopy(key, digest, number & LAST) for key, digest, number in rows]

    def _load_ids(self, ids: Sequence[IdCopy]) -> None:
        columns = (
            Bytes([each.key for each in ids]),
            Bytes([each.digest for each in ids]),
            Bigints([each.offset for each in ids]),
        )
        self._write(lambda books: books.run("moving.put_ids", *columns), "move")

    def _load_facts(self, facts: Sequence[FactCopy]) -> None:
        prepared = [prepare(copy.log, new_of(copy.fact)) for copy in facts]
        wanted = Wanted({copy.log for copy in facts}, [each.key for each in prepared])

        def work(books: PostgresBooks) -> None:
            entry = CarefulEntry(books, self._clock(), Memory(), wanted)
            for copy, fact in zip(facts, prepared, strict=True):
                entry.load(copy, fact)
            entry.finish()
            # A store that grows while it is moved gave them out before their facts.
            books.send("moving.drop_ids", Bytes(wanted.keys))

        self._write(work, "move")

    def _cut_log(self, log: str, through: int) -> None:
        self._drop(log, lambda _, found: min(through, found.head), None)

    def _log_was_placed(self, books: PostgresBooks) -> None:
        """The log's own row says so."""

    def bar(self, place: str | None) -> None:
        """Refuse whatever changes facts and books, or let it in again."""
        schema = f'"{self.namespace}"'

        def work(books: PostgresBooks) -> None:
            for statement in postgres_bars(BARRED, place, schema):
                books.alter(statement)

        self._write(work, "move")
