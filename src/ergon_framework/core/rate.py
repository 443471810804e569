"""The one formula for "so many per second, and so many at once after a rest".

A token bucket, kept as a single number: the instant at which it will be full again. Nothing here
reads a clock; whoever keeps the bucket says what time it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Bucket:
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

    def take(self, count: int, now: float) -> Bucket:
        """The bucket after so many went."""
        return replace(self, full_at=now + max(0.0, self._until_full(now)) + count / self.rate)

    def next_at(self, now: float) -> float:
        """The instant from which at least one may go, which may have passed."""
        return now + self._until_full(now) - (self.burst - 1) / self.rate

    def changed(self, rate: float, burst: int, now: float) -> Bucket:
        """Other limits from now on; the tokens that are missing are missing still."""
        missing = min(max(0.0, self._until_full(now)) * self.rate, burst)
        return Bucket(rate, burst, now + missing / rate)

    def _until_full(self, now: float) -> float:
        # A clock that was set back must not make anybody wait longer than an empty bucket would.
        return min(self.full_at - now, self.burst / self.rate)
