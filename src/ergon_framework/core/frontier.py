"""The frontier of a log as one reader sees it: up to where everything has safely arrived.

A reader sees a view of a log, so the offsets it is given may have holes; each fact therefore names
the one before it in that view. What does not join on is not taken: the frontier stops there, and
the reader asks again from the frontier.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Frontier:
    """Everything of the view at or below ``offset`` is safe."""

    offset: int = 0

    def joins(self, previous: int, offset: int) -> bool:
        """Whether nothing of the view is missing between here and the fact at ``offset``."""
        return previous <= self.offset < offset

    def passed(self, offset: int) -> Frontier:
        """The frontier when everything up to ``offset`` is safe; it never goes back."""
        return Frontier(max(self.offset, offset))


class Reached(Protocol):
    """How far a peer's log was pulled, and in which epoch of the peer's store."""

    @property
    def epoch(self) -> str | None:
        """None before the first page."""

    @property
    def offset(self) -> int:
        """Of the frontier."""


def leads_to(kept: Reached, later: Reached) -> bool:
    """Whether a page may move a link there: forward, and to no epoch but its own.

    Another node of the zone may have been faster, or an operator accepted another epoch.
    """
    return kept.epoch in (None, later.epoch) and kept.offset <= later.offset


def contiguous(frontier: Frontier, steps: Iterable[tuple[int, int]]) -> tuple[Frontier, int]:
    """Take (previous, offset) pairs while they join on; the frontier then, and how many did."""
    taken = 0
    for previous, offset in steps:
        if not frontier.joins(previous, offset):
            break
        frontier = frontier.passed(offset)
        taken += 1
    return frontier, taken
