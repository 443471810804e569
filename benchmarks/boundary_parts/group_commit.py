"""The floors: one writer that takes what has come together and brings it to disk, and no more."""

from __future__ import annotations

import os
import sqlite3
import threading
from abc import abstractmethod
from pathlib import Path
from queue import Empty, SimpleQueue

MOST = 512
"""Callers served by one commit."""

_sync = getattr(os, "fdatasync", os.fsync)


class PendingWrite:
    """Bytes of a caller, and the lock it waits for; None ends the writer."""

    __slots__ = ("bodies", "error", "wake")

    def __init__(self, bodies: list[bytes] | None) -> None:
        self.bodies = bodies
        self.error: BaseException | None = None
        self.wake = threading.Lock()
        self.wake.acquire()


class GroupCommit:
    """A queue and a thread. ``append`` returns when the bytes are on disk."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[PendingWrite] = SimpleQueue()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def append(self, body: bytes) -> None:
        """Leave it to the writer, and wait."""
        self._hand_over(PendingWrite([body]))

    def append_all(self, bodies: list[bytes]) -> None:
        """Many of one caller in one commit."""
        self._hand_over(PendingWrite(bodies))

    def close(self) -> None:
        """End the writer."""
        self._queue.put(PendingWrite(None))
        self._thread.join()

    def _hand_over(self, waiting: PendingWrite) -> None:
        self._queue.put(waiting)
        waiting.wake.acquire()
        if waiting.error is not None:
            raise waiting.error

    @abstractmethod
    def open(self) -> None:
        """Called first, in the writer's thread."""

    @abstractmethod
    def commit(self, bodies: list[bytes]) -> None:
        """Bring all of these to disk."""

    @abstractmethod
    def end(self) -> None:
        """Called last, in the writer's thread."""

    def _run(self) -> None:
        self.open()
        is_open = True
        while is_open:
            group = self._take()
            bodies = [body for each in group for body in each.bodies or ()]
            is_open = all(each.bodies is not None for each in group)
            error: BaseException | None = None
            try:
                if bodies:
                    self.commit(bodies)
            except Exception as caught:  # whatever it is, callers wait for an answer
                error = caught
            for each in group:
                each.error = error
                each.wake.release()
        self.end()

    def _take(self) -> list[PendingWrite]:
        group = [self._queue.get()]
        try:
            while len(group) < MOST:
                group.append(self._queue.get_nowait())
        except Empty:
            pass
        return group


class SqliteGroupCommit(GroupCommit):
    """A row with no key but its number: no ledger, no hash, no check."""

    def __init__(self, path: Path) -> None:
        self._path = path
        super().__init__()

    def open(self) -> None:
        """WAL, and the disk is waited for, as in our own store."""
        self._connection = sqlite3.connect(self._path, isolation_level=None)
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "temp_store = MEMORY"):
            self._connection.execute(f"PRAGMA {pragma}")
        self._connection.execute("CREATE TABLE facts (id INTEGER PRIMARY KEY, body BLOB NOT NULL)")

    def commit(self, bodies: list[bytes]) -> None:
        """One transaction."""
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(
            "INSERT INTO facts (body) VALUES (?)", [(body,) for body in bodies]
        )
        self._connection.execute("COMMIT")

    def end(self) -> None:
        """Let go of the file."""
        self._connection.close()


class FileGroupCommit(GroupCommit):
    """One file that grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        super().__init__()

    def open(self) -> None:
        """A new file."""
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def commit(self, bodies: list[bytes]) -> None:
        """One write and one sync."""
        os.write(self._file, b"".join(bodies))
        _sync(self._file)

    def end(self) -> None:
        """Let go of the file."""
        os.close(self._file)
