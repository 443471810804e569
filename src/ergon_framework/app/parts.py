"""All that a settings file describes: the parts that can be started, and how they are called.

Nothing of the user's is imported here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from ergon_framework.app.imports import is_reference
from ergon_framework.app.settings.sections import Settings
from ergon_framework.app.settings.source import did_you_mean
from ergon_framework.app.settings.stores import url_as_written, without
from ergon_framework.app.supervisor import ProcessSpec
from ergon_framework.errors import SettingsError, WiringError


class PartKind(StrEnum):
    """What a part is, in the order in which parts are stopped; they are listed in reverse."""

    TASK = "task"
    WORKER = "worker"
    ZONE = "zone"
    SERVER = "server"

    @property
    def rank(self) -> int:
        """The place of this kind in the order in which parts are stopped."""
        return list(PartKind).index(self)

    @property
    def is_endless(self) -> bool:
        """Whether the part runs until it is stopped. A task may end by itself."""
        return self is not PartKind.TASK


_SECTIONS = {PartKind.TASK: "tasks", PartKind.ZONE: "zones"}
_HOMES = frozenset({"data", "store", "objects"})


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the settings that runs in its own processes."""

    kind: PartKind
    name: str
    processes: int = 1

    @property
    def full_name(self) -> str:
        """A name that means nothing else."""
        section = _SECTIONS.get(self.kind)
        return self.name if section is None else f"{section}.{self.name}"


@dataclass(frozen=True, slots=True)
class PartRow:
    """One line of the list of what would run."""

    kind: str
    name: str
    what: str
    where: str
    processes: int | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def startable(settings: Settings) -> list[Part]:
    """The parts that ``ergon run --all`` starts, in that order."""
    return [
        part
        for part in sorted(_parts(settings), key=lambda part: -part.kind.rank)
        if part.kind is not PartKind.ZONE or has_local_node(settings, part.name)
    ]


def process_specs(parts: Sequence[Part]) -> list[ProcessSpec]:
    """A place for each process of each part."""
    return [
        ProcessSpec(
            part.full_name if part.processes == 1 else f"{part.full_name}#{n}",
            part.full_name,
            n,
            part.processes,
            start_rank=0 if part.kind.is_endless else 1,  # tasks may need all the others
            stop_rank=part.kind.rank,
            is_endless=part.kind.is_endless,
        )
        for part in parts
        for n in range(part.processes)
    ]


def part_named(text: str, settings: Settings) -> Part:
    """What ``ergon run NAME`` means: a task unless another part has that name."""
    found = [part for part in _parts(settings) if text in (part.name, part.full_name)]
    if len(found) > 1:
        meanings = " and ".join(f"the {part.kind.value} {part.full_name!r}" for part in found)
        raise WiringError(f"{text!r} means {meanings}", remedy=_apart(found))
    if found:
        return found[0]
    if is_reference(text):
        return Part(PartKind.TASK, text)
    known = [part.name for part in _parts(settings)]
    raise WiringError(
        f"there is no task {text!r} in the settings, and no other part; "
        f"{did_you_mean(text, known)}",
        remedy="write module:app or script.py:app for an App, module:Class for a task, or a name"
        " from [tasks] or [zones]",
    )


def has_local_node(settings: Settings, zone: str) -> bool:
    """Whether a zone's node is kept here; one that does not say where it lives is an address."""
    return not _HOMES.isdisjoint(settings.extensions["zones"][zone].model_fields_set)


def rows(settings: Settings) -> Iterator[PartRow]:
    """What would run, and what it uses."""
    for part in startable(settings):
        yield PartRow(part.kind.value, part.name, *_described(part, settings), part.processes)
    for name, executor in (settings.extensions.get("executors") or {}).items():
        yield PartRow("executor", name, executor.command[0], executor.cwd or "", executor.pool_size)
    for name, schedule in (settings.extensions.get("schedules") or {}).items():
        yield PartRow("schedule", name, schedule.handler, f"{schedule.line} {schedule.zone}", None)
    for name, webhook in (settings.extensions.get("webhooks") or {}).items():
        target = webhook.connector or f"job {webhook.handler}"
        yield PartRow("webhook", name, webhook.kind, f"/webhooks/{name} to {target}", None)
    yield from _provider_rows(settings)
    yield from _script_zone_rows(settings)


def shown_url(url: str) -> str:
    """A URL without what may be a secret in it: the user, the password and the options."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
    except ValueError:
        return "***"
    return f"{parts.scheme}://{host}{parts.path}" if parts.scheme else "***"


def _parts(settings: Settings) -> Iterator[Part]:
    for name, task in settings.tasks.items():
        yield Part(PartKind.TASK, name, task.workers)
    for name in settings.extensions.get("zones") or ():
        yield Part(PartKind.ZONE, name)
    if settings.extensions.get("executors"):
        yield Part(PartKind.WORKER, "worker")
    if "server" in settings.model_fields_set:
        yield Part(PartKind.SERVER, "server")


def _apart(found: list[Part]) -> str:
    other = {PartKind.WORKER: "ergon worker", PartKind.SERVER: "ergon serve"}
    return "write " + " or ".join(other.get(part.kind, part.full_name) for part in found)


def _described(part: Part, settings: Settings) -> tuple[str, str]:
    if part.kind is PartKind.TASK:
        task = settings.tasks[part.name]
        types = (f"{name} ({settings.connectors[name].type})" for name in task.connectors)
        return task.task, ", ".join(types)
    if part.kind is PartKind.ZONE:
        from ergon_framework.app.zones import zones_of

        zone = zones_of(settings)[part.name].settings
        peers = ", ".join(zone.peers)
        return f"pulls from {peers}" if peers else "pulls from nobody", zone.listen
    if part.kind is PartKind.SERVER:
        server = settings.server
        host = f"[{server.host}]" if ":" in server.host else server.host
        return "HTTP", f"http://{host}:{server.port}"
    from ergon_framework.app.jobs import setup_of

    setup = setup_of(settings)
    count = len(setup.schedules)
    text = f"executors {', '.join(setup.executors)}" + (f"; schedules {count}" if count else "")
    return text, shown_url(url_as_written(settings, setup.jobs.store))


def _provider_rows(settings: Settings) -> Iterator[PartRow]:
    section = settings.extensions.get("providers")
    if section is None:
        return
    for name, entry in section.named.items():
        url = url_as_written(settings, entry.store, section.store)
        what = entry.provider or "app.provider"
        yield PartRow("provider", name, what, shown_url(url) if url else "memory", None)


def _script_zone_rows(settings: Settings) -> Iterator[PartRow]:
    """Zones that only scripts name; those serve them, and ``ergon run --all`` does not."""
    from ergon_framework.app.zones import script_zones

    for name, setup in script_zones(settings).items():
        yield PartRow("zone", name, "served by its script", setup.settings.data, None)


def nothing_to_run(settings: Settings) -> SettingsError:
    """The error for settings that describe nothing to start."""
    return SettingsError(
        f"nothing to run: {without(settings, 'has nothing')}",
        remedy="describe a task, a zone with data, an executor or a server",
    )
