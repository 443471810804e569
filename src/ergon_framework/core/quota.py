"""Limits on how often something may happen: quotas per window of time, and token buckets.

A window is half-open: its first instant belongs to it, its last to the next one. A token bucket is
kept as a single number: the instant at which it will be full again. Nothing here reads a clock;
calendars, which need time zones, are resolved outside into plain windows. Stores on SQL decide the
same inside one statement (``providers/stores/sql/gates.py``), and are tested against this file.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from ergon_framework.core.option_values import shown
from ergon_framework.errors import ConfigurationError

_DAY = 86_400.0
_SECONDS = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("min", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), _DAY),
}
_CALENDAR: dict[str, Literal["day", "month"]] = {"d": "day", "day": "day", "month": "month"}
_QUOTA = re.compile(
    r"\s*(?P<limit>[0-9][0-9_]{0,29})\s*/\s*(?P<count>[0-9]{1,9})?\s*(?P<unit>[a-z]+)\s*"
)

MAX_UNITS = 2**62 - 1
"""The most units of a window: every database can count twice as many without an overflow."""

_new = tuple.__new__  # a NamedTuple's own constructor takes twice the time


class QuotaWindow(NamedTuple):
    """The time a budget is for: ``start`` included, ``end`` not."""

    start: float
    end: float


def window_at(now: float, seconds: float, anchor: float = 0.0) -> QuotaWindow:
    """The window of so many seconds that ``now`` lies in, counted from ``anchor``."""
    start = anchor + math.floor((now - anchor) / seconds) * seconds
    if now - start >= seconds:  # rounding put the first instant of a window into the one before
        start += seconds
    return QuotaWindow(start, start + seconds)


def latest_start(window: QuotaWindow, now: float) -> float:
    """The latest start of a window that counts beside ``window``.

    One that begins later, by more than a day and more than the length of a window, was opened by a
    clock that ran ahead and has been put right since. It would refuse all calls until it is over.
    """
    return now + max(_DAY, window.end - window.start)


class QuotaText(NamedTuple):
    """A quota as it was written: so many units per so many seconds, or per calendar period."""

    limit: int
    seconds: float
    period: Literal["day", "month"] | None = None


UNLIMITED = "unlimited"
"""A quota that lifts a quota from a wider scope."""


def read_quota(text: object) -> QuotaText:
    """Read ``1000/day``, ``5/s``, ``100/min`` or ``300/15min``.

    A day and a month are those of the calendar; several days are so many times 86,400 seconds.
    """
    found = _QUOTA.fullmatch(text) if isinstance(text, str) else None
    limit = 0 if found is None else int(found["limit"].replace("_", ""))
    if found is not None and 1 <= limit <= MAX_UNITS:
        count, unit = int(found["count"] or 1), found["unit"]
        if unit in _CALENDAR and count == 1:
            return QuotaText(limit, _DAY, _CALENDAR[unit])
        if unit in _SECONDS and count:
            return QuotaText(limit, count * _SECONDS[unit])
    raise ConfigurationError(
        f"{shown(text)} is no quota",
        remedy="write how many calls per which time: '1000/day', '5/s', '100/min', '300/15min',"
        f" '20000/month'; or {UNLIMITED!r} for none",
    )


class QuotaUsage(NamedTuple):
    """What is left of one window's budget."""

    window: QuotaWindow
    limit: int
    used: int = 0

    @property
    def remaining(self) -> int:
        """Units that may still be taken; none when the limit was lowered below what is used."""
        return max(0, self.limit - self.used)

    def reserve(self, units: int) -> QuotaUsage | None:
        """The usage after ``units`` were taken, or None if fewer are left."""
        window, limit, used = self
        if units > limit - used:
            return None
        return _new(QuotaUsage, (window, limit, used + units))

    def refund(self, window: QuotaWindow, units: int) -> QuotaUsage:
        """The account after ``units`` of ``window`` came back; another window's do not count."""
        if window.start != self.window.start:
            return self
        return self._replace(used=max(0, self.used - units))

    def at(self, window: QuotaWindow, limit: int, now: float = math.inf) -> QuotaUsage:
        """The account as of a later window, or of another limit.

        A window older than this one is never opened again: a clock that was set back would give
        the budget away twice. Unless this one begins so long after ``now`` that it does not count.
        """
        own = self.window.start
        if window.start > own or own > latest_start(window, now):
            return QuotaUsage(window, limit)
        return self if limit == self.limit else self._replace(limit=limit)


def block_of(remaining: int, units: int, largest: int) -> int:
    """How many units to take at once for a hot key: fewer and fewer, and one call's at the end.

    An eighth of what is left, so that several takers cannot hold back much of the rest.
    """
    return max(units, min(largest, remaining // 8))


@dataclass(frozen=True, slots=True)
class TokenBucket:
    """``rate`` tokens flow in per second, and at most ``burst`` are held."""

    rate: float
    burst: int
    full_at: float = 0.0

    def free(self, now: float) -> int:
        """How many may go now."""
        missing = max(0.0, self._until_full(now)) * self.rate
        whole = int(self.burst - missing) if missing < self.burst else 0
        # Rounding must not hide the token that ``next_at`` promised for this instant.
        return max(whole, 1) if now >= self.next_at(now) else whole

    def take(self, count: int, now: float) -> TokenBucket:
        """The bucket after ``count`` tokens were taken."""
        return replace(self, full_at=now + max(0.0, self._until_full(now)) + count / self.rate)

    def next_at(self, now: float) -> float:
        """The instant from which a token can be taken; in the past if one can be taken now."""
        return now + self._until_full(now) - (self.burst - 1) / self.rate

    def healed(self, now: float) -> TokenBucket:
        """The bucket, repaired if it was written by a clock that has been set back since.

        No bucket is further from being full than an empty one. One that seems to be would stay
        empty until the clock has caught up with the old time.
        """
        latest = now + self.burst / self.rate
        return replace(self, full_at=latest) if self.full_at > latest else self

    def changed(self, rate: float, burst: int, now: float) -> TokenBucket:
        """Other limits from now on; the tokens that are missing are missing still."""
        missing = min(max(0.0, self._until_full(now)) * self.rate, burst)
        return TokenBucket(rate, burst, now + missing / rate)

    def _until_full(self, now: float) -> float:
        # A clock that was set back must not make a caller wait longer than an empty bucket would.
        return min(self.full_at - now, self.burst / self.rate)
