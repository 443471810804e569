"""Cron lines: read, checked, and turned into instants of a time zone.

cronsim answers which times a wall clock would fire at; what those are worth as instants is decided
here, because a wall clock that is moved shows some times twice and others never:

- A line for fixed times (neither minutes nor hours begin with ``*``) fires once for each of them: a
  time that comes twice counts when it comes first, and those that are left out fire together at
  the moment the clock is moved.
- Any other line fires whenever the clock shows one of its times, since its user thinks in
  intervals: "every ten minutes" goes on through the hour that comes twice.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from datetime import datetime, timedelta
from difflib import get_close_matches
from functools import lru_cache
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from ergon_framework.core.schedule import Instants
from ergon_framework.core.text import counted
from ergon_framework.errors import JobError

MAX_LINE = 200
MAX_INTERVAL = 366 * 86_400

_NAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_EVERY = "@every"
_FIELDS = (
    ("second", "0-59"),
    ("minute", "0-59"),
    ("hour", "0-23"),
    ("day-of-month", "1-31, L for the last day or LW for the last weekday"),
    ("month", "1-12 or JAN-DEC"),
    ("day-of-week", "0-7 or SUN-SAT (0 and 7 are Sunday), 5L for the last or 5#2 for the second"),
)
_INTERVAL = re.compile(
    r"(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s)?", re.ASCII | re.IGNORECASE
)
_TO_SUNDAY = re.compile(r"(?<=\w)-sun(?![a-z])", re.IGNORECASE)
_UNITS = (86_400, 3600, 60, 1)
_FROM = datetime(2000, 1, 1)  # noqa: DTZ001 - a wall clock has no zone
"""Where an expression is tried out: within the next 28 years every date falls on every weekday."""


@lru_cache(maxsize=1024)
def read_cron(line: str, zone: str = "UTC") -> Instants:
    """Read a cron expression into the instants that it means in a time zone. Raises JobError.

    An expression has five fields, or six with seconds in front, or is ``@hourly``, ``@daily``,
    ``@weekly``, ``@monthly``, ``@yearly`` or ``@every 1h30m``. The error says what is wrong.
    """
    checked, clock = check_cron(line), check_zone(zone)
    if checked.startswith(_EVERY):
        return _multiples(interval(checked.split()[1]))
    return _wall_clock(_NAMES.get(checked, checked), clock)


def check_cron(line: str) -> str:
    """The expression with single spaces. Raises a JobError that names the field that is wrong."""
    if len(line) > MAX_LINE:
        raise JobError(
            f"a cron line of {len(line)} characters is too long",
            remedy=f"use at most {MAX_LINE}, or several schedules",
        )
    fields = line.split()
    if fields and fields[0].startswith("@"):
        return _check_name(fields)
    if len(fields) not in (5, 6):
        raise JobError(
            f"the cron line {line!r} has {counted(len(fields), 'field')}",
            remedy="write minute, hour, day-of-month, month and day-of-week, seconds before them "
            "if needed; or @hourly, @daily, @weekly, @monthly, @yearly, @every 30s",
        )
    # In a range, Sunday is the last day of the week: cronsim takes its name for 0.
    fields[-1] = _TO_SUNDAY.sub("-7", fields[-1])
    checked = " ".join(fields)
    # Each field by itself: cronsim says that a line is wrong, but not where.
    for position, field in enumerate(fields, start=6 - len(fields)):
        _check_field(checked, position, field)
    # Each field may be right although no day fits all of them, such as the 31st of April: the
    # schedule would never fire, and nothing would say so.
    if _first_fire(checked) is None:
        raise JobError(
            f"the cron line {checked!r} never fires",
            remedy="give it a day that its months have",
        )
    return checked


def check_zone(name: str) -> ZoneInfo:
    """The time zone of that name. Raises JobError when there is none."""
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError):  # A directory or a path is no time zone either.
        pass
    # Read only for the error: the names of all zones are hundreds of files.
    known = {zone.lower(): zone for zone in available_timezones()}
    meant = get_close_matches(name.lower(), known, 1)
    raise JobError(
        f"there is no time zone {name!r}",
        remedy=f"did you mean {known[meant[0]]!r}?"
        if meant
        else "use a name such as 'Europe/Berlin'; if that fails as well, install tzdata",
    )


def interval(text: str) -> int:
    """The seconds of an interval such as ``90``, ``30s``, ``1h30m`` or ``2d``."""
    found = _INTERVAL.fullmatch(f"{text}s" if text.isdigit() else text)
    parts = found.groups() if found else ()
    total = sum(int(part or 0) * unit for part, unit in zip(parts, _UNITS, strict=False))
    if not 1 <= total <= MAX_INTERVAL:
        raise JobError(
            f"{text!r} is no interval",
            remedy="write whole days, hours, minutes and seconds such as 2d, 1h30m or 30s, "
            "together at least 1s and at most 366d",
        )
    return total


# ---- checks -------------------------------------------------------------------------------------


def _check_name(fields: list[str]) -> str:
    name = fields[0].lower()
    if name in _NAMES and len(fields) == 1:
        return name
    if name == _EVERY and len(fields) == 2:
        return f"{_EVERY} {interval(fields[1])}s"
    raise JobError(
        f"the cron line {' '.join(fields)!r} is not understood",
        remedy=f"use {', '.join(_NAMES)}, @every 30s, or five or six fields",
    )


def _check_field(line: str, position: int, field: str) -> None:
    """Try a field by itself, so that the error can name it."""
    fields = ["*"] * 6
    fields[position] = field
    try:
        CronSim(" ".join(fields), _FROM)
    except CronSimError:
        name, allowed = _FIELDS[position]
        raise JobError(
            f"the {name} field {field!r} of the cron line {line!r} is not understood",
            remedy=f"use {allowed}, or *, with ranges (a-b), steps (*/n) and lists (a,b)",
        ) from None


def _first_fire(line: str) -> datetime | None:
    try:
        return next(CronSim(line, _FROM), None)
    except CronSimError:  # each field is right: a day that none of its months has
        return None


# ---- instants -----------------------------------------------------------------------------------


def _multiples(period: int) -> Instants:
    """Multiples of the period since the epoch: every worker means the same ones, ever after."""

    def after(instant: float) -> Iterator[float]:
        # Counted from the epoch, not from the start of a worker: two workers must mean the same
        # instants.
        at = (int(instant // period) + 1) * period
        while True:
            yield float(at)
            at += period

    return after


def _wall_clock(line: str, zone: ZoneInfo) -> Instants:
    minute, hour = line.split()[-5:-3]
    is_fixed = not minute.startswith("*") and not hour.startswith("*")
    values = _fixed if is_fixed else _all

    def after(instant: float) -> Iterator[float]:
        last = instant
        for at in values(CronSim(line, _start(instant, zone)), zone):
            # Only later ones: times that the clock shows twice come out of order.
            if at > last:
                last = at
                yield at

    return after


def _start(instant: float, zone: ZoneInfo) -> datetime:
    """What the clock showed, less what it is about to be set back by: those times come again."""
    wall = datetime.fromtimestamp(instant, zone).replace(tzinfo=None, fold=0)
    first, second = _both(wall, zone)
    return wall - timedelta(seconds=max(0.0, second - first))


def _both(wall: datetime, zone: ZoneInfo) -> tuple[float, float]:
    """When the clock shows that for the first and for the second time.

    Usually these are the same instant. If the clock never shows it, the first is the later one.
    """
    shown = wall.replace(tzinfo=zone)
    return shown.timestamp(), shown.replace(fold=1).timestamp()


def _fixed(walls: Iterator[datetime], zone: ZoneInfo) -> Iterator[float]:
    for wall in walls:
        first, second = _both(wall, zone)
        real = wall.replace(second=0)
        while first > second:
            # Minute by minute: changes of a zone begin at whole minutes.
            real += timedelta(minutes=1)
            first, second = _both(real, zone)
        yield first


def _all(walls: Iterator[datetime], zone: ZoneInfo) -> Iterator[float]:
    again: deque[float] = deque()  # second times, until the first ones before them are through
    for wall in walls:
        first, second = _both(wall, zone)
        while again and again[0] < first:
            yield again.popleft()
        if first <= second:
            yield first
        if first < second:
            again.append(second)
