"""Read connections: a few, shared by all threads, each with a consistent view while it is used."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ergon_framework.errors import StoreError, StoreUnavailableError
from ergon_framework.storage.connections import Connect, Watch, open_reader
from ergon_framework.storage.faults import is_spent, translate

T = TypeVar("T")

LIMIT = 8
"""Read connections of a process to one file."""

_RANGE = 1 << 32  # larger than any number of commits that a connection counts


@dataclass(slots=True)
class _Reader:
    connection: sqlite3.Connection
    generation: int

    def close(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self.connection.close()


class Readers:
    """The pool. A connection is opened when all others are busy, up to the limit."""

    def __init__(self, path: Path, connect: Connect, watch: Watch) -> None:
        self._path = path
        self._connect = connect
        self._watch = watch
        self._free = threading.Condition(threading.Lock())
        self._idle: list[_Reader] = []
        self._busy = 0
        self._is_closed = False
        self._counting = threading.Lock()
        self._counter: _Reader | None = None
        self._counters = 0  # how many there have been: each counts from its own start

    def read(self, work: Callable[[sqlite3.Connection], T], patience: float) -> T:
        """Run ``work`` on the state of the last commit."""
        reader = self._take(patience)
        is_sound = True
        try:
            reader.connection.execute("BEGIN")
            return work(reader.connection)
        except sqlite3.Error as error:
            is_sound = not is_spent(error)
            told = translate(error, self._path)
            if told is None:
                raise
            raise told from error
        finally:
            self._give_back(reader, is_sound)

    def data_version(self, patience: float) -> int:
        """A number that changes when anybody has committed."""
        with self._counting:
            counter = self._counter
            try:
                if counter is None or counter.generation != self._watch.look_sometimes():
                    self._close_counter()
                    counter = self._counter = self._open(patience)
                    self._counters += 1
                [version] = counter.connection.execute("PRAGMA data_version").fetchone()
            except sqlite3.Error as error:
                self._close_counter()
                raise self._told(error) from error
            return self._counters * _RANGE + int(version)

    def close(self) -> None:
        """Close what is idle, and what is busy when it comes back."""
        with self._free:
            self._is_closed = True
            self._close_idle()
        with self._counting:
            self._close_counter()

    def hold(self, timeout: float) -> bool:
        """Close everything and let nobody read until :meth:`resume`; False when some went on."""
        self._counting.acquire()
        self._close_counter()
        self._free.acquire()
        is_quiet = self._free.wait_for(lambda: not self._busy, timeout)
        self._close_idle()
        return is_quiet

    def resume(self) -> None:
        """End what :meth:`hold` began, in the thread that called it."""
        self._free.release()
        self._counting.release()

    def _take(self, patience: float) -> _Reader:
        generation = self._watch.look_sometimes()
        with self._free:
            if not self._idle and self._busy >= LIMIT:
                self._free.wait_for(lambda: self._idle or self._busy < LIMIT, patience)
            if self._busy >= LIMIT:
                raise StoreUnavailableError(
                    f"all {LIMIT} read connections to {self._path} are in use",
                    remedy="keep reads short, and do not read inside a read",
                )
            self._busy += 1
            reader = self._idle.pop() if self._idle else None
        if reader is not None and reader.generation == generation:
            return reader
        try:
            if reader is not None:
                reader.close()
            return self._open(patience)
        except BaseException as error:
            with self._free:
                self._busy -= 1
                self._free.notify_all()
            if isinstance(error, sqlite3.Error):
                raise self._told(error) from error
            raise

    def _give_back(self, reader: _Reader, is_sound: bool) -> None:
        connection = reader.connection
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            is_sound = False
        with self._free:
            self._busy -= 1
            if is_sound and not self._is_closed:
                self._idle.append(reader)
            else:
                reader.close()
            self._free.notify_all()

    def _open(self, patience: float) -> _Reader:
        connection = open_reader(self._path, self._connect, patience)
        return _Reader(connection, self._watch.look())

    def _close_idle(self) -> None:
        for reader in self._idle:
            reader.close()
        self._idle.clear()

    def _close_counter(self) -> None:
        if self._counter is not None:
            self._counter.close()
            self._counter = None

    def _told(self, error: sqlite3.Error) -> StoreError:
        return translate(error, self._path) or StoreError(f"{self._path} cannot be read: {error}")
