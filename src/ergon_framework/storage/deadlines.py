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

MIN_TIMEOUT = 0.5
"""Seconds that a store has in any case: a call whose time is over still says how it ended."""


class TimeBudget:
    """How much time the current caller has left. Budgets are independent of each other."""

    def __init__(self, name: str) -> None:
        self._until: ContextVar[float | None] = ContextVar(name, default=None)

    def run_within(self, seconds: float | None, work: Callable[[], T]) -> T:
        """Do ``work`` with at most this many seconds; None sets no limit."""
        if seconds is None:
            return work()
        until, around = monotonic() + seconds, self._until.get()
        # The nearer end counts: work inside of a budget must not give itself more than the caller
        # has.
        token = self._until.set(until if around is None else min(until, around))
        try:
            return work()
        finally:
            self._until.reset(token)

    def run_unlimited(self, work: Callable[[], T]) -> T:
        """Do ``work`` without a limit: what must be written waits, however little time is left."""
        token = self._until.set(None)
        try:
            return work()
        finally:
            self._until.reset(token)

    def at_most(self, seconds: float) -> float:
        """``seconds``, or what is left of the budget where that is less."""
        until = self._until.get()
        # Never zero: a store that is given no time at all could not even say that it has none.
        return seconds if until is None else min(seconds, max(MIN_TIMEOUT, until - monotonic()))

    def is_less_than(self, seconds: float) -> bool:
        """Whether less than ``seconds`` is left."""
        return self.at_most(seconds) < seconds

    @property
    def is_over(self) -> bool:
        """Whether no time is left."""
        until = self._until.get()
        return until is not None and monotonic() >= until


CALL_BUDGET = TimeBudget("ergon_call_budget")
"""The budget of a call to a server; the connections to it obey this one.

Do not limit a write by it unless its outcome does not matter: a write cut off may have happened.
"""


PROVIDER_BUDGET = TimeBudget("ergon_provider_budget")
"""What is left of a provider call's timeout budget; the stores of provider calls obey this one.

It is apart from ``CALL_BUDGET``: the provider's own code may use other stores during the call.
"""


_CHECK_INTERVAL = 0.25  # seconds between two looks
_MAX_IDLE_CHECKS = 40  # without anything to watch, before the thread ends


class HasSocket(Protocol):
    """The part of a connection that the watchdog uses."""

    def fileno(self) -> int:
        """The descriptor of its socket."""


class Watched:
    """A block that may take this long; then the watchdog shuts the connection it uses."""

    __slots__ = ("_watchdog", "connection", "is_over", "seconds", "until")

    def __init__(self, watchdog: SocketWatchdog, seconds: float, connection: HasSocket) -> None:
        self._watchdog = watchdog
        self.seconds = seconds
        self.connection = connection
        self.until = 0.0
        self.is_over = False
        """Whether the connection was shut."""

    def __enter__(self) -> None:
        self.until = self._watchdog.ticks() + self.seconds
        self._watchdog.add(self)

    def __exit__(self, *_: object) -> None:
        self._watchdog.remove(self)


class SocketWatchdog:
    """Shuts sockets on which callers have waited too long. Any thread may be watched.

    A frozen server keeps its connections open, and the drivers would wait for it for ever.
    """

    def __init__(self, ticks: Callable[[], float] = time.monotonic) -> None:
        self.ticks = ticks
        self.renew()

    def renew(self) -> None:
        """Forget all sockets: at first, and in a forked child."""
        self._lock = threading.Lock()
        self._watched: set[Watched] = set()
        self._is_watched = False

    def at_most(self, seconds: float, connection: HasSocket) -> Watched:
        """A block on this connection that may take so long, or as long as the call's budget."""
        return Watched(self, CALL_BUDGET.at_most(seconds), connection)

    def add(self, watched: Watched) -> None:
        """Begin to watch a block."""
        with self._lock:
            self._watched.add(watched)
            if not self._is_watched:
                # Started with the first block, not with the program: most processes never use a
                # server.
                self._is_watched = self._start()

    def remove(self, watched: Watched) -> None:
        """Stop watching a block that has ended.

        The lock makes sure that a connection which others use next is not shut.
        """
        with self._lock:
            self._watched.discard(watched)

    def _start(self) -> bool:
        try:
            threading.Thread(target=self._watch, name="ergon-socket-watchdog", daemon=True).start()
        except RuntimeError:  # too many threads, or the process ends: the next block tries again
            return False
        return True

    def _watch(self) -> None:
        idle = 0
        while True:
            # Looked at four times a second for all sockets together. A timer per block would cost a
            # thread for each statement.
            sleep_until(
                SYSTEM_CLOCK, SYSTEM_CLOCK.now() + _CHECK_INTERVAL
            )  # a socket knows no other time
            with self._lock:
                idle = 0 if self._watched else idle + 1
                if idle >= _MAX_IDLE_CHECKS:
                    self._is_watched = False
                    return
                now = self.ticks()
                for watched in self._watched:
                    if now >= watched.until and not watched.is_over:
                        # Marked before it is shut: the thread that gets the error asks right away
                        # whether the watchdog was the cause.
                        watched.is_over = True
                        _shut(watched.connection)


def _shut(connection: HasSocket) -> None:
    """Shut down both directions of the socket. Its owner sees the end and closes the descriptor."""
    with suppress(Exception):  # it ended by itself a moment ago
        # By the descriptor, past the driver: its objects are in use by the thread that is stuck.
        one = socket.socket(fileno=connection.fileno())
        try:
            one.shutdown(socket.SHUT_RDWR)
        finally:
            # The descriptor is not ours to close: closed here, its number could belong to another
            # file when the owner closes it.
            one.detach()
