"""How many messages the broker may deliver ahead of their settlement.

RabbitMQ counts messages only, for each subscription of a channel. So the connector begins with as
many as its fetches ask for, and subscribes once more when they ask for more. What lies here is also
counted in bytes: above the limit all subscriptions are cancelled, and when half of it is free again
the connector subscribes anew, for as many messages as are likely to fit.
"""

from __future__ import annotations

FIRST = 32
"""How many messages are asked for while their size is unknown."""
MAX_PREFETCH = 65_535
"""The field of AMQP has 16 bits."""


class PrefetchWindow:
    """Counts for one channel; its owner serialises the calls."""

    def __init__(self, max_count: int, max_bytes: int, prefetch: int | None) -> None:
        self._max_count = min(max_count, MAX_PREFETCH)
        self._max_bytes = max_bytes
        self._fixed = prefetch
        self._granted = 0  # what the subscriptions allow together
        self._count = 0
        self._bytes = 0
        self._average = 0.0
        self.is_paused = False

    def more(self, batch_size: int) -> int:
        """For how many more messages to subscribe before a fetch of ``batch_size``; 0: for none."""
        if self.is_paused:
            if self.is_full:
                return 0
            self.is_paused = False
        wanted = self._wanted(batch_size)
        more = max(0, wanted - max(self._granted, self._count))
        self._granted += more
        return more

    def arrived(self, size: int) -> bool:
        """Count a message that arrived. Returns whether the subscriptions must be cancelled now."""
        self._count += 1
        self._bytes += size
        self._average += (size - self._average) / min(self._count, 32)
        is_over = self._bytes > self._max_bytes
        if not is_over or self.is_paused:
            return False
        self.is_paused, self._granted = True, 0
        return True

    def settled(self, size: int) -> bool:
        """Count a message that was settled. Returns whether a fetch that waits for room should
        check again.
        """
        was_full = self.is_full
        self._count -= 1
        self._bytes -= size
        return was_full and not self.is_full

    @property
    def is_full(self) -> bool:
        """Whether nothing more can arrive before a message is settled."""
        if self.is_paused:
            return self._bytes > self._max_bytes // 2
        return 0 < self._granted <= self._count

    def _wanted(self, batch_size: int) -> int:
        """One batch more than is being worked on, in powers of two, so that it changes rarely."""
        if self._fixed is not None:
            return min(self._fixed, self._max_count)
        wanted = 1 << (self._count + 2 * batch_size - 1).bit_length()
        fits = int(self._max_bytes / self._average) if self._average else FIRST
        return max(1, min(wanted, fits, self._max_count))
