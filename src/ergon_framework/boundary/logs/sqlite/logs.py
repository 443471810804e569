"""The logs: appending, receiving, reading, finding."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TypeVar

from ergon_framework.boundary.logs.grouping import Grouping
from ergon_framework.boundary.logs.sqlite import pages, receiving, retention, walking
from ergon_framework.boundary.logs.sqlite.entering import Entry
from ergon_framework.boundary.logs.sqlite.ground import SQL, Ground
from ergon_framework.boundary.logs.sqlite.ledger import Ledger
from ergon_framework.boundary.logs.sqlite.parts import Known
from ergon_framework.boundary.logs.sqlite.records import Prepared, key_of, prepare
from ergon_framework.boundary.logs.sqlite.rows import LogRow, all_logs, gaps_of, log_named
from ergon_framework.boundary.logs.sqlite.sealing import Upkeep
from ergon_framework.errors import DataLossError, StoreError
from ergon_framework.ports.factstore import (
    Flaw,
    Found,
    Gap,
    Link,
    LogInfo,
    NewFact,
    Outcome,
    Page,
    Quarantined,
)
from ergon_framework.storage.statements import load

T = TypeVar("T")

_SQL = load(SQL, "logs.sql")


@dataclass(slots=True)
class _Append:
    """One caller's facts on their way in."""

    log: str
    facts: Sequence[Prepared]
    capacity: int | None


class SqliteLogs(Ground):
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
        self._watch: Callable[[int, float], None] | None = None
        self._spare = Ledger()
        """Used to look things up when nothing can be written."""
        self._looking = threading.Lock()
        self._aged: dict[str, tuple[float, int]] = {}
        self._appends: Grouping[_Append, list[Outcome]] = Grouping(
            self._append_all, weigh=lambda asked: len(asked.facts), name="ergon-append"
        )

    def append(
        self, log: str, facts: Sequence[NewFact], *, capacity: int | None = None
    ) -> list[Outcome]:
        """Append in order in one commit, each with an outcome of its own."""
        if not facts:
            return []
        return self._appends.call(_Append(log, [prepare(log, each) for each in facts], capacity))

    def append_soon(
        self,
        log: str,
        facts: Sequence[NewFact],
        done: Callable[[list[Outcome] | BaseException], None],
        capacity: int | None = None,
        group_done: Callable[[], None] | None = None,
    ) -> None:
        """Append without waiting: ``done`` is called, by another thread, after the commit.

        It is given the outcomes or the error. Callers that share a commit are told one after the
        other, and then each ``group_done`` among theirs is called once.
        """
        asked = _Append(log, [prepare(log, each) for each in facts], capacity)
        self._appends.call_soon(asked, done, group_done)

    def find(self, from_zone: str, message_id: str, log: str | None = None) -> Found | None:
        """Look an id up in one log, or in all: ``outbound`` first."""

        def work(cursor: sqlite3.Cursor, ledger: Ledger) -> Found | None:
            for each in all_logs(cursor):
                if log in {None, each.name}:
                    ledger.follow(cursor, each)
                    known = ledger.known(cursor, key_of(each.name, from_zone, message_id))
                    if known is not None:
                        return _found(cursor, each, known)
            return None

        return self._look(work)

    def page(
        self, log: str, after: int, limit: int, max_bytes: int, to_zone: str | None = None
    ) -> Page:
        """Read what is kept, without a consumer; a log that is not there is empty."""

        def work(cursor: sqlite3.Cursor) -> pages.Stretch:
            found = log_named(cursor, log)
            if found is None:
                return pages.Stretch(Page([], 0, 0))
            return pages.read(cursor, found, after, limit, max_bytes, to_zone)

        stretch = self._read(work)
        if stretch.corrupted is not None and not stretch.page.facts:
            raise DataLossError(
                f"the fact at {stretch.corrupted} of {log} is not what was stored there",
                reason="corrupted",
                remedy="see what `verify` says, and restore a backup",
                details={"log": log, "offset": stretch.corrupted},
            )
        return stretch.page

    def logs(self) -> list[LogInfo]:
        """Every log, ``outbound`` first and always."""
        return [log.info() for log in self._read(all_logs)]

    def truncate(self, log: str, through: int, *, loss_reason: str | None = None) -> int:
        """Drop payloads up to ``through``; how many were dropped. The ledger keeps their ids.

        Many are dropped in several commits, so that appends pass in between.
        """

        def work(cursor: sqlite3.Cursor) -> retention.Cut:
            self._ledger.refresh(cursor)
            found = log_named(cursor, log)
            if found is None:
                return retention.Cut(0, True)
            last = retention.last_to_drop(cursor, found, through, loss_reason)
            if found.first <= last and found.sealed < last:
                # The ids are in the rows that are to go: first they are written down elsewhere.
                self._ledger.follow(cursor, found)
                self._upkeep.press(cursor)
                return retention.Cut(0, False)
            return retention.cut(cursor, found, last, loss_reason, self._clock())

        dropped = 0
        while True:
            cut = self._write(work, "truncate")
            dropped += cut.dropped
            if cut.is_last:
                return dropped

    def aged(self, log: str, before: float) -> int:
        """The highest offset such that it and all below it were recorded before an instant."""
        since, reached = self._aged.get(log, (before, 0))
        reached, is_all = reached if since <= before else 0, False
        while not is_all:

            def work(cursor: sqlite3.Cursor, start: int = reached) -> tuple[int, bool]:
                found = log_named(cursor, log)
                return (0, True) if found is None else retention.aged(cursor, found, start, before)

            reached, is_all = self._read(work)
        self._aged[log] = before, reached  # what is old stays old: no fact is looked at twice
        return reached

    def gaps(self, log: str | None = None) -> list[Gap]:
        """Every recorded loss."""

        def work(cursor: sqlite3.Cursor) -> list[Gap]:
            wanted = [each for each in all_logs(cursor) if log in {None, each.name}]
            return [gap for each in wanted for gap in gaps_of(cursor, each)]

        return self._read(work)

    def verify(self, log: str, after: int = 0) -> Iterator[Flaw | int]:
        """Walk the hash chain: flaws as they are found, and now and then the offset reached."""
        return walking.walk(self._look, log, after)

    def receive(
        self,
        peer: str,
        facts: Sequence[NewFact],
        link: Link,
        refused: Sequence[Quarantined] = (),
        gaps: Sequence[Gap] = (),
    ) -> list[Outcome]:
        """Insert what a peer sent and lost where it is absent, and move the link: one commit."""
        arrived = receiving.arrival(peer, facts, link, refused, gaps)

        def work(cursor: sqlite3.Cursor) -> tuple[list[Outcome], int]:
            now = self._clock()
            entry = Entry(cursor, now, self._ledger)
            outcomes = receiving.take_in(cursor, entry, peer, arrived, now)
            added = entry.finish()
            self._upkeep.pay(cursor, added)
            return outcomes, added

        outcomes, added = self._enter(work, "receive")
        if added:
            self._wake()
        return outcomes

    def watch_commits(self, seen: Callable[[int, float], None]) -> None:
        """Tell of each group of appends: how many facts, and the seconds it took."""
        self._watch = seen

    def close(self) -> None:
        """Let go of everything, after what was left to be appended. Closing twice is fine."""
        self._appends.close()
        super().close()

    def _append_all(self, asked: Sequence[_Append]) -> list[list[Outcome]]:
        def work(cursor: sqlite3.Cursor) -> tuple[list[list[Outcome]], int]:
            entry = Entry(cursor, self._clock(), self._ledger)
            outcomes = [entry.append(each.log, each.facts, each.capacity) for each in asked]
            added = entry.finish()
            self._upkeep.pay(cursor, added)
            return outcomes, added

        began = perf_counter()
        outcomes, added = self._enter(work, "append")
        if added:
            self._wake()
            if self._watch is not None:
                self._watch(added, perf_counter() - began)
        return outcomes

    def _enter(self, work: Callable[[sqlite3.Cursor], T], call: str) -> T:
        """Run a transaction that changes logs in memory as well."""

        def careful(cursor: sqlite3.Cursor) -> T:
            try:
                return work(cursor)
            except BaseException:
                self._ledger.logs.clear()  # they may have names of what is now undone
                raise

        return self._write(careful, call)

    def _look(self, work: Callable[[sqlite3.Cursor, Ledger], T]) -> T:
        """Look into the ledger in the writer's turn or, where nothing can be written, beside it."""

        def within(connection: sqlite3.Connection, ledger: Ledger) -> T:
            with closing(connection.cursor()) as cursor:
                ledger.refresh(cursor)
                return work(cursor, ledger)

        if not self._is_read_only:
            with suppress(StoreError):
                return self._database.write(lambda connection: within(connection, self._ledger))
        with self._looking:
            return self._database.read(lambda connection: within(connection, self._spare))


def _found(cursor: sqlite3.Cursor, log: LogRow, known: Known) -> Found:
    digest, offset = known
    row = cursor.execute(_SQL["identity"], (log.base + offset,)).fetchone()
    return Found(log.name, offset, row[0] if row else digest, is_retained=row is not None)
