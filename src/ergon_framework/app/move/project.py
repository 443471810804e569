"""Moving everything that one program keeps: every zone, its jobs and its provider calls.

The program is a settings file, or a script with its ``ergon.db``. What follows ``[store]`` moves; a
part whose store the settings name by itself stays where it is, and a note says so. Each part is
compared, resumed and undone as any other move, but they begin and end together: all of the new
store is refused before the first part is copied and until the last one is there. Each source is
shut when it was copied, so that no process goes on in two places; if a later part fails, the
sources that were shut before are opened again, and the program works on with what it had.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ergon_framework.app import discovery
from ergon_framework.app.move import run as single
from ergon_framework.app.move.endpoints import Asked, call_source, has_work, zones_at
from ergon_framework.app.move.preflight import into_itself
from ergon_framework.app.move.run import Warn
from ergon_framework.app.move.transfer import Moved, Tell
from ergon_framework.app.settings import load_settings
from ergon_framework.app.settings.loader import FILE as SETTINGS
from ergon_framework.app.settings.sections import Settings
from ergon_framework.app.settings.source import read_toml
from ergon_framework.app.settings.stores import (
    SCRIPT_FILE,
    base_of,
    call_stores,
    keeps_jobs,
    resolve_url,
    store_url,
)
from ergon_framework.app.store_location import StoreLocation, is_one_store, is_same
from ergon_framework.app.zones import folder_name, zones_folder, zones_found, zones_of
from ergon_framework.boundary.data_folder import FILE as FACTS
from ergon_framework.boundary.store_urls import destination_of, is_server, open_fact_store
from ergon_framework.core.text import toml_table, toml_text
from ergon_framework.errors import ConfigurationError, StoreError
from ergon_framework.jobs.store_urls import open_store
from ergon_framework.ports.transfer import WORK, Destination, ProgramMove, login_hint, move_state_of
from ergon_framework.storage.urls import SQLITE, file_of, store_option


@dataclass(frozen=True, slots=True)
class Project:
    """A program by its settings, or by the folder of a script that has none."""

    settings: Settings
    home: Path

    @property
    def name(self) -> str:
        """The name shown to users."""
        return str(self.settings.file or self.home / SCRIPT_FILE)

    @property
    def store(self) -> str:
        """The store of all parts that have none of their own; empty when nothing was kept yet."""
        url = store_url(self.settings)
        if not url and (self.home / SCRIPT_FILE).is_file():
            url = f"{SQLITE}{(self.home / SCRIPT_FILE).absolute()}"
        return url


@dataclass(frozen=True, slots=True)
class ProjectPart:
    """One of the moves that take a program to another store."""

    title: str
    asked: Asked


@dataclass(frozen=True, slots=True)
class ProjectPlan:
    """What will be moved, what stays and why, and what is to be written in the settings then."""

    whole: ProgramMove
    parts: tuple[ProjectPart, ...]
    notes: tuple[str, ...]
    change: str
    is_trial: bool = False
    has_no_other_store: bool = False
    """Whether everything is in the new store already, and nothing says that it was moved there."""


@dataclass
class ProjectOutcome:
    """What became of each part, by its title."""

    moved: list[tuple[str, Moved]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def is_project(given: str) -> bool:
    """Whether a name means a program: a settings file, or the store of a script without one."""
    return "://" not in given and (given.endswith(".toml") or Path(given).name == SCRIPT_FILE)


def find_project(given: str | None) -> Project:
    """The program that is meant; without a name, the nearest from the working directory upwards."""
    if given is None:
        return _found_project()
    path = Path(given)
    if not path.is_file():
        raise ConfigurationError(
            f"there is no file {given}",
            remedy="name the settings file, or the ergon.db of a script",
        )
    if path.name != SCRIPT_FILE:
        return Project(load_settings(path), path.parent)
    beside = path.parent / SETTINGS
    return Project(load_settings(beside) if beside.is_file() else Settings(), path.parent)


def _found_project() -> Project:
    """The program that any other command without ``--config`` would be about."""
    if os.environ.get("ERGON_CONFIG"):
        settings = load_settings()
        return Project(settings, base_of(settings))
    found = discovery.find_project()
    if found is None:
        raise ConfigurationError(
            f"there is neither {SETTINGS} nor {SCRIPT_FILE} here or above",
            remedy="name one of them: ergon move path/to/ergon.toml --to URL",
        )
    is_here = found.folder == Path.cwd()
    return Project(load_settings(None if is_here else found.place), found.folder)


# ---- what there is to do ------------------------------------------------------------------------


def plan(
    project: Project, to: str, *, is_forced: bool, is_trial: bool, allows_lost: bool = False
) -> ProjectPlan:
    """Find every part and where it goes. Stores are looked at; nothing is made or changed."""
    target = StoreLocation(resolve_url(to, Path()))
    target.refuse_memory()
    asked = Asked(
        *(target, target, None, None, is_forced, is_trial, not is_trial),
        allows_lost=allows_lost,
        settings=lambda: project.settings,
    )
    notes: list[str] = []
    parts = [*_zones(project, asked, notes), *_work(project, asked, notes)]
    if not parts:
        notes.append(f"nothing of {project.name} is left to move to {target.name}")
    whole = ProgramMove(
        str(Path(project.name).absolute()),
        target.name if target.file is None else f"{SQLITE}{target.file}",
        tuple(f"{part.title} of {part.asked.source.name}" for part in parts),
    )
    parts = [replace(part, asked=replace(part.asked, program=whole)) for part in parts]
    is_own = bool(project.store) and is_one_store(StoreLocation(project.store), target)
    return ProjectPlan(
        whole,
        tuple(parts),
        tuple(notes),
        _change(project, target),
        is_trial=is_trial,
        has_no_other_store=is_own and not parts and not _is_copy(target),
    )


def _is_copy(place: StoreLocation) -> bool:
    """Whether a move has filled any part of a store: the line in the settings was changed since.

    A server that keeps facts alone is not asked: it would have to be told the zones.
    """
    if not keeps_jobs(place.url):
        return True
    calls = call_source(place)
    if calls is not None and move_state_of(calls).source:
        return True
    if has_work(place):
        with closing(open_store(place.url, read_only=True)) as jobs:
            if move_state_of(jobs).source:
                return True
    for zone in zones_at(place):
        with closing(open_fact_store(place.url, zone=zone, read_only=True)) as facts:
            if move_state_of(facts).source:
                return True
    return False


def _zones(project: Project, asked: Asked, notes: list[str]) -> Iterator[ProjectPart]:
    """Zones come before jobs: handlers publish facts."""
    found = project.settings
    for name, setup in zones_of(found).items():
        if setup.is_store_said:
            table = toml_table("zones", name)
            notes.append(f"the facts of zone {name} stay: {table} or [boundary] names their store")
            continue
        yield from _zone(name, Path(setup.settings.data), Path(setup.settings.data), asked, project)
    url = project.store
    here = zones_folder(found, project.home, url or None)
    there = here if asked.target.file is None else zones_folder(found, None, asked.target.url)
    for name, folder in zones_found(here).items():
        if name not in zones_of(found):
            yield from _zone(name, folder, there / folder_name(name), asked, project)


def _zone(
    name: str, folder: Path, new_folder: Path, asked: Asked, project: Project
) -> Iterator[ProjectPart]:
    """The move of one zone's facts, if they have to go anywhere."""
    # A store that keeps no facts leaves them in their folder, or takes them to the one beside it.
    is_kept = is_server(asked.target.url)
    target = asked.target if is_kept else StoreLocation(str(new_folder.absolute()))
    source = _facts_at(name, folder, target, project)
    if source is not None and not is_one_store(source, target):
        part = replace(asked, source=source, target=target, zone=name)
        yield ProjectPart(f"facts of {name}", part)


def _facts_at(
    name: str, folder: Path, target: StoreLocation, project: Project
) -> StoreLocation | None:
    """Where a zone's facts are now: in its folder until they were moved away, or on the server."""
    file = folder / FACTS
    if file.is_file():
        gone = destination_of(name, file)
        is_there = gone is not None and is_same(gone.place, target.name)
        if is_there and project.store and is_same(StoreLocation(project.store).name, target.name):
            # Moved there and named by the settings: there is nothing left to do for this zone.
            return None
        if is_there or gone is None:
            return StoreLocation(str(folder))
        if not (
            is_server(project.store) and is_same(gone.place, StoreLocation(project.store).name)
        ):
            raise _shut_for_another(name, folder, gone, target, project)
    return StoreLocation(project.store) if is_server(project.store) else None


def _shut_for_another(
    name: str, folder: Path, gone: Destination, target: StoreLocation, project: Project
) -> StoreError:
    """A zone that an earlier move shut: without it, the rest would begin an empty log over there.

    Versions that did not write down the move of a whole program left the zone's own place alone. Of
    a file that is not the store of the program, so what opens it again is a command of the zone.
    """
    program = gone.program
    if program is None and "://" in gone.place:
        program = ProgramMove(str(Path(project.name).absolute()), gone.place)
    if program is not None and program.is_undone:
        return _undone(program, f"the facts of zone {name} in {folder}")
    if program is not None:
        remedy = (
            f"go on with the move that was begun{login_hint(program.to)}:  {program.command()}; or"
            f" open the zones again:  {program.command(reopens=True)}"
        )
    else:
        places = shlex.join([str(folder.absolute()), str(Path(gone.place).parent)])
        remedy = (
            "go on with the move that was begun, with the --to it had; or open the zone again: "
            f" ergon move {places} --zone {shlex.quote(name)} --reopen"
        )
    return StoreError(
        f"the facts of zone {name} were moved to {gone.place} and shut for it, not for"
        f" {target.name}; nothing was changed",
        remedy=remedy,
        details={"zone": name, **gone.details},
    )


def _undone(program: ProgramMove, what: str) -> StoreError:
    """The error of a copy that was shut on the way back: with the new line, it is all there is."""
    return StoreError(
        f"{what} were shut when the old stores of {program.settings} were opened again, and the"
        " settings name the new store; nothing was changed",
        remedy=f"write {program.old_line} under [store] in {program.settings_file}, then run the"
        f" same command: `{program.command()}`{login_hint(program.to)}",
        details={"program": program.settings},
    )


def _refuse_undone(url: str) -> None:
    """Refuse a store that is where the program is to go, and that the way back has shut."""
    program = None
    with (
        suppress(StoreError, ConfigurationError),
        closing(open_store(url, read_only=True)) as store,
    ):
        program = move_state_of(store).moved_with
    if program is not None and program.is_undone:
        raise _undone(program, "the jobs and provider calls there")


def _work(project: Project, asked: Asked, notes: list[str]) -> Iterator[ProjectPart]:
    """Jobs and provider calls."""
    found, url = project.settings, project.store
    jobs = found.extensions.get("jobs")
    if jobs is not None and jobs.store is not None:
        notes.append("jobs stay if they are in the store that [jobs] names")
    for name, other in call_stores(found).items():
        if other != url:
            table = toml_table("providers", name) if name else "[providers]"
            notes.append(f"provider calls in the store that {table} names stay")
    file = file_of(url) if url else None
    if not url or (file is not None and not file.is_file()):
        return
    source = StoreLocation(url)
    if is_one_store(source, asked.target):
        _refuse_undone(url)
        return
    if not has_work(source):
        return
    if not keeps_jobs(asked.target.url):
        raise ConfigurationError(
            f"{asked.target.name} keeps facts and no jobs",
            remedy="name PostgreSQL with --to; or write store = under [boundary] for facts alone,"
            " and move each zone by itself: ergon move FOLDER URL",
        )
    yield ProjectPart(WORK, replace(asked, source=source))


def _change(project: Project, target: StoreLocation) -> str:
    """The line that makes the program use the new store; a password is not repeated."""
    written = _written(project.settings.file)
    if written.startswith("env:"):
        return f"set the variable {written.removeprefix('env:')} to the URL of {target.name}"
    url = target.url if target.file is not None or store_option(target.url) else "env:ERGON_STORE"
    where = f"in {project.settings.file}" if project.settings.file else f"in a new file {SETTINGS}"
    line = f"[store]\nurl = {toml_text(url)}"
    hint = "" if url != "env:ERGON_STORE" else f"   # a variable with the URL of {target.name}"
    beside = "" if project.settings.file else f", beside {project.home.absolute() / SCRIPT_FILE}"
    return f"write {where}{beside}:\n\n{line}{hint}"


def _written(file: Path | None) -> str:
    """The URL of ``[store]`` as the file has it: maybe the name of a variable."""
    if file is None:
        return ""
    table: Any = read_toml(file).tables.get("store", {})
    return str(table.get("url", "")) if isinstance(table, dict) else ""


# ---- doing it -----------------------------------------------------------------------------------


def run(planned: ProjectPlan, tell: Tell) -> ProjectOutcome:
    """Move part by part; the new store is refused to everybody until all parts are there."""
    if planned.has_no_other_store:
        raise into_itself(planned.whole.to)
    outcome = ProjectOutcome(notes=list(planned.notes))
    found = single.run_all([part.asked for part in planned.parts], tell)
    for part, each in zip(planned.parts, found, strict=True):
        outcome.moved += [(part.title, moved) for moved in each.moved]
        outcome.notes += [note for note in each.notes if not _is_answered(note)]
    return outcome


def reopen(planned: ProjectPlan, tell: Tell, warn: Warn = lambda _: None) -> list[str]:
    """Open every source again, or none; the titles of the parts that were shut."""
    if not planned.parts:
        raise _nothing_to_reopen(planned.whole)
    opened = single.reopen_all([part.asked for part in planned.parts], tell, warn)
    return [part.title for part, names in zip(planned.parts, opened, strict=True) if names]


def _nothing_to_reopen(whole: ProgramMove) -> ConfigurationError:
    """The error of settings that name the new store already: they do not tell the old ones."""
    old = _old_store(whole.to)
    line = f"url = {toml_text(old)}" if old else "the url that was there before the move"
    return ConfigurationError(
        f"{whole.settings} names no store that was moved to {whole.to}",
        remedy=f"write {line} under [store] in {whole.settings_file}, then run the same command:"
        f" `{whole.command(reopens=True)}`",
    )


def _old_store(url: str) -> str:
    """The store that the jobs were moved from; empty if it is unknown or cannot be read."""
    with (
        suppress(StoreError, ConfigurationError),
        closing(open_store(url, read_only=True)) as store,
    ):
        program = move_state_of(store).program
        return "" if program is None else program.old_store
    return ""


def _is_answered(note: str) -> bool:
    """Whether a note of a single move says what this command does anyway, or need not be done.

    Objects stay in the zone's folder, where the new settings look for them, too.
    """
    return note.startswith(("the facts of zone", "objects stay"))
