"""A zone opened without its node, to look at it or to copy it while the node runs.

A backup copies the objects first, then the log in one consistent copy, then the objects that came
meanwhile: so everything the copied log names is in the copy, even what is collected while it is
made. The copy is made beside its place and gets its name when it is whole and synced: a crash
leaves nothing that looks like a backup and is none. Objects never change, so on the same disk they
are shared by a hard link.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ergon_framework.boundary.data_folder import FILE, OBJECTS
from ergon_framework.boundary.factstore.sqlite import SqliteFactStore
from ergon_framework.boundary.factstore.sqlite.session import SCHEMA, SQL
from ergon_framework.boundary.settings import ZoneSettings
from ergon_framework.boundary.store_urls import clock_of, fact_file, folders_of, open_stores
from ergon_framework.boundary.verification import named_objects
from ergon_framework.boundary.zone import LocalZone
from ergon_framework.errors import ConfigurationError, DataLossError, StoreUnavailableError
from ergon_framework.ports.objectstore import ObjectStore
from ergon_framework.storage.failpoints import declare, failpoint
from ergon_framework.storage.objectstore.disk import sync_folder
from ergon_framework.storage.objectstore.filesystem import FilesystemObjectStore
from ergon_framework.storage.secure_files import make_folder
from ergon_framework.storage.sql_files import load
from ergon_framework.storage.sqlite.database import Database

_SQL = load(SQL, "store.sql")


@contextmanager
def open_read_only(
    data: str | Path, *, clock: Callable[[], float] = time.time
) -> Iterator[LocalZone]:
    """The zone that lives in a folder, for reading only."""
    folder = Path(data).absolute()
    file = folder / FILE
    if not file.is_file():
        raise ConfigurationError(
            f"no zone lives in {folder}: there is no {FILE}",
            remedy="name the folder that `ergon boundary serve --data` was given, or a backup",
        )
    with looked_at(_owner(file), ZoneSettings(data=str(folder)), clock=clock) as zone:
        yield zone


@contextmanager
def looked_at(
    name: str, settings: ZoneSettings, *, clock: Callable[[], float] | None = None
) -> Iterator[LocalZone]:
    """The zone that settings describe, wherever its stores are, for reading only."""
    file = fact_file(settings)
    if file is not None and not file.is_file():
        raise ConfigurationError(
            f"zone {name!r} has no facts yet: there is no {file}",
            remedy="start its node once, or name the folder of another zone with --data",
        )
    store, objects = open_stores(name, settings, clock=clock, read_only=True)
    with closing(objects), closing(store):
        yield LocalZone(name, store, objects, settings, clock=clock or clock_of(store))


def _owner(file: Path) -> str:
    """The zone of a store: a folder says it itself, so no name has to be given."""
    with Database(file, schema=SCHEMA, read_only=True) as database:
        found = database.read(lambda connection: connection.execute(_SQL["store"]).fetchone())
    if found is None:
        raise ConfigurationError(
            f"{file} has no zone yet", remedy="start the node once, or name another folder"
        )
    return str(found[0])


declare(
    "boundary.backup_log.before",
    "boundary.backup_log.after",
    "boundary.backup_name.before",
    "boundary.backup_name.after",
)


@dataclass(frozen=True, slots=True)
class BackedUp:
    """What a backup holds."""

    zone: str
    folder: str
    facts: int
    objects: int
    object_bytes: int
    missing: str = ""
    """What could not be copied because it is damaged where it was; empty when all is well."""


def back_up(
    data: str | Path,
    target: str | Path,
    *,
    shares: bool = True,
    report: Callable[[int], None] = lambda _objects: None,
) -> BackedUp:
    """Copy the zone in the folder ``data``, as :func:`backed_up` does."""
    # Before the zone is opened: a mistyped target is an error at once.
    _check_free(Path(target).absolute())
    with open_read_only(data) as zone:
        return backed_up(zone, target, shares=shares, report=report)


def backed_up(
    zone: LocalZone,
    target: str | Path,
    *,
    shares: bool = True,
    report: Callable[[int], None] = lambda _objects: None,
) -> BackedUp:
    """Copy a zone to the new folder ``target``; opened, that one begins a new epoch.

    Without ``shares`` the bytes of objects are copied even where a hard link would do.
    """
    place = Path(target).absolute()
    _check_file(zone)
    _check_outside(zone, place)
    _check_free(place)
    try:
        with _draft_of(place) as draft:
            missing = _copy(zone, draft, shares, report)
            # Read back from the copy, not from the zone, which has grown since.
            with open_read_only(draft) as copy:
                summary = _summed(copy, place, missing)
            _give_name(draft, place)
    except OSError as error:
        raise StoreUnavailableError(
            f"no backup could be written to {place}: {error.strerror or error}",
            remedy="see that the folder can be written and has room, then try again",
        ) from error
    return summary


@contextmanager
def _draft_of(place: Path) -> Iterator[Path]:
    """A folder beside ``place`` that becomes it, or goes.

    A process that is killed leaves its draft behind. Its lock on the draft ends with it, so the
    next backup to the same place can distinguish an abandoned draft from one that is being written.
    """
    for found in place.parent.glob(f"{glob.escape(place.name)}.{'[0-9a-f]' * 8}.partial"):
        # Locked is one that another backup writes: it stays.
        with contextlib.suppress(OSError), _locked(found):
            _remove(found)
    draft = place.with_name(f"{place.name}.{secrets.token_hex(4)}.partial")
    try:
        make_folder(draft, parents=True)
        with _locked(draft):
            yield draft
    # An interrupt, too: a draft holds as much room as the zone.
    except BaseException:
        _remove(draft)
        raise


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder; ``BlockingIOError`` if another process does."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _copy(zone: LocalZone, draft: Path, shares: bool, report: Callable[[int], None]) -> str:
    """Objects, log, objects again; what was missing of those that the copied log names."""
    folder = draft / OBJECTS
    make_folder(folder)
    with contextlib.suppress(DataLossError):  # reported below, if the copied log still names them
        _copy_objects(zone, zone.objects, folder, shares, report)
    failpoint("boundary.backup_log.before")
    zone.store.backup(str(draft))
    failpoint("boundary.backup_log.after")
    with open_read_only(draft) as copy:
        try:
            _copy_objects(copy, zone.objects, folder, shares, report)
        except DataLossError as error:
            return error.message
    return ""


def _copy_objects(
    names: LocalZone,
    objects: ObjectStore,
    folder: Path,
    shares: bool,
    report: Callable[[int], None],
) -> None:
    source = objects.folder if isinstance(objects, FilesystemObjectStore) and shares else None

    def digests() -> Iterator[bytes]:
        for count, stored in enumerate(named_objects(names), start=1):
            place = _path(folder, stored.digest)
            if not place.exists():  # by another name, or by the round before
                if source is not None:
                    _share(_path(source, stored.digest), place)
                yield stored.digest
            report(count)

    objects.copy_to(str(folder), digests())  # what is shared is only synced


def _share(source: Path, target: Path) -> None:
    """Make a hard link to the bytes. Where that is impossible, they are copied afterwards."""
    make_folder(target.parent, parents=True)
    with contextlib.suppress(OSError):  # another disk, too many links, no links at all, or no file
        os.link(source, target)


def _path(folder: Path, digest: bytes) -> Path:
    name = digest.hex()
    return folder / "sha256" / name[:2] / name[2:4] / name


def _summed(copy: LocalZone, place: Path, missing: str) -> BackedUp:
    sizes = {stored.digest: stored.size for stored in named_objects(copy)}
    facts = sum(log.head - log.first + 1 for log in copy.store.logs())
    return BackedUp(copy.name, str(place), facts, len(sizes), sum(sizes.values()), missing)


def _check_file(zone: LocalZone) -> None:
    """Refuse a log on a server: it is copied with the server's own tools."""
    if not isinstance(zone.store, SqliteFactStore):
        raise ConfigurationError(
            f"the facts of zone {zone.name!r} are not in an SQLite file, which could be copied",
            remedy="back the server up with its own tools, or copy the zone with ergon move",
        )


def _check_outside(zone: LocalZone, place: Path) -> None:
    """Refuse a backup that would be lost, or moved aside, together with the zone."""
    for folder in folders_of(zone.settings):
        if folder.resolve() in place.resolve().parents:
            raise ConfigurationError(
                f"{place} lies in {folder}, the zone's own folder",
                remedy="name a folder elsewhere, at best on another disk",
            )


def _check_free(place: Path) -> None:
    if place.exists() and not (place.is_dir() and not any(place.iterdir())):
        raise ConfigurationError(
            f"{place} is there already; nothing was changed", remedy="name a new or empty folder"
        )


def _give_name(draft: Path, place: Path) -> None:
    # Its content first: the name must not be there before what it stands for.
    for path in (draft / OBJECTS, draft):
        sync_folder(path)
    failpoint("boundary.backup_name.before")
    draft.rename(place)
    failpoint("boundary.backup_name.after")
    sync_folder(place.parent)


def _remove(draft: Path) -> None:
    shutil.rmtree(draft, ignore_errors=True)
