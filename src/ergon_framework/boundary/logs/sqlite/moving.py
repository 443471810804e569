"""What a move needs of the ledger and of the logs in a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from ergon_framework.boundary.logs.moving import BARRED
from ergon_framework.boundary.logs.records import new_of, prepare
from ergon_framework.boundary.logs.sqlite.entering import SqliteEntry
from ergon_framework.boundary.logs.sqlite.ground import SqliteBooks
from ergon_framework.boundary.logs.sqlite.ledger import Ledger, ids_in
from ergon_framework.boundary.logs.sqlite.logs import SqliteLogs
from ergon_framework.boundary.logs.sqlite.parts import KEY, packed, split, unpacked
from ergon_framework.boundary.logs.tables.moving import TableMoving
from ergon_framework.boundary.logs.tables.rows import all_logs
from ergon_framework.ports.copies import FactCopy, IdCopy
from ergon_framework.storage.freeze import sqlite_bars

_SPACE = 1 << 32
"""How many beginnings of four bytes keys have."""


class SqliteMoving(TableMoving, SqliteLogs):
    """The part of the store that is copied."""

    def _dump_ids(self, after: bytes, limit: int) -> list[IdCopy]:
        def work(books: SqliteBooks, ledger: Ledger) -> list[IdCopy]:
            _follow_all(books, ledger)
            return list(islice(_ids_after(books, ledger, after, limit), limit))

        return self._look(work)

    def _load_ids(self, ids: Sequence[IdCopy]) -> None:
        def work(books: SqliteBooks) -> None:
            self._ledger.refresh(books)
            _follow_all(books, self._ledger)
            fresh = {
                each.key: packed(each.digest, each.offset)
                for each in ids
                if self._ledger.known(books, each.key) is None
            }
            if fresh:
                self._upkeep.write_down(books, fresh)
                self._upkeep.pay(books, len(fresh))

        self._write(self._careful(work), "move")

    def _load_facts(self, facts: Sequence[FactCopy]) -> None:
        prepared = [prepare(copy.log, new_of(copy.fact)) for copy in facts]

        def work(books: SqliteBooks) -> None:
            entry = SqliteEntry(books, self._clock(), self._ledger)
            for copy, fact in zip(facts, prepared, strict=True):
                entry.load(copy, fact)
            self._upkeep.pay(books, entry.finish())

        self._write(self._careful(work), "move")

    def _cut_log(self, log: str, through: int) -> None:
        self._drop(log, lambda _, found: min(through, found.head), None)

    def _log_was_placed(self, books: SqliteBooks) -> None:
        books.run("logs.was_shortened")

    def bar(self, place: str | None) -> None:
        """Refuse whatever changes facts and books, or let it in again."""
        tables = [f"ergon_boundary_{name}" for name in BARRED]

        def work(books: SqliteBooks) -> None:
            for statement in sqlite_bars(tables, place):
                books.execute(statement)

        self._write(work, "move")


def _follow_all(books: SqliteBooks, ledger: Ledger) -> None:
    for log in all_logs(books):
        ledger.follow(books, log)


def _ids_after(books: SqliteBooks, ledger: Ledger, after: bytes, limit: int) -> Iterator[IdCopy]:
    """Ids in the order of their keys, gathered from all generations a stretch at a time."""
    live = [each for each in ledger.generations.values() if each.state == "live"]
    count = sum(each.count for each in live) + ledger.young_count
    count += 0 if ledger.batch is None else ledger.batch.count
    stride = max(1, _SPACE * limit // max(count, limit))
    start = int.from_bytes(after[:4])
    while start < _SPACE:
        end = min(start + stride, _SPACE)
        found = _young_between(ledger, start, end)
        for each in live:
            shift = 32 - each.bits
            for part in range(start >> shift, ((end - 1) >> shift) + 1):
                ids = split(ids_in(books, each, part))
                found |= {entry[:KEY]: entry[KEY:] for entry in ids}
        for key in sorted(found):
            if key > after and start <= int.from_bytes(key[:4]) < end:
                yield IdCopy(key, *unpacked(found[key]))
        start = end


def _young_between(ledger: Ledger, start: int, end: int) -> dict[bytes, bytes]:
    """Ids that are only in the rows of their facts, and some more."""
    batch = [] if ledger.batch is None else ledger.batch.buckets
    first, last = start >> 24, (end - 1) >> 24
    buckets = [*ledger.young[first : last + 1], *batch[first : last + 1]]
    return {key: known for bucket in buckets for key, known in bucket.items()}
