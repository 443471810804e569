"""Budgets of calls per window: the policy, and how a lane takes from a store.

``core/quota.py`` has the arithmetic, stores on SQL have the same in ``stores/sql/quota.sql``, and
``core/provider_call.py`` ends a call whose lane was granted nothing, and so does
``pipeline/fast_path.py``.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Literal, Self
from zoneinfo import ZoneInfo

import msgspec

from ergon_framework.core.option_values import is_number
from ergon_framework.core.quota import (
    MAX_UNITS,
    QuotaUsage,
    QuotaWindow,
    block_of,
    latest_start,
    read_quota,
    window_at,
)
from ergon_framework.errors import ConfigurationError, StoreError
from ergon_framework.ports.providerstore import GrantsAhead, LaneKey, ProviderStore
from ergon_framework.providers.telemetry import emit
from ergon_framework.providers.validation import check_count

REFUSAL_TTL = 1.0
"""Seconds for which a refusal is cached: another process may give units back."""


MIN_WINDOW = 0.001
"""Seconds: much less than this, and an instant of today has no window of its own."""


FARTHEST_ANCHOR = 253_402_300_800.0
"""The end of the year 9999. Farther away, a float is not exact to the second."""


@dataclass(frozen=True, slots=True)
class QuotaPolicy:
    """At most ``limit`` units per window.

    A window is so many seconds, counted from ``anchor`` (seconds since 1970), or a calendar
    ``period`` in the time zone ``tz``. ``block`` above 1 lets a process take several units at once
    for a hot lane, fewer and fewer towards the limit; what it does not use it gives back.
    """

    limit: int
    window_seconds: float = 3600
    period: Literal["day", "month"] | None = None
    tz: str = "UTC"
    anchor: float = 0.0
    block: int = 1

    def __post_init__(self) -> None:
        for name in ("limit", "block"):
            check_count(name, getattr(self, name), least=1)
        if self.limit > MAX_UNITS:
            raise ConfigurationError(f"limit must be at most {MAX_UNITS}, not {self.limit!r}")
        if not is_number(self.window_seconds) or self.window_seconds < MIN_WINDOW:
            raise ConfigurationError(
                f"window_seconds must be {MIN_WINDOW} or more, not {self.window_seconds!r}"
            )
        if not is_number(self.anchor) or abs(self.anchor) > FARTHEST_ANCHOR:
            raise ConfigurationError(
                f"anchor must be an instant in seconds since 1970, not {self.anchor!r}",
                remedy="leave it out, or give the instant at which one window began",
            )
        if self.period not in (None, "day", "month"):
            raise ConfigurationError(
                f"period must be 'day' or 'month', not {self.period!r}",
                remedy="leave it out and give window_seconds for any other length",
            )
        if self.period is not None:
            self._zone()

    @classmethod
    def parse(cls, text: str, *, tz: str = "UTC") -> Self:
        """Read ``1000/day``, ``5/s``, ``100/min`` or ``300/15min``.

        A day and a month are those of the calendar in ``tz``. Several days are so many times
        86,400 seconds.
        """
        limit, seconds, period = read_quota(text)
        return cls(limit, seconds) if period is None else cls(limit, period=period, tz=tz)

    def window(self, now: float) -> QuotaWindow:
        """The window that ``now`` lies in."""
        if self.period is None:
            return window_at(now, self.window_seconds, self.anchor)
        zone = self._zone()
        here = datetime.fromtimestamp(now, zone).date()
        first = here.replace(day=1) if self.period == "month" else here
        # 32 days after the first of a month always lie in the next one.
        after = first + timedelta(days=32 if self.period == "month" else 1)
        last = after.replace(day=1) if self.period == "month" else after
        return QuotaWindow(_midnight(first, zone), _midnight(last, zone))

    def _zone(self) -> ZoneInfo:
        try:
            return ZoneInfo(self.tz)
        except (KeyError, ValueError, OSError, TypeError) as error:
            raise ConfigurationError(
                f"there is no time zone {self.tz!r}", remedy="name one such as Europe/Athens"
            ) from error


def _midnight(day: date, zone: ZoneInfo) -> float:
    return datetime(day.year, day.month, day.day, tzinfo=zone).timestamp()


class Reservation(msgspec.Struct):
    """Units that were taken, and the window they belong to. It is given back once or never."""

    window: QuotaWindow
    units: int
    account: QuotaUsage
    is_open: bool = True


class _Block(msgspec.Struct):
    """Units that this process has taken ahead and not used yet; changed under the lock alone."""

    window: QuotaWindow
    left: int
    account: QuotaUsage
    """The budget as it was seen when they were taken."""


class QuotaLimiter:
    """Takes units of one lane from the store. Any thread may ask."""

    def __init__(self, store: ProviderStore, key: LaneKey, policy: QuotaPolicy) -> None:
        self.key = key
        self.policy = policy
        self._store = store
        self._lock = threading.Lock()
        self._refused: QuotaUsage | None = None
        self._believed_until = float("-inf")
        self._window: QuotaWindow | None = None
        self._limit = policy.limit
        self._grants_ahead = (
            store.units_ahead if isinstance(store, GrantsAhead) and store.grants_ahead else None
        )
        self._ahead_of: tuple[QuotaWindow | None, list[QuotaUsage]] = (None, [])
        """Units that a store in memory has granted ahead, and their window."""
        self._takes_blocks = policy.block > 1
        self._block: _Block | None = None
        self._seen: QuotaUsage | None = None

    def renew(self) -> None:
        """After a fork, in the child: the units that were taken ahead are the parent's."""
        self._lock = threading.Lock()
        self._block = None

    @property
    def account(self) -> QuotaUsage | None:
        """The budget as last seen."""
        return self._seen

    @property
    def refused(self) -> QuotaUsage | None:
        """The budget that the last refusal was about.

        An answer that the store gave before may have come since, to another thread.
        """
        return self._refused or self._seen

    @property
    def block_remaining(self) -> int:
        """Units that this process has taken ahead and not used yet."""
        block = self._block
        return 0 if block is None else block.left

    def retry_after(self, now: float | None = None) -> float:
        """Seconds until the window ends, ours or the store's if that is ahead."""
        seen = self._seen
        if now is None:
            now = self._store.now()
        end = self._window_at(now).end
        return max(0.0, end - now, 0.0 if seen is None else seen.window.end - now)

    def reserve(self, units: int = 1, now: float | None = None) -> Reservation | None:
        """Take units, or None when the window has not so many left.

        ``now`` is an instant by the clock of the store, for a caller that has just read it.
        """
        window = self._window
        if now is None:
            now = self._store.now()
        if window is None or not window[0] <= now < window[1]:
            window = self._window_at(now)
        if self._takes_blocks:
            taken = self._from_block(window, units, now)
            if taken is not None:
                return taken
            is_hopeless = self._is_beyond_window(window, units, now)
            return None if is_hopeless else self._ahead(window, units, now)
        if units == 1:
            whose, ahead = self._ahead_of
            if ahead and whose is window:
                try:
                    self._seen = account = ahead.pop()
                except IndexError:  # another thread has had the last one
                    pass
                else:
                    return Reservation(window, 1, account)
        if self._refused is not None and self._is_beyond_window(window, units, now):
            return None
        account, is_granted = self._store.reserve(self.key, window, self._limit, units)
        self._seen = account
        if is_granted:
            if self._grants_ahead is not None and account.window == window:
                ahead = self._grants_ahead(self.key, window, self._limit)
                self._ahead_of = (window, ahead)
            return Reservation(account.window, units, account)
        self._note_refusal(account, now)
        return None

    def refund(self, reservation: Reservation) -> None:
        """Return the units to the window they came from, once."""
        with self._lock:
            # Marked before the store is asked: if its answer is lost, the units may have been given
            # back, and must not be given back twice.
            if not reservation.is_open:
                return
            reservation.is_open = False
        self._store.refund(self.key, reservation.window, reservation.units)
        # What was refused may be granted now.
        self._believed_until = float("-inf")

    def give_back_block(self) -> None:
        """Return what this process took ahead and did not use; lost when the store is away."""
        with self._lock:
            block, self._block = self._block, None
        if block is not None and block.left:
            with suppress(StoreError):
                self._store.refund(self.key, block.window, block.left)

    def _window_at(self, now: float) -> QuotaWindow:
        window = self._window
        if window is not None and window.start <= now < window.end:
            return window
        fresh = self.policy.window(now)
        if window is None or fresh.start > window.start or window.start > latest_start(fresh, now):
            self._window = window = fresh
        return window  # a clock that was set back does not open an old window again

    def _from_block(self, window: QuotaWindow, units: int, now: float) -> Reservation | None:
        with self._lock:
            block = self._block
            if block is None:
                return None
            held = block.window
            # One of a newer window counts, as it does in the store: another thread took it, which
            # read the clock later than this one, or another process has opened that window.
            if held != window and not window.start <= held.start <= latest_start(window, now):
                self._block = None  # what was left belonged to an old window
                return None
            if units > block.left:
                return None
            block.left -= units
        return Reservation(held, units, self._seen or block.account)

    def _ahead(self, window: QuotaWindow, units: int, now: float) -> Reservation | None:
        """Reserve a whole block, or only the units needed if the window has no whole block left."""
        ahead, seen = units, self._seen
        if seen is not None and seen.window == window:
            ahead = block_of(seen.remaining, units, self.policy.block)
        taken = self._take(window, ahead, now)
        if taken is None and ahead > units:
            taken = self._take(window, units, now)
        if taken is None:
            return None
        if taken.units > units:
            self._keep_block(_Block(taken.window, taken.units - units, taken.account))
            taken.units = units
        return taken

    def _take(self, window: QuotaWindow, units: int, now: float) -> Reservation | None:
        account, is_granted = self._store.reserve(self.key, window, self._limit, units)
        self._seen = account
        if is_granted:
            return Reservation(account.window, units, account)
        self._note_refusal(account, now)
        return None

    def _note_refusal(self, account: QuotaUsage, now: float) -> None:
        known, self._refused, self._believed_until = self._refused, account, now + REFUSAL_TTL
        # Once for each window, however many calls are refused in it.
        if not account.remaining and (known is None or known.window != account.window):
            left = max(0.0, account.window.end - now)
            emit("quota.exhausted", key=self.key, limit=account.limit, seconds=left)

    def _keep_block(self, block: _Block) -> None:
        with self._lock:
            spare, self._block = self._block, block
            if spare is not None and spare.window.start > block.window.start:
                spare, self._block = block, spare  # the answer about an older window came late
        if spare is not None and spare.left:
            with suppress(StoreError):  # the units in hand are worth more than the spare ones
                self._store.refund(self.key, spare.window, spare.left)

    def _is_beyond_window(self, window: QuotaWindow, units: int, now: float) -> bool:
        """Whether the store need not be asked."""
        refused = self._refused
        return units > self.policy.limit or (
            refused is not None
            # The second bound is for a clock that was set back: a refusal must not be believed for
            # an hour.
            and now < self._believed_until <= now + REFUSAL_TTL
            and refused.window.start >= window.start
            and refused.limit == self.policy.limit
            and units > refused.remaining
        )
