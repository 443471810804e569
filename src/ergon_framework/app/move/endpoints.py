"""Which stores a move opens, and which zones there are in them."""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ergon_framework.app.move import transfer
from ergon_framework.app.move.fencing import FencedStore
from ergon_framework.app.move.object_copy import ObjectStorePair
from ergon_framework.app.move.payloads import InlinedRecords
from ergon_framework.app.move.preflight import (
    locked,
    refuse_half_source,
    refuse_readers,
    refuse_workers,
)
from ergon_framework.app.move.transfer import Transfer
from ergon_framework.app.schema import tables_in, zones_there
from ergon_framework.app.settings.source import did_you_mean
from ergon_framework.app.settings.stores import file_has_table
from ergon_framework.app.store_location import StoreLocation
from ergon_framework.boundary.data_folder import DataFolder
from ergon_framework.boundary.factstore.memory import MemoryFactStore
from ergon_framework.boundary.store_urls import clock_of, open_fact_store
from ergon_framework.boundary.store_urls import make_marked as make_marked_facts
from ergon_framework.errors import ConfigurationError, StoreError, StoreSchemaError
from ergon_framework.jobs.store_urls import make_marked as make_marked_jobs
from ergon_framework.jobs.store_urls import open_store
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.ports.factstore import FactStore
from ergon_framework.ports.jobstore import FullJobStore, Search
from ergon_framework.ports.transfer import (
    FACT_KINDS,
    JOB_KINDS,
    Fence,
    MoveState,
    ProgramMove,
    RecordStore,
    ZoneEpochRecord,
    encode_move_state,
    records_of,
    store_id_of,
)
from ergon_framework.storage.failpoints import declare, failpoint
from ergon_framework.storage.objectstore.s3_client import bucket_of
from ergon_framework.storage.objectstore.urls import (
    check_object_place,
    is_folder,
    open_object_store,
)
from ergon_framework.storage.sqlite.errors import refuse_unwritable

if TYPE_CHECKING:
    from ergon_framework.app.settings.sections import Settings
    from ergon_framework.providers.stores.records import ProviderRecords


declare("move.target.made")

_TABLES = {"ergon_jobs": "jobs", "provider_dead_letters": "provider calls"}
"""The tables by which a file is known to hold more than facts, and what they hold."""


def zones_at(place: StoreLocation) -> list[str]:
    """The zones whose facts a place holds, as far as that is known."""
    if place.file is None:
        return zones_there(place.url) if place.is_database else []
    zone = place.zone()
    return [] if zone is None else [zone]


def no_work_at(place: StoreLocation) -> ConfigurationError:
    """The error of a place that keeps neither jobs nor provider calls."""
    text = f"{place.name} keeps neither jobs nor provider calls"
    zones = zones_at(place)
    if zones:
        return ConfigurationError(
            f"{text}, but the facts of zone {', '.join(zones)}",
            remedy=f"--zone {shlex.quote(zones[0])} moves them",
        )
    is_redis = not place.is_database
    keys = "; the URL ends with the number of the database, and has ?prefix=NAME if the keys do"
    return ConfigurationError(
        f"{text}: nothing of Ergon is there",
        remedy=f"correct FROM, which is the store that is there{keys if is_redis else ''}",
    )


def zone_meant(given: str | None, place: StoreLocation) -> str:
    """The zone that is to be moved; nothing is made by looking for it."""
    zone = given or place.zone()
    if zone is None:
        raise ConfigurationError(
            f"nothing says which zone of {place.name} is meant", remedy="give --zone NAME"
        )
    _refuse_unknown(zone, place)
    return zone


def _refuse_unknown(zone: str, place: StoreLocation) -> None:
    """A zone that is not there: to open it for writing would make it."""
    if not place.is_database:
        _refuse_unknown_stream(zone, place)
        return
    there = zones_at(place)
    if zone not in there:
        raise _no_zone(zone, place, there)


def _refuse_unknown_stream(zone: str, place: StoreLocation) -> None:
    """Ask for the one stream first: not every user may ask which there are."""
    try:
        open_fact_store(place.url, zone=zone, read_only=True).close()
    except StoreSchemaError as error:
        from ergon_framework.boundary.factstore.nats.setup import zones_in_space

        try:
            there = zones_in_space(place.url)
        except StoreError:
            raise error from None
        if zone in there:  # its stream is not one to read
            raise
        raise _no_zone(zone, place, there) from None


def _no_zone(zone: str, place: StoreLocation, there: Sequence[str]) -> ConfigurationError:
    kept = [] if there else _kept(place)
    if kept:
        return ConfigurationError(
            f"{place.name} has no zone {zone!r}; it keeps {' and '.join(kept)}",
            remedy="correct FROM; without --zone the same command moves what it keeps",
        )
    if there:
        return ConfigurationError(
            f"{place.name} has no zone {zone!r}; {did_you_mean(zone, there)}",
            remedy="correct --zone",
        )
    return ConfigurationError(
        f"{place.name} has no zone {zone!r}, nor any other",
        remedy="correct FROM, which is the store that is there, or --zone",
    )


def _kept(place: StoreLocation) -> list[str]:
    """What a file holds besides facts. Raises if the file cannot be read."""
    if place.file is None:
        return []
    return [title for table, title in _TABLES.items() if file_has_table(place.file, table)]


S = TypeVar("S")


@dataclass(frozen=True)
class Asked:
    """What is to be moved, and how."""

    source: StoreLocation
    target: StoreLocation
    zone: str | None = None
    objects: tuple[str, str] | None = None
    is_forced: bool = False
    is_trial: bool = False
    shuts: bool = False
    """Whether the source is shut when everything was copied."""
    program: ProgramMove | None = None
    """The move of a whole program, of which this is a part."""
    allows_lost: bool = False
    """Whether jobs are copied whose payload objects are missing or damaged."""
    settings: Callable[[], Settings] | None = None
    """Where the payloads of its jobs are; None: as the settings say that are found from here."""

    @property
    def is_zone(self) -> bool:
        """Whether facts are meant, and not jobs."""
        if self.zone is not None or self.source.is_folder or self.target.is_folder:
            return True
        if self.source.file is None:
            return self.source.url.startswith(("nats", "tls"))
        return self.source.parts() == {"boundary"}

    @property
    def only_looks(self) -> bool:
        """Whether the source is opened for reading only.

        Otherwise a file is brought up to date first, and one out of a backup gets its new epoch.
        """
        if self.is_trial:
            return True
        return not self.shuts and (self.source.file is None or self.is_forced)


def sources(asked: Asked, stack: ExitStack) -> dict[str, FencedStore]:
    """What can be shut at a place, opened for writing, by the names of parts."""
    name = asked.source.name
    if asked.is_zone:
        store = open_fact_store(asked.source.url, zone=zone_meant(asked.zone, asked.source))
        return {"facts": FencedStore(records_of(stack.enter_context(closing(store))), name)}
    found: dict[str, FencedStore] = {}
    calls = call_source(asked.source)
    if calls is not None:
        found["provider calls"] = FencedStore(calls, name)
    if _has_jobs(asked.source):
        jobs = open_store(asked.source.url, half_moved=True)
        stack.enter_context(closing(jobs))
        found["jobs"] = FencedStore(records_of(jobs), name)
    return found


# ---- jobs and provider calls --------------------------------------------------------------------


def _has_jobs(place: StoreLocation) -> bool:
    """Whether there is a store of jobs, also an empty one; nothing is made by looking for it."""
    if not place.is_database:
        with closing(open_store(place.url, read_only=True)) as store:
            return bool(getattr(store, "is_made", True))  # of servers without tables, Redis tells
    tables = tables_in(place.url, has_jobs=True, is_offline=True)
    return any(each.part == "jobs" and each.current() is not None for each in tables)


def has_work(place: StoreLocation) -> bool:
    """Whether a place keeps jobs or provider calls; nothing is made by looking for them."""
    return _has_jobs(place) or call_source(place) is not None


def job_source(asked: Asked, stack: ExitStack) -> FullJobStore | None:
    """The store whose jobs are read, if it has any."""
    if not _has_jobs(asked.source):
        return None
    # half_moved: a move that was cut off, or an earlier one with --shut, has the store refused to
    # everybody else.
    source = open_store(asked.source.url, read_only=asked.only_looks, half_moved=True)
    stack.enter_context(closing(source))
    if not asked.is_forced:
        refuse_workers(source, source.now(), asked.source.name)
    refuse_half_source(source)
    return source


def job_target(
    asked: Asked, stack: ExitStack, first: MoveState, *, tolerates_workers: bool = False
) -> FullJobStore:
    """The store that jobs are written to; ``first`` is what a new one on a server begins with."""
    written = encode_move_state(first)
    if not asked.is_trial:
        make_marked_jobs(asked.target.url, written)
    target = _target(asked, _open_target, MemoryJobStore, lambda: _has_jobs(asked.target))
    stack.enter_context(closing(target))
    stack.callback(_forget, records_of(target), written)
    if not tolerates_workers:
        refuse_workers(target, target.now(), asked.target.name, is_target=True)
    return target


def job_part(
    asked: Asked, stack: ExitStack, notes: list[str], *, tolerates_workers: bool = False
) -> Iterator[Transfer]:
    """The jobs, if there are any; ``notes`` gets a line for each payload that is lost."""
    source = job_source(asked, stack)
    if source is None:
        return
    _refuse_elsewhere(asked, source, "jobs")
    identity, birth = f"jobs of {asked.source.name}", store_id_of(source)
    first = first_state(identity, birth, asked.program)
    target = job_target(asked, stack, first, tolerates_workers=tolerates_workers)
    records = records_of(source)
    lost = notes if asked.allows_lost else None
    yield Transfer(
        "jobs",
        FencedStore(records, asked.source.name, InlinedRecords(records, asked.settings, lost)),
        FencedStore(records_of(target), asked.target.name),
        JOB_KINDS,
        identity,
        asked.target.name,
        {"jobs": source.count(Search())},
        lambda: [(queue.name, queue.counts) for queue in source.queues()],
        birth,
        source.now,
        origin=asked.source.name,
        program=asked.program,
    )


def _open_target(url: str, *, read_only: bool = False) -> FullJobStore:
    return open_store(url, read_only=read_only, half_moved=True)


def call_source(place: StoreLocation) -> ProviderRecords | None:
    """The tables of provider calls, if there are any."""
    if not place.is_database:
        return None
    found = call_target(place)
    return found if found.is_there() else None


def call_target(place: StoreLocation) -> ProviderRecords:
    """The tables that provider calls are written to, which may still have to be made."""
    from ergon_framework.providers.migrations.database import database_of
    from ergon_framework.providers.stores.records import ProviderRecords

    return ProviderRecords(database_of(place.url))


def call_part(asked: Asked, notes: list[str]) -> Iterator[Transfer]:
    """The tables of provider calls, if there are any, and somewhere to put them."""
    source = call_source(asked.source)
    if source is None:
        return
    if not asked.target.is_database:
        notes.append(
            "provider calls and their dead letters stay: only SQLite and PostgreSQL keep them"
        )
        return
    from ergon_framework.providers.stores.records import PROVIDER_KINDS

    yield Transfer(
        "provider calls",
        FencedStore(source, asked.source.name),
        FencedStore(call_target(asked.target), asked.target.name),
        PROVIDER_KINDS,
        f"provider calls of {asked.source.name}",
        asked.target.name,
        birth=store_id_of(source),
        origin=asked.source.name,
        program=asked.program,
    )


# ---- a zone -------------------------------------------------------------------------------------


def zone_source(asked: Asked, stack: ExitStack) -> FactStore:
    """The store whose facts are read; its folder is locked."""
    zone = zone_meant(asked.zone, asked.source)
    if asked.source.file is not None and not asked.is_forced:
        stack.enter_context(closing(locked(asked.source.file.parent)))
    source = open_fact_store(asked.source.url, zone=zone, read_only=asked.only_looks)
    stack.enter_context(closing(source))
    if asked.source.file is None and not asked.is_forced:
        refuse_readers(source, clock_of(source), asked.source.name)
    refuse_half_source(source)
    return source


def zone_target(asked: Asked, zone: str, stack: ExitStack, first: MoveState) -> FactStore:
    """The store that facts are written to; its folder is locked.

    ``first`` is what a new one on a server begins with.
    """
    written = encode_move_state(first)
    if not asked.is_trial:
        if asked.target.file is not None:
            stack.enter_context(closing(DataFolder.lock(asked.target.file.parent)))
        make_marked_facts(asked.target.url, zone, written)

    def opened(url: str, **how: Any) -> Any:
        return open_fact_store(url, zone=zone, **how)

    target: FactStore = _target(
        asked, opened, lambda: MemoryFactStore(zone), lambda: zone in zones_at(asked.target)
    )
    stack.enter_context(closing(target))
    stack.callback(_forget, records_of(target), written)
    return target


def zone_part(asked: Asked, stack: ExitStack) -> Transfer:
    """The facts of a zone; folders are locked on both sides."""
    source = zone_source(asked, stack)
    _refuse_elsewhere(asked, source, "facts")
    info = source.info()
    identity = f"facts of {info.zone}, epoch {info.epoch}"
    first = first_state(identity, program=asked.program)
    target = zone_target(asked, info.zone, stack, first)
    return Transfer(
        "facts",
        FencedStore(records_of(source), asked.source.name),
        FencedStore(records_of(target), asked.target.name),
        FACT_KINDS,
        identity,
        asked.target.name,
        {"facts": sum(log.head - log.first + 1 for log in source.logs())},
        lambda: _heads(source),
        origin=asked.source.name,
        zone=info.zone,
        program=asked.program,
    )


def _heads(store: FactStore) -> list[tuple[str, int, int]]:
    """Where the logs of a zone end: a producer that only appends is noticed nowhere else."""
    return [(log.name, log.first, log.head) for log in store.logs()]


def refuse_objects(asked: Asked) -> None:
    """Objects come from where they are, and go to a folder that can be made or a zone's bucket.

    Nothing is made by looking for it: a zone without its objects would be one that nodes start on.
    """
    if asked.objects is None:
        return
    source, target = asked.objects
    refuse_object_source(source)
    zone = "" if is_folder(target) else zone_meant(asked.zone, asked.source)
    refuse_object_target(target, zone, asked.target.file)


def refuse_object_source(source: str) -> None:
    """Objects come from where they are."""
    if is_folder(source) and not Path(source).is_dir():
        raise ConfigurationError(
            f"there is no folder {source} to copy objects from",
            remedy="--objects FROM TO: FROM is where the objects are",
        )
    check_object_place(source)
    if not is_folder(source):
        open_object_store(source, read_only=True).close()


def refuse_object_target(target: str, zone: str, facts: Path | None) -> None:
    """Refuse a target for objects that is neither a possible folder nor the zone's bucket."""
    if is_folder(target):
        _refuse_unmakable(Path(target), facts)
    check_object_place(target)
    if not is_folder(target):
        open_object_store(target, zone=zone, read_only=True).close()


def _refuse_unmakable(folder: Path, facts: Path | None) -> None:
    """A folder for objects is made within another, which may be that of the new facts."""
    parent = folder.absolute().parent
    if folder.exists() and not folder.is_dir():
        raise ConfigurationError(
            f"{folder} is no folder to copy objects into",
            remedy="--objects FROM TO: TO is a folder, which may be a new one",
        )
    if not parent.is_dir() and (facts is None or parent != facts.parent):
        raise ConfigurationError(
            f"the folder {folder} for the objects cannot be made: there is no folder {parent}",
            remedy=f"create {parent}, or correct TO of --objects FROM TO",
        )


def object_stores(asked: Asked, part: Transfer, stack: ExitStack) -> ObjectStorePair | None:
    """Where objects come from and go to; None when they are to stay."""
    places = asked.objects or (asked.source.objects, asked.target.objects)
    if places[0] is None or places[1] is None:
        return None
    source = stack.enter_context(closing(open_object_store(places[0])))
    is_missing = is_folder(places[1]) and not Path(places[1]).is_dir()
    place = "memory://" if asked.is_trial and is_missing else places[1]
    [zone] = [copy.info.zone for copy in part.source.dump(ZoneEpochRecord, None, 1)]
    target = open_object_store(place, zone=zone, read_only=asked.is_trial)
    stack.enter_context(closing(target))
    origin = places[0] if is_folder(places[0]) else bucket_of(places[0]).place
    return ObjectStorePair(part.source, source, target, origin)


def _refuse_elsewhere(asked: Asked, source: object, part: str) -> None:
    """Refuse a source that was shut for another place; to open the target would make it."""
    found = partial(id_at, asked.target, part)
    transfer.refuse_elsewhere(records_of(source), asked.source.name, asked.target.name, found)


def id_at(place: StoreLocation, part: str) -> str:
    """The id of the store of a part at a place; empty where there is no store, or it has no id.

    Nothing is made by looking for it.
    """
    try:
        if part == "provider calls":
            calls = call_source(place)
            return "" if calls is None else store_id_of(calls)
        if part == "jobs" and _has_jobs(place):
            with closing(open_store(place.url, read_only=True)) as store:
                return store_id_of(store)
    except (ConfigurationError, StoreError):  # whoever opens it says so
        pass
    return ""


def first_state(identity: str, birth: str = "", program: ProgramMove | None = None) -> MoveState:
    """What a store on a server is made with: a move of this source is going to fill it.

    The token is not that of the part: as long as the state is this one, nothing was begun.
    """
    return MoveState(identity, birth=birth, token=secrets.token_hex(8), program=program)


def _forget(target: RecordStore, first: bytes) -> None:
    """Reset a store that this run has created, after the move was refused: it stays empty and
    usable.
    """
    with suppress(StoreError):  # why the move was refused is what is told
        if target.move_state() == first:
            target.set_move_state(None, Fence(first))


def _target(
    asked: Asked, opens: Callable[..., S], empty: Callable[[], Any], is_there: Callable[[], bool]
) -> S:
    """The store to write. A dry run opens an existing store read-only, or takes an empty one.

    A store with another version of the tables is an error: it is not empty.
    """
    if not asked.is_trial:
        made = opens(asked.target.url)
        failpoint("move.target.made")
        return made
    if asked.target.file is not None:
        refuse_unwritable(_made_first(asked.target.file) if asked.is_zone else asked.target.file)
        if not asked.target.file.is_file():
            return cast("S", empty())
    try:
        return opens(asked.target.url, read_only=True)
    except StoreSchemaError:
        if is_there():
            raise
        return cast("S", empty())


def _made_first(file: Path) -> Path:
    """What a move of a zone makes first: its folder, or one above it, or the file there."""
    found = file
    while not found.parent.exists():
        found = found.parent
    return found
