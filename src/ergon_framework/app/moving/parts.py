"""What is moved: two stores of one sort, and what is said about them on the way."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ergon_framework.app.moving.comparing import PAGE, Sum
from ergon_framework.ports.copies import Copy
from ergon_framework.ports.moving import Archive


@dataclass(frozen=True, slots=True)
class Told:
    """How far a move has come: so many copies of a kind were looked at."""

    part: str
    what: str
    """What is being done: copying or verifying, and which kind."""
    done: int
    total: int | None = None
    """How many there are, where that is known."""


Tell = Callable[[Told], None]


@dataclass(slots=True)
class Moved:
    """What became of one kind."""

    part: str
    kind: str
    copied: int = 0
    discarded: int = 0
    sum: Sum | None = None
    """What both sides hold of it in the end; None when nothing was done."""


@dataclass(frozen=True)
class Part:
    """Two stores of the same sort, one of which is to become what the other is."""

    name: str
    source: Archive
    target: Archive
    kinds: tuple[type[Copy], ...]
    identity: str
    """What the source is known by: its place, or what a zone has wherever it is."""
    where: str
    """What the target is called in front of people."""
    totals: Mapping[str, int] = field(default_factory=dict)
    """How many of a kind there are, where that is easily known."""
    pulse: Callable[[], object] = lambda: None
    """What is quickly asked of the source and differs when something came into it."""
    birth: str = ""
    """What the source alone has since it was made, however it is reached; empty if unknown."""
    now: Callable[[], float] = time.time
    """The source's clock."""
    aside: Callable[[], None] = lambda: None
    """Sees to what lies beside the stores, when they hold the same."""


def title(kind: type[Copy]) -> str:
    """What a kind is called in front of people."""
    return _TITLES.get(kind.__name__, kind.__name__)


_TITLES = {
    "QueueCopy": "queue settings",
    "JobCopy": "jobs",
    "ScheduleCopy": "schedules",
    "LogCopy": "logs",
    "FactCopy": "facts",
    "IdCopy": "ids of facts",
    "GapCopy": "gaps",
    "ConsumerCopy": "consumers",
    "ItemCopy": "quarantined facts",
    "NameCopy": "names of objects",
    "AwaitedCopy": "awaited names",
    "LinkCopy": "links",
    "NoteCopy": "notes of operators",
    "ZoneCopy": "epoch",
    "RowCopy": "provider rows",
}


def tell_now_and_then(tell: Tell, part: Part, doing: str, kind: str, count: int) -> None:
    """Say how far it is, once a page."""
    if count % PAGE == 1:
        total = part.totals.get(kind)
        is_beyond = total is not None and count > total  # it grew meanwhile
        tell(Told(part.name, f"{doing} {kind}", count, None if is_beyond else total))
