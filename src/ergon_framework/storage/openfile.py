"""One SQLite file as this process has it open, however many parts use it.

SQLite keeps its locks per process: they do not survive a fork, and it does not notice. A child that
uses a connection of its parent, or one of its own while those are open, is seen by nobody, and what
it commits can be lost. So every connection is closed before a fork and opened again when needed.
"""

from __future__ import annotations

import contextlib
import os
import threading
from functools import partial
from pathlib import Path

from ergon_framework.errors import StoreError, StoreUnavailableError
from ergon_framework.storage.commits import Writer
from ergon_framework.storage.connections import Connect, Watch
from ergon_framework.storage.readers import Readers
from ergon_framework.storage.turns import Turns

_FORK_PATIENCE = 5.0  # seconds a fork waits for transactions of other threads

_files: dict[tuple[Path, Connect], OpenFile] = {}
_closing: list[OpenFile] = []
_lock = threading.RLock()


class OpenFile:
    """The writing connection and the read connections to one file."""

    def __init__(self, path: Path, connect: Connect) -> None:
        self.path = path
        self.users = 0
        self.watch = Watch(path)
        self.writer = Writer(path, connect, self.watch)
        self.readers = Readers(path, connect, self.watch)
        self._turn = contextlib.ExitStack()
        self._is_quiet = False

    def close(self) -> None:
        """Close every connection."""
        self.readers.close()
        self.writer.close()

    def before_fork(self) -> None:
        """Close every connection, so that the child inherits none, and let nobody in."""
        self._is_quiet = False
        with contextlib.suppress(TimeoutError, StoreError):  # StoreError: this thread writes
            self._turn.enter_context(self.writer.turn(_FORK_PATIENCE))
            self.writer.drop()
            self._is_quiet = True
        self._is_quiet &= self.readers.hold(_FORK_PATIENCE)

    def after_fork(self, *, in_child: bool) -> None:
        """Let everybody in again; in a child only if nothing was in use."""
        if in_child:
            self.writer.turns = Turns()  # those in line exist only in the parent
            if not self._is_quiet:
                self.watch.refuse(_in_use(self.path))
        self._turn.close()
        self.readers.resume()


def _in_use(path: Path) -> StoreUnavailableError:
    return StoreUnavailableError(
        f"{path} was in use when this process was forked, and cannot be used in it",
        remedy="fork before the store is opened, or start processes by spawn",
    )


def acquire(path: Path, connect: Connect) -> OpenFile:
    """The file as it is open already, or newly opened; give it back with :func:`release`."""
    with _lock:
        file = _files.get((path, connect))
        if file is None:
            file = _files[path, connect] = OpenFile(path, connect)
        file.users += 1
        return file


def release(file: OpenFile, connect: Connect) -> None:
    """One user less; the last one closes the file."""
    with _lock:
        file.users -= 1
        if file.users:
            return
        del _files[file.path, connect]
        _closing.append(file)
    try:
        file.close()
    finally:
        with _lock:
            _closing.remove(file)


def _before_fork() -> None:
    _lock.acquire()
    for file in (*_files.values(), *_closing):
        file.before_fork()


def _after_fork(*, in_child: bool) -> None:
    for file in (*_files.values(), *_closing):
        file.after_fork(in_child=in_child)
    _lock.release()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=partial(_after_fork, in_child=False),
    after_in_child=partial(_after_fork, in_child=True),
)
