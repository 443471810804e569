"""How code on an event loop does what waits on a disk."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class InThread(Protocol):
    """Runs something in a thread and answers with what it returned."""

    def __call__(self, work: Callable[[], T]) -> Awaitable[T]:
        """Run it."""
