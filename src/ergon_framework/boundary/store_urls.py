"""Opens the stores of a zone: its facts by a URL, its objects by a URL or a folder."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ergon_framework.boundary.data_folder import FILE, OBJECTS
from ergon_framework.boundary.factstore.sqlite import SqliteFactStore
from ergon_framework.core.text import toml_table, toml_text
from ergon_framework.errors import StoreError, ZoneMovedError
from ergon_framework.ports.transfer import (
    Destination,
    MoveState,
    move_state_of,
    refuse_unusable,
)
from ergon_framework.storage.incoming import refuse_incoming, refuse_to_make
from ergon_framework.storage.objectstore.filesystem import FilesystemObjectStore
from ergon_framework.storage.objectstore.urls import (
    check_object_place,
    is_folder,
    open_object_store,
)
from ergon_framework.storage.urls import (
    SQLITE,
    file_of,
    path_in,
    refuse_unreadable,
    store_operand,
    taken_apart,
)

if TYPE_CHECKING:
    from ergon_framework.boundary.settings import ZoneSettings
    from ergon_framework.ports.factstore import FactStore
    from ergon_framework.ports.objectstore import ObjectStore

Clock = Callable[[], float]

SERVERS = ("postgresql", "nats")
"""The kinds of stores that several nodes of a zone may share."""
FORMS = "write sqlite:///facts.db, postgresql://user@host/name or nats://host:4222"

_KNOWN = ("sqlite", *SERVERS, "memory")


# ---- facts --------------------------------------------------------------------------------------


def open_fact_store(
    url: str, *, zone: str, clock: Clock | None = None, read_only: bool = False
) -> FactStore:
    """Open the store of a zone's facts that a URL names; the caller closes it.

    With ``read_only`` a store that is there is only looked at: no lock is taken, no table made.
    Without a ``clock`` a store on a server goes by the server's.
    """
    kind, rest = _fact_parts(url)
    if kind == "memory":
        from ergon_framework.boundary.factstore.memory import MemoryFactStore

        return MemoryFactStore(zone, clock=clock or time.time)
    if kind == "postgresql":
        from ergon_framework.boundary.factstore.postgres import PostgresFactStore

        return PostgresFactStore(url, zone=zone, clock=clock, read_only=read_only)
    if kind == "nats":
        from ergon_framework.boundary.factstore.nats import NatsFactStore

        return NatsFactStore(url, zone=zone, clock=clock, read_only=read_only)
    return _open_file(path_in(rest), zone, clock, read_only)


def make_marked(url: str, zone: str, state: bytes) -> None:
    """Make a zone's store on a server with a move state in it; one that is there stays as it is.

    So it is refused to everybody else from its first moment. New files are announced beside them.
    """
    kind, _ = _fact_parts(url)
    if kind == "postgresql":
        from ergon_framework.boundary.factstore.postgres.database import make_marked as make_tables

        make_tables(url, zone, state)
    elif kind == "nats":
        from ergon_framework.boundary.factstore.nats.setup import make_marked as make_stream

        make_stream(url, zone, state)


def check_fact_url(url: str) -> None:
    """Refuse a URL that names no store of facts, or one whose driver or files are missing.

    Nothing is opened.
    """
    _fact_parts(url)


def is_server(url: str) -> bool:
    """Whether a URL names a server that keeps facts."""
    kind = url.partition("://")[0].lower().partition("+")[0]
    return kind in (*SERVERS, "postgres", "tls")


def _fact_parts(url: str) -> tuple[str, str]:
    kind, rest = taken_apart(url, _KNOWN, FORMS, "facts")
    if kind == "sqlite":
        path_in(rest)
    elif kind == "postgresql":
        from ergon_framework.storage.postgres.address import address_of

        address_of(url)
    elif kind == "nats":
        from ergon_framework.storage.nats.address import address_of as nats_address_of

        refuse_unreadable(**nats_address_of(url).files)
    return kind, rest


# ---- both ---------------------------------------------------------------------------------------


def fact_file(settings: ZoneSettings) -> Path | None:
    """The SQLite file of a zone's facts: in ``data`` unless ``store`` names another; or None."""
    if settings.store is None:
        return Path(settings.data).absolute() / FILE
    file = file_of(settings.store.get_secret_value())
    return None if file is None else file.absolute()


def object_place(settings: ZoneSettings) -> str:
    """Where a zone's objects are: in ``data`` unless ``objects`` names another place."""
    if settings.objects is not None:
        return settings.objects.get_secret_value()
    return str(Path(settings.data).absolute() / OBJECTS)


def folders_of(settings: ZoneSettings) -> list[Path]:
    """The folders of this machine that a zone lives in; one node at a time has them."""
    file, place = fact_file(settings), object_place(settings)
    folders = [] if file is None else [file.parent]
    if settings.objects is None:
        folders.append(Path(settings.data).absolute())
    elif is_folder(place):
        folders.append(Path(place).absolute())
    return list(dict.fromkeys(folders))


def check_stores(settings: ZoneSettings) -> None:
    """Refuse stores that cannot be; nothing is opened."""
    if settings.store is not None:
        check_fact_url(settings.store.get_secret_value())
    check_object_place(object_place(settings))


def open_stores(
    zone: str,
    settings: ZoneSettings,
    *,
    clock: Clock | None = None,
    read_only: bool = False,
) -> tuple[FactStore, ObjectStore]:
    """Open a zone's stores, or create them; the caller has locked their folders, if need be."""
    check_stores(settings)
    place = object_place(settings)
    # The owner of a folder of objects is checked after the facts, whose error is clearer.
    owner = None if read_only or is_folder(place) else zone
    with ExitStack() as opened:
        # Facts without artifacts need no bucket.
        objects = open_object_store(
            place, clock=clock or time.time, zone=owner, may_be_away=not read_only
        )
        opened.callback(objects.close)
        facts = open_facts(zone, settings, clock=clock, read_only=read_only)
        opened.callback(facts.close)
        if isinstance(objects, FilesystemObjectStore) and not read_only:
            objects.claim(zone)
        opened.pop_all()
        return facts, objects


def open_facts(
    zone: str, settings: ZoneSettings, *, clock: Clock | None = None, read_only: bool = False
) -> FactStore:
    """Open a zone's facts, unless a move of them has not ended, or they went elsewhere."""
    file = fact_file(settings)
    if file is not None and not read_only:
        refuse_to_make(file)
    if settings.store is not None:
        url = settings.store.get_secret_value()
        store = open_fact_store(url, zone=zone, clock=clock, read_only=read_only)
    else:
        store = _open_file(str(fact_file(settings)), zone, clock, read_only)
    try:
        if not read_only:
            _refuse_shut(zone, settings, move_state_of(store))
    except BaseException:
        store.close()
        raise
    return store


def _refuse_shut(zone: str, settings: ZoneSettings, state: MoveState) -> None:
    if state.destination is not None and not state.is_incomplete:
        raise zone_moved(zone, settings, state.destination)
    refuse_unusable(state)
    file = fact_file(settings)
    if file is not None:
        refuse_incoming(file, state)


def destination_of(zone: str, file: Path) -> Destination | None:
    """Where the facts of a file were moved to; None when they were not, or that is unknown."""
    try:
        with closing(_open_file(str(file), zone, None, read_only=True)) as store:
            return move_state_of(store).destination
    except StoreError:
        return None


def zone_moved(zone: str, settings: ZoneSettings, gone: Destination) -> ZoneMovedError:
    """The error of a zone that was shut when all its facts had been moved elsewhere."""
    gone = replace(gone, zone=zone)
    undo, undo_when = gone.undo_command(store_operand(_fact_url(settings))), ""
    if gone.program is None:
        key, value = setting_of(gone.place)
        line = f"{key} = {toml_text(value)} under {toml_table('zones', zone)} in ergon.toml"
        reopened = "this zone"
    else:
        program = gone.program
        url = program.old_line if program.is_undone else f"url = {toml_text(program.to)}"
        line = f"{url} under [store] in {program.settings_file}"
        reopened = "this zone, and all else that was moved with it,"
        if program.is_undone:
            undo_when = " once that line is there"
    return ZoneMovedError(
        f"zone {zone} was moved to {gone.place}: nothing more is stored here",
        remedy=f"write {line}, and start the program again; what was being"
        " published is safely published again there, for a fact is known by its id;"
        f" `{undo}` lets {reopened} be used again{undo_when}{gone.login_hint}",
        details=gone.details,
    )


def setting_of(place: str) -> tuple[str, str]:
    """The key and the value with which the settings of a zone name the place of its facts."""
    if "://" in place:
        return "store", place
    file = Path(place)
    return ("data", str(file.parent)) if file.name == FILE else ("store", f"{SQLITE}{place}")


def _fact_url(settings: ZoneSettings) -> str:
    if settings.store is not None:
        return settings.store.get_secret_value()
    return f"{SQLITE}{fact_file(settings)}"


def clock_of(store: FactStore) -> Clock:
    """What time it is for a store: at its server, if it has one, whatever this machine thinks."""
    found: Clock = getattr(store, "clock", time.time)
    return found


def _open_file(path: str, zone: str, clock: Clock | None, read_only: bool) -> FactStore:
    return SqliteFactStore(path, zone=zone, clock=clock or time.time, read_only=read_only)
