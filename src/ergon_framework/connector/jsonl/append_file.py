"""Files that only grow: fsynced appends, repair of a torn tail, the directory's lock, and parts.

``RotatingWriter`` writes the lines of a connector that dispatches, into one file after another.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import threading
from collections.abc import Callable, Iterable
from io import FileIO
from pathlib import Path
from typing import NoReturn

from ergon_framework.connector.jsonl.codec import NEWLINE, JsonlConnectorError, is_complete
from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.storage.fsync import sync_file
from ergon_framework.storage.secure_files import Folder

logger = logging.getLogger("ergon.connector")
_BLOCK = 1 << 16
MAX_REPLACED = 10
"""How often in a row a file may be moved away while it is being written."""
_MAX_TAIL = 1 << 24


class LockedError(JsonlConnectorError):
    """Another connector, here or in another process, holds the directory or the file."""

    code = "jsonl_locked"


def failpoint(name: str) -> None:
    """Mark a place at which crash tests let the process die. Otherwise it does nothing."""


class AppendFile:
    """A file that only grows. What :meth:`append` was given is on disk when it returns.

    Threads that append at the same time share one fsync. After a failed write or fsync nobody knows
    what is on disk, so everything further is refused until the file is opened again.
    """

    def __init__(
        self,
        folder: Folder,
        name: str,
        label: str,
        *,
        fsync: bool = True,
        lock: bool = False,
        is_public: bool = False,
    ) -> None:
        self.path = folder.path / name
        self._folder = folder
        self._is_public = is_public
        self._label = label
        self._fsync = fsync
        self._writing = threading.Lock()
        self._syncing = threading.Lock()
        self._written = 0  # how many writes were made …
        self._synced = 0  # … and how many of them are known to be on disk
        self._broken: OSError | None = None
        self._is_locked = lock
        self.is_new = False
        """Whether there was none when it was opened last."""
        self._adopt(self._open(lock))
        renew_after_fork(self)

    def renew(self) -> None:
        """Close the file in a forked child: it is the parent's, and would stay locked
        by the child.
        """
        self._writing, self._syncing = threading.Lock(), threading.Lock()
        self._file.close()

    @property
    def size(self) -> int:
        """The length of the file in bytes."""
        return os.fstat(self._file.fileno()).st_size

    @property
    def is_writable(self) -> bool:
        """Whether it takes further writes."""
        return self._broken is None and not self._file.closed

    @property
    def is_in_place(self) -> bool:
        """Whether its name still leads to this file. A file that was moved or deleted may not be
        read any more.
        """
        try:
            return _identity(self._folder.look(self.path.name)) == self._identity
        except FileNotFoundError:
            return False
        except OSError:  # its folder was closed meanwhile, by whoever closed the connector
            return True

    def append(self, pieces: Callable[[], Iterable[bytes]]) -> None:
        """Write and wait until it is on disk, in the file that has the name then.

        Somebody may take the file away at any moment. What was written into it since it was read
        there for the last time would be lost, so it is written again, into a new one.
        """
        for _ in range(MAX_REPLACED):
            if not self.is_in_place:
                self._begin_anew()
            # Not under one lock: threads write one after the other, and then share one sync.
            self.sync(self.write(pieces()))
            if self.is_in_place:
                return
        raise taken(self.path)

    def write(self, pieces: Iterable[bytes]) -> int:
        """Write whole lines; returns the ticket that :meth:`sync` takes."""
        with self._writing:
            self._refuse_when_broken()
            failpoint(f"{self._label}.before_write")
            # By the file itself: lines of another process, or what a crash left, may be in it.
            start = self.size
            try:
                for piece in pieces:
                    write_all(self._file, piece)
            except OSError as error:
                self._cut(start)
                self._give_up(error)
            except BaseException:
                # An interrupt between two pieces: half a batch would be read as a whole one.
                self._cut(start)
                raise
            self._written += 1
            failpoint(f"{self._label}.written")
            return self._written

    def sync(self, ticket: int) -> None:
        """Wait until the write with this ticket is on disk."""
        if not self._fsync:
            return
        with self._syncing:
            if self._synced >= ticket:
                return  # the sync of another thread, which this one waited for, has covered it
            self._refuse_when_broken()
            covered = self._written  # before the sync: what is written during it is not covered
            try:
                sync_file(self._file.fileno())
            except OSError as error:
                self._give_up(error)
            self._synced = covered
            failpoint(f"{self._label}.synced")

    def replace(self, content: bytes) -> None:
        """Put ``content`` in place of everything, in one step as far as a crash can see."""
        with self._writing, self._syncing:  # always in this order, here and below
            self._refuse_when_broken()
            fresh = self.path.with_suffix(".tmp").name
            try:
                with contextlib.suppress(FileNotFoundError):  # left by a crash
                    self._folder.unlink(fresh)
                made = self._folder.open_file(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
                with FileIO(made, "wb") as file:
                    failpoint(f"{self._label}.rewriting")
                    write_all(file, content)
                    if self._fsync:
                        sync_file(file.fileno())
                failpoint(f"{self._label}.rewritten")
                self._folder.replace(fresh, self.path.name)
                failpoint(f"{self._label}.renamed")
                if self._fsync:
                    self._folder.sync()  # the new name; without it a power cut brings the old back
                # Only when the new one has its name: until then the old one is what a crash leaves.
                self._file.close()
                self._adopt(self._opened())
            except OSError as error:
                self._give_up(error)
            self._synced = self._written

    def check(self) -> None:
        """Raise an error if it takes no further writes."""
        self._refuse_when_broken()

    def _begin_anew(self) -> None:
        """Create and open another file of this name, because the first was moved or deleted."""
        with self._writing, self._syncing:
            self._refuse_when_broken()
            before = self._file
            self._adopt(self._open(self._is_locked))
            before.close()
            # What was not synced in the old file is written again by ``append``; nobody waits for
            # it there.
            self._synced = self._written

    def close(self) -> None:
        """Write everything to disk and close. Closing twice is fine."""
        with self._writing, self._syncing:
            if self._file.closed:
                return
            if self._fsync and self._broken is None:
                sync_file(self._file.fileno())
            self._synced = self._written
            self._file.close()

    def _open(self, lock: bool) -> FileIO:
        try:
            self.is_new = self.path.name not in self._folder.names()
            file = self._opened()
        except OSError as error:
            raise JsonlConnectorError(
                f"cannot open {self.path}: {error.strerror}",
                remedy="make it a file that can be written",
            ) from error
        if lock and not _try_lock(file):
            file.close()
            raise LockedError(
                f"{self.path} is being written by another connector",
                remedy="give each connector a file of its own",
            )
        if cut := _repair_tail(file):
            text = "%s ended in the middle of a line, of which %d bytes were cut off: %s"
            logger.warning(text, self.path, cut, "what they said is not known")
        if self.is_new and self._fsync:
            # A new file is found again after a power cut only if its name is on disk.
            self._folder.sync()
        return file

    def _opened(self) -> FileIO:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        fd = self._folder.open_file(self.path.name, flags, is_public=self._is_public)
        return FileIO(fd, "a+b")

    def _adopt(self, file: FileIO) -> None:
        """Use ``file`` for all further writes."""
        self._file = file
        self._identity = _identity(os.fstat(file.fileno()))

    def _refuse_when_broken(self) -> None:
        if self._broken is not None:
            raise JsonlConnectorError(
                f"{self.path} failed before ({self._broken.strerror}); what it holds is uncertain",
                remedy="close the connector, fix the disk, and open a new one",
            ) from self._broken
        if self._file.closed:
            raise JsonlConnectorError(
                f"{self.path} is closed, or was opened before a fork",
                remedy="open a new connector, in the process that uses it",
            )

    def _cut(self, size: int) -> None:
        with contextlib.suppress(OSError):  # a torn tail is repaired when it is opened again
            os.ftruncate(self._file.fileno(), size)

    def _give_up(self, error: OSError) -> NoReturn:
        self._broken = error
        raise JsonlConnectorError(
            f"cannot write {self.path}: {error.strerror}",
            remedy="close the connector, free space or fix the disk, and open a new one",
        ) from error


class DirectoryLock:
    """A lock that one connector of all processes holds. The system frees it when the
    process dies.
    """

    def __init__(self, folder: Folder, name: str, directory: Path) -> None:
        fd = folder.open_file(name, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self._file = FileIO(fd, "a+b")
        if not _try_lock(self._file):
            self._file.seek(0)
            holder = self._file.read(20).decode("ascii", "replace").strip() or "unknown"
            self._file.close()
            who = "this process" if holder == str(os.getpid()) else f"process {holder}"
            raise LockedError(
                f"{directory} is already being read by another connector, in {who}",
                remedy="close that one first, or give each consumer an inbox of its own",
            )
        self.was_used = os.fstat(fd).st_size > 0
        """Whether somebody has held it before."""
        self._file.truncate(0)
        self._file.write(str(os.getpid()).encode("ascii"))
        renew_after_fork(self)

    def renew(self) -> None:
        """Give the lock up in a forked child, which may outlive the holder and must not keep it
        locked.
        """
        self._file.close()

    def close(self) -> None:
        """Unlock. The file stays: removing it would race with a connector that opens it."""
        self._file.close()


def warn_of_lost(journal: AppendFile, lock: DirectoryLock) -> None:
    """Say that a journal is gone which was kept: what was done is done again, as if never read."""
    if journal.is_new and lock.was_used:
        logger.warning(
            "%s is not there, although its folder was used before: what was done is not known, and"
            " all that is there still is delivered again; stop the program, if that must not be,"
            " and restore a backup of the file",
            journal.path,
        )


def taken(path: Path) -> JsonlConnectorError:
    """The error for a file that is not where it was written."""
    return JsonlConnectorError(
        f"{path} was moved or deleted while it was in use",
        remedy="leave it where it is; close the connector, and open a new one",
    )


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _try_lock(file: FileIO) -> bool:
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def write_all(file: FileIO, data: bytes) -> None:
    """Write all bytes, however few the system takes at a time."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def _repair_tail(file: FileIO) -> int:
    """End a whole last line with its newline, and cut off a torn one: it was never promised.

    The number of bytes that were cut off.
    """
    size = os.fstat(file.fileno()).st_size
    start = _after_last_newline(file, size)
    if start == size:
        return 0
    # A line may be whole and lack only its newline: it was perhaps promised, so it is kept.
    if size - start <= _MAX_TAIL and is_complete(os.pread(file.fileno(), size - start, start)):
        write_all(file, NEWLINE)
        return 0
    os.ftruncate(file.fileno(), start)
    return size - start


def _after_last_newline(file: FileIO, size: int) -> int:
    end = size
    while end > 0:
        start = max(0, end - _BLOCK)
        found = os.pread(file.fileno(), end - start, start).rfind(NEWLINE)
        if found >= 0:
            return start + found + 1
        end = start
    return 0


_PART = re.compile(r"part-(\d{8,})\.jsonl")


class RotatingWriter:
    """Appends lines to ``part-00000001.jsonl`` and its successors.

    A part is continued after a restart until it has ``rotate_bytes``. Several connectors may write
    into one directory: each has a part to itself.
    """

    def __init__(self, directory: Path, *, rotate_bytes: int, fsync: bool) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._folder = Folder.open(directory.absolute(), follow=True)
        self._rotate_bytes = rotate_bytes
        self._fsync = fsync
        self._lock = threading.Lock()
        self._part: AppendFile | None = None
        self._last = 0  # the number of the last part that was written
        self._closed = False
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget the open part in a forked child, because it is the parent's."""
        self._lock = threading.Lock()
        self._part = None

    @property
    def is_writable(self) -> bool:
        """Whether lines can still be written."""
        return self._part is None or self._part.is_writable

    def append(self, lines: list[bytes]) -> None:
        """Write all lines into one part. On disk when this returns.

        A part may be taken away at any moment. What was written into it after that would be seen by
        nobody, so it is written again, into another part.
        """
        if not lines:
            return
        for _ in range(MAX_REPLACED):
            part, ticket = self._write(b"".join(lines))
            part.sync(ticket)
            # Asked after the sync: only then is it sure that the lines are in a file which somebody
            # reads.
            if part.is_in_place:
                return
        raise taken(self._folder.path / "part-*.jsonl")

    def _write(self, text: bytes) -> tuple[AppendFile, int]:
        with self._lock:
            if self._closed:
                raise JsonlConnectorError("the outbox is closed", remedy="open a new connector")
            part = self._part
            if part is not None and not part.is_writable:
                # What failed was refused, and nobody knows what of it is on disk: nothing is put
                # behind it, where half a line could take a whole one with it.
                self._last = max([self._last, *self._numbers()])
                part = self._part = self._turn_over(is_broken=True)
            if part is None or part.size >= self._rotate_bytes or not part.is_in_place:
                part = self._part = self._turn_over()
            return part, part.write([text])

    def close(self) -> None:
        """Write everything to disk and close the part."""
        with self._lock:
            self._closed = True
            if self._part is not None:
                self._part.close()
            self._folder.close()

    def _turn_over(self, *, is_broken: bool = False) -> AppendFile:
        if self._part is not None:
            self._part.close()
            self._part = None
        number = max(self._numbers(), default=0)
        if number < self._last:  # parts were taken away: no name is used twice
            number = self._last + 1
        elif number == 0 or is_broken or self._is_full(number):
            number += 1
        while True:
            try:
                part = self._open(number)
                self._last = number
                return part
            except LockedError:
                number += 1  # another connector writes that one

    def _is_full(self, number: int) -> bool:
        try:
            return self._folder.look(self._name(number)).st_size >= self._rotate_bytes
        except FileNotFoundError:  # it was taken away since it was listed
            return True

    def _open(self, number: int) -> AppendFile:
        # Another user may collect the parts, so the umask decides who can read them.
        return AppendFile(
            self._folder,
            self._name(number),
            "outbox",
            fsync=self._fsync,
            lock=True,
            is_public=True,
        )

    def _numbers(self) -> list[int]:
        found = (_PART.fullmatch(name) for name in self._folder.names())
        return [int(match[1]) for match in found if match is not None]

    def _name(self, number: int) -> str:
        return f"part-{number:08}.jsonl"
