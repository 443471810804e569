"""``ergon export``: what a store holds, written into a file of records.

This module reads the store; ``record_file`` has the format, with its header, trailer and digest.
The file is the state of one instant. A store on SQLite is copied first, in one reading
transaction, so that whoever works with it goes on. A store on a server is read twice: when the
second reading comes to other digests, something came into it meanwhile, and the export begins anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sqlite3
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Protocol

from ergon_framework.app.move import endpoints, object_copy, record_file
from ergon_framework.app.move.endpoints import Asked
from ergon_framework.app.move.payloads import InlinedRecords
from ergon_framework.app.move.preflight import refuse_half_source
from ergon_framework.app.move.record_file import CALLS, FACTS, JOBS, Header, RecordWriter, Trailer
from ergon_framework.app.move.transfer import (
    MAX_PASSES,
    PAGE_SIZE,
    Tell,
    TransferProgress,
    all_records,
    digest_of,
)
from ergon_framework.app.store_location import StoreLocation
from ergon_framework.core.rfc3339 import format_rfc3339
from ergon_framework.errors import ConfigurationError, StoreError, StoreUnavailableError, describe
from ergon_framework.ports.jobstore import Search
from ergon_framework.ports.objectstore import ObjectStore
from ergon_framework.ports.transfer import ObjectNameRecord, RecordReader, records_of
from ergon_framework.storage import secure_files
from ergon_framework.storage.conflicts import ConflictError, retry_conflicts
from ergon_framework.storage.failpoints import declare, failpoint
from ergon_framework.storage.fsync import sync_file
from ergon_framework.storage.objectstore.urls import is_folder, open_object_store
from ergon_framework.storage.sqlite.connections import connect, open_reader

declare("export.page.written", "export.file.synced", "export.file.named")

_LOCK_TIMEOUT = 10.0  # seconds for a lock of SQLite


@dataclass(frozen=True)
class Exporting:
    """What is to be exported."""

    source: StoreLocation
    zone: str | None = None
    objects: str | None = None
    """Where the objects of a zone are that does not live in a folder."""
    has_objects: bool = True
    is_forced: bool = False
    """Whether a store on a server is read although workers use it."""
    version: str = ""
    """The version of Ergon, for the header."""
    allows_lost: bool = False
    """Whether jobs are written whose payload objects are missing or damaged."""


@dataclass(frozen=True)
class Exported:
    """What was written."""

    header: Header
    trailer: Trailer
    notes: list[str] = field(default_factory=list)


class Output(Protocol):
    """Where lines go."""

    def begin(self) -> None:
        """Start writing, or start over. ``StoreError`` if lines written before cannot be taken
        back.
        """

    def write(self, data: bytes) -> object:
        """Write some lines."""


@dataclass(frozen=True)
class _Part:
    name: str
    records: RecordReader
    totals: dict[str, int]


@dataclass
class _Opened:
    parts: list[_Part]
    zone: str | None = None
    objects: ObjectStore | None = None
    origin: str = ""
    notes: list[str] = field(default_factory=list)


def run(asked: Exporting, output: Output, tell: Tell, *, scratch: Path | None = None) -> Exported:
    """Write what a store holds; ``scratch`` is the folder in which a file is copied first."""
    place = asked.source
    place.refuse_memory()
    if place.file is not None and not place.file.is_file():
        path = Path(place.given if place.is_folder else place.file)
        remedy = (
            f"a file of SQLite is written sqlite:///{path}"
            if path.is_file()
            else "name the store that is there: a URL, or the folder of a zone"
        )
        raise ConfigurationError(f"there is no file {place.file} to export from", remedy=remedy)
    with ExitStack() as stack:
        if place.file is not None:
            copied = _snapshot(place.file, scratch, stack)
            # The copy belongs to this export alone: workers of the store do not matter.
            source = StoreLocation(f"sqlite:///{copied}", called=place.name)
            looked_at = replace(asked, source=source, is_forced=True)
        else:
            looked_at = asked
        opened = _opened(asked, looked_at, stack)
        header = Header(
            format=record_file.FORMAT,
            version=record_file.VERSION,
            parts=tuple(part.name for part in opened.parts),
            zone=opened.zone,
            has_objects=opened.objects is not None,
            ergon=asked.version,
            created_at=format_rfc3339(time.time()),
            schema={part.name: record_file.schema_of(part.name) for part in opened.parts},
        )

        def attempt() -> Exported:
            output.begin()
            writer = RecordWriter(output.write, header)
            _write(opened, writer, tell)
            if place.file is None and not _is_unchanged(opened, writer, tell):
                raise ConflictError
            return Exported(header, writer.finish(), opened.notes)

        return retry_conflicts(
            attempt, max_attempts=MAX_PASSES, give_up=lambda: _goes_on_changing(place.name)
        )


def _goes_on_changing(name: str) -> StoreError:
    return StoreError(
        f"{name} goes on changing: it was read {MAX_PASSES} times, and never twice the same",
        remedy="stop whoever works with it, then export again",
    )


# ---- opening ------------------------------------------------------------------------------------


def _opened(asked: Exporting, looked_at: Exporting, stack: ExitStack) -> _Opened:
    """The stores to be read; ``looked_at`` names the copy of a file, and ``asked`` the file."""
    trial = Asked(
        *(looked_at.source, looked_at.source, asked.zone), None, looked_at.is_forced, is_trial=True
    )
    is_zone = Asked(asked.source, asked.source, asked.zone).is_zone
    if is_zone:
        return _opened_zone(asked, trial, stack)
    if asked.objects is not None:
        raise ConfigurationError(
            "only a zone has objects, and jobs are what would be exported",
            remedy="leave out --objects, or give --zone NAME",
        )
    parts, notes = [], list[str]()
    calls = endpoints.call_source(trial.source)
    if calls is not None:
        refuse_half_source(calls)
        parts.append(_Part(CALLS, calls, {}))
    jobs = endpoints.job_source(trial, stack)
    if jobs is not None:
        total = {"jobs": jobs.count(Search())}
        lost = notes if asked.allows_lost else None
        parts.append(_Part(JOBS, InlinedRecords(records_of(jobs), None, lost), total))
    if not parts:
        raise endpoints.no_work_at(asked.source)
    notes += [
        f"the facts of zone {zone} are not in the file: --zone {zone} exports them"
        for zone in endpoints.zones_at(trial.source)
    ]
    return _Opened(parts, notes=notes)


def _opened_zone(asked: Exporting, trial: Asked, stack: ExitStack) -> _Opened:
    if asked.objects is not None:
        endpoints.refuse_object_source(asked.objects)
    store = endpoints.zone_source(trial, stack)
    total = {"facts": sum(log.head - log.first + 1 for log in store.logs())}
    part = _Part(FACTS, records_of(store), total)
    found = _Opened([part], store.info().zone)
    place = asked.objects or asked.source.objects
    if not asked.has_objects:
        found.notes.append("the bytes of objects are not in the file")
    elif place is None:
        found.notes.append("the bytes of objects are not in the file: --objects PLACE adds them")
    else:
        # A zone without objects has no folder for them, and none is made by looking.
        is_missing = is_folder(place) and not Path(place).is_dir()
        objects = open_object_store("memory://" if is_missing else place, read_only=True)
        found.objects = stack.enter_context(closing(objects))
        found.origin = place
    return found


def _snapshot(file: Path, scratch: Path | None, stack: ExitStack) -> Path:
    """Copy a file of SQLite as it is at one instant, while others go on writing to it."""
    try:
        folder = Path(tempfile.mkdtemp(prefix=".ergon-export-", dir=scratch))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        target = folder / file.name
        secure_files.refuse_foreign_link(file)  # an operator's own leads to the store
        os.close(secure_files.open_file(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        with (
            closing(open_reader(file.resolve(), connect, _LOCK_TIMEOUT)) as source,
            closing(connect(target.as_uri(), _LOCK_TIMEOUT)) as copy,
        ):
            source.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")
    except (OSError, sqlite3.Error) as error:
        raise StoreUnavailableError(
            f"{file} cannot be copied to be exported: {describe(error)}",
            remedy="see that it is a store of Ergon, and that"
            f" {scratch or tempfile.gettempdir()} may be written and has room for it",
        ) from error
    return target


# ---- writing ------------------------------------------------------------------------------------


def _write(opened: _Opened, writer: RecordWriter, tell: Tell) -> None:
    if opened.objects is not None:
        names, objects = opened.parts[0].records, opened.objects
        stores = object_copy.ObjectStorePair(names, objects, objects, opened.origin)
        _write_objects(stores, writer, tell)
    for part in opened.parts:
        for kind in record_file.kinds_of(part.name):
            for copy in all_records(part.records, kind):
                count = writer.record(copy)
                if count % PAGE_SIZE == 1:
                    failpoint("export.page.written")
                    total = part.totals.get(kind.title)
                    tell(TransferProgress(part.name, f"exporting {kind.title}", count, total))


def _write_objects(stores: object_copy.ObjectStorePair, writer: RecordWriter, tell: Tell) -> None:
    """Write the bytes of every object once, whatever number of names it has."""
    written: set[bytes] = set()
    for count, name in enumerate(all_records(stores.names, ObjectNameRecord), 1):
        kept = name.object
        if kept.digest not in written:
            written.add(kept.digest)
            _write_object(stores, name, writer)
        tell(TransferProgress(object_copy.PART, "exporting objects", count))


def _write_object(
    stores: object_copy.ObjectStorePair, name: ObjectNameRecord, writer: RecordWriter
) -> None:
    kept = name.object
    download = stores.source.open(kept.digest)
    if download is None:
        raise object_copy.lost(name, f"are not in {stores.origin}")
    total, offset = hashlib.sha256(), 0
    with closing(download):
        for data in _chunks(download.read):
            writer.chunk(kept.digest, kept.size, offset, data)
            total.update(data)
            offset += len(data)
    if not kept.size:
        writer.chunk(kept.digest, 0, 0, b"")
    if offset != kept.size or total.digest() != kept.digest:
        raise object_copy.lost(name, f"are damaged in {stores.origin}")


def _chunks(read: Callable[[int], bytes]) -> Iterator[bytes]:
    """The bytes of an object in chunks of one size, however few a store gives at once."""
    pending = bytearray()
    while data := read(record_file.CHUNK - len(pending)):
        pending += data
        if len(pending) == record_file.CHUNK:
            yield bytes(pending)
            pending.clear()
    if pending:
        yield bytes(pending)


def _is_unchanged(opened: _Opened, writer: RecordWriter, tell: Tell) -> bool:
    """Whether a second reading comes to the same: then the first is the state between the two."""
    for part in opened.parts:
        for kind in record_file.kinds_of(part.name):
            tell(TransferProgress(part.name, f"comparing {kind.title}", 0))
            found, wrote = digest_of(part.records, kind), writer.sum_of(kind)
            if (found.count, found.digest) != (wrote.count, wrote.digest):
                tell(TransferProgress(part.name, "beginning anew: something came meanwhile", 0))
                return False
    return True


# ---- where lines go -----------------------------------------------------------------------------


class FileOutput:
    """A new file, private, which has its name when all of it is on the disk and not before."""

    def __init__(self, path: Path, *, may_replace: bool = False) -> None:
        self.path = path
        self._may_replace = may_replace
        self._draft = f".{path.name}.{os.getpid()}.partial"
        self._stack = ExitStack()
        self._file: IO[bytes] | None = None
        with self._explained():
            self._folder = self._stack.enter_context(
                secure_files.Folder.open(path.parent, follow=True)
            )
            self._refuse_present()

    @property
    def folder(self) -> Path:
        """The folder in which the file will be."""
        return self.path.parent

    def begin(self) -> None:
        """Make the file under another name, or begin anew in it."""
        with self._explained():
            if self._file is not None:
                self._file.seek(0)
                self._file.truncate()
                return
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            descriptor = self._folder.open_file(self._draft, flags)
            self._stack.callback(self._remove_draft)
            self._file = self._stack.enter_context(os.fdopen(descriptor, "wb"))

    def write(self, data: bytes) -> None:
        """Write some lines."""
        assert self._file is not None  # noqa: S101 - begin came before
        with self._explained():
            self._file.write(data)

    def commit(self) -> None:
        """Rename the finished file into place, once it is on disk."""
        assert self._file is not None  # noqa: S101 - begin came before
        with self._explained():
            self._file.flush()
            sync_file(self._file.fileno())
            failpoint("export.file.synced")
            # Once more, as the export may have taken hours: a file of that name may be there by
            # now.
            self._refuse_present()
            self._folder.replace(self._draft, self.path.name)
            # The name is on the disk, too, when the command says that the file is there.
            self._folder.sync()
            failpoint("export.file.named")

    def close(self) -> None:
        """Remove what was not committed."""
        with contextlib.suppress(OSError):  # a full disk was told already
            self._stack.close()

    def _remove_draft(self) -> None:
        with contextlib.suppress(OSError):
            self._folder.unlink(self._draft)

    def _refuse_present(self) -> None:
        try:
            found = self._folder.look(self.path.name)
        except FileNotFoundError:
            return
        if not self._may_replace:
            raise ConfigurationError(
                f"{self.path} is there already",
                remedy="name another file, or replace it with --overwrite",
            )
        if not stat.S_ISREG(found.st_mode) or not self._is_of_records():
            raise ConfigurationError(
                f"{self.path} is no file of records, and nothing else is replaced",
                remedy="name another file; - is the standard output",
            )

    def _is_of_records(self) -> bool:
        """Whether an earlier export may be replaced; anything else, a store say, may be needed."""
        with os.fdopen(self._folder.open_file(self.path.name, os.O_RDONLY), "rb") as file:
            return record_file.version_in(file.readline(record_file.MAX_HEADER)) is not None

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreUnavailableError(
                f"{self.path} cannot be written: {error.strerror or error}",
                remedy="see that the folder is there, may be written and has room; nothing was left"
                " behind",
            ) from error


class ByteSink(Protocol):
    """A binary stream to write to."""

    def write(self, data: bytes, /) -> int:
        """Write all of the bytes; returns how many."""


class StreamOutput:
    """The standard output. What was written there cannot be taken back."""

    def __init__(self, stream: ByteSink) -> None:
        self._stream = stream
        self._has_begun = False

    def begin(self) -> None:
        """Start writing. A stream cannot start over, so a second call is an error."""
        if self._has_begun:
            raise StoreError(
                "something came into the store while it was exported, and what was written to the"
                " standard output has no trailer: nobody can import it",
                remedy="stop whoever works with the store, or name a FILE, which is begun anew",
            )
        self._has_begun = True

    def write(self, data: bytes) -> None:
        """Pass some lines on."""
        self._stream.write(data)
