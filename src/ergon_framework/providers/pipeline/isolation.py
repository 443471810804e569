"""Calls that may never return: each on a thread of its own, watched, and left behind in time."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any

from ergon_framework.ports.clock import Clock
from ergon_framework.providers.errors import ProviderDependencyError, ProviderTimeoutError


class Isolation:
    """Runs calls on daemonic threads. A call that outlasts its time is abandoned, not stopped:
    Python cannot end a thread. At most ``limit`` are left behind; then nothing new is begun.
    """

    def __init__(self, limit: int = 32) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self.abandoned = 0
        """Calls that were given up and have not come back."""

    def renew(self) -> None:
        """After a fork, in the child: no thread came along."""
        self._lock = threading.Lock()
        self.abandoned = 0

    def check(self) -> None:
        """Refuse when too many threads hang."""
        if self.abandoned >= self._limit:
            raise ProviderDependencyError(
                f"{self.abandoned} earlier calls never returned; no further one is begun",
                never_sent=True,
                remedy="give the provider's own client a timeout",
            )

    def run(self, clock: Clock, until: float, body: Callable[[], Any]) -> Any:
        """What ``body`` returns or raises, or a timeout when it takes too long."""
        self.check()
        watch = _Watch(clock, self)
        context = contextvars.copy_context()
        clock.join_time()  # before the call takes part in it, or it would pass without us
        try:
            clock.spawn("ergon-provider-call", lambda: watch.work(lambda: context.run(body)))
            return watch.wait(until)
        finally:
            clock.leave_time()

    def left(self, change: int) -> None:
        """A call was abandoned, or one of them came back."""
        with self._lock:
            self.abandoned = max(0, self.abandoned + change)


class _Watch:
    """One call and the thread that waits for it."""

    def __init__(self, clock: Clock, isolation: Isolation) -> None:
        self._clock = clock
        self._isolation = isolation
        self._lock = threading.Lock()
        self._ended = clock.signal(self._lock)
        self._is_done = False
        self._is_abandoned = False
        self._value: Any = None
        self._error: BaseException | None = None

    def work(self, body: Callable[[], Any]) -> None:
        value, error = None, None
        try:
            value = body()
        except BaseException as raised:
            error = raised
        with self._lock:
            self._value, self._error, self._is_done = value, error, True
            self._ended.notify_all()
            if self._is_abandoned:
                self._isolation.left(-1)

    def wait(self, until: float) -> Any:
        try:
            with self._lock:
                while not self._is_done and self._clock.now() < until:
                    self._ended.wait(until)
        finally:
            with self._lock:
                if not self._is_done:  # too late, or Ctrl-C while waiting
                    self._is_abandoned = True
                    self._isolation.left(1)
        if self._is_abandoned:
            raise ProviderTimeoutError("the call did not return in time and was abandoned")
        if self._error is not None:
            raise self._error
        return self._value
