"""Checkpoints that keep the write-ahead log short, made by one process at a time."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import sqlite3
import struct
from collections.abc import Iterator
from pathlib import Path

from ergon_framework.storage import secure_files
from ergon_framework.storage.sqlite.connections import DEFAULT_LIMITS
from ergon_framework.storage.sqlite.errors import is_busy, is_full

logger = logging.getLogger("ergon.storage")

_MAGIC = (0x377F0682, 0x377F0683)  # how a log of SQLite begins, with checksums of either byte order
_HEADER = struct.Struct(">IIIIII")  # of the log: magic, format, page size, sequence, two salts
_FRAME = struct.Struct(">IIII")  # of a page in it: page number, pages after commit, two salts
_FIRST_FRAME = 32  # bytes of the header of a log, in SQLite's file format
_FRAME_HEADER = 24  # bytes before each page in it


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
        """Whether it is time to look and there is something to do. Call after each commit."""
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

    def run(self, connection: sqlite3.Connection) -> bool:
        """Checkpoint unless another process is doing so; whether all of the log was done."""
        # Without it, a second process would wait for the checkpoint of the first one, only to find
        # it done.
        with self._locked() as is_ours:
            if not is_ours:
                return False
            if self._is_short():
                self._lengthen(connection)
            size = self._log.stat().st_size
            # RESTART keeps the file at its length, so that the next commits need not let it grow
            # again. One that has become far too long gives its room back.
            mode = "TRUNCATE" if size > self._truncate_bytes else "RESTART"
            [is_blocked, _, _] = connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
            if is_blocked and size > self._truncate_bytes and not self._has_warned:
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

    def _lengthen(self, connection: sqlite3.Connection) -> None:
        """Let SQLite fill the log with pages of a transaction that is then given up."""
        [cache] = connection.execute("PRAGMA cache_size").fetchone()
        connection.execute("PRAGMA cache_size = 16")  # what does not fit goes to the log at once
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("CREATE TABLE ergon_room (filler)")
            size = self._max_bytes * 5 // 4
            connection.execute("INSERT INTO ergon_room VALUES (zeroblob(?))", (size,))
        except sqlite3.OperationalError as error:
            if not is_busy(error) and not is_full(error):
                raise
            # Another writer passes; a full disk does not, and would be asked again at each look.
            self._may_lengthen = is_busy(error)
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        connection.execute(f"PRAGMA cache_size = {cache}")

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
            # Read as it is, beside writers: at worst this round is judged wrongly, and the next
            # look puts it right.
            magic, _, page_size, _, *round_ = _HEADER.unpack(file.read(_HEADER.size))
            if magic not in _MAGIC:
                return False
            frame = page_size + _FRAME_HEADER
            file.seek(_FIRST_FRAME + (bound - _FIRST_FRAME) // frame * frame)
            _, _, *found = _FRAME.unpack(file.read(_FRAME.size))
            return found == round_
    except (OSError, struct.error):
        return False
