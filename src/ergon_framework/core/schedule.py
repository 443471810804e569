"""Which fires of a schedule are due, and what becomes of those that were missed.

Rules for editors: nothing here reads a clock or knows a calendar; a schedule is a function that
lists its fires after an instant. A stop may have lasted for years, so nothing here may walk through
all of it: :func:`_latest` looks back from now, further and further, until it has seen enough.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, islice, takewhile
from typing import TypeAlias

Instants: TypeAlias = Callable[[float], Iterator[float]]
"""Every fire after an instant, that instant excluded, the earliest first; perhaps without end."""

MISFIRE_GRACE = 60.0
"""Seconds. A fire that is found no later than that was not missed, only noticed late."""

MAX_SET_BACK = 86_400.0
"""Seconds by which a clock may be set back without a fire happening twice. If it is set back by
more, it was wrong before, and a schedule that fired then begins anew."""

MAX_LOOK_BACK = 3_653 * 86_400.0
"""Seconds within which fires that are over are looked for: a yearly schedule has ten of them."""

MAX_MISFIRES = 100
"""How many missed fires are made up for at most; those before are dropped."""


class Misfire(StrEnum):
    """What to do when several fires, or an old one, are found due at once."""

    ONCE = "once"  # the last of them stands for all
    SKIP = "skip"  # the last of them, if it is no older than MISFIRE_GRACE
    ALL = "all"  # each of them, up to MAX_MISFIRES


@dataclass(frozen=True, slots=True)
class Due:
    """What is to be done now, and when to look again."""

    fires: tuple[float, ...]  # the oldest first
    next_at: float | None  # None: there is no further fire


def until(instants: Instants, end: float | None) -> Instants:
    """The fires up to ``end``, if there is one."""
    return instants if end is None else lambda after: _until(instants(after), end)


def due(instants: Instants, expected: float, now: float, misfire: Misfire) -> Due:
    """The fires to make up for now, when ``expected`` is the first one not dealt with yet.

    A clock that was set back makes ``expected`` lie ahead again: then nothing is due until it is
    reached, so no fire happens twice.
    """
    if expected > now:
        return Due((), expected)
    most = MAX_MISFIRES if misfire is Misfire.ALL else 1
    fires = _latest(instants, expected, now, most)
    if misfire is Misfire.SKIP and fires[-1] < now - MISFIRE_GRACE:
        fires = ()
    return Due(fires, next(instants(now), None))


def is_far_ahead(instant: float | None, now: float) -> bool:
    """Whether an instant is so far ahead that no clock which is only set back explains it."""
    return instant is not None and instant > now + MAX_SET_BACK


def latest(instants: Instants, now: float, most: int) -> tuple[float, ...]:
    """The last ``most`` fires up to ``now``, as far as ten years back; the oldest first."""
    reach = MISFIRE_GRACE
    while True:
        found = deque(_until(instants(now - reach), now), most)
        if len(found) == most or reach > MAX_LOOK_BACK:
            return tuple(found)
        reach *= 4


def upcoming(instants: Instants, expected: float, count: int) -> tuple[float, ...]:
    """The next ``count`` fires, of which ``expected`` is the first."""
    return tuple(islice(chain((expected,), instants(expected)), count))


def _latest(instants: Instants, first: float, now: float, most: int) -> tuple[float, ...]:
    """The last ``most`` fires from ``first`` to ``now``, both included."""
    reach = MISFIRE_GRACE
    while now - reach > first:
        found = deque(_until(instants(now - reach), now), most)
        if len(found) == most:
            return tuple(found)
        reach *= 4
    return tuple(deque(chain((first,), _until(instants(first), now)), most))


def _until(fires: Iterator[float], end: float) -> Iterator[float]:
    return takewhile(lambda at: at <= end, fires)
