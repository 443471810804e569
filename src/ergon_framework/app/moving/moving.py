"""``ergon move``: which stores are opened for it, and what is moved between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from ergon_framework.app.moving import copying, objects
from ergon_framework.app.moving.copying import Moved, Part, Tell
from ergon_framework.app.moving.places import Place
from ergon_framework.app.moving.quiet import refuse_readers, refuse_workers
from ergon_framework.app.tables import tables_in, zones_there
from ergon_framework.boundary.folder import DataFolder
from ergon_framework.boundary.logs.memory import MemoryFactStore
from ergon_framework.boundary.opening import (
    clock_of,
    is_folder,
    open_fact_store,
    open_object_store,
)
from ergon_framework.errors import ConfigurationError, StoreSchemaError
from ergon_framework.jobs.requests import Store
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.jobs.stores.opening import open_store
from ergon_framework.ports.copies import FACT_KINDS, JOB_KINDS, ZoneCopy
from ergon_framework.ports.jobstore import Search
from ergon_framework.ports.moving import Archive

S = TypeVar("S")


@dataclass(frozen=True)
class Asked:
    """What is to be moved, and how."""

    source: Place
    target: Place
    zone: str | None = None
    objects: tuple[str, str] | None = None
    is_forced: bool = False
    is_trial: bool = False

    @property
    def only_looks(self) -> bool:
        """Whether the source is opened for reading only.

        Otherwise a file is brought up to date first, and one out of a backup gets its new epoch.
        """
        return self.source.file is None or self.is_forced or self.is_trial


@dataclass
class Outcome:
    """What became of everything, and what was left out and why."""

    moved: list[Moved] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def run(asked: Asked, tell: Tell) -> Outcome:
    """Move jobs and provider calls, or a zone, or only find out what that would be."""
    asked.source.refuse_missing()
    if asked.source.name == asked.target.name:
        raise ConfigurationError(
            f"{asked.target.name} cannot be moved into itself", remedy="name another store as TO"
        )
    return (_move_zone if _is_zone(asked) else _move_work)(asked, tell)


def _is_zone(asked: Asked) -> bool:
    """Whether facts are meant, and not jobs."""
    if asked.zone is not None or asked.source.is_folder or asked.target.is_folder:
        return True
    if asked.source.file is None:
        return asked.source.url.startswith("nats")
    return asked.source.parts() == {"boundary"}


# ---- jobs and provider calls --------------------------------------------------------------------


def _move_work(asked: Asked, tell: Tell) -> Outcome:
    outcome = Outcome()
    with ExitStack() as stack:
        # Jobs come last: until they are there, nobody works with what else is there.
        parts = [*_call_part(asked, outcome), *_job_part(asked, stack)]
        if not parts:
            raise ConfigurationError(
                f"{asked.source.name} keeps neither jobs nor provider calls",
                remedy="--zone NAME moves the facts of a zone",
            )
        _begin(asked, parts)
        for part in parts:
            outcome.moved += _moved(asked, part, tell)
    outcome.notes += [
        f"the facts of zone {zone} stay: --zone {zone} moves them" for zone in _zones(asked.source)
    ]
    return outcome


def _zones(place: Place) -> list[str]:
    """Whose facts lie beside the jobs."""
    if place.file is None:
        return zones_there(place.url) if place.is_database else []
    zone = place.zone()
    return [] if zone is None else [zone]


def _has_jobs(place: Place) -> bool:
    """Whether a database has tables of jobs; Redis has nothing else."""
    if not place.is_database:
        return True
    tables = tables_in(place.url, has_jobs=True, is_offline=True)
    return any(each.part == "jobs" and each.current() is not None for each in tables)


def _job_part(asked: Asked, stack: ExitStack) -> Iterator[Part]:
    if not _has_jobs(asked.source):
        return
    source = open_store(asked.source.url, read_only=asked.only_looks)
    stack.enter_context(closing(source))
    if not asked.is_forced:
        refuse_workers(source, source.now(), asked.source.name)
    target = _target(asked, _open_target, MemoryJobStore)
    stack.enter_context(closing(target))
    refuse_workers(target, target.now(), asked.target.name)
    yield Part(
        "jobs",
        cast("Archive", source),
        cast("Archive", target),
        JOB_KINDS,
        f"jobs of {asked.source.name}",
        asked.target.name,
        {"jobs": source.count(Search())},
    )


def _open_target(url: str, *, read_only: bool = False) -> Store:
    return open_store(url, read_only=read_only, half_moved=True)


def _call_part(asked: Asked, outcome: Outcome) -> Iterator[Part]:
    """The tables of provider calls, if there are any, and somewhere to put them."""
    if not asked.source.is_database:
        return
    from ergon_framework.app.moving.providers import KINDS, ProviderArchive
    from ergon_framework.providers.migrations.database import database_of

    source = ProviderArchive(database_of(asked.source.url))
    if not source.is_there():
        return
    if not asked.target.is_database:
        outcome.notes.append(
            "provider calls and their dead letters stay: only SQLite and PostgreSQL keep them"
        )
        return
    target = ProviderArchive(database_of(asked.target.url))
    name = f"provider calls of {asked.source.name}"
    yield Part("provider calls", source, target, KINDS, name, asked.target.name)


# ---- a zone -------------------------------------------------------------------------------------


def _move_zone(asked: Asked, tell: Tell) -> Outcome:
    outcome = Outcome()
    with ExitStack() as stack:
        part = _zone_part(asked, stack)
        copying.refuse_other(part)
        stores = _bytes(asked, part, stack)  # before the mark: there may be no such place
        _begin(asked, [part])
        if stores is None:
            outcome.notes.append("objects stay where they are: --objects FROM TO copies them")
        else:
            outcome.moved += (objects.look if asked.is_trial else objects.move)(stores, tell)
        outcome.moved += _moved(asked, part, tell)
    return outcome


def _zone_part(asked: Asked, stack: ExitStack) -> Part:
    zone = asked.zone or asked.source.zone()
    if zone is None:
        raise ConfigurationError(
            f"nothing says which zone of {asked.source.name} is meant", remedy="give --zone NAME"
        )
    if asked.source.file is not None and not asked.is_forced:
        stack.enter_context(closing(DataFolder.lock(asked.source.file.parent)))
    if asked.target.file is not None and not asked.is_trial:
        stack.enter_context(closing(DataFolder.lock(asked.target.file.parent)))
    source = open_fact_store(asked.source.url, zone=zone, read_only=asked.only_looks)
    stack.enter_context(closing(source))
    if asked.source.file is None and not asked.is_forced:
        refuse_readers(source, clock_of(source), asked.source.name)

    def opened(url: str, **how: Any) -> Any:
        return open_fact_store(url, zone=zone, **how)

    target = _target(asked, opened, lambda: MemoryFactStore(zone))
    stack.enter_context(closing(target))
    info = source.info()
    return Part(
        "facts",
        cast("Archive", source),
        cast("Archive", target),
        FACT_KINDS,
        f"facts of {info.zone}, epoch {info.epoch}",
        asked.target.name,
        {"facts": sum(log.head - log.first + 1 for log in source.logs())},
    )


def _bytes(asked: Asked, part: Part, stack: ExitStack) -> objects.Bytes | None:
    """Where objects come from and go to; None when they are to stay."""
    places = asked.objects or (asked.source.objects, asked.target.objects)
    if places[0] is None or places[1] is None:
        return None
    source = stack.enter_context(closing(open_object_store(places[0])))
    is_missing = is_folder(places[1]) and not Path(places[1]).is_dir()
    place = "memory://" if asked.is_trial and is_missing else places[1]
    [zone] = [copy.info.zone for copy in part.source.dump(ZoneCopy, None, 1)]
    target = open_object_store(place, zone=zone, read_only=asked.is_trial)
    stack.enter_context(closing(target))
    return objects.Bytes(part.source, source, target)


# ---- both ---------------------------------------------------------------------------------------


def _begin(asked: Asked, parts: Sequence[Part]) -> None:
    """Refuse what cannot be before anything is written, and then leave word."""
    for part in parts:
        copying.refuse_other(part)
    if not asked.is_trial:
        for part in parts:
            copying.begin(part)


def _moved(asked: Asked, part: Part, tell: Tell) -> list[Moved]:
    return (copying.look if asked.is_trial else copying.move)(part, tell)


def _target(asked: Asked, opens: Callable[..., S], empty: Callable[[], Any]) -> S:
    """The store to be written; for a trial one that is there is only looked at, or none is."""
    if not asked.is_trial:
        return opens(asked.target.url)
    if asked.target.file is not None and not asked.target.file.is_file():
        return cast("S", empty())
    try:
        return opens(asked.target.url, read_only=True)
    except StoreSchemaError:
        return cast("S", empty())
