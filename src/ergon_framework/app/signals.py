"""Signals and shutdown: a first signal asks for a graceful stop, a second for an immediate one."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any, Self

from ergon_framework.app.console import ExitCode, of_signal, say
from ergon_framework.engine.clocks import SYSTEM_CLOCK
from ergon_framework.ports.clock import Clock
from ergon_framework.task.base import BaseTask, Stoppable, running_calls

SIGNALS = (signal.SIGTERM, signal.SIGINT)
REPEAT_WINDOW = 0.5
"""Seconds within which another signal is the same wish: a terminal signals a process by Ctrl-C, and
the parent passes it on once more; ``timeout`` signals both the child and its group."""
_END = 0
_BY_HANDLER = 0x80


class SignalListener:
    """Calls ``heard`` with each signal, in a thread of its own, from ``with`` to its end.

    A signal within half a second of another one counts as the same, and is not passed on. SIGHUP,
    which a terminal sends when it is closed, counts as SIGTERM, unless ``nohup`` has it ignored or
    somebody else handles it.
    Outside of the main thread, where Python lets nobody handle signals, it hears nothing.
    """

    def __init__(
        self, heard: Callable[[int], Any], *, now: Callable[[], float] = SYSTEM_CLOCK.now
    ) -> None:
        self._heard = heard
        self._now = now
        self._before: dict[int, Any] = {}
        self._fd_before = -1
        self._read_end = self._write_end = -1

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._read_end, self._write_end = os.pipe()
            # A signal handler must never wait for a thread to read.
            os.set_blocking(self._write_end, False)
            self._fd_before = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
            taken = (*SIGNALS, signal.SIGHUP) if self._takes_hangups() else SIGNALS
            self._before = {number: signal.signal(number, self._handle) for number in taken}
            # In a thread: what a handler calls runs between two instructions of any code, which may
            # hold the lock that the call wants.
            SYSTEM_CLOCK.spawn("ergon-signals", self._listen)
        return self

    def __exit__(self, *exc: object) -> None:
        if not self._before:
            return
        # None: a handler that was not set from Python, and cannot be set again from it.
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(self._fd_before)
        os.write(self._write_end, bytes([_END]))  # the thread closes both ends

    @staticmethod
    def _takes_hangups() -> bool:
        """Whether SIGHUP would end the process at once, or reach a listener around this one."""
        handler = signal.getsignal(signal.SIGHUP)
        around = getattr(handler, "__func__", None) is SignalListener._handle
        return handler == signal.SIG_DFL or around

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        """The handler: an event loop may have replaced the wake-up descriptor."""
        with suppress(BlockingIOError):  # full of signals: then one more tells nothing new
            os.write(self._write_end, bytes([_BY_HANDLER | number]))

    def _listen(self) -> None:
        written = handled = heard = 0
        told_at: float | None = None
        while (byte := os.read(self._read_end, 1)[0]) != _END:
            number = byte & ~_BY_HANDLER
            if number == signal.SIGHUP and byte != number:
                # By the handler alone: the descriptor also has a SIGHUP that somebody else handles.
                if told_at is not None:
                    continue  # the shell and the kernel both send one: it is no second wish
                number, written, handled = int(signal.SIGTERM), written + 1, handled + 1
            elif number in SIGNALS:
                # Each comes once by each way, unless one of the two ways is closed.
                written, handled = written + (byte == number), handled + (byte != number)
            else:
                continue
            if max(written, handled) > heard:
                heard += 1
                now = self._now()
                if told_at is None or now - told_at >= REPEAT_WINDOW:
                    told_at = now
                    self._heard(number)
        os.close(self._read_end)
        os.close(self._write_end)


FORCE_AFTER = 5.0
"""Seconds a process has after the second signal."""
EXIT_TIMEOUT = 2.0
"""Seconds a process has after its work is over and told."""
_POLL_INTERVAL = 0.05

Leave = Callable[[int], Any]


class StopSignals:
    """Counts signals: the first asks for a graceful stop, the last one ends the process.

    ``stop`` is given how many have come. At ``force_at`` the process ends after ``last_words``.
    """

    def __init__(
        self,
        stop: Callable[[int], object],
        *,
        force_at: int,
        last_words: str,
        first_words: str = "stopping; what runs may finish (a second signal ends it at once)",
        leave: Leave = os._exit,
    ) -> None:
        self._stop = stop
        self._force_at = force_at
        self._first_words = first_words
        self._last_words = last_words
        self._leave = leave
        self.count = 0

    def take(self, number: int) -> None:
        """A signal has come."""
        self.count += 1
        if self.count >= self._force_at:
            self.force(number)
        if self.count == 1 and self._first_words:
            say(self._first_words)
        self._stop(self.count)

    def force(self, number: int) -> None:
        """End the process at once, with the exit code of the signal."""
        say(self._last_words)
        self._leave(of_signal(number))


@dataclass(frozen=True)
class ShutdownTimeouts:
    """How long the end of a run may take, in seconds."""

    force: float = FORCE_AFTER
    """Seconds from the second signal to the end of the process."""
    loop_close: float = 1.0
    """Seconds to close the event loop, which waits for every thread of ``asyncio.to_thread``."""


class Shutdown:
    """Takes the signals of this process from ``with`` to its end, and stops a task by them.

    A thread of its own acts on them: ``request_stop`` may have to wait for a lock that the
    interrupted code holds, and calls that begin after the signal have to be stopped as well.
    """

    def __init__(
        self, *, leave: Leave = os._exit, timeouts: ShutdownTimeouts | None = None
    ) -> None:
        self.timeouts = timeouts or ShutdownTimeouts()
        self._taken: SimpleQueue[int | None] = SimpleQueue()
        self._listener = SignalListener(self.take)
        self._signals = StopSignals(
            self._stop,
            force_at=3,
            first_words="",  # the task's own report tells of the stop
            last_words="stopped by force; what was running is cut off",
            leave=leave,
        )
        self._task: BaseTask | None = None
        self._first: int | None = None
        self._force_at: float | None = None

    @property
    def is_asked(self) -> bool:
        """Whether a signal has come."""
        return self._first is not None

    @property
    def exit_code(self) -> ExitCode | None:
        """What the first signal makes of the exit code."""
        return None if self._first is None else of_signal(self._first)

    def watch(self, task: BaseTask) -> None:
        """Stops concern this task from now on."""
        self._task = task

    def take(self, number: int) -> None:
        """A signal has come."""
        if self._first is None:
            self._first = number
        self._taken.put(number)

    def __enter__(self) -> Self:
        SYSTEM_CLOCK.spawn("ergon-shutdown", self._serve)
        self._listener.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._listener.__exit__(*exc)
        self._taken.put(None)

    def _serve(self) -> None:
        while True:
            try:
                number = self._taken.get(timeout=_POLL_INTERVAL if self._signals.count else None)
            except Empty:
                self._catch_up()
                continue
            if number is None:
                return
            self._signals.take(self._first or number)  # the first one names the exit code

    def _stop(self, count: int) -> None:
        if count == 2:
            self._force_at = SYSTEM_CLOCK.now() + self.timeouts.force
        if self._task is not None:
            with suppress(RuntimeError):  # its event loop is closed: the call is over
                self._task.request_stop()

    def _catch_up(self) -> None:
        """Stop the calls that began after the signal; end what does not want to end."""
        if self._force_at is not None and SYSTEM_CLOCK.now() >= self._force_at:
            self._signals.force(self._first or signal.SIGTERM)
        for call in _running_unstopped(self._task):
            with suppress(RuntimeError):
                call.request_stop()


def _running_unstopped(task: BaseTask | None) -> list[Stoppable]:
    """Running calls that no stop has reached."""
    return [] if task is None else [call for call in running_calls(task) if not call.stops]


def exit_within(
    code: int,
    seconds: float = EXIT_TIMEOUT,
    *,
    leave: Leave = os._exit,
    clock: Clock = SYSTEM_CLOCK,
) -> None:
    """Let the process be gone by then, whatever threads of user code are still busy in it.

    The interpreter joins every thread that is not daemonic before it exits, and those of
    ``asyncio.to_thread``: one that hangs would keep a process alive whose work is over.
    """
    lock = threading.Lock()
    never = clock.signal(lock)

    def wait_and_leave() -> None:
        until = clock.now() + seconds
        with lock:
            while clock.now() < until:
                never.wait(until)
        say("threads are still busy; the process ends without them")
        leave(code)

    clock.spawn("ergon-leave", wait_and_leave)


def end_stuck_process(error: BaseException, *, leave: Leave = os._exit) -> None:
    """End a process whose main thread is stuck in code of the user's that no signal interrupts."""
    say(str(error), logging.ERROR)
    leave(ExitCode.FAILED)
