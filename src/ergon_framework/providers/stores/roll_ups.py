"""Attempts added up by lane and minute, without I/O and alike by all provider stores.

Refused calls are on record, but the provider was not called: they are no part of rates, of
durations or of a lane's last outcome.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import floor
from operator import attrgetter, itemgetter

from ergon_framework.core.rollup import Rollup
from ergon_framework.ports.providerstore import AttemptOutcome, AttemptRow, LaneKey

MINUTE = 60
HOUR = 60
"""Minutes that a rate is over."""

_SUCCESS = AttemptOutcome.SUCCESS.value
_FAILED, _DEAD_LETTER = AttemptOutcome.FAILED.value, AttemptOutcome.DEAD_LETTER.value


@dataclass(slots=True)
class LaneChanges:
    """What the attempts of one lane in a batch say."""

    minutes: dict[int, Rollup] = field(default_factory=dict)
    last_success_at: float | None = None
    last_error_at: float | None = None
    last_error_code: str | None = None


def minute_of(instant: float) -> int:
    """The first second of the minute that an instant lies in."""
    return floor(instant / MINUTE) * MINUTE


def first_minute(now: float) -> int:
    """The oldest minute of the hour that ends now."""
    return minute_of(now) - (HOUR - 1) * MINUTE


_lane_of = itemgetter(*map(AttemptRow._fields.index, LaneKey._fields))
_created_at = attrgetter("created_at")
_duration_of = attrgetter("duration_ms")
_outcome_of = attrgetter("outcome")


def roll_up(attempts: Iterable[AttemptRow]) -> dict[LaneKey, LaneChanges]:
    """What attempts come to, by lane."""
    lanes: dict[tuple[str, ...], list[AttemptRow]] = {}
    for row in attempts:
        name = _lane_of(row)
        if name in lanes:
            lanes[name].append(row)
        else:
            lanes[name] = [row]
    return {LaneKey(*name): _changes_of(rows) for name, rows in lanes.items()}


def _changes_of(rows: list[AttemptRow]) -> LaneChanges:
    """What the rows of one lane come to: by columns, as every call in memory pays for its row."""
    note = LaneChanges()
    # Number 0 is a refusal: the lane is known by it, and nothing is counted.
    made = [row for row in rows if row.attempt_number > 0]
    for minute, some in _by_minute(made):
        outcomes = list(map(_outcome_of, some))
        good, bad, dead = map(outcomes.count, (_SUCCESS, _FAILED, _DEAD_LETTER))
        rollup = Rollup(good, bad, dead)
        rollup.durations.extend(list(map(_duration_of, some)))
        note.minutes[minute] = rollup
    _note_last(note, made)
    return note


def _by_minute(rows: list[AttemptRow]) -> Iterable[tuple[int, list[AttemptRow]]]:
    """The rows grouped by minute. Nearly always a batch has rows of one minute only."""
    if not rows:
        return ()
    instants = list(map(_created_at, rows))
    if (minute := minute_of(min(instants))) == minute_of(max(instants)):
        return ((minute, rows),)
    minutes: dict[int, list[AttemptRow]] = {}
    for row in rows:
        minutes.setdefault(minute_of(row.created_at), []).append(row)
    return minutes.items()


def _note_last(note: LaneChanges, rows: list[AttemptRow]) -> None:
    good = [row.created_at for row in rows if row.outcome == _SUCCESS]
    note.last_success_at = max(good, default=None)
    if len(good) == len(rows):
        return
    for row in rows:
        if row.outcome == _SUCCESS:
            continue
        if note.last_error_at is None or row.created_at >= note.last_error_at:
            note.last_error_at, note.last_error_code = row.created_at, row.reason_code
