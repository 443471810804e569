"""Waits of a fetch that any thread can end, because something has changed or a stop was
requested.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.engine.clocks import AsyncSignal, current_clock
from ergon_framework.ports.clock import Signal


class Wakeup:
    """Lets fetches wait, in threads and in event loops.

    A stop ends the waits that are under way. The next fetch begins anew.
    """

    def __init__(self) -> None:
        self.is_stopped = False
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget the waiting fetches in a forked child, because they are the parent's."""
        self._lock = threading.Lock()
        self._signals: list[Signal] = []
        self._loops: list[tuple[asyncio.AbstractEventLoop, AsyncSignal]] = []

    def begin(self) -> None:
        """Begin a fetch. An earlier stop does not count for it."""
        self.is_stopped = False

    def stop(self) -> None:
        """End the waits under way. It never blocks for long, and any thread may call it."""
        self.is_stopped = True
        self.notify()

    def notify(self) -> None:
        """Wake all waiting fetches."""
        with self._lock:
            for signal in self._signals:
                signal.notify_all()
            loops = list(self._loops)
        for loop, sleeping in loops:
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(sleeping.notify_all)

    def wait(self, until: float | None, is_over: Callable[[], bool]) -> bool:
        """Wait for ``is_over`` until an instant of the current clock. Returns whether it became
        true.
        """
        clock = current_clock()
        with self._lock, self._listed(clock.signal(self._lock)) as signal:
            while not (self.is_stopped or is_over()):
                if until is not None and clock.now() >= until:
                    return False
                signal.wait(until)
        return not self.is_stopped

    async def wait_async(self, until: float | None, is_over: Callable[[], bool]) -> bool:
        """The async version of :meth:`wait`, by the clock of the running loop."""
        loop, signal = asyncio.get_running_loop(), AsyncSignal()
        entry = (loop, signal)
        with self._lock:
            self._loops.append(entry)
        try:
            while not (self.is_stopped or is_over()):
                if until is not None and loop.time() >= until:
                    return False
                await signal.wait(until)
        finally:
            with self._lock:
                self._loops.remove(entry)
        return not self.is_stopped

    @contextmanager
    def _listed(self, signal: Signal) -> Iterator[Signal]:
        self._signals.append(signal)
        try:
            yield signal
        finally:
            self._signals.remove(signal)
