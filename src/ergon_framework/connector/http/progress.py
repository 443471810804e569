"""How far a poller is, on disk: its place, what is done of it, and what failed for good.

The tables may stand in the file of an App's store, or in one of their own. A lock on a file beside
it lets one process at a time read as one consumer; the system frees it when that process ends. An
epoch in the row of the cursor guards what the lock cannot: a process whose lock file was deleted
hears that another one has begun, and settles nothing any more.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import sqlite3
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.errors import (
    ChannelLostError,
    ConfigurationError,
    ConnectorError,
    ErgonError,
    StoreError,
    StoreUnavailableError,
)
from ergon_framework.storage.secure_files import UnsafeFileError, open_file
from ergon_framework.storage.sqlite.database import Database
from ergon_framework.storage.sqlite.migrations import SqliteSchema
from ergon_framework.storage.urls import SQLITE, path_in

logger = logging.getLogger("ergon.connector")
SCHEMA = SqliteSchema("polls", "ergon_framework.connector.http.migrations")
MAX_REASON = 1000
_MOST_IDS = 500
"""How many ids one statement asks for."""


class PollerLockedError(ConnectorError):
    """Another process reads as this consumer."""

    code = "poller_locked"
    failure_kind = "transient"
    is_refusal: ClassVar[bool] = True


class CursorTakenError(ChannelLostError):
    """Another process has started to read as this consumer, although this one has not ended."""

    code = "cursor_taken"


class CursorLostError(ChannelLostError):
    """The cursor was deleted, or its file was replaced."""

    code = "cursor_lost"


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in the pages of an API."""

    position: str | None = None
    """The position of the first page that is not settled. None for the first page."""
    etag: str | None = None
    """The ETag of that page, if all its items are settled."""
    since: str | None = None
    """JSON: the value that the pages of this pass are asked from."""
    highest: str | None = None
    """JSON: the highest value of settled pages in this pass."""
    number: int = 1
    """The number of the pass; a pass is one reading from the first page to the last."""


class PollProgress:
    """What one consumer has done, in the file of a database. Any thread may call any method."""

    def __init__(self, path: Path, consumer: str) -> None:
        self._consumer = consumer
        self._lock = _ConsumerLock(path, consumer)
        try:
            self._database = Database(path, schema=SCHEMA)
            try:
                self._epoch = self._database.write(self._begin)
                if self._epoch == 1 and self._lock.was_used:
                    logger.warning(
                        "the cursor of %s is not in %s, although it was polled before: reading"
                        " begins anew at the first page, and what was done is done again; stop the"
                        " program, if that must not be, and restore a backup of the file",
                        consumer,
                        path,
                    )
            except BaseException:
                self._database.close()
                raise
        except BaseException:
            self._lock.close()
            raise

    def close(self) -> None:
        """Let another process read as this consumer. Closing twice is fine."""
        self._database.close()
        self._lock.close()

    # ---- the place ------------------------------------------------------------------------------

    def cursor(self) -> Cursor:
        """The cursor from which to continue."""
        sql = (
            "SELECT position, etag, since, highest, pass FROM ergon_poll_cursors WHERE consumer = ?"
        )

        def work(connection: sqlite3.Connection) -> Cursor:
            found = connection.execute(sql, (self._consumer,)).fetchone()
            if found is None:
                raise self._lost()
            return Cursor(*found)

        return self._database.read(work)

    def move(self, cursor: Cursor, keep: int | None) -> None:
        """Move the cursor, and remember only the latest ``keep`` settled ids."""

        def work(connection: sqlite3.Connection) -> None:
            self._write_cursor(connection, cursor)
            if keep is not None:
                self._forget_but(connection, keep)

        self._database.write(work)

    def end_pass(self, cursor: Cursor) -> Cursor:
        """Begin the next pass, and forget settled ids that were not seen in this one."""
        after = replace(cursor, number=cursor.number + 1)

        def work(connection: sqlite3.Connection) -> None:
            self._write_cursor(connection, after)
            connection.execute(
                "DELETE FROM ergon_poll_marks WHERE consumer = ? AND pass < ?",
                (self._consumer, cursor.number),
            )

        self._database.write(work)
        return after

    # ---- what is done ---------------------------------------------------------------------------

    def done(self, ids: Sequence[str], number: int) -> set[str]:
        """Which of these ids are settled. Records that they were seen in this pass."""

        def look(connection: sqlite3.Connection) -> dict[str, int]:
            found: dict[str, int] = {}
            for start in range(0, len(ids), _MOST_IDS):
                some = ids[start : start + _MOST_IDS]
                marks = ", ".join("?" * len(some))
                sql = (
                    f"SELECT id, pass FROM ergon_poll_marks WHERE consumer = ? AND id IN ({marks})"  # noqa: S608 - only marks are put in
                )
                found.update(connection.execute(sql, (self._consumer, *some)).fetchall())
            return found

        found = self._database.read(look)
        stale = [each for each, last in found.items() if last < number]
        if stale:
            self._see(stale, number)
        return set(found)

    def settle(self, identity: str, number: int) -> None:
        """Record that an item succeeded."""
        self._database.write(lambda connection: self._mark(connection, identity, number))

    def bury(self, identity: str, number: int, reason: str, item: bytes | None) -> None:
        """Record that an item failed for good, with the reason."""
        text = None if item is None else item.decode("utf-8", "replace")

        def work(connection: sqlite3.Connection) -> None:
            self._mark(connection, identity, number)
            connection.execute(
                "INSERT INTO ergon_poll_dead (consumer, id, dead_at, reason, item)"
                " VALUES (?, ?, ?, ?, ?)",
                (self._consumer, identity, time.time(), reason[:MAX_REASON] or "unknown", text),
            )

        self._database.write(work)

    def dead(self) -> list[tuple[str, float, str, str | None]]:
        """Id, instant, reason and JSON of items that failed for good, oldest first."""
        sql = (
            "SELECT id, dead_at, reason, item FROM ergon_poll_dead"
            " WHERE consumer = ? ORDER BY number"
        )
        return self._database.read(
            lambda connection: connection.execute(sql, (self._consumer,)).fetchall()
        )

    # ---- inside of a transaction ----------------------------------------------------------------

    def _begin(self, connection: sqlite3.Connection) -> int:
        connection.execute(
            "INSERT INTO ergon_poll_cursors (consumer, epoch, pass, updated_at) VALUES (?, 1, 1, ?)"
            " ON CONFLICT (consumer) DO UPDATE SET epoch = epoch + 1",
            (self._consumer, time.time()),
        )
        sql = "SELECT epoch FROM ergon_poll_cursors WHERE consumer = ?"
        epoch: int = connection.execute(sql, (self._consumer,)).fetchone()[0]
        return epoch

    def _write_cursor(self, connection: sqlite3.Connection, cursor: Cursor) -> None:
        changed = connection.execute(
            "UPDATE ergon_poll_cursors SET position = ?, etag = ?, since = ?, highest = ?,"
            " pass = ?, updated_at = ? WHERE consumer = ? AND epoch = ?",
            (
                cursor.position,
                cursor.etag,
                cursor.since,
                cursor.highest,
                cursor.number,
                time.time(),
                self._consumer,
                self._epoch,
            ),
        ).rowcount
        if not changed:
            raise self._not_ours(connection)

    def _mark(self, connection: sqlite3.Connection, identity: str, number: int) -> None:
        sql = "SELECT 1 FROM ergon_poll_cursors WHERE consumer = ? AND epoch = ?"
        if not connection.execute(sql, (self._consumer, self._epoch)).fetchone():
            raise self._not_ours(connection)
        connection.execute(
            "INSERT INTO ergon_poll_marks (consumer, id, pass, number) VALUES (?1, ?2, ?3,"
            " 1 + (SELECT coalesce(max(number), 0) FROM ergon_poll_marks WHERE consumer = ?1))"
            " ON CONFLICT (consumer, id) DO UPDATE SET pass = excluded.pass",
            (self._consumer, identity, number),
        )

    def _see(self, ids: Iterable[str], number: int) -> None:
        def work(connection: sqlite3.Connection) -> None:
            connection.executemany(
                "UPDATE ergon_poll_marks SET pass = ? WHERE consumer = ? AND id = ?",
                [(number, self._consumer, each) for each in ids],
            )

        self._database.write(work, is_synced=False)  # what moves the cursor later is, with this

    def _forget_but(self, connection: sqlite3.Connection, keep: int) -> None:
        connection.execute(
            "DELETE FROM ergon_poll_marks WHERE consumer = ?1 AND number <="
            " (SELECT max(number) FROM ergon_poll_marks WHERE consumer = ?1) - ?2",
            (self._consumer, keep),
        )

    def _not_ours(self, connection: sqlite3.Connection) -> ChannelLostError:
        sql = "SELECT 1 FROM ergon_poll_cursors WHERE consumer = ?"
        if not connection.execute(sql, (self._consumer,)).fetchone():
            return self._lost()
        return CursorTakenError(
            f"another process has begun to poll as {self._consumer}",
            remedy="let one process poll as a consumer, and keep the .lock file beside the state",
        )

    def _lost(self) -> CursorLostError:
        return CursorLostError(
            f"the cursor of {self._consumer} is not in {self._database.path} any more",
            remedy="nothing, if it was deleted on purpose: reading begins anew at the first page;"
            " otherwise stop the program, and restore a backup of the file",
        )


class _ConsumerLock:
    """A locked file: the consumer is ours until it is closed, or the process ends."""

    def __init__(self, path: Path, consumer: str) -> None:
        digest = hashlib.sha256(consumer.encode()).hexdigest()[:16]
        name = path.with_name(f"{path.name}-poll-{digest}.lock")
        self._descriptor = -1
        try:
            descriptor = open_file(name, os.O_RDWR | os.O_CREAT)
        except UnsafeFileError as error:
            raise ConfigurationError(
                f"{error.filename} was not opened: {error.strerror}",
                remedy="keep the state in a folder that only its users may write to",
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(descriptor, 32).decode("ascii", "replace").strip()
            os.close(descriptor)
            by = f" (process {holder})" if holder.isdigit() else ""
            raise PollerLockedError(
                f"another process{by} polls as {consumer}",
                remedy="this one stands by; or give it a consumer= of its own",
            ) from None
        self.was_used = os.fstat(descriptor).st_size > 0
        """Whether somebody has polled as this consumer before."""
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)  # for people; the lock is what counts
        self._descriptor = descriptor
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget the lock in a forked child, because it is the parent's."""
        self._leave()

    def close(self) -> None:
        """Release the lock, also copies that a forked child has."""
        if self._descriptor >= 0:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self._leave()

    def _leave(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def state_path(state: object) -> Path:
    """The file that a ``state`` names: a path, or the URL of a store on SQLite."""
    example = 'write state = "polls.db", or in an App url = "sqlite:///work.db" under [store]'
    if not isinstance(state, str) or not state:
        raise ConfigurationError("state must name the file that keeps the cursor", remedy=example)
    if state.startswith(SQLITE):
        return Path(path_in(state.removeprefix("sqlite://"))).absolute()
    if "://" in state or state == ":memory:" or "\0" in state:
        raise ConfigurationError(
            "the cursor of a poller is kept in an SQLite file, and state names something else",
            remedy=example,
        )
    return Path(state).absolute()


def unavailable(error: Exception) -> ErgonError:
    """The error for a state that cannot be opened; one that may pass is waited for."""
    if isinstance(error, PollerLockedError | ConfigurationError):
        return error
    if isinstance(error, StoreError) and not isinstance(error, StoreUnavailableError):
        return error  # it is there, and cannot be used
    if isinstance(error, StoreError):
        return ConnectorError(error.message, remedy=error.remedy)
    return ConnectorError(f"the state of the poller cannot be opened: {error}")
