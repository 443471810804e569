"""The first names of objects in some order, out of a stream that has them in another.

A stream gives its messages in the order in which they were written, and an older message of a name
comes before the newer one that replaces it. All of them are read in passing; only so many are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from ergon_framework.boundary.logs.nats.books import GONE
from ergon_framework.boundary.logs.nats.coding import Name, decode
from ergon_framework.storage.nats import Stored

KEPT = 5_000
"""Names in memory at once, or as many as are asked for; twice as many for a moment."""

Place: TypeAlias = tuple[Any, ...]
"""Where a name is in the order; no two are at the same."""
Order: TypeAlias = Callable[[Name], Place | None]
"""Says where a name is; None when it does not belong into the order at all."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of the order, without any gap."""

    names: list[Name]
    is_last: bool
    """Whether nothing comes after it."""


def stretch(
    read: Callable[[], Iterable[Stored]], order: Order, after: Place, limit: int
) -> Stretch:
    """At least so many names after a place, if there are so many.

    ``read`` goes through all messages of the names, in the order of the stream: once, unless very
    many names are taken away meanwhile.
    """
    names: list[Name] = []
    start, is_after = after, True
    while True:
        sieve = _Sieve(order, start, is_after=is_after, most=max(limit, KEPT))
        for message in read():
            sieve.take(message)
        names += sieve.names()
        if sieve.end is None or len(names) >= limit:
            return Stretch(names, sieve.end is None)
        start, is_after = sieve.end, False


class _Sieve:
    """Keeps the first names in an order, of those that came by so far."""

    def __init__(self, order: Order, start: Place, *, is_after: bool, most: int) -> None:
        self._order = order
        self._start = start
        self._is_after = is_after
        self._most = most
        self._kept: dict[str, tuple[Place, Name]] = {}
        self.end: Place | None = None
        """From here on some were left out; None while none was."""

    def take(self, message: Stored) -> None:
        """One message of a name; what an earlier one said of it counts no more."""
        self._kept.pop(message.subject, None)
        if message.data == GONE:
            return
        name = decode(Name, message.data)
        place = self._order(name)
        if place is not None and self._is_wanted(place):
            self._kept[message.subject] = place, name
            if len(self._kept) >= 2 * self._most:
                self._cut()

    def names(self) -> list[Name]:
        """Those that are left, in order."""
        self._cut()
        return [name for _, name in sorted(self._kept.values(), key=lambda kept: kept[0])]

    def _is_wanted(self, place: Place) -> bool:
        if place < self._start or (self._is_after and place == self._start):
            return False
        return self.end is None or place < self.end

    def _cut(self) -> None:
        """Leave out all but the first ones, and from now on whatever comes after them.

        Should one of the first ones be taken away later, fewer are left: a name that was left out
        might belong before one that comes by then.
        """
        if len(self._kept) > self._most:
            ordered = sorted(self._kept.items(), key=lambda item: item[1][0])
            self.end = ordered[self._most][1][0]
            self._kept = dict(ordered[: self._most])
