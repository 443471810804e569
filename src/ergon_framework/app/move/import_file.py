"""``ergon import``: a file of records, written into an empty store.

The file is read through before anything is written. Then it is moved like any other store: each
record that is not there yet is written, both sides are compared, and until they are the same the
store is refused to whoever wants to work with it. So an import that was cut off goes on when it is
run again.
"""

from __future__ import annotations

import heapq
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import IO, Any, cast

from ergon_framework.app.move import endpoints, object_copy, preflight, transfer
from ergon_framework.app.move.endpoints import Asked
from ergon_framework.app.move.fencing import FencedStore
from ergon_framework.app.move.lock import announced_files
from ergon_framework.app.move.object_copy import ObjectStorePair
from ergon_framework.app.move.record_file import (
    CALLS,
    FACTS,
    JOBS,
    MAX_HEADER,
    FileObjects,
    Header,
    RecordFile,
    kinds_of,
)
from ergon_framework.app.move.transfer import PAGE_SIZE, Moved, Tell, Transfer, TransferProgress
from ergon_framework.app.store_location import StoreLocation
from ergon_framework.errors import ConfigurationError, StoreError, StoreUnavailableError
from ergon_framework.ports.objectstore import ObjectStore
from ergon_framework.ports.transfer import (
    FILE_OF_RECORDS,
    C,
    FactIdRecord,
    MoveState,
    RecordStore,
    move_state_of,
    records_of,
)
from ergon_framework.storage import secure_files
from ergon_framework.storage.incoming import Announcement
from ergon_framework.storage.objectstore.urls import is_folder, open_object_store

STDIN = "the standard input"


@dataclass(frozen=True)
class Importing:
    """What is to be imported, and where."""

    file: Path | None
    """None: the standard input."""
    target: StoreLocation
    objects: str | None = None
    """Where the objects of a zone go that does not live in a folder."""
    has_objects: bool = True
    may_be_cut_off: bool = False
    is_trial: bool = False


@dataclass
class Imported:
    """What became of everything, and what was left out and why."""

    header: Header
    digest: str
    moved: list[Moved] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def run(asked: Importing, tell: Tell, stdin: IO[bytes] | None = None) -> Imported:
    """Read the file through, and write what it holds."""
    asked.target.refuse_memory()
    with ExitStack() as stack:
        file = RecordFile(stack.enter_context(_opened(asked, stdin)), str(asked.file or STDIN))
        _refuse_target(asked, file.header)
        _check(file, asked, tell)
        found = Imported(file.header, file.digest)
        if file.trailer is None:
            found.notes.append(f"{file.name} is cut off: what followed is not in TO")
        steps = Asked(asked.target, asked.target, file.header.zone, is_trial=asked.is_trial)
        source = f"{FILE_OF_RECORDS}{file.digest}"
        announced = stack.enter_context(announced_files([steps], source))
        if FACTS in file.header.parts:
            _import_zone(asked, steps, file, found, stack, tell, announced)
        else:
            parts = _work_parts(asked, steps, file, stack)
            _begin(asked, parts, announced)
            _fill(asked, parts, found, tell)
    return found


def _check(file: RecordFile, asked: Importing, tell: Tell) -> None:
    def watch(count: int) -> None:
        if count % PAGE_SIZE == 1:
            tell(TransferProgress("file", "reading records", count))

    file.check(watch, may_be_cut_off=asked.may_be_cut_off)


def _refuse_target(asked: Importing, header: Header) -> None:
    """Refuse a store that cannot be what the file holds, before anything is made."""
    place, is_zone = asked.target, FACTS in header.parts
    if not is_zone and (place.is_folder or place.url.startswith(("nats", "tls"))):
        raise ConfigurationError(
            f"the file holds {' and '.join(header.parts)}, and {place.name} is a store of facts",
            remedy="name a store of jobs as TO: sqlite:///work.db, postgresql://host/name or"
            " redis://host/0",
        )
    if is_zone and place.url.startswith(("redis",)):
        raise ConfigurationError(
            f"the file holds facts of the zone {header.zone}, and {place.name} is a store of jobs",
            remedy="name a folder as TO, or sqlite:///…/facts.db, postgresql://host/name or"
            " nats://host",
        )
    if CALLS in header.parts and not place.is_database:
        raise ConfigurationError(
            f"the file holds provider calls, and {place.name} cannot keep them",
            remedy="import it into SQLite or PostgreSQL; from there `ergon move` takes the jobs"
            " along",
        )
    if not is_zone and (asked.objects is not None or not asked.has_objects):
        raise ConfigurationError(
            "the file holds no facts, and only a zone has objects",
            remedy="leave out --objects and --no-objects",
        )


# ---- parts --------------------------------------------------------------------------------------


def _work_parts(
    asked: Importing, steps: Asked, file: RecordFile, stack: ExitStack
) -> list[Transfer]:
    parts = []
    if CALLS in file.header.parts:
        calls = endpoints.call_target(asked.target)
        parts.append(_part(CALLS, file, calls, asked))
    if JOBS in file.header.parts:
        jobs = endpoints.job_target(steps, stack, _first(file))
        parts.append(_part(JOBS, file, records_of(jobs), asked))
    return parts


def _first(file: RecordFile) -> MoveState:
    """What a new store on a server begins with."""
    return endpoints.first_state(f"{FILE_OF_RECORDS}{file.digest}")


def _part(name: str, file: RecordFile, target: RecordStore, asked: Importing) -> Transfer:
    kinds, state = kinds_of(name), file.state()
    source: RecordStore = file
    if file.trailer is None:
        source = _CutOffFile(file, target)
        _refuse_filled(name, target, asked)
        # Of kinds behind the cut nothing is known, so nothing can be compared.
        kinds = tuple(kind for kind in kinds if file.counts[kind.kind])
    return Transfer(
        name,
        FencedStore(source, file.name),
        FencedStore(target, asked.target.name),
        kinds,
        f"{FILE_OF_RECORDS}{file.digest}",
        asked.target.name,
        {kind.title: file.counts[kind.kind] for kind in kinds},
        aside=lambda: _refuse_changed(file, state),
        is_import=True,
    )


class _CutOffFile:
    """A file without its end, as a store of records.

    Loading a fact makes its id. Those of the ids that were cut off are taken for the file's.
    """

    def __init__(self, file: RecordFile, target: RecordStore) -> None:
        self._file, self._target = file, target
        self._ids: Iterator[FactIdRecord] = iter(())
        self.move_state, self.set_move_state = file.move_state, file.set_move_state
        self.load, self.discard = file.load, file.discard

    def dump(self, kind: type[C], after: Any, limit: int) -> list[C]:
        """The records of a kind. Pages are read in order."""
        if not issubclass(kind, FactIdRecord):
            return self._file.dump(kind, after, limit)
        if after is None:
            self._ids = self._all_ids()
        return cast("list[C]", list(islice(self._ids, limit)))

    def _all_ids(self) -> Iterator[FactIdRecord]:
        """All ids in order. For an id that file and store both have, the record of the file."""
        listed = transfer.all_records(self._file, FactIdRecord)
        made = transfer.all_records(self._target, FactIdRecord)
        last = None
        for each in heapq.merge(listed, made, key=lambda record: record.sort_key):
            if each.sort_key != last:
                yield each
            last = each.sort_key


def _refuse_filled(name: str, target: RecordStore, asked: Importing) -> None:
    """What a file that was cut off says nothing about has to be missing in the store as well."""
    if not move_state_of(target).source and not transfer.is_empty(target, kinds_of(name)):
        raise StoreError(
            f"{asked.target.name} holds {name} already",
            remedy="name an empty store as TO; nothing was changed",
        )


def _refuse_changed(file: RecordFile, state: object) -> None:
    """Refuse a file that changed while it was read."""
    if file.state() != state:
        raise StoreError(
            f"{file.name} was changed while it was imported",
            remedy="take a copy that nobody writes to, and import that into an empty store",
        )


def _import_zone(
    asked: Importing,
    steps: Asked,
    file: RecordFile,
    found: Imported,
    stack: ExitStack,
    tell: Tell,
    announced: Announcement,
) -> None:
    place = _object_place(asked, file)
    if place is not None:
        endpoints.refuse_object_target(place, str(file.header.zone), asked.target.file)
    store = endpoints.zone_target(steps, str(file.header.zone), stack, _first(file))
    part = _part(FACTS, file, records_of(store), asked)
    _begin(asked, [part], announced)
    if place is None:
        if file.header.has_objects or file.counts["object"]:
            found.notes.append("the bytes of objects were not imported")
        _fill(asked, [part], found, tell)
        return
    objects = _open_objects(asked, place, str(file.header.zone), stack)
    stores = ObjectStorePair(file, cast("ObjectStore", FileObjects(file)), objects, file.name)
    if asked.is_trial:
        found.moved.append(object_copy.look(stores, tell))
    else:
        moved = object_copy.move(stores, tell)
        found.moved.append(moved)
        # The part below gets another aside, which has to do what this one does as well.
        same = part.aside

        def settle() -> None:
            same()
            object_copy.settle(stores, moved, tell)

        part = replace(part, aside=settle)
    _fill(asked, [part], found, tell)


def _object_place(asked: Importing, file: RecordFile) -> str | None:
    """Where the bytes of objects go; None when none are written."""
    if not asked.has_objects:
        return None
    if not file.header.has_objects:
        if asked.objects is not None:
            raise ConfigurationError(
                f"the bytes of objects are not in {file.name}",
                remedy="leave out --objects, or export with the bytes",
            )
        return None
    place = asked.objects or asked.target.objects
    if place is None and file.objects:
        raise ConfigurationError(
            f"{file.name} holds the bytes of {len(file.objects)} objects, and nothing says where"
            " they go",
            remedy="give --objects PLACE, a folder or a bucket, or --no-objects",
        )
    return place


def _open_objects(asked: Importing, place: str, zone: str, stack: ExitStack) -> ObjectStore:
    is_missing = is_folder(place) and not Path(place).is_dir()
    name = "memory://" if asked.is_trial and is_missing else place
    found = open_object_store(name, zone=zone, read_only=asked.is_trial)
    return stack.enter_context(closing(found))


# ---- filling ------------------------------------------------------------------------------------


def _begin(asked: Importing, parts: Sequence[Transfer], announced: Announcement) -> None:
    """Refuse what cannot be before anything is written, and then leave word."""
    for part in parts:
        preflight.refuse_other(part)
    announced.settle()
    if not asked.is_trial:
        transfer.begin(*parts)
        announced.withdraw([asked.target.file] if asked.target.file else [])


def _fill(
    asked: Importing,
    parts: Sequence[Transfer],
    found: Imported,
    tell: Tell,
) -> None:
    """Write each part; none can be worked with in the target before all are there."""
    if asked.is_trial:
        found.moved += [each for part in parts for each in transfer.look(part, tell)]
        return
    moved = [transfer.move(part, tell) for part in parts]
    transfer.end(parts, moved)
    found.moved += [each for every in moved for each in every]


# ---- the file -----------------------------------------------------------------------------------


def _descriptor(path: Path) -> int:
    try:
        return secure_files.open_file(path, os.O_RDONLY)
    except OSError as error:
        raise ConfigurationError(
            # What is in the way is the operator's, not ours to have removed.
            f"{path} cannot be read: {str(error.strerror or error).removesuffix(': remove it')}",
            remedy="name a file that may be read, or give it as the standard input:"
            " `ergon import - TO < FILE`",
        ) from error


@contextmanager
def _opened(asked: Importing, stdin: IO[bytes] | None) -> Iterator[IO[bytes]]:
    """The file to be read; what comes through a pipe is kept in a nameless file first."""
    if asked.file is not None:
        with os.fdopen(_descriptor(asked.file), "rb") as file:
            yield file
        return
    if stdin is None:
        raise ConfigurationError("there is no standard input", remedy="name a FILE")
    with tempfile.TemporaryFile(prefix="ergon-import-") as kept:
        kept.write(stdin.readline(MAX_HEADER))
        # Kept in a file, because it is read more than once: through, kind by kind, and compared.
        RecordFile(kept, STDIN)  # anything else is refused before all of it is kept
        try:
            kept.seek(0, os.SEEK_END)
            shutil.copyfileobj(stdin, kept, 1 << 20)
        except OSError as error:
            raise StoreUnavailableError(
                f"{STDIN} cannot be kept in {tempfile.gettempdir()}: {error.strerror or error}",
                remedy="name the file itself, or set TMPDIR to a folder that has room",
            ) from error
        yield kept
