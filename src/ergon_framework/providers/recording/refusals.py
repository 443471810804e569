"""Which refused calls get a row of their own: an open circuit must not write thousands a second."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ergon_framework.ports.providerstore import AttemptRow

_MOST_LANES = 10_000

_Second = list[int]
"""Of a lane: the second, refusals in it, rows allowed in it. A list: refusing must be cheap."""


class RefusalGate:
    """Counts every refusal, and lets some of them have a row. Any thread may call any method.

    A lane may have ``rate`` rows within a second. One that wanted more goes on with a single row
    in each second, until it wants no more than ``rate`` again.
    """

    def __init__(self, rate: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._clock = clock
        self.renew()

    def renew(self) -> None:
        """Begin with nothing: at first, and in a forked child."""
        self._lock = threading.RLock()  # counting may be interrupted by a finalizer that calls
        self.totals: dict[str, int] = {}
        """Every refusal so far, by reason."""
        self._rows = 0
        self._lanes: dict[tuple[str, str, str], _Second] = {}

    @property
    def coalesced(self) -> int:
        """Refusals that have no row."""
        with self._lock:
            return sum(self.totals.values()) - self._rows

    def admits(self, row: AttemptRow) -> bool:
        """Count a refused call; whether its row is to be written."""
        with self._lock:
            if self.skips_row(row):
                return False
            self._lanes[row.tenant_id, row.provider_name, row.capability][1] += 1
            reason = row.reason_code or ""
            self.totals[reason] = self.totals.get(reason, 0) + 1
            self._rows += 1
            return True

    def skips(self, key: tuple[str, str, str], reason_code: str) -> bool:
        """Whether a row would be left out now; if so the refusal is counted, and needs none."""
        now = int(self._clock())
        with self._lock:
            lane = self._lanes.get(key)
            if lane is None or lane[0] != now:
                lane = self._begin(key, lane, now)
            if lane[1] < lane[2]:
                return False
            lane[1] += 1
            self.totals[reason_code] = self.totals.get(reason_code, 0) + 1
            return True

    def skips_row(self, row: AttemptRow) -> bool:
        """The same for a row that is built already."""
        return self.skips((row.tenant_id, row.provider_name, row.capability), row.reason_code or "")

    def _begin(self, key: tuple[str, str, str], lane: _Second | None, now: int) -> _Second:
        if lane is None and len(self._lanes) >= _MOST_LANES:
            self._lanes.clear()  # what they say is worth nothing a second later
        was_flooded = lane is not None and lane[0] == now - 1 and lane[1] > self._rate
        begun = self._lanes[key] = [now, 0, 1 if was_flooded else self._rate]
        return begun
