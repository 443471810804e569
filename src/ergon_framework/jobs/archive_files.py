"""The folder in which ended jobs are archived: JSON Lines that are appended, read and rewritten.

A file is ``jobs-DAY-NUMBER.jsonl``; one that is not appended to any more may have been written anew
as Parquet, ``jobs-DAY-NUMBER.parquet``.

The first line says what the file is; every other line is one record, written as ``ergon export``
writes it, with the instant at which it was archived. A line that was cut off by a crash or a full
disk is the last of its file: the next append begins another file.

Whoever appends or rewrites holds the lock of the folder. So no line goes into a file that is being
replaced, and a job that was read before it was erased is in the archive before that is searched.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import msgspec

from ergon_framework.core.rfc3339 import format_rfc3339
from ergon_framework.errors import StoreError, StoreUnavailableError
from ergon_framework.jobs.parquet_files import ParquetRow, read_rows, require, write_rows
from ergon_framework.ports.jobstore import Job
from ergon_framework.ports.transfer import JobRecord, TransferRecord, record_line
from ergon_framework.storage.failpoints import declare, failpoint
from ergon_framework.storage.fsync import sync_file
from ergon_framework.storage.secure_files import Folder

FORMAT = "ergon-archive"
VERSION = 1
MAX_FILE_SIZE = 256 * 1024 * 1024
"""Bytes after which the next file is begun."""
_LOCK = "archive.lock"
_NAME = re.compile(r"jobs-(?P<day>\d{8})-(?P<number>\d{6,})\.(?P<format>jsonl|parquet)")
_JSONL, _PARQUET = ".jsonl", ".parquet"
_BLOCK = 64 * 1024
_DRAFT = ".rewritten"

declare(
    "archive.append.written", "archive.append.synced", "archive.rewrite.synced",
    "archive.rewrite.named",
)  # fmt: skip


class ArchiveBusyError(StoreError):
    """Another process appends to the archive, or rewrites it."""


class ArchiveFile(NamedTuple):
    """One file of an archive: where it is, and when it was begun."""

    name: str
    day: str
    """The day on which the file was begun, such as ``2026-01-31``."""
    size: int


class ArchivedLine(NamedTuple):
    """One line of an archive, decoded only as far as its readers need."""

    file: str
    kind: str
    key: str
    archived_at: str
    record: bytes
    """JSON."""

    def job(self) -> Job:
        """The job that the line holds."""
        return JobRecord.from_document(msgspec.json.decode(self.record)).job


class _RecordText(msgspec.Struct, frozen=True):
    kind: str
    key: str
    record: msgspec.Raw
    archived_at: str = ""


class _Tagged(msgspec.Struct, frozen=True):
    tags: tuple[str, ...] = ()


class _TaggedRecord(msgspec.Struct, frozen=True):
    job: _Tagged = _Tagged()


_read_line = msgspec.json.Decoder(_RecordText).decode
_read_tags = msgspec.json.Decoder(_TaggedRecord).decode
_encode = msgspec.json.Encoder().encode


def tags_of(line: ArchivedLine) -> tuple[str, ...]:
    """The tags of an archived job; a flow has none."""
    return _read_tags(line.record).job.tags if line.kind == JobRecord.kind else ()


class JobArchive:
    """The archive in one folder."""

    def __init__(
        self,
        path: Path,
        *,
        max_file_size: int = MAX_FILE_SIZE,
        now: Callable[[], float] = time.time,
        version: str = "",
        format: str = "jsonl",
    ) -> None:
        """``now`` gives files their day and lines their instant; ``version`` is that of Ergon."""
        if format == "parquet":
            require()  # A worker that cannot write this format must not start.
        self.path = path
        self.format = format
        """The format into which files are rewritten once nothing is appended to them any more."""
        self._max_file_size = max_file_size
        self._now = now
        self._version = version

    # ---- writing --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def locked(self) -> Iterator[ArchiveWriter]:
        """Hold the lock of the folder, which is made if it is missing; raises ArchiveBusyError."""
        with self._explained_errors("written"), Folder.ensure(self.path, parents=True) as folder:
            lock = folder.open_file(_LOCK, os.O_RDWR | os.O_CREAT)
            try:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise ArchiveBusyError(
                        f"another process writes to the archive in {self.path}",
                        remedy="try again in a moment",
                    ) from None
                yield ArchiveWriter(self, folder, self._max_file_size, self._now, self._version)
            finally:
                os.close(lock)

    # ---- reading --------------------------------------------------------------------------------

    def files(self) -> list[ArchiveFile]:
        """The files of the archive, the oldest first; none where there is no folder."""
        with self._explained_errors("read"), contextlib.ExitStack() as stack:
            try:
                folder = stack.enter_context(Folder.open(self.path, follow=True))
            except FileNotFoundError:
                return []
            return _files_in(folder)

    def lines(self, files: Iterable[str] | None = None) -> Iterator[ArchivedLine]:
        """Every record, file by file. Records that were archived twice come twice."""
        wanted = [each.name for each in self.files()] if files is None else files
        for name in wanted:
            with self._explained_errors("read"), Folder.open(self.path, follow=True) as folder:
                try:
                    descriptor = folder.open_file(name, os.O_RDONLY)
                except FileNotFoundError:  # Since it was listed, the file was rewritten as Parquet.
                    name = name.replace(_JSONL, _PARQUET)  # noqa: PLW2901 - of the same records
                    descriptor = folder.open_file(name, os.O_RDONLY)
                with os.fdopen(descriptor, "rb") as file:
                    yield from _lines_in(name, file)

    def records(self) -> Iterator[ArchivedLine]:
        """Every record once: of those that were archived twice, the last.

        A process that dies after it has archived jobs and before it has deleted them leaves them to
        the next one, which archives them again. What is appended meanwhile is left out.
        """
        files = [each.name for each in self.files()]
        last = {hash((line.kind, line.key)): n for n, line in enumerate(self.lines(files))}
        for n, line in enumerate(self.lines(files)):
            if last.get(hash((line.kind, line.key))) == n:
                yield line

    def find(self, unit_id: str) -> ArchivedLine | None:
        """The job or flow of this id as it was archived last."""
        for file in reversed(self.files()):
            found = [line for line in self.lines([file.name]) if line.key == unit_id]
            if found:
                return found[-1]
        return None

    def count_leftovers(self) -> int:
        """Count what processes left behind that died while they wrote; see ``delete_leftovers``."""
        with self._explained_errors("read"), contextlib.ExitStack() as stack:
            try:
                folder = stack.enter_context(Folder.open(self.path, follow=True))
            except FileNotFoundError:
                return 0
            return len(_drafts_in(folder)) + len(_cut_off_in(folder))

    @contextlib.contextmanager
    def _explained_errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreUnavailableError(
                f"the archive in {self.path} cannot be {what}: {error.strerror or error}",
                remedy="see that the folder belongs to this user, may be written and has room;"
                " nothing is deleted from the store before it is in the archive",
            ) from error


class ArchiveWriter:
    """Appends to an archive and rewrites it. Only the holder of the archive's lock has one."""

    def __init__(
        self,
        archive: JobArchive,
        folder: Folder,
        max_file_size: int,
        now: Callable[[], float],
        version: str,
    ) -> None:
        self._archive = archive
        self._folder = folder
        self._max_file_size = max_file_size
        self._now = now
        self._version = version

    def append(self, records: Sequence[TransferRecord]) -> int:
        """Append records to the archive and return how many bytes that took.

        When this returns, they are on the disk. After an error the file is as before, or has some
        of the lines.
        """
        at = b',"archived_at":%b}\n' % _encode(format_rfc3339(self._now()))
        data = b"".join([record_line(each)[:-2] + at for each in records])
        descriptor, is_new = self._open_last()
        try:
            size = os.fstat(descriptor).st_size
            try:
                _write_all(descriptor, self._header() + data if is_new else data)
                failpoint("archive.append.written")
                sync_file(descriptor)
                if is_new:
                    self._folder.sync()
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(descriptor, size)
                raise
        finally:
            os.close(descriptor)
        failpoint("archive.append.synced")
        return len(data)

    def rewrite(self, name: str, drops: Callable[[ArchivedLine], bool]) -> int:
        """Rewrite a file without some of its records, and return how many were dropped.

        The new file takes the place of the old one when all of it is on the disk.
        """
        dropped = sum(drops(line) for line in self._archive.lines([name]))
        if dropped:
            if name.endswith(_PARQUET):
                kept = (line for line in self._archive.lines([name]) if not drops(line))
                self._replace(name, lambda new: _write_parquet(new, kept))
            else:
                self._replace(name, lambda new: self._copy(name, new, drops))
        return dropped

    def delete_leftovers(self) -> int:
        """Delete what processes left behind that died while they wrote; returns how much that was.

        A line that was cut off is no loss: a job is deleted from the store only after its whole
        line is on the disk.
        """
        drafts, cut_off = _drafts_in(self._folder), _cut_off_in(self._folder)
        for name in drafts:
            self._folder.unlink(name)
        for name, size in cut_off:
            descriptor = self._folder.open_file(name, os.O_RDWR)
            try:
                os.ftruncate(descriptor, size)
                sync_file(descriptor)
            finally:
                os.close(descriptor)
        if drafts:
            self._folder.sync()
        return len(drafts) + len(cut_off)

    def convert(self) -> bool:
        """Rewrite one file that is no longer appended to as Parquet. Returns False when there is
        none.

        A process that dies before the old file is deleted leaves each of its records twice; the
        next process writes the new file again.
        """
        today = format_rfc3339(self._now())[:10]
        files = [each for each in _files_in(self._folder) if each.name.endswith(_JSONL)]
        closed = files[:-1] if files and files[-1].day == today else files
        if not closed:
            return False
        name = closed[0].name
        lines = self._archive.lines([name])
        self._replace(name.replace(_JSONL, _PARQUET), lambda new: _write_parquet(new, lines))
        self._folder.unlink(name)
        self._folder.sync()
        return True

    def _copy(self, name: str, new: IO[bytes], drops: Callable[[ArchivedLine], bool]) -> None:
        with os.fdopen(self._folder.open_file(name, os.O_RDONLY), "rb") as old:
            for text in old:
                line = _line_of(name, text)
                if line is None and not _is_header(text):
                    continue  # The line was cut off by a crash, so its job is still in the store.
                if line is None or not drops(line):
                    new.write(text)

    def _replace(self, name: str, write: Callable[[IO[bytes]], object]) -> None:
        """Replace the file of this name by a new one, when all of the new one is on the disk."""
        draft = f".{name}{_DRAFT}"
        with contextlib.suppress(FileNotFoundError):
            self._folder.unlink(draft)  # The draft of a process that was killed.
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        try:
            with os.fdopen(self._folder.open_file(draft, flags), "w+b") as new:
                write(new)
                new.flush()
                sync_file(new.fileno())
            failpoint("archive.rewrite.synced")
        except OSError:
            with contextlib.suppress(OSError):
                # On a full disk, workers need the space that the draft takes.
                self._folder.unlink(draft)
            raise
        self._folder.replace(draft, name)
        self._folder.sync()
        failpoint("archive.rewrite.named")

    def _header(self) -> bytes:
        header = {
            "format": FORMAT,
            "version": VERSION,
            "ergon": self._version,
            "created_at": format_rfc3339(self._now()),
        }
        return _encode(header) + b"\n"

    def _open_last(self) -> tuple[int, bool]:
        """Open the file to append to. Returns it, and whether it is new."""
        day = format_rfc3339(self._now())[:10]
        today = [each for each in _files_in(self._folder) if each.day == day]
        number = 1
        if today:
            last = today[-1]
            number = _number_of(last.name) + 1
            if last.name.endswith(_JSONL):
                descriptor = self._folder.open_file(last.name, os.O_RDWR | os.O_APPEND)
                if last.size < self._max_file_size and _ends_with_a_line(descriptor):
                    return descriptor, False
                os.close(descriptor)
        name = f"jobs-{day.replace('-', '')}-{number:06d}.jsonl"
        return self._folder.open_file(name, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL), True


def _files_in(folder: Folder) -> list[ArchiveFile]:
    found = []
    for name in folder.names():
        match = _NAME.fullmatch(name)
        if match is not None:
            with contextlib.suppress(FileNotFoundError):
                size = folder.look(name).st_size
                day = match["day"]
                found.append(ArchiveFile(name, f"{day[:4]}-{day[4:6]}-{day[6:]}", size))
    return sorted(found, key=lambda each: (each.day, _number_of(each.name), each.name))


def _number_of(name: str) -> int:
    return int(name.rpartition("-")[2].partition(".")[0])


def _drafts_in(folder: Folder) -> list[str]:
    """Drafts: files that a process is writing, or was writing when it died."""
    return [name for name in folder.names() if name.startswith(".") and name.endswith(_DRAFT)]


def _cut_off_in(folder: Folder) -> list[tuple[str, int]]:
    """Files whose last line was cut off, each with the size of what precedes that line."""
    found = []
    for each in _files_in(folder):
        if not each.name.endswith(_JSONL) or not each.size:
            continue
        with os.fdopen(folder.open_file(each.name, os.O_RDONLY), "rb") as file:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                found.append((each.name, _last_line_at(file)))
    return found


def _last_line_at(file: IO[bytes]) -> int:
    """The offset at which the last line of a file begins."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - _BLOCK)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def _ends_with_a_line(descriptor: int) -> bool:
    size = os.fstat(descriptor).st_size
    return size > 0 and os.pread(descriptor, 1, size - 1) == b"\n"


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _write_parquet(new: IO[bytes], lines: Iterable[ArchivedLine]) -> None:
    write_rows(
        new, (ParquetRow(each.kind, each.key, each.archived_at, each.record) for each in lines)
    )


def _lines_in(name: str, file: IO[bytes]) -> Iterator[ArchivedLine]:
    if name.endswith(_PARQUET):
        for kind, key, archived_at, record in read_rows(file, name):
            yield ArchivedLine(name, kind, key, archived_at, record)
        return
    for text in file:
        line = _line_of(name, text)
        if line is not None:
            yield line


def _line_of(name: str, text: bytes) -> ArchivedLine | None:
    """The record of a line. None for the first line of a file, and for a line that was cut off."""
    if not text.endswith(b"\n") or not text.startswith(b'{"kind":'):
        return None
    try:
        found = _read_line(text)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return ArchivedLine(name, found.kind, found.key, found.archived_at, bytes(found.record))


def _is_header(text: bytes) -> bool:
    return text.startswith(b'{"format":')
