"""Items that were read and are not handed out: ready ones, in order, and parked ones."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Iterable

from ergon_framework.connector.http.reading import HeldItem


class WaitingItems:
    """Any thread may call any method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ready: list[tuple[int, HeldItem]] = []
        self._later: list[tuple[float, int, HeldItem]] = []

    @property
    def is_ready(self) -> bool:
        """Whether an item can be handed out."""
        return bool(self._ready)

    @property
    def next_at(self) -> float | None:
        """When the next parked item is due."""
        with self._lock:
            return self._later[0][0] if self._later else None

    def put(self, items: Iterable[HeldItem]) -> None:
        """Add items that can be handed out."""
        with self._lock:
            for each in items:
                heapq.heappush(self._ready, (each.place, each))

    def put_for_later(self, item: HeldItem, at: float) -> None:
        """Park an item until an instant."""
        with self._lock:
            heapq.heappush(self._later, (at, item.place, item))

    def take_due(self, now: float) -> list[HeldItem]:
        """Take the parked items that are due."""
        found: list[HeldItem] = []
        with self._lock:
            while self._later and self._later[0][0] <= now:
                found.append(heapq.heappop(self._later)[-1])
        return found

    def take(self) -> HeldItem | None:
        """Take the first item that can be handed out."""
        with self._lock:
            return heapq.heappop(self._ready)[-1] if self._ready else None

    def clear(self) -> list[HeldItem]:
        """Forget all items. Returns the parked ones."""
        with self._lock:
            later = [each[-1] for each in self._later]
            self._ready.clear()
            self._later.clear()
        return later
