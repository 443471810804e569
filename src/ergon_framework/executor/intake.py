"""Reads requests from their pipe, until its end or until it is halted."""

from __future__ import annotations

import os
import select

from ergon_framework.core.wire import ExecutorSession, Refusal, Request
from ergon_framework.executor.bell import Bell
from ergon_framework.executor.board import Item
from ergon_framework.executor.flight import Flight
from ergon_framework.executor.registry import Registry

CHUNK = 64 * 1024


class Intake:
    """The reading end; one thread at a time may use it."""

    def __init__(self, registry: Registry, source: int) -> None:
        self.source = source
        self.is_traced = False
        self._registry = registry
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

    def read(self) -> tuple[list[Item], bool]:
        """What has come, and whether that was all."""
        try:
            data = os.read(self.source, CHUNK)
        except BlockingIOError:  # whoever made the pipe did not want it to block
            return [], False
        except OSError:  # a terminal or a socket that is gone
            data = b""
        frames = self._session.feed(data) if data else self._session.end()
        items = [each if isinstance(each, Refusal) else self._flight(each) for each in frames]
        return items, not data

    def close(self) -> None:
        """Give back what is ours; the source is not."""
        self._halt.close()

    def _flight(self, request: Request) -> Flight:
        handler = self._registry.find(request.function_name)
        return Flight(request, handler, is_traced=self.is_traced)
