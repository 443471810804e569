"""What an outbox keeps: queued facts in an SQLite file, and copies of their files beside it.

One process drains at a time, by a lock on a file. A fact that a node refused for good is set aside
and kept until an operator decides.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import math
import os
import re
import secrets
import sqlite3
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec

from ergon_framework.boundary.model import Envelope, Fact
from ergon_framework.errors import (
    BoundaryError,
    BoundaryNotFoundError,
    BufferFullError,
    ConflictingDuplicateError,
    FactInvalidError,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
)
from ergon_framework.ports.factstore import NewFact
from ergon_framework.storage.failpoints import declare, failpoint
from ergon_framework.storage.objectstore.disk import sync_file, sync_folder
from ergon_framework.storage.secure_files import Folder, open_file
from ergon_framework.storage.sql_files import load
from ergon_framework.storage.sqlite.database import Database
from ergon_framework.storage.sqlite.external_transaction import SqliteJoinable, joined
from ergon_framework.storage.sqlite.migrations import SqliteSchema
from ergon_framework.storage.sqlite.notifier import FifoNotifier, FifoSubscription


class OutboxFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """An artifact that goes to the node before the fact that refers to it."""

    bucket: str
    key: str
    digest: str
    size: int
    path: str
    """A name in the spool's own folder, or a path outside when it was not copied."""
    is_copy: bool = True


@dataclass(frozen=True, slots=True)
class OutboxEntry:
    """A checked fact on its way into the spool."""

    fact: NewFact
    files: tuple[OutboxFile, ...] = ()

    @property
    def size(self) -> int:
        """The bytes that it takes in the spool."""
        copied = sum(file.size for file in self.files if file.is_copy)
        return len(self.fact.envelope) + len(self.fact.fact) + copied


@dataclass(frozen=True, slots=True)
class OutboxItem:
    """A fact in the line."""

    seq: int
    is_refused: bool
    digest: bytes
    size: int
    envelope: bytes = field(repr=False)
    fact: bytes = field(repr=False)
    files: tuple[OutboxFile, ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """A fact that the node refused for good, with its reason."""

    id: int
    from_zone: str
    message_id: str
    added_at: float
    refused_at: float
    code: str
    reason: str
    message: str
    details: dict[str, Any]
    envelope: Envelope | None = field(repr=False)
    """None, as is the fact, when it can no longer be read."""
    fact: Fact | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class SentItems:
    """What a spool still has of what the node took."""

    items: int = 0
    bytes: int = 0
    first_sent_at: float | None = None
    last_sent_at: float | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A fact in the line, without its content; ``code`` and the others when it was refused."""

    id: int
    state: str
    """``waiting`` or ``refused``."""
    from_zone: str
    message_id: str
    size: int
    added_at: float
    refused_at: float | None = None
    code: str = ""
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Figures:
    """A spool in numbers."""

    pending: int = 0
    pending_bytes: int = 0
    refused: int = 0
    refused_bytes: int = 0


_NAME = re.compile(r"[0-9a-f]{64}\.[0-9a-f]{16}|new\.[0-9a-f]{16}")
_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class OutboxFiles:
    """The copies of one spool. Any thread may call any method."""

    def __init__(self, folder: Path, max_bytes: int | None = None) -> None:
        self.folder = folder
        self._max_bytes = max_bytes

    def keep(self, source: Iterable[bytes], beside: int = 0) -> tuple[str, bytes, int]:
        """Copy bytes and bring the copy to disk: its name here, its digest and its size.

        Refuses as soon as they, and what was copied for the same fact, are more than fits.
        """
        try:
            return self._copy(self._bounded(source, beside))
        except OSError as error:
            raise _told(error, self.folder) from error

    def measure(self, source: Iterable[bytes]) -> tuple[bytes, int]:
        """The digest and the size of a file that stays where it is."""
        return _hash_and_copy(source, None)

    def place(self, file: OutboxFile) -> Path:
        """Where the bytes of a file lie."""
        return self.folder / file.path if file.is_copy else Path(file.path)

    def is_there(self, file: OutboxFile) -> bool:
        """Whether a file of that size is where it should be."""
        try:
            # Only its size: the digest is checked by the node, and reading it here would double the
            # work.
            return self.place(file).stat().st_size == file.size
        except OSError:
            return False

    def drop(self, files: Collection[OutboxFile]) -> None:
        """Remove copies of files whose fact is gone. Those that stay are swept later."""
        for file in files:
            if file.is_copy:
                with contextlib.suppress(OSError):
                    self.place(file).unlink()

    def sweep(self, known: Collection[str], before: float) -> int:
        """Remove copies that no fact refers to and that were made before an instant; how many."""
        swept = 0
        with contextlib.suppress(FileNotFoundError):
            for path in self.folder.iterdir():
                # Only names of our own making: a folder that was configured by mistake is not
                # emptied.
                if path.name not in known and _NAME.fullmatch(path.name):
                    with contextlib.suppress(OSError):
                        if path.stat().st_mtime < before:
                            path.unlink()
                            swept += 1
        return swept

    def _bounded(self, source: Iterable[bytes], size: int) -> Iterator[bytes]:
        for chunk in source:
            size += len(chunk)
            if self._max_bytes is not None and size > self._max_bytes:
                raise _never_fits(self._max_bytes)
            yield chunk

    def _copy(self, source: Iterable[bytes]) -> tuple[str, bytes, int]:
        with Folder.ensure(self.folder, parents=True) as folder:
            if folder.is_new:
                # Without it, a power cut could take the new folder away, and the copy with it.
                sync_folder(self.folder.parent)
            word = secrets.token_hex(8)
            hidden = self.folder / f"new.{word}"
            made = folder.open_file(hidden.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            with open(made, "wb") as copy:
                digest, size = _hash_and_copy(source, copy)
                copy.flush()
                sync_file(copy.fileno())
            # Renamed when it is whole: a name with a digest promises its bytes.
            kept = hidden.rename(self.folder / f"{digest.hex()}.{word}")
        except BaseException:
            with contextlib.suppress(OSError):
                hidden.unlink()
            raise
        # Before the row that refers to it is committed: a fact must not come back without its file.
        sync_folder(self.folder)
        return kept.name, digest, size


def _hash_and_copy(source: Iterable[bytes], copy: BinaryIO | None) -> tuple[bytes, int]:
    sha, size = hashlib.sha256(), 0
    for chunk in source:
        sha.update(chunk)
        size += len(chunk)
        if copy is not None:
            copy.write(chunk)
    return sha.digest(), size


def _never_fits(max_bytes: int) -> FactInvalidError:
    return FactInvalidError(
        f"the fact and the copies of its files are larger than the outbox may be: {max_bytes}"
        " bytes",
        reason="too_large",
        remedy="raise max_bytes, add large files with copy=False, or put them to the node first",
        details={"max_bytes": max_bytes},
    )


def _told(error: OSError, folder: Path) -> StoreError:
    if error.errno in _DISK_FULL:
        return StoreFullError(
            f"there is no room left in {folder}", remedy="free some disk space, then try again"
        )
    return StoreUnavailableError(
        f"a file cannot be copied to {folder}: {error.strerror}",
        remedy="make the folder writable, or add the file with copy=False",
    )


_held: weakref.WeakSet[DrainLock] = weakref.WeakSet()


class DrainLock:
    """A lock of this very object: neither another process nor another drain here gets it too."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    def try_acquire(self) -> bool:
        """Take the lock if it is free. Never waits."""
        try:
            descriptor = open_file(self._path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise StoreUnavailableError(
                f"{self._path} cannot be used: {error.strerror}",
                remedy="make the outbox's folder writable",
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            # Held by another drain, here or elsewhere; the lock belongs to the open file, not to
            # the process.
            os.close(descriptor)
            return False
        # For people: it says who drains when another process is refused.
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode("ascii"), 0)
        self._descriptor = descriptor
        _held.add(self)
        return True

    def release(self) -> None:
        """Release the lock. May be called twice."""
        if self._descriptor >= 0:
            # Unlocked, not only closed: a forked child may have a copy of the descriptor.
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self.leave_to_parent()

    def leave_to_parent(self) -> None:
        """Called in a forked child: close the descriptor, so that the lock ends with the parent."""
        descriptor, self._descriptor = self._descriptor, -1
        _held.discard(self)
        if descriptor >= 0:
            os.close(descriptor)

    def refusal(self) -> StoreUnavailableError:
        """The error for a drain that does not want to wait."""
        try:
            holder = self._path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            holder = ""
        who = f"process {holder}" if holder.isdigit() else "another process"
        return StoreUnavailableError(
            f"{who} drains this outbox already ({self._path.name})",
            remedy="let that one do it, or stop it first; a process that died holds nothing",
        )


def _after_fork_in_child() -> None:
    for lock in list(_held):
        lock.leave_to_parent()


os.register_at_fork(after_in_child=_after_fork_in_child)


T = TypeVar("T")

_PACKAGE = "ergon_framework.boundary.client"
_SCHEMA = SqliteSchema("outbox", f"{_PACKAGE}.outbox_migrations")
_SQL = load(_PACKAGE, "outbox.sql")
_TOPIC = "outbox"
_ORPHAN_GRACE = 3600.0  # seconds after which a copy that no row refers to is an orphan

_encode = msgspec.json.Encoder().encode

declare(
    *("boundary.outbox.add.before", "boundary.outbox.add.after"),
    *("boundary.outbox.sent.before", "boundary.outbox.sent.after"),
)


class OutboxStore:
    """The outbox in one SQLite file. Any thread of any process may use it."""

    def __init__(
        self,
        path: str | Path,
        *,
        clock: Callable[[], float],
        max_items: int | None = None,
        max_bytes: int | None = None,
        busy_timeout: float = 5.0,
        keep_sent: float | None = None,
    ) -> None:
        self._database = Database(path, schema=_SCHEMA, busy_timeout=busy_timeout)
        self._keep_sent = keep_sent
        self.path = self._database.path
        self.folder = OutboxFiles(self.path.with_name(f"{self.path.name}-files"), max_bytes)
        self._notifier = FifoNotifier(self.path)
        self._clock = clock
        self._max_items = max_items
        self._max_bytes = max_bytes

    # ---- putting facts in ----

    def add(self, entry: OutboxEntry) -> tuple[int, bool]:
        """Add a fact at the end; returns its id, and whether it is new."""
        failpoint("boundary.outbox.add.before")
        added = self._write(lambda cursor: self._insert(cursor, entry))
        failpoint("boundary.outbox.add.after")
        self.notify()
        return added

    def add_in(self, connection: SqliteJoinable, entry: OutboxEntry) -> int:
        """Like ``add``, in a transaction on the same file that the caller commits."""
        with joined(connection, self.path, _SQL["lock"]) as cursor:
            return self._insert(cursor, entry)[0]

    # ---- sending ----

    def first(self, limit: int, max_bytes: int, *, with_refused: bool = False) -> list[OutboxItem]:
        """The oldest waiting facts: at least one if there is any, at most ``limit``."""

        def work(cursor: sqlite3.Cursor) -> list[OutboxItem]:
            found: list[OutboxItem] = []
            size = 0
            for row in cursor.execute(_SQL["all" if with_refused else "waiting"], (limit,)):
                each = _spooled(row)
                size += len(each.envelope) + len(each.fact)
                # At least one, however large: a fact above the limit would block the line for ever.
                if found and size > max_bytes:
                    break
                found.append(each)
            return found

        return self._read(work)

    def settle(
        self, sent: Sequence[OutboxItem], refused: Sequence[tuple[OutboxItem, BoundaryError]]
    ) -> None:
        """Forget or keep what the node has, and set aside what it refused, in one commit."""
        at = self._clock()
        is_kept = self._keep_sent is not None

        def work(cursor: sqlite3.Cursor) -> None:
            if is_kept:
                cursor.executemany(_SQL["keep"], [(at, each.seq) for each in sent])
            cursor.executemany(_SQL["delete"], [(each.seq,) for each in sent])
            cursor.executemany(
                _SQL["refuse"], [(at, _encode(why.to_dict()), each.seq) for each, why in refused]
            )

        files = () if is_kept else (file for each in sent for file in each.files)
        copies = [file for file in files if file.is_copy]
        failpoint("boundary.outbox.sent.before")
        # A power cut may undo this: then the same is sent again and answered the same. But a fact
        # that came back without its file could not be.
        self._write(work, is_synced=bool(copies))
        failpoint("boundary.outbox.sent.after")
        # After the commit: a process that dies in between leaves copies that a sweep removes, and
        # no row without them.
        self.folder.drop(copies)

    def resend(self, since: float | None = None) -> int:
        """Send facts again that were sent since an instant and are still kept; returns how many."""

        def work(cursor: sqlite3.Cursor) -> int:
            count = cursor.execute(_SQL["resend"], (0.0 if since is None else since,)).rowcount
            cursor.execute(_SQL["resent"])
            return count

        count = self._write(work)
        self.notify()
        return count

    def kept(self) -> SentItems:
        """What is still there of what the node took."""
        return SentItems(*self._read(lambda cursor: cursor.execute(_SQL["kept"]).fetchone()))

    def forget_outlived(self, limit: int = 1000) -> int:
        """Remove what was kept for long enough, with its files; how many."""
        # Nothing is kept any more: what an earlier setting kept is all outlived.
        before = self._clock() - self._keep_sent if self._keep_sent is not None else math.inf
        rows = self._read(
            lambda cursor: cursor.execute(_SQL["outlived"], (before, limit)).fetchall()
        )
        if not rows:
            return 0
        files = [file for _, text in rows for file in _files_of(text)]
        self._write(
            lambda cursor: cursor.executemany(_SQL["forget"], [(seq,) for seq, _ in rows]),
            is_synced=bool(files),  # as above: no fact without its file
        )
        self.folder.drop(files)
        return len(rows)

    def lock(self) -> DrainLock:
        """The lock that a drain holds."""
        return DrainLock(self.path.with_name(f"{self.path.name}-drain"))

    def sweep(self) -> int:
        """Remove copies of files whose fact was never committed; returns how many."""
        rows = self._read(lambda cursor: cursor.execute(_SQL["all_files"]).fetchall())
        lists = [_files_of(files) for [files] in rows]
        if not all(lists):  # one list cannot be read: it may refer to any file
            return 0
        known = {file.path for files in lists for file in files}
        return self.folder.sweep(known, self._clock() - _ORPHAN_GRACE)

    # ---- what was refused ----

    def refused(self) -> list[Refused]:
        """Everything that was set aside, in the order of the line."""
        return self._read(
            lambda cursor: [_refused(row) for row in cursor.execute(_SQL["refused"]).fetchall()]
        )

    def retry(self, seq: int) -> None:
        """Make a refused fact wait again, in its old place."""
        self._write(lambda cursor: _found(cursor.execute(_SQL["retry"], (seq,)).rowcount, seq))
        self.notify()

    def discard(self, seq: int) -> None:
        """Forget a refused fact."""

        def work(cursor: sqlite3.Cursor) -> tuple[OutboxFile, ...]:
            row = cursor.execute(_SQL["files_of"], (seq,)).fetchone()
            _found(cursor.execute(_SQL["discard"], (seq,)).rowcount, seq)
            return _files_of(row[0])

        self.folder.drop(self._write(work))
        self.notify()

    # ---- looking ----

    def figures(self) -> Figures:
        """How many wait and were refused."""
        rows = self._read(lambda cursor: cursor.execute(_SQL["figures"]).fetchall())
        return Figures(*rows[0], *rows[1])

    def oldest_at(self) -> float | None:
        """When the first fact of the line was added."""
        row = self._read(lambda cursor: cursor.execute(_SQL["oldest"]).fetchone())
        return None if row is None else float(row[0])

    def line(
        self, limit: int = 1000, *, after: int = 0, only_refused: bool = False
    ) -> list[Waiting]:
        """What waits and what was refused, in order; never a content."""
        asked = (after, int(only_refused), limit)
        return self._read(
            lambda cursor: [_waiting(row) for row in cursor.execute(_SQL["line"], asked).fetchall()]
        )

    # ---- waking ----

    def notify(self) -> None:
        """Wake the drain, in any process."""
        self._notifier.notify(_TOPIC)

    def subscribe(self) -> FifoSubscription:
        """A subscription that is woken when there may be something to do."""
        return self._notifier.subscribe(_TOPIC)

    def close(self) -> None:
        """Close the file. May be called twice."""
        self._notifier.close()
        self._database.close()

    # ---- inside ----

    def _insert(self, cursor: sqlite3.Cursor, entry: OutboxEntry) -> tuple[int, bool]:
        fact = entry.fact
        found = cursor.execute(_SQL["find"], (fact.from_zone, fact.message_id)).fetchone()
        if found is not None:
            return _again(cursor, entry, *found), False
        self._refuse_overflow(cursor, entry)
        files = _encode(entry.files).decode() if entry.files else None
        row = (
            *(fact.from_zone, fact.message_id, fact.digest, entry.size, self._clock()),
            *(fact.envelope, fact.fact, files),
        )
        return int(cursor.execute(_SQL["insert"], row).lastrowid or 0), True

    def _refuse_overflow(self, cursor: sqlite3.Cursor, entry: OutboxEntry) -> None:
        # Counted in the same transaction as the insert: two processes could both see room for one.
        rows = cursor.execute(_SQL["figures"]).fetchall()
        items, size = sum(row[0] for row in rows), sum(row[1] for row in rows)
        is_full = self._max_items is not None and items + 1 > self._max_items
        if self._max_bytes is not None:
            if entry.size > self._max_bytes:
                raise _never_fits(self._max_bytes)
            is_full |= size + entry.size > self._max_bytes
        if is_full:
            raise BufferFullError(
                f"the outbox {self.path} is full: {items} facts, {size} bytes",
                remedy="let it drain, look at what was refused, or raise its limits",
                details={"items": items, "bytes": size, "refused": rows[1][0]},
            )

    def _write(self, work: Callable[[sqlite3.Cursor], T], *, is_synced: bool = True) -> T:
        return self._database.write(_on_a_cursor(work), is_synced=is_synced)

    def _read(self, work: Callable[[sqlite3.Cursor], T]) -> T:
        return self._database.read(_on_a_cursor(work))


def _on_a_cursor(work: Callable[[sqlite3.Cursor], T]) -> Callable[[sqlite3.Connection], T]:
    def whole(connection: sqlite3.Connection) -> T:
        with closing(connection.cursor()) as cursor:
            return work(cursor)

    return whole


def _again(
    cursor: sqlite3.Cursor, entry: OutboxEntry, seq: int, digest: bytes, is_refused: int
) -> int:
    """A fact whose id is in the spool already."""
    if digest != entry.fact.digest:
        raise ConflictingDuplicateError(
            f"the message id {entry.fact.message_id!r} waits in the outbox with other content",
            remedy="a correction is a new fact with an id of its own"
            + (f"; or discard({seq}) the one that was refused first" if is_refused else ""),
            details={"id": seq, "message_id": entry.fact.message_id},
        )
    # The application publishes it again: what was wrong may have been corrected at the node.
    if is_refused:
        cursor.execute(_SQL["retry"], (seq,))
    return seq


def _found(count: int, seq: int) -> None:
    if not count:
        raise BoundaryNotFoundError(
            f"the outbox has no refused fact with the id {seq}",
            reason="not_refused",
            remedy="refused() lists them",
            details={"id": seq},
        )


def _spooled(row: tuple[Any, ...]) -> OutboxItem:
    seq, is_refused, digest, size, envelope, fact, files = row
    return OutboxItem(seq, bool(is_refused), digest, size, envelope, fact, _files_of(files))


def _files_of(text: str | None) -> tuple[OutboxFile, ...]:
    """The files of a row; none when they cannot be read, and then the node misses them."""
    return (_readable(text.encode(), tuple[OutboxFile, ...]) or ()) if text else ()


def _waiting(row: tuple[Any, ...]) -> Waiting:
    seq, is_refused, from_zone, message_id, size, added_at, refused_at, refusal = row
    said = msgspec.json.decode(refusal) if is_refused else {}
    return Waiting(
        id=seq,
        state="refused" if is_refused else "waiting",
        from_zone=from_zone,
        message_id=message_id,
        size=size,
        added_at=added_at,
        refused_at=refused_at,
        code=said.get("code", ""),
        reason=said.get("details", {}).get("reason", ""),
        message=said.get("message", ""),
    )


def _refused(row: tuple[Any, ...]) -> Refused:
    seq, from_zone, message_id, added_at, refused_at, refusal, envelope, fact = row
    said = msgspec.json.decode(refusal)
    details = said["details"]
    return Refused(
        id=seq,
        from_zone=from_zone,
        message_id=message_id,
        added_at=added_at,
        refused_at=refused_at,
        code=said["code"],
        reason=details.get("reason", ""),
        message=said["message"],
        details=details,
        envelope=_readable(envelope, Envelope),
        fact=_readable(fact, Fact),
    )


def _readable(raw: bytes, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
