"""What a batch of attempts comes to: roll-ups by minute, and what each lane last heard.

Refused calls are on record, but nobody was called: they are no part of rates, of durations or of
what was last heard.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import floor

from ergon_framework.core.rollup import Rollup
from ergon_framework.ports.providerstore import AttemptRow, LaneKey, Outcome

MINUTE = 60
HOUR = 60
"""Minutes that a rate is over."""

_SUCCESS = Outcome.SUCCESS.value
_FAILED, _DEAD_LETTER = Outcome.FAILED.value, Outcome.DEAD_LETTER.value


@dataclass(slots=True)
class LaneNote:
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


def fold(attempts: Iterable[AttemptRow]) -> dict[LaneKey, LaneNote]:
    """What attempts come to, by lane."""
    notes: dict[LaneKey, LaneNote] = {}
    for row in attempts:
        key = LaneKey(row.tenant_id, row.provider_name, row.capability)
        note = notes.get(key)
        if note is None:
            note = notes[key] = LaneNote()
        if row.attempt_number > 0:
            _count(note, row)
            _hear(note, row)
    return notes


def _count(note: LaneNote, row: AttemptRow) -> None:
    minute = minute_of(row.created_at)
    rollup = note.minutes.get(minute)
    if rollup is None:
        rollup = note.minutes[minute] = Rollup()
    rollup.durations.add(row.duration_ms)
    if row.outcome == _SUCCESS:
        rollup.succeeded += 1
    elif row.outcome == _FAILED:
        rollup.failed += 1
    elif row.outcome == _DEAD_LETTER:
        rollup.dead_lettered += 1


def _hear(note: LaneNote, row: AttemptRow) -> None:
    if row.outcome == _SUCCESS:
        note.last_success_at = max(row.created_at, note.last_success_at or row.created_at)
    elif note.last_error_at is None or row.created_at >= note.last_error_at:
        note.last_error_at, note.last_error_code = row.created_at, row.reason_code
