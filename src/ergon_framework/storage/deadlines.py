"""How long a caller may wait for a store, and a watchdog for sockets of a frozen server.

A store has a default limit. A caller with less time sets a time budget in a context variable, and
the store asks for what is left of it, on whichever thread the work runs.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from time import monotonic
from typing import Protocol, TypeVar

from ergon_framework.engine.clocks import SYSTEM_CLOCK, sleep_until

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


_LOOK = 0.25  # seconds between two looks
_IDLE_LOOKS = 40  # without anything to look after, before the thread ends


class Line(Protocol):
    """What there is of a connection here."""

    def fileno(self) -> int:
        """Its socket."""


class Wait:
    """What is done within it may take so long; then its connection is shut."""

    __slots__ = ("_patience", "is_over", "line", "seconds", "until")

    def __init__(self, patience: Patience, seconds: float, line: Line) -> None:
        self._patience = patience
        self.seconds = seconds
        self.line = line
        self.until = 0.0
        self.is_over = False
        """Whether it came to that."""

    def __enter__(self) -> None:
        self.until = self._patience.ticks() + self.seconds
        self._patience.add(self)

    def __exit__(self, *_: object) -> None:
        self._patience.remove(self)


class Patience:
    """Whoever waits for one server. Any thread may wait."""

    def __init__(self, ticks: Callable[[], float] = time.monotonic) -> None:
        self.ticks = ticks
        self.renew()

    def renew(self) -> None:
        """Begin anew: at first, and in a forked child."""
        self._lock = threading.Lock()
        self._waits: set[Wait] = set()
        self._is_watched = False

    def at_most(self, seconds: float, line: Line) -> Wait:
        """How long to wait for what is done on a connection; less for one who has less time."""
        return Wait(self, ASKING.at_most(seconds), line)

    def add(self, wait: Wait) -> None:
        """Look after somebody who begins to wait."""
        with self._lock:
            self._waits.add(wait)
            if not self._is_watched:
                self._is_watched = self._start()

    def remove(self, wait: Wait) -> None:
        """It is answered. Under the lock: a connection that others use next is not shut."""
        with self._lock:
            self._waits.discard(wait)

    def _start(self) -> bool:
        try:
            threading.Thread(target=self._watch, name="ergon-patience", daemon=True).start()
        except RuntimeError:  # there are too many, or the process ends: the next one tries again
            return False
        return True

    def _watch(self) -> None:
        idle = 0
        while True:
            sleep_until(SYSTEM_CLOCK, SYSTEM_CLOCK.now() + _LOOK)  # a socket knows no other time
            with self._lock:
                idle = 0 if self._waits else idle + 1
                if idle >= _IDLE_LOOKS:
                    self._is_watched = False
                    return
                now = self.ticks()
                for wait in self._waits:
                    if now >= wait.until and not wait.is_over:
                        wait.is_over = True
                        _shut(wait.line)


def _shut(line: Line) -> None:
    """End both directions. The descriptor stays with its owner, who sees the end and closes it."""
    with suppress(Exception):  # it ended by itself a moment ago
        one = socket.socket(fileno=line.fileno())
        try:
            one.shutdown(socket.SHUT_RDWR)
        finally:
            one.detach()
