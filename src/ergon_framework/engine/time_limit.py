"""Time limits for a plain call in its own thread and for an awaitable on its event loop. Lifespans
are opened and closed with them. Stores are opened early, as far as that can be done in a while.

What a call opens may belong to its thread: a connection of ``sqlite3``, a thread-local of Django.
So the call is not moved to a thread that could be left behind; it is interrupted where it runs. In
the main thread a signal does that, and ends waits for a lock, a socket or a sleep. In every other
thread, Python raises the interruption at the next line of Python code: a wait in the system is not
ended by it. The code that started such a thread can give it up, with :func:`giving_up_by`.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from ergon_framework.engine.clocks import SYSTEM_CLOCK, current_clock
from ergon_framework.ports.lifespan import LifespanHooks

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")
Overdue = Callable[[], TimeoutError]
GiveUp = Callable[[TimeoutError], object]

EARLY_OPENING = 5.0
"""Seconds of waiting for others that a process has for what its units need, before it takes the
first. Less than the startup grace of an executor, after which the time of its requests runs.
"""
_SLICE, _BUSY = 0.1, 0.001  # seconds, and what a busy process has of them on a busy machine
_MOST_BUSY = 12  # times the limit: other threads of the process may always be busy
RETURN_GRACE = 2.0
"""Seconds that an interrupted call has to come back, before its thread counts as stuck."""
INTERRUPT_INTERVAL = 0.5
"""Seconds between two interruptions: code that tries again after any error swallows the first."""
_SIGNAL = signal.SIGURG
"""Ignored by default, and hardly used by other programs. The Go runtime preempts its threads with
it for the same reason.
"""

_give_up: ContextVar[GiveUp | None] = ContextVar("ergon_give_up", default=None)


class Interruption(BaseException):
    """Raised inside a call that has run out of time. It is no ``Exception``, so that ``except
    Exception`` does not swallow it.
    """


@contextmanager
def giving_up_by(give_up: GiveUp) -> Iterator[None]:
    """Call ``give_up`` from another thread when a bounded call in this block gets stuck."""
    token = _give_up.set(give_up)
    try:
        yield
    finally:
        _give_up.reset(token)


def call_within(call: Callable[[], T], seconds: float | None, overdue: Overdue) -> T:
    """Call in this thread; raises what ``overdue`` gives when it takes longer than that."""
    if seconds is None:
        return call()
    limit = _ThreadLimit(seconds, overdue())
    try:
        try:
            limit.begin()
            return call()
        finally:
            limit.end()
    except limit.interruption:
        limit.end()  # an interruption in the line before has skipped it
        raise limit.error from None


async def await_within(awaitable: Awaitable[T], seconds: float | None, overdue: Overdue) -> T:
    """Await something; raises what ``overdue`` gives when it takes longer than so many seconds.

    The awaitable is cancelled then, and left behind if it swallows the cancellation. Under a
    virtual clock nothing is bounded: such a loop would jump to the limit instead of waiting for a
    socket.
    """
    import asyncio

    if seconds is None or current_clock() is not SYSTEM_CLOCK:
        return await awaitable
    error = overdue()
    task = asyncio.ensure_future(_awaited(awaitable))
    with _stuck_after(seconds + RETURN_GRACE, error):
        # Half of the grace: a cancelled task has to end before its thread counts as stuck.
        if await ended_within(task, seconds, RETURN_GRACE / 2):
            return task.result()
        raise error


async def ended_within(task: asyncio.Future[Any], seconds: float, grace: float) -> bool:
    """Wait for a task for so many seconds, then cancel it; whether it ended in time.

    A cancelled task has a grace to end in; one that swallows the cancellation is left behind. When
    the caller is cancelled during the wait, so is the task.
    """
    import asyncio

    try:
        await asyncio.wait({task}, timeout=seconds)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if task.done():
        return True
    task.cancel()
    await asyncio.wait({task}, timeout=grace)
    if not task.done():
        keep(task)
    elif not task.cancelled():
        task.exception()  # what it raised when it was cancelled says less than the limit
    return False


_LEFT_BEHIND: set[asyncio.Future[Any]] = set()
"""Tasks that are no longer awaited. The event loop itself holds tasks only weakly."""


def keep(task: asyncio.Future[Any]) -> None:
    """Hold on to a task until it is done."""
    _LEFT_BEHIND.add(task)
    task.add_done_callback(_LEFT_BEHIND.discard)


async def _awaited(awaitable: Awaitable[T]) -> T:
    return await awaitable


@contextmanager
def _stuck_after(seconds: float, error: TimeoutError) -> Iterator[None]:
    """Give this thread up if it is still in the block after so many seconds: then its code blocks
    the event loop.
    """
    give_up = _give_up.get()
    if give_up is None:
        yield
        return
    is_over = threading.Event()

    def watch() -> None:
        if not is_over.wait(seconds):
            give_up(error)

    SYSTEM_CLOCK.spawn("ergon-time-limit", watch)
    try:
        yield
    finally:
        is_over.set()


class _ThreadLimit:
    """Interrupts the thread that made it when the time is over, until it has come back."""

    def __init__(self, seconds: float, error: TimeoutError) -> None:
        # A class of its own: an exception that is raised in another thread carries nothing.
        self.interruption: type[Interruption] = type("Interruption", (Interruption,), {})
        self._seconds = seconds
        self.error = error
        self._give_up = _give_up.get()
        self._thread = threading.get_ident()
        self._is_main = threading.current_thread() is threading.main_thread()
        self._before: Any = None
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._is_due = False

    def begin(self) -> None:
        """Start the timer."""
        if self._is_main:
            self._before = signal.signal(_SIGNAL, self._interrupt)
        SYSTEM_CLOCK.spawn("ergon-time-limit", self._watch)

    def end(self) -> None:
        """Interrupt no more. May be called again."""
        with self._lock:
            is_first = not self._over.is_set()
            self._over.set()
            # Takes back an interruption that is on its way, which would strike in code after the
            # call. Under the lock, so that no other one is sent after it.
            if self._is_due and not self._is_main:
                _raise_in(self._thread, None)
        if is_first and self._is_main:
            signal.signal(_SIGNAL, self._before or signal.SIG_DFL)

    def _watch(self) -> None:
        if self._over.wait(self._seconds):
            return
        for _ in range(round(RETURN_GRACE / INTERRUPT_INTERVAL)):
            with self._lock:
                if self._over.is_set():
                    return
                self._is_due = True
                if self._is_main:
                    signal.pthread_kill(self._thread, _SIGNAL)
                else:
                    _raise_in(self._thread, self.interruption)
            if self._over.wait(INTERRUPT_INTERVAL):
                return
        if self._give_up is not None:
            self._give_up(self.error)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """The handler of the signal, in the main thread."""
        if self._is_due and not self._over.is_set():
            raise self.interruption
        if callable(self._before):  # the time of a call around this one is over
            self._before(number, frame)


def _raise_in(thread: int, kind: type[BaseException] | None) -> None:
    """Raise an exception in a thread at its next line of Python code; None takes it back."""
    try:
        import ctypes
    except ImportError:  # a Python without it: then the thread is given up, and not interrupted
        return
    raised = ctypes.py_object() if kind is None else ctypes.py_object(kind)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), raised)


# ---- stores, before they are needed --------------------------------------------------------------


def open_early(
    openings: Iterable[Callable[[], object]], idle_limit: float = EARLY_OPENING
) -> Callable[[], None]:
    """Open what the first unit would open in its time, and wait for that.

    A store that keeps the process waiting, such as one on a server that does not answer, goes on
    being opened in its thread: units that do not need it are in nobody's way, and those that do
    wait for it. Imports and new tables, which keep the process busy, are waited for: only seconds
    in which the process is idle count towards ``idle_limit``.

    What is returned stops it: what is not being opened yet stays closed.
    """
    is_over = threading.Event()

    def open_all() -> None:
        for opening in [*openings]:
            if is_over.is_set():
                return
            opening()

    thread = SYSTEM_CLOCK.spawn("ergon-open-early", partial(copy_context().run, open_all))
    idle = waited = 0.0
    try:
        while thread.is_alive() and idle < idle_limit and waited < idle_limit * _MOST_BUSY:
            used = time.process_time()
            thread.join(_SLICE)
            waited += _SLICE  # and not more, if the process was stopped meanwhile
            if time.process_time() - used < _BUSY:
                idle += _SLICE
    except BaseException:  # Ctrl-C, say: nobody is left to stop it
        is_over.set()
        raise
    return is_over.set


# ---- lifespans -----------------------------------------------------------------------------------


def open_lifespan(hooks: LifespanHooks) -> None:
    """Open a plain lifespan within its time."""
    call_within(hooks.open, hooks.lifespan.startup_timeout, hooks.not_opened)


def close_lifespan(hooks: LifespanHooks) -> None:
    """Close a plain lifespan within its time."""
    call_within(hooks.close, hooks.lifespan.shutdown_timeout, hooks.not_closed)


async def open_lifespan_async(hooks: LifespanHooks) -> None:
    """Open a lifespan of either colour within its time."""
    if hooks.is_async:
        await await_within(hooks.open(), hooks.lifespan.startup_timeout, hooks.not_opened)
    else:
        open_lifespan(hooks)


async def close_lifespan_async(hooks: LifespanHooks) -> None:
    """Close a lifespan of either colour within its time."""
    if hooks.is_async:
        await await_within(hooks.close(), hooks.lifespan.shutdown_timeout, hooks.not_closed)
    else:
        close_lifespan(hooks)
