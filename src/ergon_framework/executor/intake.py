"""Reads requests from their pipe, until its end or until it is halted."""

from __future__ import annotations

import os
import select

from ergon_framework.core.wire import ExecutorSession, Refusal, Request
from ergon_framework.executor.bell import Bell

CHUNK = 64 * 1024


class Intake:
    """The reading end; one thread at a time may use it."""

    def __init__(self, source: int) -> None:
        self.source = source
        self._session = ExecutorSession()
        self._halt = Bell()
        self._input = select.poll()
        self._input.register(source, select.POLLIN)
        self._either = select.poll()
        self._either.register(source, select.POLLIN)
        self._either.register(self._halt.listener, select.POLLIN)

    def halt(self) -> None:
        """Let whoever waits for input come back, now and for ever."""
        self._halt.ring()

    def wait(self) -> None:
        """Wait for input, its end or a halt."""
        self._either.poll()

    def has_come(self) -> bool:
        """Whether there is input, or its end, to read without waiting."""
        return bool(self._input.poll(0))

    def read(self) -> tuple[list[Request | Refusal], bool]:
        """What has come, and whether that was all."""
        try:
            data = os.read(self.source, CHUNK)
        except BlockingIOError:  # whoever made the pipe did not want it to block
            return [], False
        except OSError:  # a terminal or a socket that is gone
            data = b""
        frames = self._session.feed(data) if data else self._session.end()
        return frames, not data

    def close(self) -> None:
        """Give back what is ours; the source is not."""
        self._halt.close()
