"""Writing again what a store has lost, in slices: thousands of limits outlast a lease, too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ergon_framework.jobs.timetable import Slice


class Restoring:
    """The limits of a worker's settings. What was written stays so, whatever comes in between."""

    def __init__(self, limits: Callable[[], Iterable[str]], new_slice: Callable[[], Slice]) -> None:
        """``limits`` writes what is not there, one for each name that is taken from it."""
        self.is_under_way = False  # the next turn goes on with it
        self.lost: list[str] = []
        """What had to be written."""
        self._limits = limits
        self._new_slice = new_slice
        self._left: Iterator[str] | None = None

    def begin(self) -> None:
        """The store may have lost everything, also what was written a moment ago."""
        self.is_under_way, self._left = True, None

    def turn(self) -> bool:
        """One slice; whether that was the last."""
        left, self._left = self._left, None  # after an error it is looked anew what is missing
        self.is_under_way = False  # … and it is tried again, but nobody waits for that
        left = iter(self._limits()) if left is None else left
        piece = self._new_slice()
        while piece():
            name = next(left, None)
            if name is None:
                return True
            self.lost.append(name)
        self._left, self.is_under_way = left, True
        return False

    def end(self) -> list[str]:
        """All that was lost, once."""
        lost, self.lost = self.lost, []
        return lost
