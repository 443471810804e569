"""How long somebody may still wait for a store: the store asks, and they need not tell it.

A store has patience of its own, for callers with all the time in the world. One who has less time
has what is left of it, on whichever thread the work is done. A new thread has all the time.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from time import monotonic
from typing import TypeVar

T = TypeVar("T")

LEAST = 0.5
"""Seconds that a store has in any case: a call whose time is over still says how it ended."""


class Hurry:
    """The end of somebody's time. Who heeds one knows nothing of another."""

    def __init__(self, name: str) -> None:
        self._until: ContextVar[float | None] = ContextVar(name, default=None)

    def hurried(self, seconds: float | None, work: Callable[[], T]) -> T:
        """Do ``work``, for which so many seconds are left; None when it has no end."""
        if seconds is None:
            return work()
        until, around = monotonic() + seconds, self._until.get()
        token = self._until.set(until if around is None else min(until, around))
        try:
            return work()
        finally:
            self._until.reset(token)

    def unhurried(self, work: Callable[[], T]) -> T:
        """Do ``work`` as for anybody: what must be written waits, whatever time is left."""
        token = self._until.set(None)
        try:
            return work()
        finally:
            self._until.reset(token)

    def at_most(self, seconds: float) -> float:
        """As long as a store would wait for anybody, or less for one who has less."""
        until = self._until.get()
        return seconds if until is None else min(seconds, max(LEAST, until - monotonic()))

    def is_short(self, seconds: float) -> bool:
        """Whether there is less time than that."""
        return self.at_most(seconds) < seconds

    @property
    def is_over(self) -> bool:
        """Whether there is no time left at all."""
        until = self._until.get()
        return until is not None and monotonic() >= until


ASKING = Hurry("ergon_asking")
"""Of those who ask a server: the connections to it heed this one.

Ask a server to write something in a hurry only where nobody minds whether it did.
"""
