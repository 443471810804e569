"""The files of a spill folder: the one this process writes, and those that are read back.

A file belongs to whoever holds its lock, and the lock ends with its process: so nobody reads what
is still being written, and no two processes read the same file back.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import secrets
from collections import deque
from pathlib import Path

from ergon_framework.ports.providerstore import Batch
from ergon_framework.providers.recording.spill_lines import batch_of
from ergon_framework.storage.fsync import sync_file, sync_folder
from ergon_framework.storage.secure_files import Folder, UnsafeFileError

SUFFIX = ".jsonl"
SPOILT = ".bad"
"""Added to the name of a file that holds something nobody could write to the store."""

_PIECE = 1 << 18
_warned: set[str] = set()
logger = logging.getLogger("ergon.providers")
_TRIES = 10


class OwnFile:
    """The file that this process appends to. Whoever calls sees to it that only one does."""

    def __init__(self, folder: Path) -> None:
        self.path, self.fd = _create(folder)
        self.size = 0
        self.is_dirty = False
        """Whether something in it is not yet known to be on disk."""
        self._is_new = True
        self._is_torn = False

    def append(self, lines: bytes) -> None:
        """Write lines whole, or none of them."""
        view = memoryview(b"\n" + lines if self._is_torn else lines)
        done = 0
        try:
            while done < len(view):
                done += os.write(self.fd, view[done:])
        except OSError:
            self._is_torn = done > 0 and not self._cut(self.size)
            raise
        self._is_torn = False
        self.size += done
        self.is_dirty = True

    def take_back(self, size: int) -> None:
        """Undo the last append, whose end nobody can be sure of."""
        if self._cut(size):
            self.size = size

    def sync(self, fd: int) -> None:
        """Answer when everything appended so far is on disk; ``fd`` is a duplicate of the file's.

        A duplicate, because the file may be read back and closed while this waits for the disk.
        """
        sync_file(fd)
        if self._is_new:
            sync_folder(self.path.parent)
            self._is_new = False

    def close(self) -> None:
        """Let go of it, lock included."""
        os.close(self.fd)

    def _cut(self, size: int) -> bool:
        try:
            os.ftruncate(self.fd, size)
        except OSError:
            return False
        return True


class LeftFile:
    """A file that is read back: this process's own, or one that a dead process left."""

    def __init__(self, path: Path, fd: int, *, is_own: bool) -> None:
        self.path = path
        self.is_own = is_own
        self.spoilt = 0
        """Lines that cannot be read, or that the store will never take."""
        # No file object: one whose lock was held when the process forked could not be closed.
        self._fd = fd
        self._at = 0
        self._lines: deque[bytes] = deque()
        self._rest = b""
        self._is_doubtful = False
        self._next: list[Batch] = []

    def chunk(self, limit: int) -> list[Batch]:
        """The next batches, the same ones until :meth:`advance`; none at the end of the file."""
        while not self._next and (self._lines or self._fill()):
            for _ in range(min(limit, len(self._lines))):
                self._read(self._lines.popleft())
        return self._next

    def advance(self) -> None:
        """The batches of the last chunk have been seen to."""
        self._next = []

    def finish(self) -> None:
        """It was read to its end: remove it, or put it aside if it holds what nobody could use."""
        with contextlib.suppress(OSError):
            if self.spoilt:
                self.path.rename(self.path.with_name(self.path.name + SPOILT))
            else:
                self.path.unlink()
        self.close()

    def close(self) -> None:
        """Let go of it, lock included; it stays where it is."""
        os.close(self._fd)

    def _fill(self) -> bool:
        try:
            piece = os.pread(self._fd, _PIECE, self._at)
        except OSError:  # the disk cannot read it: what is left stays for people to look at
            self.spoilt += 1
            return False
        self._at += len(piece)
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if not piece and self._rest:
            lines, self._rest = [self._rest], b""
        self._lines.extend(lines)
        return bool(piece or lines)

    def _read(self, line: bytes) -> None:
        if not line:
            return
        # The last line may be one whose writer died over it: nobody was told that it is safe.
        # Only if something follows has a line been spoilt.
        self.spoilt += self._is_doubtful
        try:
            self._next.append(batch_of(line))
        except ValueError:
            self._is_doubtful = True
        else:
            self._is_doubtful = False


def find_left(folder: Path) -> list[Path]:
    """Every file of the folder, the oldest first, whoever it belongs to."""
    found: list[tuple[float, Path]] = []
    with contextlib.suppress(OSError):
        for path in folder.glob(f"*{SUFFIX}"):
            with contextlib.suppress(OSError):  # read back by somebody else a moment ago
                found.append((path.stat().st_mtime, path))
    return [path for _, path in sorted(found)]


def take_left(path: Path) -> LeftFile | None:
    """The file, if nobody has it: its process is gone. Never waits."""
    try:
        with Folder.trusted(path.parent) as folder:
            fd = folder.open_file(path.name, os.O_RDWR)
    except UnsafeFileError as error:
        _warn_once(error)
        return None
    except OSError:
        return None
    if _lock(fd):
        return LeftFile(path, fd, is_own=False)
    os.close(fd)
    return None


def _warn_once(error: UnsafeFileError) -> None:
    """Its lines may be anybody's: they are not written to the store."""
    if error.filename not in _warned:
        _warned.add(error.filename)
        logger.warning("%s is not read back: %s", error.filename, error.strerror)


def leave(folder: Path, lines: bytes, most: int) -> None:
    """Add lines to the file of what this process could not write anywhere."""
    name = f"{os.getpid()}-refused{SUFFIX}{SPOILT}"
    with Folder.ensure(folder, parents=True) as opened:
        fd = opened.open_file(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        if os.fstat(fd).st_size + len(lines) > most:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        view = memoryview(lines)
        while view:
            view = view[os.write(fd, view) :]
    finally:
        os.close(fd)


def _create(folder: Path) -> tuple[Path, int]:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND
    with Folder.ensure(folder, parents=True) as opened:
        for _ in range(_TRIES):
            path = folder / f"{os.getpid()}-{secrets.token_hex(8)}{SUFFIX}"
            fd = opened.open_file(path.name, flags)
            if _lock(fd):
                return path, fd
            os.close(fd)  # somebody found it between these two lines, and removes it: it is empty
    raise BlockingIOError(f"no file could be kept in {folder}")


def _lock(fd: int) -> bool:
    """Whether it is ours now, and still has a name."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return os.fstat(fd).st_nlink > 0
