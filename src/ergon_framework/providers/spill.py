"""The spill: a folder beside the store where records wait on disk while the store is down.

Each process writes a file of its own. What was kept is written to the store later, by this process
or by another one that finds the file when this one is dead. Writing it twice is harmless: the store
knows the ids. A file belongs to the process that holds its lock, and the lock ends with the
process: so no file is read while it is written, and no two processes replay the same file.

A line of a file is one batch as JSON, behind a checksum of itself:
``{"sum":"1c291ca3","attempts":[…],"letters":[…]}``, and ``keys`` where there are any. The sum is
the CRC-32 of everything behind it, so that a line that was torn, or changed later, is known.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import os
import secrets
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from ergon_framework.errors import (
    StoreBrokenError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreUnavailableError,
)
from ergon_framework.ports.providerstore import (
    AttemptRow,
    DeadLetter,
    KeyEnding,
    RecordBatch,
    ResultNote,
)
from ergon_framework.storage.failpoints import declare, failpoint
from ergon_framework.storage.fsync import sync_file, sync_folder
from ergon_framework.storage.secure_files import Folder, UnsafeFileError

logger = logging.getLogger("ergon.providers")


_HEAD = b'{"sum":"%08x",'
_BODY_AT = len(_HEAD % 0)
_LETTER_FIELDS = tuple(field.name for field in fields(DeadLetter))
_KEY_FIELDS = tuple(field.name for field in fields(KeyEnding))
_encode = json.JSONEncoder(separators=(",", ":")).encode


def line_of(batch: RecordBatch) -> bytes:
    """The batch as one line, its end included. Raises what ``json`` raises for a bad payload."""
    document: dict[str, list[dict[str, Any]]] = {
        "attempts": [row._asdict() for row in batch.attempts],
        "letters": [
            {name: getattr(letter, name) for name in _LETTER_FIELDS} for letter in batch.letters
        ],
    }
    if batch.keys:
        document["keys"] = [
            {name: getattr(ending, name) for name in _KEY_FIELDS} for ending in batch.keys
        ]
    body = _encode(document)[1:].encode("ascii")
    return _HEAD % zlib.crc32(body) + body + b"\n"


def batch_of(line: bytes) -> RecordBatch:
    """The batch that a line holds. ``ValueError`` when it was not written like this."""
    body = line[_BODY_AT:].removesuffix(b"\n")
    if line[:_BODY_AT] != _HEAD % zlib.crc32(body):
        raise ValueError("the line does not match its checksum")
    try:
        document = json.loads(line)
        return RecordBatch(
            [AttemptRow(**_known(each, AttemptRow._fields)) for each in document["attempts"]],
            [DeadLetter(**_known(each, _LETTER_FIELDS)) for each in document["letters"]],
            [_ending_of(each) for each in document.get("keys", ())],
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("the line was written by a version this one cannot read") from error


def _ending_of(document: Mapping[str, Any]) -> KeyEnding:
    known = _known(document, _KEY_FIELDS)
    note = known.get("result_note")
    return KeyEnding(**{**known, "result_note": None if note is None else ResultNote(note)})


def _known(document: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """The fields that this version knows. A later version may have added some."""
    return {name: value for name, value in document.items() if name in names}


SUFFIX = ".jsonl"
CORRUPT = ".bad"
"""Added to the name of a file with lines that could not be written to the store."""

_READ_SIZE = 1 << 18
_warned: set[str] = set()
_MAX_TRIES = 10


class OwnFile:
    """The file that this process appends to. The caller holds a lock: one thread at a time."""

    def __init__(self, folder: Path) -> None:
        self.path, self.fd = _create(folder)
        self.size = 0
        self.is_dirty = False
        """Whether something in it is not yet known to be on disk."""
        self._is_new = True
        self._is_torn = False

    def append(self, lines: bytes) -> None:
        """Write lines whole, or none of them."""
        # After a torn line that could not be cut off: the newline makes it a line of its own, which
        # the checksum refuses.
        view = memoryview(b"\n" + lines if self._is_torn else lines)
        done = 0
        try:
            while done < len(view):
                # ``write`` may take less than all, for example when a signal comes or the disk is
                # nearly full.
                done += os.write(self.fd, view[done:])
        except OSError:
            self._is_torn = done > 0 and not self._cut(self.size)
            raise
        self._is_torn = False
        self.size += done
        self.is_dirty = True

    def take_back(self, size: int) -> None:
        """Undo the last append, which may have been written in part."""
        if self._cut(size):
            self.size = size

    def sync(self, fd: int) -> None:
        """Answer when everything appended so far is on disk; ``fd`` is a duplicate of the file's.

        A duplicate, because the file may be read back and closed while this waits for the disk.
        """
        sync_file(fd)
        # A new file is safe only when its name is, too.
        if self._is_new:
            sync_folder(self.path.parent)
            self._is_new = False

    def close(self) -> None:
        """Close the file and release its lock."""
        os.close(self.fd)

    def _cut(self, size: int) -> bool:
        try:
            os.ftruncate(self.fd, size)
        except OSError:
            return False
        return True


class ReplayFile:
    """A file that is read back: this process's own, or one that a dead process left."""

    def __init__(self, path: Path, fd: int, *, is_own: bool) -> None:
        self.path = path
        self.is_own = is_own
        self.damaged = 0
        """Lines that cannot be read, or that the store will never take."""
        # No file object: one whose lock was held when the process forked could not be closed.
        self._fd = fd
        self._at = 0
        self._lines: deque[bytes] = deque()
        self._rest = b""
        self._is_doubtful = False
        self._next: list[RecordBatch] = []

    def chunk(self, limit: int) -> list[RecordBatch]:
        """The next batches, the same ones until :meth:`advance`; none at the end of the file."""
        while not self._next and (self._lines or self._fill()):
            for _ in range(min(limit, len(self._lines))):
                self._read(self._lines.popleft())
        return self._next

    def advance(self) -> None:
        """The batches of the last chunk have been seen to."""
        self._next = []

    def finish(self) -> None:
        """Remove a file that was read to its end, or put it aside if it has unusable lines."""
        with contextlib.suppress(OSError):
            # Kept for people: if it were removed, the unusable lines would be gone before an
            # operator has seen them.
            if self.damaged:
                self.path.rename(self.path.with_name(self.path.name + CORRUPT))
            else:
                self.path.unlink()
        self.close()

    def close(self) -> None:
        """Close the file and release its lock. The file stays."""
        os.close(self._fd)

    def _fill(self) -> bool:
        try:
            piece = os.pread(self._fd, _READ_SIZE, self._at)
        except OSError:  # the disk cannot read it: what is left stays for people to look at
            self.damaged += 1
            return False
        self._at += len(piece)
        *lines, self._rest = (self._rest + piece).split(b"\n")
        # The last line has no end: its writer died. It is read like the others, and its checksum
        # tells.
        if not piece and self._rest:
            lines, self._rest = [self._rest], b""
        self._lines.extend(lines)
        return bool(piece or lines)

    def _read(self, line: bytes) -> None:
        if not line:
            return
        # The last line may be torn: its writer died before it reported the line as safe.
        # Only if something follows has a line been spoilt.
        self.damaged += self._is_doubtful
        try:
            self._next.append(batch_of(line))
        except ValueError:
            self._is_doubtful = True
        else:
            self._is_doubtful = False


def find_replayable(folder: Path) -> list[Path]:
    """Every file of the folder, of all processes, the oldest first."""
    found: list[tuple[float, Path]] = []
    with contextlib.suppress(OSError):
        for path in folder.glob(f"*{SUFFIX}"):
            with contextlib.suppress(OSError):  # another process has replayed and removed it
                found.append((path.stat().st_mtime, path))
    return [path for _, path in sorted(found)]


def open_replay(path: Path) -> ReplayFile | None:
    """The file, locked, if its process is gone; None when it is locked. Never waits."""
    # By the folder: a file of another user would put its rows into our store.
    try:
        with Folder.trusted(path.parent) as folder:
            fd = folder.open_file(path.name, os.O_RDWR)
    except UnsafeFileError as error:
        _warn_once(error)
        return None
    except OSError:
        return None
    if _lock(fd):
        return ReplayFile(path, fd, is_own=False)
    os.close(fd)
    return None


def find_ending(folder: Path, tenant_id: str, key: str) -> KeyEnding | None:
    """The latest ending of a key among the files of all processes; None when there is none.

    Files that are written meanwhile are read too: a line is whole, or does not match its checksum.
    """
    found: KeyEnding | None = None
    # Looked for as bytes first: to decode each line of a long outage would hold up the claim.
    mark = _encode(key).encode("ascii")
    for path in find_replayable(folder):
        for line in _lines_with(path, mark):
            with contextlib.suppress(ValueError):
                for ending in batch_of(line).keys:
                    if (ending.tenant_id, ending.key) == (tenant_id, key):
                        found = ending
    return found


def _lines_with(path: Path, mark: bytes) -> Iterator[bytes]:
    try:
        with Folder.trusted(path.parent) as folder:
            fd = folder.open_file(path.name, os.O_RDONLY)
        with os.fdopen(fd, "rb") as file:
            yield from (line for line in file if mark in line)
    except OSError:  # another process has replayed and removed it; or it is not ours to read
        return


def _warn_once(error: UnsafeFileError) -> None:
    """Warn about a file that another user may have written: its lines are not written to the
    store.
    """
    if error.filename not in _warned:
        _warned.add(error.filename)
        logger.warning("%s is not read back: %s", error.filename, error.strerror)


def abandon(folder: Path, lines: bytes, most: int) -> None:
    """Add lines to the file of what this process could not write anywhere."""
    name = f"{os.getpid()}-refused{SUFFIX}{CORRUPT}"
    with Folder.ensure(folder, parents=True) as opened:
        fd = opened.open_file(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        if os.fstat(fd).st_size + len(lines) > most:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        view = memoryview(lines)
        # Not synced: it is for people, and nothing relies on it.
        while view:
            view = view[os.write(fd, view) :]
    finally:
        os.close(fd)


def _create(folder: Path) -> tuple[Path, int]:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND
    with Folder.ensure(folder, parents=True) as opened:
        for _ in range(_MAX_TRIES):
            path = folder / f"{os.getpid()}-{secrets.token_hex(8)}{SUFFIX}"
            fd = opened.open_file(path.name, flags)
            if _lock(fd):
                return path, fd
            os.close(fd)  # another process locked the empty file before us, and removes it
    raise BlockingIOError(f"no file could be kept in {folder}")


def _lock(fd: int) -> bool:
    """Lock the file; returns whether this process has it now, and it still has a name."""
    # The system frees it when the process ends, however it ends; a file that says "locked" would
    # stay.
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    # Removed between opening and locking: the process that replayed it was faster.
    return os.fstat(fd).st_nlink > 0


declare(
    "providers.spill.before",
    "providers.spill.written",
    "providers.spill.after",
    "providers.replay.before",
    "providers.replay.after",
)

MAX_BYTES = 256 << 20
"""What the files of one folder may hold together, as far as this process sees them."""

DATABASE_KEYS = frozenset({"host", "hostaddr", "port", "dbname", "options", "service"})
"""What in the query of a server's URL says which database it is, and holds no secret."""

_SERVER_KEYS = frozenset({"host", "hostaddr", "service"})
_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_READ_ONLY_ERRNOS = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_RETRY_DELAY = 1.0  # seconds before a folder that refused is tried again for what can still wait


class Spill:
    """The spill folder of one process. Any thread may write rows; one thread reads them back."""

    def __init__(
        self,
        folder: Path,
        *,
        max_bytes: int = MAX_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder = folder
        self.full_count = 0
        """How often something was refused because the files had reached their limit."""
        self.damaged_count = 0
        """Lines found in files that cannot be read; the files are put aside."""
        self.max_bytes = max_bytes
        """The most bytes of all files in the folder. A change applies to rows kept from then on."""
        self._others_bytes = 0
        """Size of the files of other processes when the own file was begun."""
        self._clock = clock
        self._refused_at = float("-inf")
        self._lock = threading.RLock()  # keeping may be interrupted by a finalizer that keeps too
        self._own: OwnFile | None = None
        self._left: ReplayFile | None = None
        self._found: list[Path] = []
        self._duplicates: set[int] = set()
        """Duplicates of the descriptor of this process's file: they hold its lock as well."""

    # -- keeping ---------------------------------------------------------------------------------

    @property
    def is_usable(self) -> bool:
        """Whether the folder has not refused a write a moment ago."""
        return self._clock() - self._refused_at >= _RETRY_DELAY

    @property
    def has_own(self) -> bool:
        """Whether something that this process kept has not yet been written to the store."""
        left = self._left
        return self._own is not None or (left is not None and left.is_own)

    @property
    def has_left(self) -> bool:
        """Whether files are being read back, or wait to be."""
        return self._left is not None or bool(self._found)

    def keep(self, batches: Sequence[RecordBatch], *, is_synced: bool) -> None:
        """Keep all the batches, or none; with ``is_synced`` they are on disk when this returns.

        ``StoreError`` when they cannot be kept.
        """
        # Encoded before the lock: a payload that JSON refuses raises here, and nothing of the
        # others is written.
        lines = b"".join(map(line_of, batches))
        failpoint("providers.spill.before")
        try:
            with self._lock:
                own, start = self._append(lines)
                end = own.size
                fd = self._duplicate(own) if is_synced else -1
            if is_synced:
                self._sync(own, fd, start, end)
        except OSError as error:
            # Callers do without the spill for a moment: each of them would wait for the same disk.
            self._refused_at = self._clock()
            raise _translated(error, self.folder) from error
        failpoint("providers.spill.after")

    def sync(self) -> None:
        """Bring to disk what was kept without waiting for it; the next call tries again."""
        with self._lock:
            own = self._own
            if own is None or not own.is_dirty:
                return
            # Before the sync: what is appended meanwhile marks it again.
            own.is_dirty = False
            fd = self._duplicate(own)
        try:
            own.sync(fd)
        except OSError as error:
            own.is_dirty = True
            raise _translated(error, self.folder) from error
        finally:
            self._let_go(fd)

    def set_aside(self, batches: Sequence[RecordBatch]) -> None:
        """Write lines that no store takes to a file for people, which is not replayed."""
        lines = b"".join(map(line_of, batches))
        try:
            with self._lock:
                abandon(self.folder, lines, self.max_bytes)
        except OSError as error:
            raise _translated(error, self.folder) from error

    # -- reading back ----------------------------------------------------------------------------

    def scan(self) -> None:
        """Find files that processes left which have ended."""
        self._found = find_replayable(self.folder)

    def chunk(self, limit: int) -> list[RecordBatch]:
        """Batches to write to the store: this process's first, then those of dead ones."""
        while True:
            left = self._left or self._next_left()
            if left is None:
                return []
            before = left.damaged
            batches = left.chunk(limit)
            self.damaged_count += left.damaged - before
            if batches:
                failpoint("providers.replay.before")
                return batches
            failpoint("providers.replay.after")
            left.finish()
            self._left = None

    def advance(self, refused: int = 0) -> None:
        """The batches of the last chunk were written, all but those the store will never take."""
        if self._left is not None:
            self._left.damaged += refused
            self._left.advance()

    # -- ends ------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close all files, so that any process may replay them. Later rows go into a new file."""
        with self._lock:
            own, self._own = self._own, None
            left, self._left = self._left, None
            self._found = []
        for file in (own, left):
            if file is not None:
                file.close()

    def leave_to_parent(self) -> None:
        """Called in a forked child: close the files, so that their locks end with the parent."""
        self._lock = threading.RLock()  # a thread that only the parent has may hold it
        for fd in list(self._duplicates):  # that it was bringing to disk
            self._let_go(fd)
        with contextlib.suppress(OSError):  # closed by that thread, which had yet to forget it
            self.close()
        self.full_count = self.damaged_count = 0

    # -- inside ----------------------------------------------------------------------------------

    def _duplicate(self, own: OwnFile) -> int:
        fd = os.dup(own.fd)
        self._duplicates.add(fd)
        return fd

    def _let_go(self, fd: int) -> None:
        self._duplicates.discard(fd)
        os.close(fd)

    def _append(self, lines: bytes) -> tuple[OwnFile, int]:
        own = self._own
        if own is None:
            # Asked when the own file begins, not for each line: an estimate is enough for a bound.
            self._others_bytes = _size_of(find_replayable(self.folder))
        start = 0 if own is None else own.size
        if self._others_bytes + start + len(lines) > self.max_bytes:
            self.full_count += 1
            self._refused_at = self._clock()
            raise StoreFullError(
                f"the files in {self.folder} have reached their limit of {self.max_bytes} bytes",
                remedy="bring the store back: they are written to it and removed",
            )
        if own is None:
            own = self._own = OwnFile(self.folder)
        own.append(lines)
        return own, start

    def _sync(self, own: OwnFile, fd: int, start: int, end: int) -> None:
        # Outside the lock: a caller that does not wait for the disk must not wait for this sync.
        try:
            failpoint("providers.spill.written")
            own.sync(fd)
        except OSError:
            with self._lock:
                # Only if nothing was appended behind it: others may already count on what follows.
                if own is self._own and own.size == end:
                    own.take_back(start)
            raise
        finally:
            self._let_go(fd)

    def _next_left(self) -> ReplayFile | None:
        """Open the next file. It is known at all times, to ``has_left`` and to a forked child."""
        with self._lock:
            # What is kept from now on goes into a new file, and is not read twice.
            if self._own is not None:
                self._left = ReplayFile(self._own.path, self._own.fd, is_own=True)
                self._own = None
                return self._left
        while self._found:
            self._left = open_replay(self._found[0])
            del self._found[:1]
            if self._left is not None:
                return self._left
        return None


def spill_beside(path: Path) -> Path:
    """Where the records of an SQLite file wait."""
    whole = path.absolute()
    return whole.with_name(f"{whole.name}-spill")


def default_spill(url: str) -> Path | None:
    """Where the records of a store wait by default; None for memory.

    Beside an SQLite file. For a server under the user's state folder, in a folder of its own for
    each database, named after the address without its credentials; None if it names no server.
    """
    scheme, _, rest = url.partition("://")
    if scheme.partition("+")[0] == "sqlite":
        name = rest.removeprefix("/").partition("?")[0]
        return spill_beside(Path(name)) if name and name != ":memory:" else None
    parts = urlsplit(url)
    where = [pair for pair in parse_qsl(parts.query) if pair[0] in DATABASE_KEYS]
    named = {name for name, _ in where}
    if not (parts.hostname or named & _SERVER_KEYS):
        return None
    # A URL without a database names the one that is called like the user.
    user = "" if parts.path.strip("/") or named & {"dbname", "service"} else parts.username
    place = parts.netloc.rpartition("@")[2]  # not taken apart: it may list several hosts
    address = repr((place, parts.path, user, sorted(where)))
    word = hashlib.blake2b(address.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "ergon" / "spill" / word


def _size_of(paths: Sequence[Path]) -> int:
    size = 0
    for path in paths:
        try:
            size += path.stat().st_size
        except OSError:
            continue  # another process has replayed and removed it
    return size


def _translated(error: OSError, folder: Path) -> StoreError:
    text = f"nothing can be kept in {folder}: {error.strerror or error}"
    if error.errno in _FULL_ERRNOS:
        return StoreFullError(text, remedy="free some disk space")
    if error.errno in _READ_ONLY_ERRNOS:
        return StoreReadOnlyError(text, remedy="make the folder writable, or name another one")
    if error.errno == errno.EIO:
        return StoreBrokenError(text, remedy="look at the disk")
    return StoreUnavailableError(text, remedy="make the folder usable, or name another one")
