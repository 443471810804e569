"""Claiming: what is said to the server to take jobs, and to see what is left."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from ergon_framework.jobs.stores.postgres.lanes import Lane, Line, Pick
from ergon_framework.jobs.stores.postgres.rows import (
    EXECUTOR,
    PRIORITY,
    QUEUE,
    RUN_AT,
    SEQ,
    Answer,
    Row,
)
from ergon_framework.jobs.stores.postgres.statements import numbers, statements, texts
from ergon_framework.jobs.stores.postgres.words import Words
from ergon_framework.ports.jobstore import Ask

MOST_PROMOTED = 500
MOST_LANES = 256
GLANCE = 64
"""Bounds of one claim: whatever it leaves, the next one finds."""

DEPTH = 1000
DEEPEST = 1_000_000
"""How many jobs of a lane one claim looks past, where limit keys are held: few at first, as nobody
holds one for long; the double each time that one is held still, so that the end is reached."""

Place = tuple[str | None, str | None, int | None, float | None, int | None]
"""Where a job stood: executor, queue, priority, due time and number."""
NOWHERE: Place = (None, None, None, None, None)

_LAST = ("last_executor", "last_queue", "last_priority", "last_run_at", "last_seq")
_SQL = statements("claim.sql")

lane_of = itemgetter(EXECUTOR, QUEUE)
_arrival, _priority = itemgetter(RUN_AT, SEQ), itemgetter(PRIORITY)


def promote(words: Words) -> None:
    """Let those be claimed whose time has come."""
    words.say(_SQL["promote"], {"most": MOST_PROMOTED})


class Quick:
    """Claims plain jobs from queues without settings, in one statement."""

    def __init__(self, words: Words, ask: Ask, picks: Sequence[Pick]) -> None:
        self._picks = picks
        values = _lanes(picks) | {"lease": ask.lease, "worker": ask.worker}
        self._cursor = words.say(_SQL["claim"], values)

    def read(self) -> tuple[list[Row], set[Line]]:
        """The jobs, and where there are others that need a closer look."""
        rows = self._cursor.fetchall()
        special = {self._picks[number].line for number in rows[0][0] or ()}
        return [row[1:] for row in rows if row[1] is not None], special


@dataclass(slots=True)
class Passing:
    """Limit keys that others held a moment ago, and how far to look for jobs behind theirs."""

    keys: set[str] = field(default_factory=set)
    depth: int = DEPTH


def candidates(words: Words, picks: Sequence[Pick], passing: Passing) -> Answer:
    """The first jobs of each pick, held, without those that are passed over; the number of the
    pick stands before each.
    """
    if not passing.keys:
        return words.say(_SQL["candidates"], _lanes(picks))
    past = {"passed": texts(passing.keys), "depth": passing.depth}
    return words.say(_SQL["candidates_past"], _lanes(picks) | past)


def _lanes(picks: Sequence[Pick]) -> dict[str, Any]:
    lanes = [(name, pick, n) for n, pick in enumerate(picks) for name in pick.names]
    return {
        "executors": texts([name for name, _, _ in lanes]),
        "queues": texts([pick.queue for _, pick, _ in lanes]),
        "most": numbers([pick.most for _, pick, _ in lanes]),
        "numbers": numbers([n for _, _, n in lanes]),
    }


def in_order(rows: Iterable[Row]) -> list[Row]:
    """As jobs stand in one queue: see :func:`place`, of which most differ in the end alone."""
    found = sorted(rows, key=_arrival)
    if len(set(map(_priority, found))) > 1:
        found.sort(key=_priority, reverse=True)
    return found


def last_of(rows: Iterable[Row]) -> Place:
    """Where the one of these jobs stood that stood behind the others."""
    row = in_order(rows)[-1]
    return row[EXECUTOR], row[QUEUE], row[PRIORITY], row[RUN_AT], row[SEQ]


def place(row: Row) -> tuple[int, float, int]:
    """Where a job stands among those of its queue."""
    return -row[PRIORITY], row[RUN_AT], row[SEQ]


@dataclass(slots=True)
class Sight:
    """What a look around showed."""

    lanes: list[Lane] = field(default_factory=list)
    blocked: list[Lane] = field(default_factory=list)  # where jobs wait for limit keys
    next_at: float | None = None
    last: Line | None = None  # there may be more lanes after this one


class Look:
    """Looks around at the end of a transaction."""

    def __init__(self, words: Words, ask: Ask, after: Line, last: Place) -> None:
        """``after``: where it begins. ``last``: where it is worth a look before anything is walked
        past; whatever it is, the answer is the same.
        """
        queues = None if ask.queues is None else texts(ask.queues)
        if queues is None:
            values = {"executor": after[0], "queue": after[1], "most": MOST_LANES}
            self._lanes = words.say(_SQL["lanes"], values | dict(zip(_LAST, last, strict=True)))
        else:
            self._lanes = words.say(_SQL["lanes_in"], {"queues": queues})
        self._is_bounded = queues is None
        self._soonest = words.say(_SQL["soonest"], {"queues": queues, "most": GLANCE})
        self._blocked = words.say(_SQL["blocked"], {"most": MOST_LANES}) if ask.asks_more else None

    def read(self) -> Sight:
        """What it showed."""
        lanes = [
            Lane(executor, queue, bool(is_paused), has_settings)
            for executor, queue, is_paused, has_settings in self._lanes.fetchall()
        ]
        sight = Sight(lanes, next_at=self._soonest.fetchall()[0][0])
        if self._is_bounded and len(lanes) == MOST_LANES:
            sight.last = lanes[-1].executor, lanes[-1].queue
        if self._blocked is not None:
            sight.blocked = [Lane(*row) for row in self._blocked.fetchall()]
        return sight
