"""What every part of the store stands on: the file, the clock, and who waits for facts."""

from __future__ import annotations

import logging
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from ergon_framework.errors import ConfigurationError, StoreSchemaError
from ergon_framework.ports.factstore import StoreInfo
from ergon_framework.storage.failpoints import declare, failpoint
from ergon_framework.storage.schema import Schema
from ergon_framework.storage.statements import load
from ergon_framework.storage.writer import Database

T = TypeVar("T")

logger = logging.getLogger("ergon_framework.boundary")

SQL = "ergon_framework.boundary.logs.sqlite.sql"
SCHEMA = Schema("boundary", f"{SQL}.schema")
_CALLS = ("append", "receive", "confirm", "truncate", "bind", "quarantine", "desk")
_BEFORE = {call: f"boundary.{call}.before" for call in _CALLS}
_AFTER = {call: f"boundary.{call}.after" for call in _CALLS}
declare(*_BEFORE.values(), *_AFTER.values())

_SQL = load(SQL, "store.sql")


class Ground:
    """Runs transactions, and wakes who waits for facts when they are committed."""

    def __init__(
        self,
        path: str | Path,
        *,
        zone: str,
        clock: Callable[[], float] = time.time,
        read_only: bool = False,
        busy_timeout: float = 5.0,
    ) -> None:
        self._clock = clock
        self._is_read_only = read_only
        self._wakes: list[Callable[[], None]] = []
        self._waking = threading.Lock()
        self._database = Database(
            path, schema=SCHEMA, busy_timeout=busy_timeout, read_only=read_only
        )
        try:
            self._info = self._meet(zone) if read_only else self._move_in(zone)
        except BaseException:
            self._database.close()
            raise

    @property
    def path(self) -> Path:
        """The file."""
        return self._database.path

    def subscribe(self, wake: Callable[[], None]) -> None:
        """Call ``wake()``, from any thread, after each commit of this object that added facts."""
        with self._waking:
            self._wakes = [*self._wakes, wake]

    def unsubscribe(self, wake: Callable[[], None]) -> None:
        """No longer; one who never subscribed is fine."""
        with self._waking:
            left = list(self._wakes)
            if wake in left:
                left.remove(wake)
            self._wakes = left

    def close(self) -> None:
        """Let go of everything. Closing twice is fine."""
        self._database.close()

    def _wake(self) -> None:
        for wake in self._wakes:
            try:
                wake()
            except Exception:
                logger.exception("a callback that waits for facts failed")

    def _write(
        self, work: Callable[[sqlite3.Cursor], T], call: str, *, is_synced: bool = True
    ) -> T:
        """Run one transaction."""

        def whole(connection: sqlite3.Connection) -> T:
            with closing(connection.cursor()) as cursor:
                result = work(cursor)
            failpoint(_BEFORE[call])
            return result

        result = self._database.write(whole, is_synced=is_synced)
        failpoint(_AFTER[call])
        return result

    def _read(self, work: Callable[[sqlite3.Cursor], T]) -> T:
        def whole(connection: sqlite3.Connection) -> T:
            with closing(connection.cursor()) as cursor:
                return work(cursor)

        return self._database.read(whole)

    def _meet(self, zone: str) -> StoreInfo:
        """Look whose store it is."""
        found = self._read(lambda cursor: cursor.execute(_SQL["store"]).fetchone())
        if found is None:
            raise StoreSchemaError(
                f"{self.path} has no zone yet", remedy="open it once for writing"
            )
        return self._check(found, zone)

    def _move_in(self, zone: str) -> StoreInfo:
        """Found the store, or look whose it is and write down that it was opened."""

        def work(cursor: sqlite3.Cursor) -> StoreInfo:
            now, found = self._clock(), cursor.execute(_SQL["store"]).fetchone()
            if found is None:
                info = StoreInfo(zone, secrets.token_hex(8), now)
                cursor.execute(_SQL["found"], (zone, info.epoch, now))
                return info
            info = self._check(found, zone)
            if found[3]:
                # It may have gone back in time: who read from it before must notice.
                info = StoreInfo(zone, secrets.token_hex(8), info.created_at)
                note(cursor, now, "new_epoch", f"a copy was opened; its epoch was {found[1]}")
            cursor.execute(_SQL["opened"], (info.epoch, now))
            return info

        return self._write(work, "desk")

    def _check(self, found: tuple[str, str, float, int], zone: str) -> StoreInfo:
        if found[0] != zone:
            raise ConfigurationError(
                f"{self.path} belongs to the zone {found[0]!r}, not to {zone!r}",
                remedy="name that zone, or another file",
            )
        return StoreInfo(found[0], found[1], found[2])


def note(cursor: sqlite3.Cursor, now: float, action: str, details: str) -> None:
    """Write down what an operator did."""
    cursor.execute(_SQL["note"], (now, action, details))
