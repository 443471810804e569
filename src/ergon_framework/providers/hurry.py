"""How long a call may still wait for its store: the store asks, and the call need not tell it.

A store has patience of its own, for callers with all the time in the world. A call with a budget
has what is left of it, on whichever thread its work is done.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from time import monotonic
from typing import TypeVar

T = TypeVar("T")

LEAST = 0.5
"""Seconds that a store has in any case: a call whose time is over still says how it ended."""

_UNTIL: ContextVar[float | None] = ContextVar("ergon_hurry", default=None)


def hurried(seconds: float | None, work: Callable[[], T]) -> T:
    """Do ``work``, whose call has so many seconds left; None when it has no end."""
    if seconds is None:
        return work()
    until, around = monotonic() + seconds, _UNTIL.get()
    token = _UNTIL.set(until if around is None else min(until, around))
    try:
        return work()
    finally:
        _UNTIL.reset(token)


def unhurried(work: Callable[[], T]) -> T:
    """Do ``work`` as for anybody: what must be written waits, whatever its call has left."""
    token = _UNTIL.set(None)
    try:
        return work()
    finally:
        _UNTIL.reset(token)


def at_most(seconds: float) -> float:
    """As long as a store would wait for anybody, or less for a call that has less."""
    until = _UNTIL.get()
    return seconds if until is None else min(seconds, max(LEAST, until - monotonic()))
