"""The standard streams of an executor: requests come in by one pipe, outcomes leave by another.

``claim_stdio`` moves the pipes away from descriptors 0 and 1 before any code of the user runs.
Afterwards whatever is printed, by Python, by a library in C or by a child process, goes to the
standard error stream, and a reader of the standard input finds its end at once.
"""

from __future__ import annotations

import os
import select
import stat
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ergon_framework.core.executor_protocol import ExecutorSession, Refusal, Request


@dataclass(frozen=True, slots=True)
class Pipes:
    """Where requests come from and outcomes go to."""

    source: int
    target: int


def claim_stdio() -> Pipes:
    """Take the pipes of the protocol away from the standard streams.

    What was printed before and still is in a buffer goes to the standard error as well.
    """
    _open_if_closed(2, os.O_WRONLY)
    _open_if_closed(0, os.O_RDONLY)
    _open_if_closed(1, os.O_WRONLY)
    pipes = Pipes(os.dup(0), os.dup(1))  # duplicates are closed in programs that we start
    # A handler that reads its standard input would take bytes of the protocol.
    _replace(0, os.O_RDONLY)
    # What handlers print goes to standard error: the pipe of the protocol is known by its duplicate
    # alone.
    os.dup2(2, 1)
    _let_prints_through()
    # A child that a handler forks would keep the pipe open, and the worker would wait for the end
    # of this process for ever.
    os.register_at_fork(after_in_child=lambda: _close(pipes))
    return pipes


def is_pollable(descriptor: int) -> bool:
    """Whether one can wait for its input: a file on disk is always ready, and epoll refuses it."""
    return not stat.S_ISREG(os.fstat(descriptor).st_mode)


def stderr_line(text: str) -> None:
    """Write one line to the standard error, past every buffer; an error is ignored."""
    with suppress(OSError):
        os.write(2, f"ergon executor: {text}\n".encode("utf-8", "replace"))


def _let_prints_through() -> None:
    """Prints appear line by line, not when a buffer is full, and fail in no locale."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(line_buffering=True, errors="backslashreplace")


def _open_if_closed(descriptor: int, flags: int) -> None:
    try:
        os.fstat(descriptor)
    except OSError:
        _replace(descriptor, flags)


def _replace(descriptor: int, flags: int) -> None:
    """Point a descriptor to ``/dev/null``."""
    nowhere = os.open(os.devnull, flags)
    if nowhere != descriptor:
        os.dup2(nowhere, descriptor)
        os.close(nowhere)
    else:
        # ``os.open`` happened to get the very number, and descriptors that Python opens are not
        # inherited; 0 to 2 have to be.
        os.set_inheritable(descriptor, True)


def _close(pipes: Pipes) -> None:
    """Close the copies of a forked child, which could answer requests or hide our end."""
    for each in (pipes.source, pipes.target):
        with suppress(OSError):
            os.close(each)


_MAX_WAIT = 3600.0


class WakePipe:
    """A pipe that wakes the thread which waits on it; any thread or signal handler may wake it."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()
        os.set_blocking(self.read_end, False)
        os.set_blocking(self.write_end, False)
        # Reentrant, or a signal in the middle of ``wake`` would wait for itself.
        self._lock = threading.RLock()  # a signal handler may wake while its thread does
        self._poll = select.poll()
        self._poll.register(self.read_end, select.POLLIN)

    def wake(self) -> None:
        """Wake the thread that waits, or the next that will; does nothing once closed."""
        # The pipe is full: the reader will wake in any case.
        with self._lock, suppress(BlockingIOError):
            if self.write_end >= 0:
                os.write(self.write_end, b"!")

    def wait(self, until: float) -> None:
        """Wait until woken, or until an instant of the monotonic clock; may return early."""
        seconds = min(max(0.0, until - time.monotonic()), _MAX_WAIT)
        self._poll.poll(int(seconds * 1000) + 1)  # rounded up: waking early is waking twice
        with suppress(BlockingIOError):
            os.read(self.read_end, 4096)

    def close(self) -> None:
        """Close both ends; a late wake-up writes to nothing else that gets their numbers."""
        with self._lock:
            read_end, write_end = self.read_end, self.write_end
            # First forgotten, then closed: the numbers may be given to another file at once.
            self.read_end = self.write_end = -1
        os.close(read_end)
        os.close(write_end)


CHUNK = 64 * 1024


class RequestReader:
    """Reads requests from the input pipe; one thread at a time may use it."""

    def __init__(self, source: int) -> None:
        self.source = source
        self._session = ExecutorSession()
        self._halt = WakePipe()
        self._input = select.poll()
        self._input.register(source, select.POLLIN)
        self._either = select.poll()
        self._either.register(source, select.POLLIN)
        self._either.register(self._halt.read_end, select.POLLIN)

    def halt(self) -> None:
        """Wake all threads that wait for input; none waits any more."""
        self._halt.wake()

    def wait(self) -> None:
        """Wait for input, its end or a halt."""
        self._either.poll()

    def has_come(self) -> bool:
        """Whether input, or its end, can be read without waiting."""
        return bool(self._input.poll(0))

    def read(self) -> tuple[list[Request | Refusal], bool]:
        """What has come, and whether that was all."""
        try:
            data = os.read(self.source, CHUNK)
        except BlockingIOError:  # whoever made the pipe did not want it to block
            return [], False
        except OSError:  # a terminal or a socket that is gone
            data = b""
        # The end of input may leave half a line, which has to be refused and not dropped.
        frames = self._session.feed(data) if data else self._session.end()
        return frames, not data

    def close(self) -> None:
        """Close our own descriptors. The source stays open."""
        self._halt.close()


MAX_UNSENT_BYTES = 1024 * 1024
"""Bytes that may wait for a slow reader; a thread that adds more has to wait."""


class OutcomeWriter:
    """Writes outcomes until the reader is gone; then calls ``on_broken``, once, and drops them."""

    def __init__(self, descriptor: int, *, gathers: bool, on_broken: Callable[[], Any]) -> None:
        self._descriptor = descriptor
        self._on_broken = on_broken
        self._is_broken = False
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._lines: list[bytes] = []
        self._size = 0
        self._is_idle = False
        self._is_closed = False
        self._thread: threading.Thread | None = None
        if gathers:
            self._thread = threading.Thread(target=self._serve, name="ergon-outlet", daemon=True)
            self._thread.start()

    def put(self, line: bytes) -> None:
        """Write one line, now or very soon."""
        with self._lock:
            if self._thread is None:
                self._write(line)
                return
            # A worker that is suspended reads nothing. Handlers wait here instead of filling the
            # memory with results.
            while self._size > MAX_UNSENT_BYTES and not self._is_broken:
                self._room.wait()
            self._lines.append(line)
            self._size += len(line)
            if self._is_idle:
                self._is_idle = False
                self._changed.notify()

    def close(self) -> None:
        """Return when everything is written."""
        with self._lock:
            self._is_closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _serve(self) -> None:
        while True:
            with self._lock:
                while not self._lines:
                    if self._is_closed:
                        return
                    self._is_idle = True
                    self._changed.wait()
                # Everything at once: while one write is under way, the outcomes of other threads
                # gather for the next.
                lines, self._lines, self._size = self._lines, [], 0
                self._room.notify_all()
            self._write(b"".join(lines))

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest and not self._is_broken:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:  # whoever made the pipe did not want it to block
                ready = select.poll()
                ready.register(self._descriptor, select.POLLOUT)
                ready.poll()
            except OSError:
                self._is_broken = True
                self._on_broken()
