"""The file that ``ergon export`` writes and ``ergon import`` reads: JSON Lines.

The first line is a :class:`Header`, the last one a :class:`Trailer`; between them each line is one
record, kind by kind in the order in which a store is filled. The bytes of objects, if they are in
the file, come before all records. ``docs/reference/records.md`` describes every field.

:class:`RecordWriter` writes such a file. :class:`RecordFile` reads one through, and is then a store
of records like any other, that can only be read: an import is a move out of a file.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, cast

import msgspec

from ergon_framework.app.move.transfer import RunningDigest
from ergon_framework.errors import ConfigurationError, StoreError
from ergon_framework.jobs.stores.unreadable import checked
from ergon_framework.ports.objectstore import Blob
from ergon_framework.ports.record_codec import plain
from ergon_framework.ports.transfer import (
    FACT_KINDS,
    JOB_KINDS,
    PAGE_BYTES,
    C,
    Fence,
    FlowRecord,
    JobRecord,
    TransferRecord,
    ZoneEpochRecord,
    record_line,
)

FORMAT = "ergon-records"
VERSION = 1
"""The version of the line format. What the fields of a record mean depends on the schema of its
part.
"""
JOBS, FACTS, CALLS = "jobs", "facts", "provider calls"
OBJECT_DATA = "object_data"
CHUNK = 1 << 20
"""Bytes of an object in one line."""
MAX_HEADER = 1 << 16
MAX_LINE = 1 << 28
"""Bytes of a line; a record that makes a longer one is not exported."""
SCHEMAS: dict[str, int | str] = {JOBS: 1, FACTS: 1}
"""What the fields of records mean; provider rows have the revision of their tables."""

_ADDED_KINDS = frozenset({FlowRecord.kind})
"""Kinds that the first version of the format does not have. The trailer leaves one out of which
there are no records, so that a program that does not know it reads the file."""
_encode = msgspec.json.Encoder().encode
_DIGEST = "sha256:"
_EMPTY = hashlib.sha256().digest()


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What is in a file, and which version wrote it."""

    format: str
    version: int
    parts: tuple[str, ...]
    zone: str | None
    """Whose facts, where it is about facts."""
    has_objects: bool
    ergon: str
    """The version that wrote it."""
    created_at: str
    schema: dict[str, int | str]
    """What the fields of each part's records mean."""


class KindSum(msgspec.Struct, frozen=True):
    """How many records of a kind there are, and the digest that ``ergon move`` prints for them."""

    count: int
    digest: str


class Trailer(msgspec.Struct, frozen=True, kw_only=True):
    """What there was: without it a file is cut off, and with another digest it was changed."""

    end: str
    records: int
    objects: int
    kinds: dict[str, KindSum]
    digest: str
    """Over the bytes of all lines between header and trailer, their ends included."""


def version_in(line: bytes) -> Any:
    """The version of the format that a first line says; None when it is of another format."""
    try:
        found = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        return None
    return found.get("version", "none")


class _RecordLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kind: str
    key: Any
    record: dict[str, Any]


class _Chunk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    digest: str
    size: int
    offset: int
    data: bytes


_read_header = msgspec.json.Decoder(Header).decode
_read_line = msgspec.json.Decoder(_RecordLine).decode
_read_trailer = msgspec.json.Decoder(Trailer).decode


def kinds_of(part: str) -> tuple[type[TransferRecord], ...]:
    """The kinds of a part's records, in the order in which a store is filled."""
    if part == CALLS:
        from ergon_framework.providers.stores.records import PROVIDER_KINDS

        return PROVIDER_KINDS
    return {JOBS: JOB_KINDS, FACTS: FACT_KINDS}[part]


def schema_of(part: str) -> int | str:
    """What the fields of a part's records mean in this version."""
    if part == CALLS:
        from ergon_framework.providers.migrations import HEAD

        return HEAD
    return SCHEMAS[part]


def line_of(copy: TransferRecord) -> bytes:
    """A record as a line of the file."""
    line = record_line(copy)
    # When it is written: a file that cannot be read again is no export.
    if len(line) > MAX_LINE:
        raise StoreError(
            f"the {copy.kind} {copy.identity!r:.60} makes a line of {len(line)} bytes;"
            f" {MAX_LINE} is the most",
            remedy="`ergon move` copies it into another store",
        )
    return line


class RecordWriter:
    """Writes the lines of one file, and adds them up."""

    def __init__(self, write: Callable[[bytes], object], header: Header) -> None:
        self._write = write
        self._digest = hashlib.sha256()
        self._sums: dict[str, RunningDigest] = {
            kind.kind: RunningDigest() for part in header.parts for kind in kinds_of(part)
        }
        self.records = self.objects = 0
        write(_encode(header) + b"\n")

    def record(self, copy: TransferRecord) -> int:
        """Write one record; returns how many of its kind were written so far."""
        self._put(line_of(copy))
        self.records += 1
        return self._sums[copy.kind].add(copy)

    def chunk(self, digest: bytes, size: int, offset: int, data: bytes) -> None:
        """Write some bytes of an object, from the first to the last; an empty one has one chunk."""
        text = base64.b64encode(data)
        head = b'{"kind":"object_data","key":["%b",%d],"record":{"digest":"%b","size":%d,'
        name = digest.hex().encode()
        line = head % (name, offset, name, size) + b'"offset":%d,"data":"%b"}}\n' % (offset, text)
        self._put(line)
        self.objects += offset == 0

    def sum_of(self, kind: type[TransferRecord]) -> KindSum:
        """What the records of a kind come to so far."""
        found = self._sums[kind.kind].sum()
        return KindSum(found.count, found.digest)

    def finish(self) -> Trailer:
        """Write the last line."""
        sums = {kind: each.sum() for kind, each in self._sums.items()}
        sums = {k: each for k, each in sums.items() if each.count or k not in _ADDED_KINDS}
        trailer = Trailer(
            end=FORMAT,
            records=self.records,
            objects=self.objects,
            kinds={kind: KindSum(each.count, each.digest) for kind, each in sums.items()},
            digest=f"{_DIGEST}{self._digest.hexdigest()}",
        )
        self._write(_encode(trailer) + b"\n")
        return trailer

    def _put(self, line: bytes) -> None:
        self._digest.update(line)
        self._write(line)


# ---- reading ------------------------------------------------------------------------------------


@dataclass
class _Stretch:
    """Where the records of a kind stand in the file."""

    start: int
    end: int


@dataclass(frozen=True)
class _Kept:
    """Where the first chunk of an object stands."""

    position: int
    size: int


@dataclass
class RecordFile:
    """A file of records that is read. :meth:`check` comes before anything else but the header."""

    file: IO[bytes]
    name: str
    """What to call it in front of people."""
    max_line: int = MAX_LINE
    """Bytes of a line that are read at most."""
    header: Header = field(init=False)
    trailer: Trailer | None = field(init=False, default=None)
    """None for a file that was cut off."""
    digest: str = field(init=False, default="")
    """Over the lines that were read."""
    counts: dict[str, int] = field(init=False, default_factory=dict)
    objects: dict[bytes, _Kept] = field(init=False, default_factory=dict)
    _stretches: dict[str, _Stretch] = field(init=False, default_factory=dict)
    _next: dict[str, tuple[Any, int]] = field(init=False, default_factory=dict)
    """Behind the last page of a kind: the position of its last record, and where it ends."""

    def __post_init__(self) -> None:
        self.file.seek(0)
        self.header = self._read_header()
        self._begin = self.file.tell()
        self._kinds = {k.kind: k for part in self.header.parts for k in kinds_of(part)}

    # ---- the header

    def _read_header(self) -> Header:
        line = self.file.readline(MAX_HEADER)
        if not line:
            raise ConfigurationError(
                f"{self.name} is empty", remedy="name a file that `ergon export` wrote"
            )
        # By itself, before the header is decoded: that of another version may have other fields.
        version = version_in(line)
        if version is None:
            raise ConfigurationError(
                f"{self.name} is no file of records",
                remedy="name a file that `ergon export` wrote; a compressed one is unpacked first:"
                " `gunzip -c FILE.gz | ergon import - TO`",
            )
        if version != VERSION:
            raise ConfigurationError(
                f"{self.name} has version {version!r:.20} of the format, and this program reads"
                f" version {VERSION}",
                remedy="import it with the version of Ergon that wrote it, then `ergon move`",
            )
        try:
            header = _read_header(line)
        except msgspec.DecodeError as error:
            raise self._damaged(1, str(error)) from None
        self._check_parts(header)
        return header

    def _check_parts(self, header: Header) -> None:
        if header.parts not in ((JOBS,), (CALLS,), (CALLS, JOBS), (FACTS,)):
            parts = ", ".join(header.parts)[:60]
            raise ConfigurationError(
                f"{self.name} is about {parts or 'nothing'}, which is no store of this version",
                remedy="import it with the version of Ergon that wrote it, then `ergon move`",
            )
        if (header.zone is None) == (FACTS in header.parts):
            raise self._damaged(1, "facts have a zone, and nothing else has")
        for part in header.parts:
            found, known = header.schema.get(part), schema_of(part)
            if found != known:
                raise ConfigurationError(
                    f"the {part} in {self.name} have the schema {found!r:.40}, and this program"
                    f" reads {known!r}",
                    remedy="import it with the version of Ergon that wrote it, then upgrade that",
                )

    # ---- reading it through

    def check(self, watch: Callable[[int], None], *, may_be_cut_off: bool) -> None:
        """Read all of it once: every line, the order, the counts and the digest."""
        # One pass over the file for everything: it may be larger than the memory.
        total, sums = hashlib.sha256(), {kind: RunningDigest() for kind in self._kinds}
        order = list(self._kinds)
        at, last, blob = 0, None, None
        self.file.seek(self._begin)
        for number, position, line in self._lines():
            if self.trailer is not None:
                raise self._damaged(number, "something follows the trailer")
            if not line.endswith(b"\n"):
                break  # the file was cut off within this line
            if line.startswith(b'{"end"'):
                self.trailer = self._trailer(number, line)
                continue
            total.update(line)
            found = self._decoded(number, line)
            if found.kind == OBJECT_DATA:
                if last is not None:
                    raise self._damaged(number, "bytes of objects come before all records")
                blob = self._chunk(number, position, found, blob)
                continue
            self._refuse_open(number, blob)
            copy = self._record(number, found)
            if found.kind in order[:at]:
                raise self._damaged(number, f"a {found.kind} cannot follow a {order[at]}")
            if found.kind != order[at] or last is None:
                at, last = order.index(found.kind), None
                self._stretches[found.kind] = _Stretch(position, position)
            self._check_order(number, last, copy)
            last = copy
            self._stretches[found.kind].end = position + len(line)
            sums[found.kind].add(copy)
            watch(number - 1)
        if self.trailer is not None:
            self._refuse_open(0, blob)
        self.counts = {kind: each.sum().count for kind, each in sums.items()}
        self.digest = f"{_DIGEST}{total.hexdigest()}"
        self._compare(sums, may_be_cut_off=may_be_cut_off)

    def _lines(self) -> Iterator[tuple[int, int, bytes]]:
        """Each line with its number, and where it begins."""
        number, position = 1, self.file.tell()
        # One byte more than allowed, to tell a line of that length from a longer one.
        while line := self.file.readline(self.max_line + 1):
            number += 1
            if len(line) > self.max_line:
                raise self._damaged(number, f"it is longer than {self.max_line} bytes")
            yield number, position, line
            position += len(line)

    def _decoded(self, number: int, line: bytes) -> _RecordLine:
        try:
            found = _read_line(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._damaged(number, f"it is no record: {error}") from None
        if found.kind != OBJECT_DATA and found.kind not in self._kinds:
            parts = " and ".join(self.header.parts)
            raise self._damaged(number, f"{parts} have no records of kind {found.kind[:40]!r}")
        return found

    def _record(self, number: int, line: _RecordLine) -> TransferRecord:
        try:
            copy = self._kinds[line.kind].from_document(line.record)
            if isinstance(copy, JobRecord):
                checked(copy.job)  # as a store does that reads one
        except ValueError as error:
            raise self._damaged(number, f"{line.kind} {line.key!r:.60}: {error}") from None
        # The key is what people search for; a line that was edited by hand may have another.
        if plain(copy.identity, "key") != line.key:
            raise self._damaged(number, f"the key {line.key!r:.60} is not that of its record")
        return copy

    def _check_order(self, number: int, last: TransferRecord | None, copy: TransferRecord) -> None:
        if isinstance(copy, ZoneEpochRecord) and copy.info.zone != self.header.zone:
            raise self._damaged(number, f"it is about the zone {copy.info.zone[:60]!r}")
        if last is not None and copy.has_shared_places and not last.sort_key < copy.sort_key:
            raise self._damaged(
                number, f"a {copy.kind} {copy.identity!r:.60} is twice there, or late"
            )

    def _trailer(self, number: int, line: bytes) -> Trailer:
        try:
            return _read_trailer(line)
        except msgspec.DecodeError as error:
            raise self._damaged(number, f"the trailer cannot be read: {error}") from None

    def _compare(self, sums: Mapping[str, RunningDigest], *, may_be_cut_off: bool) -> None:
        trailer = self.trailer
        if trailer is None:
            if may_be_cut_off:
                return
            raise StoreError(
                f"{self.name} is cut off: its last line is not the trailer of a whole file",
                remedy="export again; --cut-off imports the records that are there",
            )
        found = {kind: each.sum() for kind, each in sums.items()}
        read = {kind: KindSum(each.count, each.digest) for kind, each in found.items()}
        if trailer.digest != self.digest or trailer.objects != len(self.objects):
            raise StoreError(
                f"{self.name} was changed since it was written: its lines have the digest"
                f" {self.digest[:23]}…, and the trailer says {trailer.digest[:23]!r}…",
                remedy="export again, or take another copy of the file; nothing was imported",
            )
        # The version that wrote the file may not have known a kind; then there is none of it.
        read = {kind: each for kind, each in read.items() if kind in trailer.kinds or each.count}
        if trailer.kinds != read:
            raise StoreError(
                f"the records of {self.name} are not what this version of Ergon takes them for",
                remedy=f"import it with the version that wrote it, which is {self.header.ergon}",
            )

    # ---- bytes of objects

    def _chunk(
        self, number: int, position: int, line: _RecordLine, blob: _Blob | None
    ) -> _Blob | None:
        """Add a chunk to its object, and compare the object's digest when it is whole."""
        try:
            found = msgspec.convert(line.record, _Chunk)
            digest = bytes.fromhex(found.digest)
        except (msgspec.ValidationError, ValueError):
            raise self._damaged(number, "these are no bytes of an object") from None
        if line.key != [found.digest, found.offset] or len(digest) != len(_EMPTY):
            raise self._damaged(number, "these are no bytes of an object")
        if found.offset == 0:
            self._refuse_open(number, blob)
            blob = _Blob(digest, found.size)
            self.objects[digest] = _Kept(position, found.size)
        if blob is None or not blob.take(digest, found.offset, found.data):
            raise self._damaged(number, "bytes of an object are missing before this line")
        if blob.is_whole and blob.hash.digest() != digest:
            raise self._damaged(number, f"the bytes of object {digest.hex()[:16]}… were changed")
        return None if blob.is_whole else blob

    def _refuse_open(self, number: int, blob: _Blob | None) -> None:
        if blob is not None:
            raise self._damaged(number, f"bytes of object {blob.digest.hex()[:16]}… are missing")

    def chunks(self, digest: bytes) -> Iterator[bytes]:
        """The bytes of an object, in order."""
        kept = self.objects[digest]
        position, read = kept.position, 0
        while read < kept.size:
            self.file.seek(position)
            # Found again by its position: only positions are kept, not the bytes.
            line = self.file.readline(self.max_line + 1)
            data = msgspec.convert(self._decoded(0, line).record, _Chunk).data
            yield data
            position += len(line)
            read += len(data)

    # ---- as a store of records

    def dump(self, kind: type[C], after: Any, limit: int) -> list[C]:
        """The records of a kind after a position; that of a job is where its line ends."""
        stretch = self._stretches.get(kind.kind)
        if stretch is None:
            return []
        page: list[TransferRecord] = []
        position = start = stretch.start if after is None else self._behind(kind, after)
        self.file.seek(position)
        # By bytes as well: a few large records fill a page.
        while position < stretch.end and len(page) < limit and position - start < PAGE_BYTES:
            line = self.file.readline(self.max_line + 1)
            position += len(line)
            page.append(_placed(self._record(0, self._decoded(0, line)), position))
        if page:
            self._next[kind.kind] = (page[-1].sort_key, position)
        return cast("list[C]", page)

    def _behind(self, kind: type[TransferRecord], after: Any) -> int:
        """Where the record after a position begins."""
        if issubclass(kind, JobRecord):
            return int(after)
        place, position = self._next[kind.kind]
        # The file is read forwards; any other order would be a defect of the caller.
        if place != after:  # pages are asked for one after the other
            raise LookupError(after)
        return position

    def move_state(self) -> bytes | None:
        """A file is neither a copy nor shut."""
        return None

    def load(self, records: Sequence[TransferRecord], fence: Fence | None = None) -> None:
        """Refused: a record file is only read."""
        raise TypeError(self.name)

    def discard(self, records: Sequence[TransferRecord], fence: Fence | None = None) -> None:
        """Refused: a record file is only read."""
        raise TypeError(self.name)

    def set_move_state(self, state: bytes | None, fence: Fence | None = None) -> None:
        """Refused: a record file is only read."""
        raise TypeError(self.name)

    def state(self) -> tuple[int, int]:
        """What changes when the file is written to meanwhile."""
        found = os.fstat(self.file.fileno())
        return found.st_size, found.st_mtime_ns

    def _damaged(self, number: int, problem: str) -> StoreError:
        where = f"line {number} of {self.name}" if number else self.name
        return StoreError(
            f"{where} is damaged: {problem}",
            remedy="export again, or take another copy of the file",
        )


def _placed(copy: TransferRecord, position: int) -> TransferRecord:
    """A job gets its position in the file as its key, by which the next page is found."""
    if not isinstance(copy, JobRecord):
        return copy
    return JobRecord(msgspec.structs.replace(copy.job, key=position), copy.changed_at)


@dataclass
class _Blob:
    """An object whose chunks are being read."""

    digest: bytes
    size: int
    read: int = 0
    hash: Any = field(default_factory=hashlib.sha256)

    def take(self, digest: bytes, offset: int, data: bytes) -> bool:
        """Add a chunk; whether it is the next one."""
        if digest != self.digest or offset != self.read or self.read + len(data) > self.size:
            return False
        if not data and self.size:
            return False
        self.hash.update(data)
        self.read += len(data)
        return True

    @property
    def is_whole(self) -> bool:
        """Whether the last byte was there."""
        return self.read == self.size


class FileObjects:
    """The objects in a file of records, to be copied from."""

    acknowledgement = "They are in a file."

    def __init__(self, file: RecordFile) -> None:
        self._file = file

    def open(self, digest: bytes) -> RecordFileDownload | None:
        """A download of the bytes of a digest; None if they are not in the file."""
        return RecordFileDownload(self._file, digest) if digest in self._file.objects else None

    def stat(self, digest: bytes) -> Blob | None:
        """The size of the bytes of a digest; None if they are not in the file."""
        kept = self._file.objects.get(digest)
        return None if kept is None else Blob(digest, kept.size)

    def verify(self, digest: bytes, size: int) -> str | None:
        """What is wrong with an object, or None. Digests were compared when the file was read."""
        kept = self._file.objects.get(digest)
        return None if kept is not None and kept.size == size else "they are not in the file"


class RecordFileDownload:
    """The bytes of one object on their way out of a file."""

    def __init__(self, file: RecordFile, digest: bytes) -> None:
        self._file, self._digest = file, digest
        self.size = file.objects[digest].size
        self._chunks = file.chunks(digest)
        self._left = b""

    def read(self, most: int) -> bytes:
        """The next bytes; none at the end."""
        data = self._left or next(self._chunks, b"")
        self._left = data[most:]
        return data[:most]

    def seek(self, offset: int) -> None:
        """Read on from an offset."""
        self._chunks, self._left = self._file.chunks(self._digest), b""
        while offset and (data := self.read(offset)):
            offset -= len(data)

    def close(self) -> None:
        """Nothing to close."""
