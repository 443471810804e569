"""When a file may be read: when it has been left alone for a while, or a marker says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from ergon_framework.connector.files.folder import FoundFile
from ergon_framework.engine.clocks import current_clock


class Look(Protocol):
    """Where files are looked at."""

    def look(self, name: str) -> FoundFile | None:
        """A file as it is now."""


@dataclass(slots=True)
class Readiness:
    """Whether the writer of a file is done with it."""

    settle: float
    """Seconds for which it was not changed."""
    marker: str | None
    """What the name of a file ends in that says so; then the time does not matter."""
    follow: bool
    """Rows are read as they are written."""
    now: Callable[[], float]
    _seen: dict[str, tuple[str, float]] = field(default_factory=dict)

    def may_begin(self, found: FoundFile, place: Look, *, has_end: bool) -> bool:
        """Whether its rows may be read; one that ``has_end`` is read when all of it is there."""
        return (self.follow and not has_end) or self.is_steady(found, place)

    def is_steady(self, found: FoundFile, place: Look) -> bool:
        """Whether its last row may be read, although its line does not end."""
        if self.marker is not None:
            return place.look(found.name + self.marker) is not None
        if self.now() - found.modified >= self.settle:
            self._seen.pop(found.name, None)
            return True
        # The clock of who wrote it may be ahead of ours: then what we have seen counts.
        stamp, since = self._seen.get(found.name, ("", 0.0))
        if stamp != found.stamp:
            self._seen[found.name] = (found.stamp, current_clock().now())
            return self.settle <= 0
        return current_clock().now() - since >= self.settle

    def forget_missing(self, names: set[str]) -> None:
        """Drop what is known about files that are gone."""
        for name in self._seen.keys() - names:
            del self._seen[name]
