"""Success rates and durations of the last hour, from roll-ups, whatever the number of attempts.

Theory of operation. For each tenant that is asked about, the minutes of its lanes are kept as they
were last read. A reader reads the minutes since the one before its last look, which others are
still adding to, and of the older ones only how much there is in them. If that is not what is kept,
somebody wrote late, after having been cut off, and everything is read again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from ergon_framework.core.rollup import Durations, Hour, Rollup, merged
from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.ports.providerstore import LaneKey
from ergon_framework.providers.stores.folding import (
    MINUTE,
    LaneNote,
    first_minute,
    minute_of,
)
from ergon_framework.providers.stores.ground import PACKAGE, Ground, Hand, Row, sure_instant
from ergon_framework.storage.sql_files import load

_SQL = load(PACKAGE, "records.sql")
_TENANTS = 64  # of whom minutes are kept
_LANES = 10_000  # of which is known when the columns were last written
SNAPSHOT_EVERY = 15.0
"""Seconds between two writes of the rates into a lane's row, unless they are settled before."""

Lane = tuple[str, str]
Rate = tuple[float | None, int | None]


class _View:
    """The last hour of one tenant's lanes, as last read."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.hours: dict[Lane, Hour] = {}
        self.rows: dict[Row, Row] = {}
        """The latest minutes as they were read, so that one that is the same costs nothing."""
        self.read_until = 0
        """The minute of the last look."""
        self.older = (0, 0)
        """The minutes that were not read again: the first, and the first that was."""
        self.in_older = (0, 0)
        """How many minutes of lanes they are, and the attempts in them."""


class Rates:
    """The last hour of every lane. Any thread may ask."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._lock = threading.Lock()
        self._views: OrderedDict[str, _View] = OrderedDict()
        self._written_at: dict[LaneKey, float] = {}
        self._stale: set[LaneKey] = set()
        renew_after_fork(self)

    def of_tenant(self, hand: Hand, tenant_id: str, now: float) -> dict[Lane, Rate]:
        """Each lane's share of successes, and the milliseconds that 95 of 100 did not exceed."""
        view = self._view(tenant_id)
        with view.lock:
            self._refresh(hand, view, tenant_id, now)
            return {lane: (hour.success_rate, hour.p95) for lane, hour in view.hours.items()}

    def of_lanes(self, hand: Hand, keys: Sequence[LaneKey], now: float) -> list[Rollup]:
        """The last hour of some lanes, as the transaction sees it."""
        since = self._ground.stamp(first_minute(now))
        found = hand.each(_SQL["lane_minutes"], [{**key._asdict(), "since": since} for key in keys])
        return [merged(_rollup_of(*row) for row in rows) for rows in found]

    def is_snapshot_due(self, key: LaneKey, now: float) -> bool:
        """Whether a lane's columns are to be written again."""
        written_at = self._written_at.get(key)
        return written_at is None or not written_at <= now < written_at + SNAPSHOT_EVERY

    def heard(self, notes: Mapping[LaneKey, LaneNote], now: float) -> None:
        """A batch was committed, and with it the columns of those of its lanes that were due."""
        due = {key for key in notes if self.is_snapshot_due(key, now)}
        with self._lock:
            if len(self._written_at) + len(due) > _LANES:
                self._written_at.clear()
            self._written_at.update(dict.fromkeys(due, now))
            self._stale |= notes.keys() - due
            self._stale -= due

    @property
    def are_too_many_stale(self) -> bool:
        """Whether to write them now: memory is for lanes that are in use."""
        return len(self._stale) > _LANES

    def take_stale(self, most: int) -> list[LaneKey]:
        """Some lanes whose columns lack the latest; whoever takes them writes them."""
        with self._lock:
            taken = sorted(self._stale)[:most]
            self._stale.difference_update(taken)
            return taken

    def put_back(self, keys: Sequence[LaneKey]) -> None:
        """They could not be written."""
        with self._lock:
            self._stale.update(keys)

    def renew(self) -> None:
        """In a process that was just forked: whoever held a lock is not there any more."""
        self._lock = threading.Lock()
        self._views = OrderedDict()
        self._stale = set()  # the parent writes them

    def _view(self, tenant_id: str) -> _View:
        with self._lock:
            view = self._views.setdefault(tenant_id, _View())
            self._views.move_to_end(tenant_id)
            if len(self._views) > _TENANTS:
                self._views.popitem(last=False)
            return view

    def _refresh(self, hand: Hand, view: _View, tenant_id: str, now: float) -> None:
        oldest, current = first_minute(now), minute_of(now)
        since = max(oldest, min(view.read_until, current) - MINUTE)
        count = self._read(hand, view, tenant_id, since)
        if (oldest, since) != view.older:
            _move_on(view, oldest, since)
        is_same = count == len(view.rows)  # or else some were deleted
        if not is_same or self._sums(hand, tenant_id, oldest, since) != view.in_older:
            view.hours.clear()
            view.rows.clear()
            self._read(hand, view, tenant_id, oldest)
            _move_on(view, oldest, since)
        view.read_until = current

    def _read(self, hand: Hand, view: _View, tenant_id: str, since: int) -> int:
        values = {"tenant_id": tenant_id, "since": self._ground.stamp(since)}
        found = hand.rows(_SQL["recent"], values)
        for row in found:
            place = row[:3]
            if view.rows.get(place) != row:
                view.rows[place] = row
                provider_name, capability, minute, *rest = row
                hour = view.hours.setdefault((provider_name, capability), Hour())
                hour.put(round(sure_instant(minute)), _rollup_of(*rest))
        return len(found)

    def _sums(self, hand: Hand, tenant_id: str, oldest: int, since: int) -> Row:
        values = {
            "tenant_id": tenant_id,
            "since": self._ground.stamp(oldest),
            "until": self._ground.stamp(since),
        }
        return hand.rows(_SQL["sums"], values)[0]


def _move_on(view: _View, oldest: int, since: int) -> None:
    """Forget what is older than an hour, and add up what is not read again."""
    minutes = attempts = 0
    for lane, hour in list(view.hours.items()):
        hour.forget(oldest)
        if not len(hour):
            del view.hours[lane]
        later, made = hour.since(since)
        minutes += len(hour) - later
        attempts += hour.attempts - made
    view.rows = {place: row for place, row in view.rows.items() if sure_instant(place[2]) >= since}
    view.older, view.in_older = (oldest, since), (minutes, attempts)


def _rollup_of(succeeded: int, failed: int, dead_lettered: int, histogram: Any) -> Rollup:
    return Rollup(succeeded, failed, dead_lettered, Durations.decode(histogram))
