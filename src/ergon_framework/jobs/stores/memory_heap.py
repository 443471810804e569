"""A priority queue whose members can be taken out again, wherever they stand."""

from __future__ import annotations

import heapq
from typing import TypeAlias

Order: TypeAlias = tuple[float, ...]
_SLACK = 64  # entries of members that have left, before tidying up is worth its while


class Heap:
    """Keys in order. What left stays behind as a dead entry until enough of them have gathered."""

    __slots__ = ("_entries", "_orders")

    def __init__(self) -> None:
        self._entries: list[tuple[Order, int]] = []
        self._orders: dict[int, Order] = {}

    def __len__(self) -> int:
        return len(self._orders)

    def push(self, key: int, order: Order) -> None:
        """Let a key stand there; if it stood elsewhere, it does no more."""
        self._orders[key] = order
        heapq.heappush(self._entries, (order, key))
        self._tidy()

    def discard(self, key: int) -> None:
        """Take a key out, if it is in."""
        if self._orders.pop(key, None) is not None:
            self._tidy()

    def first(self) -> tuple[Order, int] | None:
        """The first key with its order."""
        entries = self._entries
        while entries and self._orders.get(entries[0][1]) != entries[0][0]:
            heapq.heappop(entries)
        return entries[0] if entries else None

    def pop(self) -> int:
        """Take out the first key; there must be one."""
        first = self.first()
        if first is None:
            raise IndexError("the heap is empty")
        del self._orders[first[1]]
        return first[1]

    def _tidy(self) -> None:
        if len(self._entries) > 2 * len(self._orders) + _SLACK:
            self._entries = [(order, key) for key, order in self._orders.items()]
            heapq.heapify(self._entries)
