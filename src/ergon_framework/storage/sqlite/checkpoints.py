"""Checkpoints that keep the write-ahead log short, made by one process at a time.

No commit waits for one. A thread of its own does the long parts beside those who write: it makes
the log long in slices, and moves pages into the database by a connection of its own. Writers are
kept out for the write of one slice, and to begin the log anew once its pages have been moved.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import sqlite3
import struct
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from ergon_framework.storage import secure_files
from ergon_framework.storage.fsync import sync_file
from ergon_framework.storage.sqlite.connections import DEFAULT_LIMITS

logger = logging.getLogger("ergon.storage")

_MAGIC = (0x377F0682, 0x377F0683)  # how a log of SQLite begins, with checksums of either byte order
_HEADER = struct.Struct(">IIIIII")  # of the log: magic, format, page size, sequence, two salts
_FRAME = struct.Struct(">IIII")  # of a page in it: page number, pages after commit, two salts
_FIRST_FRAME = 32  # bytes of the header of a log, in SQLite's file format
_FRAME_HEADER = 24  # bytes before each page in it
_NOTHING = bytes(1 << 18)  # what one slice writes: a commit meanwhile waits about a tenth of a ms
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
CHECKPOINT_THREAD = "ergon-checkpoint"
"""The name of the thread in which a process checkpoints."""


class LogOwner(Protocol):
    """The writer of the file, as far as a checkpoint needs it."""

    def alone(self) -> AbstractContextManager[sqlite3.Connection]:
        """The writing connection, in a transaction: nobody else in any process writes."""

    def idle(self) -> AbstractContextManager[sqlite3.Connection]:
        """The writing connection outside a transaction, while no other thread of this process
        writes.
        """

    def beside(self) -> AbstractContextManager[sqlite3.Connection]:
        """A second connection, used while the writer goes on."""


class Checkpointer:
    """Looks at the log of one file from time to time and checkpoints it.

    A log that has its length already takes commits about twice as fast as one that grows: the disk
    overwrites blocks and need not record a new length. So it is made ``max_bytes`` long before that
    is needed, begun anew from its start, and cut only when it has outgrown four times that.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int = DEFAULT_LIMITS.checkpoint_bytes,
        interval: int = DEFAULT_LIMITS.checkpoint_interval,
    ) -> None:
        """``interval`` is how many commits lie between two looks at the log."""
        self._path = path
        self._max_bytes = max_bytes
        self._truncate_bytes = 4 * max_bytes
        self._interval = interval
        self._log = Path(f"{path}-wal")
        self._lock_path = Path(f"{path}-maintenance.lock")
        self._left = 1
        self._is_first_look = True
        self._may_lengthen = True
        self._has_warned = False

    def is_due(self) -> bool:
        """Whether the log should be checked now and is long enough. Call after each commit."""
        self._left -= 1
        if self._left > 0:
            return False
        self._left = self._interval
        # A process with few commits takes its turn at a long log, but needs no room of its own.
        is_first, self._is_first_look = self._is_first_look, False
        return self.is_long() or (not is_first and self._is_short())

    def is_long(self) -> bool:
        """Whether the log has reached its bound."""
        return is_long(self._log, self._max_bytes)

    def run(self, owner: LogOwner) -> bool:
        """Lengthen or checkpoint, unless another process does; whether the log was begun anew."""
        # Without the lock, a second process would wait for the checkpoint of the first one, only to
        # find it done.
        with self._locked() as is_ours:
            if not is_ours:
                return False
            if self._is_short():
                self._lengthen(owner)
            with owner.beside() as connection:
                # Moves nearly all pages to the database, and keeps nobody from writing.
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            with owner.idle() as connection:
                return self._begin_anew(connection)

    def _begin_anew(self, connection: sqlite3.Connection) -> bool:
        """Move what has come since, and let the next commit write to the start of the log."""
        size = self._log.stat().st_size
        # RESTART keeps the file at its length, so that the next commits need not let it grow
        # again. One that has become far too long gives its room back.
        mode = "TRUNCATE" if size > self._truncate_bytes else "RESTART"
        [is_blocked, pages, moved] = connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
        # Another process that is writing at this moment blocks as well, but then pages were moved:
        # only one that reads keeps them all.
        is_kept = is_blocked and moved < pages // 2
        if is_kept and size > self._truncate_bytes and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "%s has grown to %d bytes: some connection reads without ever ending its"
                " transaction",
                self._log,
                size,
            )
        return not is_blocked

    def _is_short(self) -> bool:
        try:
            return self._may_lengthen and self._log.stat().st_size < self._max_bytes
        except OSError:
            return False

    def _lengthen(self, owner: LogOwner) -> None:
        """Write zeros behind what is in the log: SQLite finds no page there, as each has salts.

        If this process dies on any line, the log is longer than before, and as good.
        """
        log = secure_files.open_file(self._log, os.O_WRONLY)
        try:
            while self._write_slice(log, owner):
                # Outside of the transaction: a commit that comes meanwhile waits for one slice at
                # most, and not for the whole length.
                sync_file(log)
        except OSError as error:
            # A full disk does not pass soon, and would be asked again at each look.
            self._may_lengthen = error.errno not in _NO_ROOM
            if self._may_lengthen:
                raise
        finally:
            os.close(log)

    def _write_slice(self, log: int, owner: LogOwner) -> bool:
        """Lengthen the log by one slice; False if it is long enough or was replaced."""
        with owner.alone():
            # In a transaction that writes: nobody appends, cuts or removes the log meanwhile.
            found, named = os.fstat(log), self._log.stat()
            left = self._max_bytes * 5 // 4 - found.st_size
            if left <= 0 or (found.st_dev, found.st_ino) != (named.st_dev, named.st_ino):
                return False
            os.pwrite(log, _NOTHING[:left], found.st_size)
            return True

    @contextlib.contextmanager
    def _locked(self) -> Iterator[bool]:
        try:
            lock = secure_files.open_file(self._lock_path, os.O_RDWR | os.O_CREAT)
        except OSError as error:  # a folder that takes no new file, or a file of another user
            self._warn_of(error)
            yield False
            return
        try:
            secure_files.give_to(lock, self._path)
            yield _try_lock(lock)
        finally:
            # Closing frees the lock as well.
            os.close(lock)

    def _warn_of(self, error: OSError) -> None:
        if isinstance(error, secure_files.UnsafeFileError) and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "%s cannot be locked, and the write-ahead log grows: %s",
                self._lock_path,
                error.strerror,
            )


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # held by another process
        return False
    return True


def is_long(log: Path, bound: int) -> bool:
    """Whether the log holds ``bound`` bytes that are not known to be in the database.

    Its length says nothing, because it is written again from the start after a checkpoint. But
    each page in it carries the two salts of its round, and so does the log's header.
    """
    try:
        if log.stat().st_size <= bound:
            return False
        with log.open("rb", buffering=0) as file:
            # Read without a lock, beside writers: at worst this round is judged wrongly, and the
            # next look puts it right.
            magic, _, page_size, _, *round_ = _HEADER.unpack(file.read(_HEADER.size))
            if magic not in _MAGIC:
                return False
            frame = page_size + _FRAME_HEADER
            file.seek(_FIRST_FRAME + (bound - _FIRST_FRAME) // frame * frame)
            _, _, *found = _FRAME.unpack(file.read(_FRAME.size))
            return found == round_
    except (OSError, struct.error):
        return False
