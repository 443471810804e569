"""Decides when a file may be read: when it was unchanged for a while, or a marker says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from ergon_framework.connector.files.folder import FoundFile
from ergon_framework.engine.clocks import current_clock


class Look(Protocol):
    """Reads the state of files."""

    def look(self, name: str) -> FoundFile | None:
        """A file as it is now."""


@dataclass(slots=True)
class Readiness:
    """Whether the writer of a file has finished it."""

    settle: float
    """Seconds for which the file must be unchanged."""
    marker: str | None
    """The ending of the name of a file that marks another one as complete. With it, the time does
    not matter.
    """
    follow: bool
    """Rows are read as they are written."""
    now: Callable[[], float]
    _seen: dict[str, tuple[str, float]] = field(default_factory=dict)

    def may_begin(self, found: FoundFile, place: Look, *, has_end: bool) -> bool:
        """Whether the rows of a file may be read. A file that ``has_end`` is read when it is
        complete.
        """
        return (self.follow and not has_end) or self.is_steady(found, place)

    def is_steady(self, found: FoundFile, place: Look) -> bool:
        """Whether its last row may be read although it has no line end."""
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
        """Forget files that are gone."""
        for name in self._seen.keys() - names:
            del self._seen[name]
