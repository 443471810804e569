"""Clocks and waiting in real time. Only this file sleeps; ``testing`` has the virtual clock."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING

from ergon_framework.ports.clock import Clock

if TYPE_CHECKING:
    import asyncio

MAX_SLEEP = 1.0
"""Seconds the main thread sleeps at most in one go.

A signal that arrives just before it falls asleep would otherwise be noticed only when it wakes.
"""


class ThreadSignal:
    """A condition on the engine's lock, waiting for an instant instead of a duration."""

    def __init__(self, lock: threading.Lock) -> None:
        self._condition = threading.Condition(lock)
        self.notify = self._condition.notify
        self.notify_all = self._condition.notify_all

    def wait(self, until: float | None) -> None:
        """Sleep until notified or until the clock shows ``until``; may wake early."""
        seconds = threading.TIMEOUT_MAX if until is None else until - time.monotonic()
        if threading.current_thread() is threading.main_thread():
            seconds = min(seconds, MAX_SLEEP)
        if seconds > 0:
            self._condition.wait(min(seconds, threading.TIMEOUT_MAX))


class SystemClock:
    """The monotonic clock of this process."""

    now = staticmethod(time.monotonic)

    def signal(self, lock: threading.Lock) -> ThreadSignal:
        """A condition on ``lock``."""
        return ThreadSignal(lock)

    def spawn(self, name: str, body: Callable[[], None]) -> threading.Thread:
        """Start a daemonic thread: one that hangs must not keep the interpreter from exiting."""
        thread = threading.Thread(target=body, name=name, daemon=True)
        thread.start()
        return thread

    def join_time(self) -> None:
        """Real time needs no participants."""

    def leave_time(self) -> None:
        """Real time needs no participants."""


SYSTEM_CLOCK = SystemClock()


class AsyncSignal:
    """The async version of :class:`ThreadSignal`; it follows the time of the running loop."""

    def __init__(self) -> None:
        import asyncio  # late, as below: clients of threads need none of it, and it is large

        self._loop = asyncio.get_running_loop()
        self._sleepers: deque[asyncio.Future[None]] = deque()

    async def wait(self, until: float | None) -> None:
        """Sleep until notified or until the loop's clock shows ``until``; may wake early."""
        sleeper = self._loop.create_future()
        self._sleepers.append(sleeper)
        timer = None if until is None else self._loop.call_at(until, _wake, sleeper)
        try:
            await sleeper
        finally:
            if timer is not None:
                timer.cancel()
            if sleeper in self._sleepers:
                self._sleepers.remove(sleeper)

    def notify(self, n: int = 1) -> None:
        """Wake up to ``n`` sleepers, the longest waiting first."""
        while n and self._sleepers:
            # A sleeper whose timer has fired already does not count: this notification would be
            # lost on it.
            n -= _wake(self._sleepers.popleft())

    def notify_all(self) -> None:
        """Wake every sleeper."""
        self.notify(len(self._sleepers))


def _wake(sleeper: asyncio.Future[None]) -> bool:
    if sleeper.done():
        return False
    sleeper.set_result(None)
    return True


def sleep_until(clock: Clock, until: float) -> None:
    """Block this thread until an instant of ``clock``. Ctrl-C interrupts the wait."""
    if clock is SYSTEM_CLOCK:
        # Not a ``Condition``: when a signal handler raises while one wakes up, its lock is not held
        # any more and releasing it raises another error instead.
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, MAX_SLEEP))
        return
    lock = threading.Lock()
    signal = clock.signal(lock)
    clock.join_time()
    try:
        with lock:
            while clock.now() < until:
                signal.wait(until)
    finally:
        clock.leave_time()


async def asleep_until(clock: Clock, until: float) -> None:
    """Suspend this task until an instant of ``clock``."""
    import asyncio

    await asyncio.sleep(max(0.0, until - clock.now()))


async def pause() -> None:
    """Let the other tasks of the event loop run once."""
    import asyncio

    await asyncio.sleep(0)


_CLOCK: ContextVar[Clock] = ContextVar("ergon_clock", default=SYSTEM_CLOCK)


current_clock: Callable[[], Clock] = _CLOCK.get
"""The clock of this context: the system's, or the virtual one a test has put in its place."""


def use_clock(clock: Clock) -> Token[Clock]:
    """Use ``clock`` for threaded calls in this context; undo with :func:`restore_clock`."""
    return _CLOCK.set(clock)


def restore_clock(token: Token[Clock]) -> None:
    """Undo :func:`use_clock`."""
    _CLOCK.reset(token)
