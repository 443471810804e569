"""What every part of the store stands on: the file, the clock and the bells."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from ergon_framework.jobs.stores.moments import AFTER, BEFORE
from ergon_framework.jobs.stores.sqlite.moves import Moves
from ergon_framework.jobs.stores.sqlite.rows import SQL
from ergon_framework.ports.jobstore import Bell, Topic
from ergon_framework.storage.bells import Belfry
from ergon_framework.storage.failpoints import failpoint
from ergon_framework.storage.schema import Schema
from ergon_framework.storage.writer import Database

T = TypeVar("T")

_WORK, _DONE = Topic.WORK.value, Topic.DONE.value  # plain strings have a hash of their own

SCHEMA = Schema("jobs", f"{SQL}.schema")


# A cursor is closed where it was used. One that another thread drops later, with a result or with
# an error, resets a statement that whoever has the connection by then may be executing.


class Ground:
    """Runs transactions, and rings when they are committed."""

    def __init__(
        self,
        path: str | Path,
        *,
        clock: Callable[[], float] = time.time,
        busy_timeout: float = 5.0,
        read_only: bool = False,
    ) -> None:
        self._database = Database(
            path, schema=SCHEMA, busy_timeout=busy_timeout, read_only=read_only
        )
        self._belfry = Belfry(self._database.path)
        self._clock = clock

    @property
    def path(self) -> Path:
        """The file."""
        return self._database.path

    def now(self) -> float:
        """The store's clock."""
        return self._clock()

    def listen(self, topic: Topic) -> Bell:
        """A bell for this process, rung at each change of that kind, from any process."""
        return self._belfry.listen(topic)

    def announce(self) -> None:
        """Wake the workers: for those who added jobs in a transaction of their own."""
        self._belfry.ring(_WORK)

    def maintain(self) -> bool:
        """Shorten the write-ahead log if it is long; whether that was done."""
        return self._database.maintain()

    def close(self) -> None:
        """Let go of everything; may be called twice."""
        self._belfry.close()
        self._database.close()

    def _write(
        self,
        work: Callable[[Moves], T],
        call: str,
        *,
        is_work: bool = False,
        is_synced: bool = True,
    ) -> T:
        """Run one transaction, and ring for what it moved, or for work in any case."""

        def whole(connection: sqlite3.Connection) -> tuple[T, bool, bool]:
            with closing(connection.cursor()) as cursor:
                moves = Moves(cursor, self._clock())
                result = work(moves)
            failpoint(BEFORE[call])
            return result, moves.is_work, moves.is_done

        result, is_work_too, is_done = self._database.write(whole, is_synced=is_synced)
        failpoint(AFTER[call])
        if is_work or is_work_too:
            self._belfry.ring(_WORK)
        if is_done:
            self._belfry.ring(_DONE)
        return result

    def _read(self, work: Callable[[sqlite3.Cursor], T]) -> T:
        def whole(connection: sqlite3.Connection) -> T:
            with closing(connection.cursor()) as cursor:
                return work(cursor)

        return self._database.read(whole)
