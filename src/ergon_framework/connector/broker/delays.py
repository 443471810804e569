"""Deliveries that wait in this process until they may be handed out again.

For a broker without delays they are delivered and not settled meanwhile. When this process dies
they are not lost: the broker delivers them again.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from typing import Generic, TypeVar

D = TypeVar("D")


class DelayedDeliveries(Generic[D]):
    """Parked deliveries. Any thread may add one; the thread or task that fetches takes them out."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, D]] = []
        # Of two with the same instant the one that came first goes first, and what is delivered is
        # never compared.
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, delivery: D, until: float) -> None:
        """Park a delivery until an instant of the fetch's clock."""
        # One call in C: a fetch in another thread sees the heap before or after it.
        heapq.heappush(self._heap, (until, next(self._numbers), delivery))

    def next_due(self, until: float) -> float:
        """When the first of them is due, or ``until`` if that is earlier."""
        return min(until, self._heap[0][0]) if self._heap else until

    def take_due(self, now: float) -> Iterator[D]:
        """The deliveries that are due, the earliest first."""
        while self._heap and self._heap[0][0] <= now:
            yield heapq.heappop(self._heap)[2]
