"""The logs: appending, receiving, finding, dropping, and the ledger they need for it."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TypeVar

from ergon_framework.boundary.logs.records import key_of
from ergon_framework.boundary.logs.sqlite.entering import SqliteEntry
from ergon_framework.boundary.logs.sqlite.ground import SqliteBooks, SqliteGround
from ergon_framework.boundary.logs.sqlite.ledger import Ledger
from ergon_framework.boundary.logs.sqlite.parts import Known
from ergon_framework.boundary.logs.sqlite.sealing import Upkeep
from ergon_framework.boundary.logs.tables import receiving, retention, walking
from ergon_framework.boundary.logs.tables.logs import Append, TableLogs
from ergon_framework.boundary.logs.tables.rows import LogRow, all_logs, log_named
from ergon_framework.errors import StoreError
from ergon_framework.ports.factstore import Flaw, Found, Outcome

T = TypeVar("T")


class SqliteLogs(TableLogs, SqliteGround):
    """The part of the store that keeps facts."""

    def __init__(
        self,
        path: str | Path,
        *,
        zone: str,
        clock: Callable[[], float] = time.time,
        read_only: bool = False,
        busy_timeout: float = 5.0,
    ) -> None:
        super().__init__(
            path, zone=zone, clock=clock, read_only=read_only, busy_timeout=busy_timeout
        )
        self._ledger = Ledger()
        """Used by who has the writing connection, and nobody else."""
        self._upkeep = Upkeep(self._ledger)
        self._spare = Ledger()
        """Used to look things up when nothing can be written."""
        self._looking = threading.Lock()

    def find(self, from_zone: str, message_id: str, log: str | None = None) -> Found | None:
        """Look an id up in one log, or in all: ``outbound`` first."""

        def work(books: SqliteBooks, ledger: Ledger) -> Found | None:
            for each in all_logs(books):
                if log in {None, each.name}:
                    ledger.follow(books, each)
                    known = ledger.known(books, key_of(each.name, from_zone, message_id))
                    if known is not None:
                        return _found(books, each, known)
            return None

        return self._look(work)

    def truncate(self, log: str, through: int, *, loss_reason: str | None = None) -> int:
        """Drop payloads up to ``through``; how many were dropped. The ledger keeps their ids.

        Many are dropped in several commits, so that appends pass in between.
        """

        def last(books: SqliteBooks, found: LogRow) -> int:
            return retention.last_to_drop(books, found, through, loss_reason)

        return self._drop(log, last, loss_reason)

    def _drop(
        self, log: str, last_of: Callable[[SqliteBooks, LogRow], int], loss_reason: str | None
    ) -> int:
        """Drop payloads up to where something says; how many were dropped."""

        def work(books: SqliteBooks) -> retention.Cut:
            self._ledger.refresh(books)
            found = log_named(books, log)
            if found is None:
                return retention.Cut(0, True)
            last = last_of(books, found)
            if found.first <= last and found.sealed < last:
                # The ids are in the rows that are to go: first they are written down elsewhere.
                self._ledger.follow(books, found)
                self._upkeep.press(books)
                return retention.Cut(0, False)
            cut = retention.cut(books, found, last, loss_reason, self._clock())
            books.run("logs.was_shortened")
            return cut

        dropped = 0
        while True:
            cut = self._write(work, "truncate")
            dropped += cut.dropped
            if cut.is_last:
                return dropped

    def verify(self, log: str, after: int = 0) -> Iterator[Flaw | int]:
        """Walk the hash chain: flaws as they are found, and now and then the offset reached."""

        def look(work: Callable[[SqliteBooks, walking.Knows], walking.Leg]) -> walking.Leg:
            return self._look(lambda books, ledger: work(books, _knows(books, ledger)))

        return walking.walk(look, log, after)

    def close(self) -> None:
        """Let go of everything, after what was left to be appended. Closing twice is fine."""
        self._appends.close()
        super().close()

    def _enter(self, asked: Sequence[Append]) -> tuple[list[list[Outcome]], int]:
        def work(books: SqliteBooks) -> tuple[list[list[Outcome]], int]:
            entry = SqliteEntry(books, self._clock(), self._ledger)
            outcomes = [entry.append(each.log, each.facts, each.capacity) for each in asked]
            added = entry.finish()
            self._upkeep.pay(books, added)
            self._before_waiting()  # for the disk
            return outcomes, added

        return self._write(self._careful(work), "append", before_waiting=self._before_waiting)

    def _take_in(self, peer: str, arrived: receiving.Arrival) -> tuple[list[Outcome], int]:
        def work(books: SqliteBooks) -> tuple[list[Outcome], int]:
            now = self._clock()
            entry = SqliteEntry(books, now, self._ledger)
            outcomes = receiving.take_in(books, entry, peer, arrived, now)
            added = entry.finish()
            self._upkeep.pay(books, added)
            return outcomes, added

        return self._write(self._careful(work), "receive")

    def _careful(self, work: Callable[[SqliteBooks], T]) -> Callable[[SqliteBooks], T]:
        """Work that changes logs in memory as well."""

        def careful(books: SqliteBooks) -> T:
            try:
                return work(books)
            except BaseException:
                self._ledger.logs.clear()  # they may have names of what is now undone
                raise

        return careful

    def _look(self, work: Callable[[SqliteBooks, Ledger], T]) -> T:
        """Look into the ledger in the writer's turn or, where nothing can be written, beside it."""

        def within(connection: sqlite3.Connection, ledger: Ledger) -> T:
            self._refuse_other()
            with closing(connection.cursor(SqliteBooks)) as books:
                ledger.refresh(books)
                return work(books, ledger)

        if not self._is_read_only:
            with suppress(StoreError):
                return self._database.write(lambda connection: within(connection, self._ledger))
        with self._looking:
            return self._database.read(lambda connection: within(connection, self._spare))


def _knows(books: SqliteBooks, ledger: Ledger) -> walking.Knows:
    def knows(log: LogRow, keys: Sequence[bytes]) -> Mapping[bytes, Known]:
        ledger.follow(books, log)
        found = ((key, ledger.known(books, key)) for key in keys)
        return {key: known for key, known in found if known is not None}

    return knows


def _found(books: SqliteBooks, log: LogRow, known: Known) -> Found:
    digest, offset = known
    row = books.one("logs.identity", log.base + offset)
    return Found(log.name, offset, row[0] if row else digest, is_retained=row is not None)
