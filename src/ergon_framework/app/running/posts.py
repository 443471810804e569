"""The places that a supervisor fills with processes, and what became of each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ergon_framework.app.running.liveness import Snapshot

LATER = math.inf
"""The start of a process that waits for others."""


class Child(Protocol):
    """A process under supervision."""

    def send(self, number: int) -> None:
        """Give it a signal."""

    def kill(self) -> None:
        """End it and everything it started, at once."""


@dataclass(frozen=True, slots=True)
class Post:
    """One place that a process fills, and is started for again when it dies."""

    name: str
    target: str = ""
    """What the process is asked to run, when that differs from post to post."""
    number: int = 0
    of: int = 1
    """Which of how many that do the same."""
    start_rank: int = 0
    """Lower ones are started first, and are ready before the next."""
    stop_rank: int = 0
    """Lower ones are stopped first, and are over before the next."""
    is_endless: bool = False
    """Whether it only ends when it is asked to, so that any other end is a death."""


def crew(workers: int) -> list[Post]:
    """So many workers that do the same."""
    return [Post(f"worker {n}", number=n, of=workers) for n in range(workers)]


@dataclass(slots=True)
class Slot:
    """What became of one post, through all its restarts."""

    post: Post
    worker: int
    child: Child | None = None
    start_at: float | None = None
    is_ready: bool = False
    is_asked: bool = False
    """Whether the process in it was asked to stop."""
    deaths: list[float] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    snapshot: Snapshot = field(default_factory=Snapshot)
    heard_at: float = 0.0
    code: int | None = None
    outcomes: list[Mapping[str, Any]] = field(default_factory=list)
    error: Mapping[str, Any] | None = None
    """What the last process in it ended with; what one before it did has been overcome."""

    @property
    def is_over(self) -> bool:
        """Whether nothing runs here and nothing will."""
        return self.child is None and self.start_at is None


def next_to_start(slots: Sequence[Slot], *, is_late: bool) -> list[Slot]:
    """Those of the lowest rank that waits, once all before it are ready or over.

    When it is late already, they are started all the same.
    """
    waiting = [slot for slot in slots if slot.start_at == LATER]
    if not waiting:
        return []
    rank = min(slot.post.start_rank for slot in waiting)
    before = (slot for slot in slots if slot.post.start_rank < rank)
    if not is_late and not all(slot.is_ready or slot.is_over for slot in before):
        return []
    return [slot for slot in waiting if slot.post.start_rank == rank]


def next_to_stop(slots: Sequence[Slot]) -> list[Slot]:
    """Those of the lowest rank that still runs, if they were not asked yet."""
    running = [slot for slot in slots if slot.child is not None]
    rank = min((slot.post.stop_rank for slot in running), default=0)
    return [slot for slot in running if slot.post.stop_rank == rank and not slot.is_asked]
