"""One lane of a memory store, and the attempts of all of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass, field

from ergon_framework.core.breaker import State
from ergon_framework.core.quota import Account
from ergon_framework.core.rollup import Hour
from ergon_framework.ports.providerstore import (
    AttemptRow,
    LaneHealth,
    LaneKey,
    Standing,
)
from ergon_framework.providers.stores.folding import LaneNote, first_minute, fold

_FRESH = Standing()


@dataclass(slots=True, eq=False)
class MemoryLane:
    """Gates, quota and health of one lane."""

    standing: Standing = _FRESH
    account: Account | None = None
    counted_at: float = 0.0
    updated_at: float | None = None
    """None until somebody wrote more than its quota."""
    hour: Hour = field(default_factory=Hour)
    last_success_at: float | None = None
    last_error_at: float | None = None
    last_error_code: str | None = None

    def is_known(self, now: float) -> bool:
        """Whether a summary shows it."""
        return self.updated_at is not None or self._running(now) is not None

    def is_idle(self, now: float) -> bool:
        """Whether calls would be let in just so if it were forgotten: only its past would be."""
        standing = self.standing
        breaker = standing.breaker
        is_closed = breaker.state is State.CLOSED and not breaker.failures
        return is_closed and standing.cooldown_until <= now and self._running(now) is None

    def note(self, note: LaneNote, now: float) -> None:
        """Take in what a batch says. A success does not erase the last error, nor the reverse."""
        self.updated_at = now
        for minute, rollup in note.minutes.items():
            self.hour.add(minute, rollup)
        self.hour.forget(first_minute(now))
        if note.last_success_at is not None:
            known = self.last_success_at
            self.last_success_at = max(note.last_success_at, known or note.last_success_at)
        if note.last_error_at is not None:
            self.note_error(note.last_error_code, note.last_error_at)

    def note_error(self, reason_code: str | None, at: float) -> None:
        """Take in a failure, unless a later one is known."""
        if self.last_error_at is None or at >= self.last_error_at:
            self.last_error_at, self.last_error_code = at, reason_code

    def health(self, key: LaneKey, now: float) -> LaneHealth:
        """The lane as a summary shows it."""
        hour = self.hour
        hour.forget(first_minute(now))
        breaker = self.standing.breaker
        return LaneHealth(
            key=key,
            breaker_state=breaker.state.value,
            consecutive_failures=breaker.failures,
            open_until=breaker.open_until,
            cooldown_until=self.standing.cooldown_until or None,
            success_rate_1h=hour.success_rate,
            p95_latency_ms_1h=hour.p95,
            last_error_code=self.last_error_code,
            last_error_at=self.last_error_at,
            last_success_at=self.last_success_at,
            updated_at=self.counted_at if self.updated_at is None else self.updated_at,
            account=self._running(now),
        )

    def _running(self, now: float) -> Account | None:
        account = self.account
        return account if account is not None and now < account.window.end else None


class Attempts:
    """The latest attempts; the oldest makes room for the newest."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._rows: deque[AttemptRow] = deque()
        self._ids: set[str] = set()

    def add(
        self, rows: Iterable[AttemptRow], lanes: MutableMapping[LaneKey, MemoryLane], now: float
    ) -> None:
        """Keep those that are new, and let their lanes know."""
        fresh = []
        for row in rows:
            if row.id not in self._ids:
                self._ids.add(row.id)
                fresh.append(row)
        self._rows.extend(fresh)
        while len(self._rows) > self._most:
            self._ids.discard(self._rows.popleft().id)
        for key, note in fold(fresh).items():
            lanes.setdefault(key, MemoryLane()).note(note, now)

    def of(self, correlation_id: str) -> list[AttemptRow]:
        """The attempts under one correlation id, oldest first."""
        found = [row for row in self._rows if row.correlation_id == correlation_id]
        return sorted(found, key=lambda row: (row.created_at, row.attempt_number, row.id))

    def prune(self, before: float, limit: int) -> int:
        """Drop so many of those that are older."""
        kept: deque[AttemptRow] = deque()
        count = 0
        for row in self._rows:
            if count < limit and row.created_at < before:
                self._ids.discard(row.id)
                count += 1
            else:
                kept.append(row)
        self._rows = kept
        return count


def prune_rollups(lanes: Iterable[MemoryLane], before: float, limit: int) -> int:
    """Drop so many minutes that are older."""
    count = 0
    for lane in lanes:
        count += lane.hour.forget(before, limit - count)
    return count
