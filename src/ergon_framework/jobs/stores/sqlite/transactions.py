"""Transactions on the file of an SQLite job store, and notifications when they are committed."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from ergon_framework.core.retention import STANDARD
from ergon_framework.jobs.stores.sqlite.rows import SQL, page_of, unreadable_rows
from ergon_framework.jobs.stores.sqlite.transitions import SqliteTransitions
from ergon_framework.jobs.stores.transitions import AFTER, BEFORE
from ergon_framework.jobs.stores.unreadable import READ_ERRORS, UnreadableRowError, is_misread
from ergon_framework.ports.jobstore import Job, Subscription, Topic
from ergon_framework.storage.failpoints import failpoint
from ergon_framework.storage.sqlite.database import Database
from ergon_framework.storage.sqlite.migrations import SqliteSchema
from ergon_framework.storage.sqlite.notifier import FifoNotifier
from ergon_framework.storage.write_guard import WriteGuard

T = TypeVar("T")

_WORK, _DONE = Topic.WORK.value, Topic.DONE.value  # plain strings have a hash of their own

FULL_SCAN_INTERVAL = 60.0
"""Seconds between two looks at all rows for such that cannot be read, where there were none."""

SCHEMA = SqliteSchema("jobs", f"{SQL}.schema")


# A cursor is closed where it was used. One that another thread drops later, with a result or with
# an error, resets a statement that the next user of the connection may be executing.


class SqliteTransactions:
    """Runs transactions on one file by one clock, and notifies when they are committed."""

    def __init__(
        self,
        path: str | Path,
        *,
        clock: Callable[[], float] = time.time,
        busy_timeout: float = 5.0,
        read_only: bool = False,
    ) -> None:
        self.database = Database(
            path, schema=SCHEMA, busy_timeout=busy_timeout, read_only=read_only
        )
        self.notifier = FifoNotifier(self.database.path)
        self._clock = clock
        self.is_read_only = read_only
        self.guard: WriteGuard[SqliteTransitions] = WriteGuard()
        self.retention = STANDARD
        self._looks_again_at = 0.0

    @property
    def path(self) -> Path:
        """The file."""
        return self.database.path

    def now(self) -> float:
        """The store's clock."""
        return self._clock()

    def subscribe(self, topic: Topic) -> Subscription:
        """Subscribe this process to each change of that kind, made by any process."""
        return self.notifier.subscribe(topic)

    def announce(self) -> None:
        """Wake the workers. For callers that added jobs in a transaction of their own."""
        self.notifier.notify(_WORK)

    def check_tables(self) -> None:
        """Refuse a file that lacks tables of ours."""
        self.database.read(lambda connection: SCHEMA.check(connection, self.path))

    def maintain(self) -> bool:
        """Shorten the write-ahead log if it is long; whether that was done."""
        return self.database.maintain()

    def close(self) -> None:
        """Close everything. May be called twice."""
        self.notifier.close()
        self.database.close()

    def write(
        self,
        work: Callable[[SqliteTransitions], T],
        call: str,
        *,
        is_work: bool = False,
        is_synced: bool = True,
    ) -> T:
        """Run one transaction, and notify of what it changed, or of work in any case."""

        def whole(connection: sqlite3.Connection) -> tuple[T, bool, bool]:
            cursor = connection.cursor()
            try:  # without `closing`, which costs an enqueue more than the cursor itself
                tx = SqliteTransitions(cursor, self._clock(), self.retention)
                # In the transaction itself: between a check before it and the write, a move could
                # shut the store.
                if self.guard.check is not None:
                    self.guard.check(tx)
                result = work(tx)
                tx.finish()
            finally:
                cursor.close()
            failpoint(BEFORE[call])
            return result, tx.is_work, tx.is_done

        result, is_work_too, is_done = self._retrying(whole, is_synced=is_synced)
        failpoint(AFTER[call])
        # Only now: a worker that is woken before the commit finds nothing, and sleeps again. Should
        # this process die before the next line, the job is found by the next poll.
        if is_work or is_work_too:
            self.notifier.notify(_WORK)
        if is_done:
            self.notifier.notify(_DONE)
        return result

    def _retrying(self, work: Callable[[sqlite3.Connection], T], *, is_synced: bool) -> T:
        """Run a transaction; rows that it cannot read are set aside, and it is run again."""
        while True:
            try:
                return self.database.write(work, is_synced=is_synced)
            except (*READ_ERRORS, sqlite3.OperationalError) as error:
                if not is_misread(error) or not self.set_unreadable_rows_aside(error):
                    raise

    def set_unreadable_rows_aside(self, error: Exception) -> bool:
        """Something met a row that it cannot read: find all such rows; whether there are any.

        One that names itself is soon found. For all others every row is read, those first that have
        not ended. That takes long, so that it is not done again soon when it has helped nothing.
        """
        if isinstance(error, UnreadableRowError):
            found = [(error.key, str(error))]
        elif time.monotonic() < self._looks_again_at:
            return False
        else:
            found = self.read(lambda cursor: unreadable_rows(cursor, "live"))
            found = found or self.read(lambda cursor: unreadable_rows(cursor, "ended"))
            # Only a look that was in vain is put off: rows that were found are gone from the next
            # one.
            self._looks_again_at = 0.0 if found else time.monotonic() + FULL_SCAN_INTERVAL

        def whole(connection: sqlite3.Connection) -> None:
            with closing(connection.cursor()) as cursor:
                SqliteTransitions(cursor, self._clock()).set_all_aside(found)

        # In a transaction of its own: the one that met the row is rolled back.
        if found:
            self.database.write(whole)
        return bool(found)

    def read(self, work: Callable[[sqlite3.Cursor], T]) -> T:
        """Run something on what was committed last."""

        def whole(connection: sqlite3.Connection) -> T:
            with closing(connection.cursor()) as cursor:
                return work(cursor)

        return self.database.read(whole)

    def first(self, statement: str, values: tuple[Any, ...] = ()) -> Any:
        """The first row of a statement, or None."""
        return self.read(lambda cursor: cursor.execute(statement, values).fetchone())

    def readable(self, statement: str, values: tuple[Any, ...]) -> list[Job]:
        """The jobs that a statement finds; rows that cannot be read are set aside."""
        page = self.read(lambda cursor: page_of(cursor, statement, values))
        while page.unreadable and not self.is_read_only:
            unreadable = [(each.key, each.problem) for each in page.unreadable]
            self.write(lambda tx: tx.set_all_aside(unreadable), "exchange")  # noqa: B023 - at once
            page = self.read(lambda cursor: page_of(cursor, statement, values))
        return page.jobs
