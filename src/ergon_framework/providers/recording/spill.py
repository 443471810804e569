"""Where records wait while their store is away: a folder of files beside it, one per process.

What was kept is on disk and is written to the store later, by this process or by another one that
finds the file when this one is dead. Writing it twice is harmless: the store knows the ids.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from ergon_framework.errors import (
    StoreBrokenError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreUnavailableError,
)
from ergon_framework.ports.providerstore import Batch
from ergon_framework.providers.recording.spill_files import (
    LeftFile,
    OwnFile,
    find_left,
    leave,
    take_left,
)
from ergon_framework.providers.recording.spill_lines import line_of
from ergon_framework.storage.failpoints import declare, failpoint

declare(
    "providers.spill.before",
    "providers.spill.written",
    "providers.spill.after",
    "providers.replay.before",
    "providers.replay.after",
)

MAX_BYTES = 256 << 20
"""What the files of one folder may hold together, as far as this process sees them."""

TARGET = frozenset({"host", "hostaddr", "port", "dbname", "options", "service"})
"""What in the query of a server's URL says which database it is, and holds no secret."""

_SERVER = frozenset({"host", "hostaddr", "service"})
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_READ_ONLY = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_PAUSE = 1.0  # seconds before a folder that refused is tried again for what can still wait


class Spill:
    """One folder, as one process uses it. Any thread may keep; one thread reads back."""

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
        self.spoilt_count = 0
        """Lines found in files that cannot be read; the files are put aside."""
        self._max_bytes = max_bytes
        self._room = 0
        self._clock = clock
        self._refused_at = float("-inf")
        self._lock = threading.RLock()  # keeping may be interrupted by a finalizer that keeps too
        self._own: OwnFile | None = None
        self._left: LeftFile | None = None
        self._found: list[Path] = []
        self._duplicates: set[int] = set()
        """Of the own file's descriptor: they hold its lock as well."""

    # -- keeping ---------------------------------------------------------------------------------

    @property
    def is_usable(self) -> bool:
        """Whether it has not refused a moment ago."""
        return self._clock() - self._refused_at >= _PAUSE

    @property
    def has_own(self) -> bool:
        """Whether something that this process kept has not yet been written to the store."""
        left = self._left
        return self._own is not None or (left is not None and left.is_own)

    @property
    def has_left(self) -> bool:
        """Whether files are being read back, or wait to be."""
        return self._left is not None or bool(self._found)

    def keep(self, batches: Sequence[Batch], *, is_synced: bool) -> None:
        """Keep all the batches, or none; with ``is_synced`` they are on disk when this returns.

        ``StoreError`` when they cannot be kept.
        """
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
            self._refused_at = self._clock()
            raise _told(error, self.folder) from error
        failpoint("providers.spill.after")

    def sync(self) -> None:
        """Bring to disk what was kept without waiting for it; the next call tries again."""
        with self._lock:
            own = self._own
            if own is None or not own.is_dirty:
                return
            own.is_dirty = False
            fd = self._duplicate(own)
        try:
            own.sync(fd)
        except OSError as error:
            own.is_dirty = True
            raise _told(error, self.folder) from error
        finally:
            self._let_go(fd)

    def set_aside(self, batches: Sequence[Batch]) -> None:
        """Leave for people what no store takes: nobody reads it back. ``StoreError`` if in vain."""
        lines = b"".join(map(line_of, batches))
        try:
            with self._lock:
                leave(self.folder, lines, self._max_bytes)
        except OSError as error:
            raise _told(error, self.folder) from error

    # -- reading back ----------------------------------------------------------------------------

    def look(self) -> None:
        """Look for files that other processes left."""
        self._found = find_left(self.folder)

    def chunk(self, limit: int) -> list[Batch]:
        """Batches to write to the store: this process's first, then those of dead ones."""
        while True:
            left = self._left = self._left or self._next_left()
            if left is None:
                return []
            before = left.spoilt
            batches = left.chunk(limit)
            self.spoilt_count += left.spoilt - before
            if batches:
                failpoint("providers.replay.before")
                return batches
            failpoint("providers.replay.after")
            left.finish()
            self._left = None

    def advance(self, refused: int = 0) -> None:
        """The batches of the last chunk were written, all but those the store will never take."""
        if self._left is not None:
            self._left.spoilt += refused
            self._left.advance()

    # -- ends ------------------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of all files, so that anybody may read them back. Keeping begins a new one."""
        with self._lock:
            own, self._own = self._own, None
            left, self._left = self._left, None
            self._found = []
        for file in (own, left):
            if file is not None:
                file.close()

    def leave_to_parent(self) -> None:
        """In a forked child: let go, so that the locks end with the parent."""
        self._lock = threading.RLock()  # a thread that only the parent has may hold it
        for fd in list(self._duplicates):  # that it was bringing to disk
            self._let_go(fd)
        with contextlib.suppress(OSError):  # closed by that thread, which had yet to forget it
            self.close()
        self.full_count = self.spoilt_count = 0

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
            self._room = self._max_bytes - _size_of(find_left(self.folder))
        start = 0 if own is None else own.size
        if start + len(lines) > self._room:
            self.full_count += 1
            self._refused_at = self._clock()
            raise StoreFullError(
                f"the files in {self.folder} have reached their limit of {self._max_bytes} bytes",
                remedy="bring the store back: they are written to it and removed",
            )
        if own is None:
            own = self._own = OwnFile(self.folder)
        own.append(lines)
        return own, start

    def _sync(self, own: OwnFile, fd: int, start: int, end: int) -> None:
        # Outside the lock: who keeps something without waiting must not wait for this one's disk.
        try:
            failpoint("providers.spill.written")
            own.sync(fd)
        except OSError:
            with self._lock:
                if own is self._own and own.size == end:
                    own.take_back(start)
            raise
        finally:
            self._let_go(fd)

    def _next_left(self) -> LeftFile | None:
        with self._lock:
            own, self._own = self._own, None
        if own is not None:
            return LeftFile(own.path, own.fd, is_own=True)
        while self._found:
            if left := take_left(self._found.pop(0)):
                return left
        return None


def beside(path: Path) -> Path:
    """Where the records of an SQLite file wait."""
    whole = path.absolute()
    return whole.with_name(f"{whole.name}-spill")


def default_spill(url: str) -> Path | None:
    """Where the records of a store wait unless somebody says otherwise; None for memory.

    Beside an SQLite file. For a server under the user's state folder, in a folder of its own for
    each database, named after the address without its credentials; None if it names no server.
    """
    scheme, _, rest = url.partition("://")
    if scheme.partition("+")[0] == "sqlite":
        name = rest.removeprefix("/").partition("?")[0]
        return beside(Path(name)) if name and name != ":memory:" else None
    parts = urlsplit(url)
    where = [pair for pair in parse_qsl(parts.query) if pair[0] in TARGET]
    named = {name for name, _ in where}
    if not (parts.hostname or named & _SERVER):
        return None
    # Who names no database gets the one that is called like the user.
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
            continue  # read back by somebody else a moment ago
    return size


def _told(error: OSError, folder: Path) -> StoreError:
    text = f"nothing can be kept in {folder}: {error.strerror or error}"
    if error.errno in _FULL:
        return StoreFullError(text, remedy="free some disk space")
    if error.errno in _READ_ONLY:
        return StoreReadOnlyError(text, remedy="make the folder writable, or name another one")
    if error.errno == errno.EIO:
        return StoreBrokenError(text, remedy="look at the disk")
    return StoreUnavailableError(text, remedy="make the folder usable, or name another one")
