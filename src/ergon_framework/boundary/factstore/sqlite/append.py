"""Appending to logs in a file: one transaction, the ledger, and what both need."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import chain
from typing import TypeVar

from ergon_framework.boundary.factstore.append_plan import Append, AppendPlanner
from ergon_framework.boundary.factstore.hashchain import key_of, read_proof
from ergon_framework.boundary.factstore.sql.append import (
    Arrival,
    Identity,
    RowPlacement,
    ZoneView,
    take_in,
)
from ergon_framework.boundary.factstore.sql.log import (
    Cut,
    KnownId,
    Knows,
    LastOf,
    VerificationStep,
    cut,
)
from ergon_framework.boundary.factstore.sql.rows import (
    LogRow,
    ViewSegment,
    all_logs,
    last_run,
    log_named,
    view_of,
)
from ergon_framework.boundary.factstore.sql.session import Row
from ergon_framework.boundary.factstore.sqlite.ledger import (
    Compactor,
    Ledger,
    LedgerTuning,
)
from ergon_framework.boundary.factstore.sqlite.session import SQL, SqliteDatabase, SqliteSession
from ergon_framework.errors import StoreError
from ergon_framework.ports.factstore import AppendOutcome, BeforeWait, LedgerEntry, Reference
from ergon_framework.storage.sql_files import load

_SQL = load(SQL, "logs.sql")

MAX_ROWS = 64
"""Rows of one statement: a power of two, with fewer values than any SQLite takes."""


class SqliteTables:
    """The tables of logs in one transaction, for facts on their way in."""

    __slots__ = ("_ledger", "_session", "logs")

    def __init__(self, session: SqliteSession, ledger: Ledger) -> None:
        self._session = session
        self._ledger = ledger
        self.logs: dict[str, LogRow] = {}

    def log(self, name: str) -> LogRow:
        """A log as it is after what was placed so far."""
        log = self.logs.get(name)
        if log is None:
            log = self.logs[name] = self._ledger.log(self._session, name)
        return log

    def known(self, log: LogRow, key: bytes) -> Identity | None:
        """What the ledger has to say about an id, if anything."""
        known = self._ledger.known(self._session, key)
        if known is None:
            return None
        digest, offset = known
        row = self._session.one("logs.fact", log.base + offset)
        found = None if row is None else read_proof(row[4])
        # Rows may be damaged: the digest counts only if the ledger's half agrees with it.
        if found is not None and found.digest.startswith(digest):
            digest = found.digest  # all of it, and not the half that the ledger keeps
        return offset, digest, row

    def stored(self, number: int) -> Row | None:
        """A row as it is in the database."""
        return self._session.one("logs.fact", number)

    def zone_of(self, view: int) -> str | None:
        """Where the facts of a view go."""
        row = self._session.one("logs.zone_of", view)
        return None if row is None else row[0]

    def write_back(self, row: Row) -> None:
        """Overwrite the stored row that has the number of this one."""
        number, *columns = row
        self._session.run("logs.write_back", *columns, number)

    def object(self, wanted: Reference) -> Reference | None:
        """What a name stands for."""
        row = self._session.one("objects.object", wanted.bucket, wanted.key)
        return None if row is None else Reference(*row[:4])

    def refer(self, references: Sequence[Reference]) -> None:
        """A fact refers to these from now on."""
        for each in references:
            # Not put yet: noted as awaited, so that it is kept when it comes.
            if not self._session.run("objects.refer", each.bucket, each.key):
                self._session.run("objects.await", each.bucket, each.key)

    def view(self, log: LogRow, to_zone: str) -> int:
        """The number of a view that this log has not been asked for yet."""
        view = view_of(self._session, log, to_zone)
        return self._session.add("logs.new_view", log.id, to_zone) if view is None else view

    def last_run(self, view: int) -> ViewSegment | None:
        """The newest stored segment of a view."""
        return last_run(self._session, view)

    def write_end(self, view: ZoneView, run: ViewSegment) -> None:
        """A run that is written down has ended."""
        self._session.run("logs.end_run", run.last, view.id, run.first)


class SqliteAppend:
    """Facts that are appended by one transaction: looked up as needed, written at the end."""

    __slots__ = ("_ledger", "_session", "_tables", "placement", "planner")

    def __init__(self, session: SqliteSession, now: float, ledger: Ledger) -> None:
        self._session = session
        self._ledger = ledger
        self._tables = SqliteTables(session, ledger)
        self.placement = RowPlacement(now, self._tables)
        self.planner = AppendPlanner(self.placement)

    def finish(self) -> int:
        """Write it all; how many facts that was."""
        rows = self.placement.rows
        if not rows:
            return 0
        _insert(self._session, rows)
        runs = self.placement.runs_to_write()
        if runs:
            self._session.run_all("logs.new_run", runs)
        # Last: if one of the statements above fails, the memory must not know of the new ids.
        self._ledger.add_all(self.placement.fresh)
        for log in self._tables.logs.values():
            self._ledger.reach(log)
        return len(rows)


def _insert(cursor: sqlite3.Cursor, rows: Sequence[Row]) -> None:
    """Write rows with few statements: each statement gives other threads a chance to run."""
    at = 0
    while left := len(rows) - at:
        # Sizes of powers of two: SQLite keeps a few prepared statements, not one for each number of
        # rows.
        count = min(1 << left.bit_length() - 1, MAX_ROWS)
        cursor.execute(_insert_of(count), [*chain.from_iterable(rows[at : at + count])])
        at += count


@cache
def _insert_of(count: int) -> str:
    """The statement for so many rows."""
    one = _SQL["insert_fact"]
    return one + f", {one[one.rindex('(') :]}" * (count - 1)


T = TypeVar("T")


class SqliteAppender:
    """Writes facts into the file, and keeps the ledger of their ids beside them."""

    def __init__(self, database: SqliteDatabase, ledger_tuning: LedgerTuning | None = None) -> None:
        self._database = database
        self.ledger = Ledger()
        """Used only by the thread that has the writing connection."""
        self.compactor = Compactor(self.ledger, ledger_tuning)
        self._spare = Ledger()
        """A second ledger, for look-ups when the writing connection cannot be used."""
        self._looking = threading.Lock()

    def append(
        self, asked: Sequence[Append], before_wait: BeforeWait
    ) -> tuple[list[list[AppendOutcome]], int]:
        """Append for several callers in one commit; the outcomes, and how many facts are new."""

        def work(session: SqliteSession) -> tuple[list[list[AppendOutcome]], int]:
            entry = SqliteAppend(session, self._database.clock(), self.ledger)
            append_to = entry.planner.append
            outcomes = [append_to(each.log, each.facts, each.capacity) for each in asked]
            added = entry.finish()
            self.compactor.step(session, added)
            before_wait()  # for the disk
            return outcomes, added

        return self.write(work, "append", before_waiting=before_wait)

    def receive(
        self, peer: str, arrived: Arrival, before_wait: BeforeWait
    ) -> tuple[list[AppendOutcome], int]:
        """Append a peer's page in one commit; returns the outcomes, and how many rows are new."""

        def work(session: SqliteSession) -> tuple[list[AppendOutcome], int]:
            entry = self.begin(session)
            outcomes = take_in(session, entry.planner, peer, arrived, entry.placement.now)
            added = entry.finish()
            self.compactor.step(session, added)
            return outcomes, added

        return self.write(work, "receive")

    def find(self, from_zone: str, message_id: str, log: str | None) -> LedgerEntry | None:
        """Find a fact by its id in one log, or in all logs, ``outbound`` first."""

        def work(session: SqliteSession, ledger: Ledger) -> LedgerEntry | None:
            for each in all_logs(session):
                if log in {None, each.name}:
                    ledger.follow(session, each)
                    known = ledger.known(session, key_of(each.name, from_zone, message_id))
                    if known is not None:
                        return _found(session, each, known)
            return None

        return self.look_up(work)

    def drop(self, log: str, last_of: LastOf, loss_reason: str | None, max_facts: int) -> Cut:
        """Drop up to ``max_facts`` payloads, up to where ``last_of`` says, in one commit."""

        def work(session: SqliteSession) -> Cut:
            # Another process may have appended: what is remembered must not decide what goes.
            self.ledger.refresh(session)
            found = log_named(session, log)
            if found is None:
                return Cut(0, True)
            last = last_of(session, found)
            if found.first <= last and found.sealed < last:
                # Some ids are only in the rows that are to go. They have to be in a segment first,
                # or a dropped fact could be appended again.
                self.ledger.follow(session, found)
                # In a commit of its own: the next call finds the ids sealed, and drops.
                self.compactor.flush(session)
                return Cut(0, False)
            done = cut(session, found, last, loss_reason, self._database.clock(), max_facts)
            session.run("logs.was_shortened")
            return done

        return self._database.write(work, "truncate")

    def look(self, work: Callable[[SqliteSession, Knows], VerificationStep]) -> VerificationStep:
        """Run something on what was committed last, and on the ledger."""
        return self.look_up(lambda session, ledger: work(session, _knows(session, ledger)))

    def begin(self, session: SqliteSession) -> SqliteAppend:
        """Begin an append within a transaction."""
        return SqliteAppend(session, self._database.clock(), self.ledger)

    def write(
        self,
        work: Callable[[SqliteSession], T],
        call: str,
        *,
        before_waiting: Callable[[], None] | None = None,
    ) -> T:
        """Run a transaction that changes logs in memory as well."""

        def forgetting(session: SqliteSession) -> T:
            try:
                return work(session)
            except BaseException:
                self.ledger.logs.clear()  # they may name views that are rolled back
                raise

        return self._database.write(forgetting, call, before_waiting=before_waiting)

    def look_up(self, work: Callable[[SqliteSession, Ledger], T]) -> T:
        """Read the ledger on the writing connection, or on a second one if that fails."""

        def with_ledger(connection: sqlite3.Connection, ledger: Ledger) -> T:
            def refreshed(session: SqliteSession) -> T:
                ledger.refresh(session)
                return work(session, ledger)

            return self._database.within(connection, refreshed)

        file = self._database.file
        if not self._database.is_read_only:
            # A full disk or a lock must not prevent reading.
            with suppress(StoreError):
                return file.write(lambda connection: with_ledger(connection, self.ledger))
        # One at a time: the second ledger has no lock of its own.
        with self._looking:
            return file.read(lambda connection: with_ledger(connection, self._spare))


def _knows(session: SqliteSession, ledger: Ledger) -> Knows:
    def knows(log: LogRow, keys: Sequence[bytes]) -> Mapping[bytes, KnownId]:
        ledger.follow(session, log)
        found = ((key, ledger.known(session, key)) for key in keys)
        return {key: known for key, known in found if known is not None}

    return knows


def _found(session: SqliteSession, log: LogRow, known: KnownId) -> LedgerEntry:
    digest, offset = known
    row = session.one("logs.identity", log.base + offset)
    return LedgerEntry(log.name, offset, row[0] if row else digest, is_retained=row is not None)
