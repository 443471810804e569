"""Virtual time for threads and asyncio: a retry schedule of ten minutes runs in a millisecond.

Theory of operation. Threads that take part in the clock's time either run or sleep on it. While one
runs, time stands still; when all sleep, it jumps to the nearest instant somebody waits for. Under
asyncio the event loop itself is given that time, so ``asyncio.sleep`` and every timeout follow it.
Code that blocks in another way (``time.sleep``, a socket) merely holds the clock.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
from collections.abc import Callable, Coroutine
from contextvars import Token
from typing import Any, Self, TypeVar

from ergon_framework.engine.clocks import restore_clock, use_clock
from ergon_framework.ports.clock import Clock

T = TypeVar("T")


class _Sleeper:
    __slots__ = ("is_woken", "signal", "until")

    def __init__(self, signal: VirtualSignal | None, until: float | None) -> None:
        self.signal = signal
        self.until = until
        self.is_woken = False


class VirtualSignal:
    """A condition on an engine's lock whose waits follow a virtual clock."""

    def __init__(self, clock: VirtualClock, lock: threading.Lock) -> None:
        self._clock = clock
        self._lock = lock

    def wait(self, until: float | None) -> None:
        """Sleep until notified or until the clock shows ``until``."""
        sleeper = self._clock.register_sleeper(self, until)
        if sleeper is None:
            return
        # A sleeper already: a notification that comes between the release and the wait is not lost.
        self._lock.release()
        try:
            self._clock.sleep_out(sleeper)
        finally:
            self._lock.acquire()

    def notify(self, n: int = 1) -> None:
        """Wake up to ``n`` sleepers, the longest waiting first."""
        self._clock.wake(self, n)

    def notify_all(self) -> None:
        """Wake every sleeper."""
        self._clock.wake(self, None)


class VirtualClock:
    """Time that passes only when every thread waits for it.

    ``with VirtualClock() as clock:`` makes every engine call in the block follow it;
    ``clock.run(coroutine)`` runs asyncio code on it. A hook that is to be slow in a test calls
    ``clock.sleep(seconds)``.
    """

    def __init__(self, start: float = 0.0) -> None:
        self._now = start
        self._changed = threading.Condition()
        self._awake = 0
        self._sleepers: list[_Sleeper] = []
        self._local = threading.local()
        self._token: Token[Clock] | None = None

    def now(self) -> float:
        """The virtual instant, in seconds."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Advance the time, for code that is not waiting for anything."""
        with self._changed:
            self._now += seconds
            self._wake_due()

    def sleep(self, seconds: float) -> None:
        """Make this thread wait. It costs no real time."""
        self._take_a_nap(self._now + seconds)

    def hang(self) -> None:
        """Make this thread wait for ever, like a call that never returns."""
        self._take_a_nap(None)

    def _take_a_nap(self, until: float | None) -> None:
        self.join_time()
        try:
            sleeper = self.register_sleeper(None, until)
            if sleeper is not None:
                self.sleep_out(sleeper)
        finally:
            self.leave_time()

    # -- the clock port ----------------------------------------------------------------------

    def signal(self, lock: threading.Lock) -> VirtualSignal:
        """A condition on ``lock`` whose waits follow this clock."""
        return VirtualSignal(self, lock)

    def spawn(self, name: str, body: Callable[[], None]) -> threading.Thread:
        """Start a daemon thread that takes part in this clock's time."""

        def inside() -> None:
            self._local.depth = 1
            try:
                body()
            finally:
                self.leave_time()

        # Counted before it starts: until it runs, the clock would take everybody for asleep and
        # jump.
        with self._changed:
            self._awake += 1
        thread = threading.Thread(target=inside, name=name, daemon=True)
        thread.start()
        return thread

    def join_time(self) -> None:
        """Let the calling thread take part from now on. May be nested."""
        depth = getattr(self._local, "depth", 0)
        self._local.depth = depth + 1
        if depth == 0:
            with self._changed:
                self._awake += 1

    def leave_time(self) -> None:
        """Undo one :meth:`join_time`."""
        self._local.depth -= 1
        if self._local.depth == 0:
            with self._changed:
                self._awake -= 1
                self._jump()

    # -- sleeping and waking -----------------------------------------------------------------

    def register_sleeper(
        self, signal: VirtualSignal | None, until: float | None
    ) -> _Sleeper | None:
        """Register the calling thread as a sleeper. None if the instant has already come."""
        with self._changed:
            if until is not None and until <= self._now:
                return None
            sleeper = _Sleeper(signal, until)
            self._sleepers.append(sleeper)
            if getattr(self._local, "depth", 0):
                self._awake -= 1
            return sleeper

    def sleep_out(self, sleeper: _Sleeper) -> None:
        """Block until woken. The waking thread counts this one as awake again."""
        with self._changed:
            try:
                self._jump()
                while not sleeper.is_woken:
                    self._changed.wait()
            finally:
                if not sleeper.is_woken:  # interrupted by a signal
                    self._rouse(sleeper)
                # _rouse counted it as awake; a thread that takes no part in this time does not
                # count.
                if not getattr(self._local, "depth", 0):
                    self._awake -= 1

    def wake(self, signal: VirtualSignal, n: int | None) -> None:
        """Wake the sleepers of a signal."""
        with self._changed:
            mine = [sleeper for sleeper in self._sleepers if sleeper.signal is signal]
            for sleeper in mine if n is None else mine[:n]:
                self._rouse(sleeper)

    def _rouse(self, sleeper: _Sleeper) -> None:
        sleeper.is_woken = True
        self._sleepers.remove(sleeper)
        self._awake += 1
        self._changed.notify_all()

    def _jump(self) -> None:
        """When every thread sleeps, advance to the nearest instant that one waits for."""
        if self._awake == 0:
            instants = [each.until for each in self._sleepers if each.until is not None]
            if instants:
                self._now = max(self._now, min(instants))
                self._wake_due()

    def _wake_due(self) -> None:
        for sleeper in tuple(self._sleepers):
            if sleeper.until is not None and sleeper.until <= self._now:
                self._rouse(sleeper)

    # -- use ---------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._token = use_clock(self)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._token is not None:
            restore_clock(self._token)
            self._token = None

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run asyncio code on an event loop that follows this clock, like everything that the code
        calls.
        """
        token = use_clock(self)
        try:
            with asyncio.Runner(loop_factory=self.new_event_loop) as runner:
                return runner.run(coroutine)
        finally:
            restore_clock(token)

    def new_event_loop(self) -> VirtualEventLoop:
        """An event loop that follows this clock, for an ``asyncio.Runner``."""
        return VirtualEventLoop(self)


class VirtualEventLoop(asyncio.SelectorEventLoop):
    """An event loop that advances the clock instead of waiting, unless a thread works for it."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = self.virtual_clock = clock
        self.busy_threads = 0
        super().__init__(_JumpingSelector(clock, self))

    def time(self) -> float:
        """The virtual instant."""
        return self._clock.now()

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Any, *args: Any
    ) -> Any:
        """Run a call in a thread. Time stands still until it is done."""
        future = super().run_in_executor(executor, func, *args)
        self.busy_threads += 1
        future.add_done_callback(self._thread_done)
        return future

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as the base class
        """Wait for the threads in real time, because the clock would not wait for them."""
        await super().shutdown_default_executor()

    def _thread_done(self, _future: object) -> None:
        self.busy_threads -= 1


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self, clock: VirtualClock, loop: VirtualEventLoop) -> None:
        super().__init__()
        self._clock = clock
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        # Nothing is scheduled, or a thread of run_in_executor works: its result comes through the
        # selector, in real time.
        if timeout is None or self._loop.busy_threads:
            return super().select(None)
        self._clock.advance(timeout)
        return []
