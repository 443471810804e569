"""The whole fact store in one file, its backup, and what a move needs of the ledger."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from ergon_framework.boundary.factstore.hashchain import new_of, prepare
from ergon_framework.boundary.factstore.parts import FactStoreOfParts, StoreParts
from ergon_framework.boundary.factstore.records import FROZEN_TABLES
from ergon_framework.boundary.factstore.sql.consumers import SqlConsumers
from ergon_framework.boundary.factstore.sql.log import SqlLog
from ergon_framework.boundary.factstore.sql.objects_and_links import SqlLinks, SqlObjects
from ergon_framework.boundary.factstore.sql.records import SqlFactRecords
from ergon_framework.boundary.factstore.sql.rows import all_logs
from ergon_framework.boundary.factstore.sql.session import BatchLimits, StoreIdentity, Subscribers
from ergon_framework.boundary.factstore.sqlite.append import SqliteAppender
from ergon_framework.boundary.factstore.sqlite.ledger import (
    KEY,
    Ledger,
    LedgerTuning,
    ids_in,
    packed,
    split,
    unpacked,
)
from ergon_framework.boundary.factstore.sqlite.session import SQL, SqliteDatabase, SqliteSession
from ergon_framework.errors import StoreError, StoreUnavailableError
from ergon_framework.ports.transfer import FactIdRecord, FactRecord
from ergon_framework.storage.freeze import sqlite_bars
from ergon_framework.storage.fsync import sync_file
from ergon_framework.storage.secure_files import make_folder, open_file
from ergon_framework.storage.sql_files import load
from ergon_framework.storage.sqlite.errors import is_write_failure

_KEY_PREFIXES = 1 << 32
"""How many beginnings of four bytes keys have."""


class SqliteRecordEngine:
    """Copies of facts and ids, into the file and out of it."""

    def __init__(self, database: SqliteDatabase, appender: SqliteAppender) -> None:
        self._database = database
        self._appender = appender

    def dump_ids(self, after: bytes, limit: int) -> list[FactIdRecord]:
        """Ids after a key, in order, those of kept facts included."""

        def work(session: SqliteSession, ledger: Ledger) -> list[FactIdRecord]:
            _follow_all(session, ledger)
            return list(islice(_ids_after(session, ledger, after, limit), limit))

        return self._appender.look_up(work)

    def load_ids(self, ids: Sequence[FactIdRecord]) -> None:
        """Write ids down that are not known yet, in one commit."""
        ledger, compactor = self._appender.ledger, self._appender.compactor

        def work(session: SqliteSession) -> None:
            ledger.refresh(session)
            _follow_all(session, ledger)
            fresh = {
                each.key: packed(each.digest, each.offset)
                for each in ids
                if ledger.known(session, each.key) is None
            }
            if fresh:
                compactor.ingest(session, fresh)
                compactor.step(session, len(fresh))

        self._appender.write(work, "move")

    def load_facts(self, facts: Sequence[FactRecord]) -> None:
        """Append copied facts to their logs in one commit, without those that are there already."""
        prepared = [prepare(copy.log, new_of(copy.fact)) for copy in facts]

        def work(session: SqliteSession) -> None:
            entry = self._appender.begin(session)
            for copy, fact in zip(facts, prepared, strict=True):
                entry.placement.load(copy, fact)
            self._appender.compactor.step(session, entry.finish())

        self._appender.write(work, "move")

    def log_was_placed(self, session: SqliteSession) -> None:
        """Count a change of the logs' rows. Other processes compare it with their cache."""
        session.run("logs.was_shortened")

    def freeze(self, place: str | None) -> None:
        """Refuse every write to the tables of the zone, or allow writes again."""
        tables = [f"ergon_boundary_{name}" for name in FROZEN_TABLES]

        def work(session: SqliteSession) -> None:
            for statement in sqlite_bars(tables, place):
                session.execute(statement)

        self._database.write(work, "move")


def _follow_all(session: SqliteSession, ledger: Ledger) -> None:
    for log in all_logs(session):
        ledger.follow(session, log)


def _ids_after(
    session: SqliteSession, ledger: Ledger, after: bytes, limit: int
) -> Iterator[FactIdRecord]:
    """Ids in the order of their keys, gathered from all segments a stretch at a time."""
    live = [each for each in ledger.segments.values() if each.state == "live"]
    count = sum(each.count for each in live) + ledger.memtable_count
    # The frozen part is being written to a segment, and is in no other place yet.
    count += 0 if ledger.frozen is None else ledger.frozen.count
    # As many keys as one page wants, on average: keys are hashes, and lie evenly.
    stride = max(1, _KEY_PREFIXES * limit // max(count, limit))
    start = int.from_bytes(after[:4])
    while start < _KEY_PREFIXES:
        end = min(start + stride, _KEY_PREFIXES)
        found = _memtable_between(ledger, start, end)
        for each in live:
            shift = 32 - each.bits
            for part in range(start >> shift, ((end - 1) >> shift) + 1):
                ids = split(ids_in(session, each, part))
                found |= {entry[:KEY]: entry[KEY:] for entry in ids}
        for key in sorted(found):
            if key > after and start <= int.from_bytes(key[:4]) < end:
                yield FactIdRecord(key, *unpacked(found[key]))
        start = end


def _memtable_between(ledger: Ledger, start: int, end: int) -> dict[bytes, bytes]:
    """Ids that are only in the rows of their facts, and some more."""
    frozen = [] if ledger.frozen is None else ledger.frozen.buckets
    first, last = start >> 24, (end - 1) >> 24
    buckets = [*ledger.memtable[first : last + 1], *frozen[first : last + 1]]
    return {key: known for bucket in buckets for key, known in bucket.items()}


FILE = "facts.db"
"""What a backup's file is called."""

_PAGES_PER_STEP = 1000  # copied at once: others go on in between
_STEPS_PER_CHECK = 10_000  # of SQLite's virtual machine, between two looks at the clock
_SQL = load(SQL, "store.sql")


class SqliteFactStore(FactStoreOfParts):
    """A zone's facts in one SQLite file. Any thread may call any method."""

    acknowledgement = (
        "An acknowledged fact is synced to disk in the SQLite file of one machine: it survives the"
        " end of the process and power cuts, not the loss of that disk."
    )

    is_synced = True

    log: SqlLog
    """The logs and their ledger."""

    largest: int | None = None
    """The store itself does not limit the size of a fact."""

    def __init__(
        self,
        path: str | Path,
        *,
        zone: str,
        clock: Callable[[], float] = time.time,
        read_only: bool = False,
        busy_timeout: float = 5.0,
        limits: BatchLimits | None = None,
        ledger_tuning: LedgerTuning | None = None,
    ) -> None:
        self.database = SqliteDatabase(
            path, clock=clock, read_only=read_only, busy_timeout=busy_timeout
        )
        identity = StoreIdentity(self.database)
        try:
            identity.open(zone, read_only=read_only)
        except BaseException:
            self.database.close()
            raise
        subscribers, limits = Subscribers(), limits or BatchLimits()
        self.appender = SqliteAppender(self.database, ledger_tuning)
        log = SqlLog(self.database, self.appender, subscribers, limits)
        parts = StoreParts(
            log,
            SqlConsumers(self.database, limits),
            SqlObjects(self.database),
            SqlLinks(self.database, identity),
        )
        super().__init__(parts, subscribers)
        copies = SqliteRecordEngine(self.database, self.appender)
        self.records = SqlFactRecords(self.database, identity, log, copies, parts)
        """All that the store holds, to be copied into another store or out of one."""

    @property
    def path(self) -> Path:
        """The file."""
        return self.database.path

    @property
    def clock(self) -> Callable[[], float]:
        """What time it is where the facts are."""
        return self.database.clock

    def close(self) -> None:
        """Let go of everything, after what was left to be appended. Closing twice is fine."""
        self.log.close()
        self.database.close()

    def quick_check(self, seconds: float) -> str | None:
        """What SQLite finds wrong with the file within so many seconds; None: nothing so far."""
        if seconds <= 0:
            return None
        until = time.monotonic() + seconds

        def work(connection: sqlite3.Connection) -> str | None:
            # SQLite ends the statement when this is true; there is no other way to bound a pragma.
            connection.set_progress_handler(lambda: time.monotonic() > until, _STEPS_PER_CHECK)
            try:
                [found] = connection.execute("PRAGMA quick_check(1)").fetchone()
            except sqlite3.OperationalError:
                return None  # there is more of it than can be looked at in that time
            except sqlite3.DatabaseError as error:
                return str(error)
            finally:
                connection.set_progress_handler(None, 0)
            return None if found == "ok" else str(found).replace("\n", " ")

        found = self.database.file.read(work)
        return None if found is None else f"{self.path} is damaged: {found}"

    def backup(self, folder: str) -> None:
        """Write a consistent copy that, when opened, begins a new epoch."""
        target = Path(folder).absolute() / FILE
        if target.exists():
            raise StoreError(f"{target} is there already", remedy="name an empty folder")
        partial = target.with_name(f"{FILE}.partial")
        try:
            make_folder(target.parent, parents=True)
            partial.unlink(missing_ok=True)
            os.close(open_file(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL))  # private
            self.database.file.read(lambda connection: _copy(connection, partial))
            # Synced, renamed, synced: a file with the final name is always a complete backup.
            _sync(partial)
            partial.rename(target)
            _sync(target.parent)
        except (OSError, sqlite3.Error) as error:
            with contextlib.suppress(OSError):
                partial.unlink()
            raise StoreUnavailableError(
                f"no backup could be written to {target.parent}: {error}",
                remedy="see that the folder can be written and has room, then try again",
            ) from error


def _copy(connection: sqlite3.Connection, target: Path) -> None:
    """Copy what the reader sees, and note in the copy that it is one: it gets a new epoch."""
    try:
        with contextlib.closing(sqlite3.connect(target, isolation_level=None)) as copy:
            # Some pages at a time, so that writers are not held up for as long as the copy takes.
            connection.backup(copy, pages=_PAGES_PER_STEP)
            # One file without a log beside it: a backup is renamed and carried as a single file.
            copy.execute("PRAGMA journal_mode = DELETE")
            copy.execute(_SQL["is_backup"])
    except sqlite3.Error as error:
        if is_write_failure(error):  # the store is only read: it is the copy that has no room
            raise OSError(str(error)) from error
        raise


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        sync_file(descriptor)
    finally:
        os.close(descriptor)
