"""Publish and subscribe: one connection that listens, and the one thread that uses it."""

from __future__ import annotations

import logging
import selectors
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any

from redis import exceptions

from ergon_framework.core.retry import Backoff
from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.errors import ErgonError
from ergon_framework.storage.deadlines import ASKING
from ergon_framework.storage.notifier import Belfry as Bells
from ergon_framework.storage.notifier import MemoryBell
from ergon_framework.storage.redis.client import RedisLink

logger = logging.getLogger("ergon.storage")

AGAIN = Backoff(base=0.1, factor=2.0, cap=5.0, low=0.8, high=1.2)
READY = 2.0
"""Seconds that a new listener waits until its channel is heard; afterwards it only listens."""
_ALIVE = 15.0  # seconds without a word after which the server is asked whether it still is there


class Belfry:
    """The bells of one store, by channel."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link
        self._begin()
        link.when_left(self._hang_up)
        renew_after_fork(self)

    def _begin(self) -> None:
        self._bells = Bells()
        self._lock = threading.Lock()
        self._channels: dict[str, threading.Event] = {}  # and whether each is heard
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._asked: set[str] = set()  # channels of which the server was told
        self._doorbell: socket.socket | None = None  # wakes the thread while it listens
        self._was_heard = False
        self._is_left = False

    def renew(self) -> None:
        """In a process that was just forked: its threads and waiters stayed behind."""
        self._begin()

    def listen(self, channel: str) -> MemoryBell:
        """A bell for a channel; the thread comes with the first one."""
        bell = self._bells.listen(channel)
        with self._lock:
            is_heard = self._channels.get(channel)
            if is_heard is None:
                is_heard = self._channels[channel] = threading.Event()
                self._wake()
            if self._thread is None and not self._closing.is_set():
                self._thread = threading.Thread(
                    target=self._serve, name="ergon-listen", daemon=True
                )
                self._thread.start()
        if not is_heard.wait(ASKING.at_most(READY)):
            logger.info("%s is not heard yet", self._link.name)
        bell.wait(0.0)  # what rang so far was for those before
        return bell

    def close(self) -> None:
        """Take all bells down."""
        with self._lock:
            self._closing.set()
            thread, self._thread = self._thread, None
            self._wake()
        if thread is not None and thread is not threading.current_thread():
            thread.join(READY)
        self._bells.close()

    def _hang_up(self) -> None:
        """Hear another server from now on: the one that the name in the URL leads to."""
        with self._lock:
            self._is_left = True
            self._wake()

    def _wake(self) -> None:
        """Let the thread look what has changed; the lock is held."""
        if self._doorbell is not None:
            with suppress(BlockingIOError):  # it has been rung often enough
                self._doorbell.send(b".")

    # ---- the thread -----------------------------------------------------------------------------

    def _serve(self) -> None:
        failures = 0
        while not self._closing.is_set():
            self._was_heard = self._is_left = False  # whoever leaves from now on means this line
            try:
                line = self._link.connect()
                try:
                    with self._listening(line) as waiting:
                        self._hear(line, waiting)
                finally:
                    line.disconnect()
            except (exceptions.RedisError, ErgonError, OSError) as error:
                if failures == 0 and not self._closing.is_set():
                    logger.info("%s is not heard for now: %s", self._link.name, error)
                failures = 0 if self._was_heard else failures + 1
            self._closing.wait(AGAIN.delay(failures, 0.5))

    @contextmanager
    def _listening(self, line: Any) -> Iterator[selectors.BaseSelector]:
        """Waits for the server and for whoever rings at the door."""
        inside, outside = socket.socketpair()
        with inside, outside, selectors.DefaultSelector() as waiting:
            inside.setblocking(False)
            outside.setblocking(False)
            waiting.register(line._sock, selectors.EVENT_READ)  # noqa: SLF001 - it has no other name
            waiting.register(inside, selectors.EVENT_READ, inside)
            with self._lock:
                self._asked.clear()
                self._doorbell = outside
            try:
                yield waiting
            finally:
                with self._lock:
                    self._doorbell = None

    def _hear(self, line: Any, waiting: selectors.BaseSelector) -> None:
        is_asked, until = False, monotonic() + _ALIVE
        while not (self._closing.is_set() or self._is_left):
            self._ask_for_channels(line)
            if line.can_read(timeout=0):
                self._take(line.read_response())
                is_asked, until = False, monotonic() + _ALIVE
            elif monotonic() < until:
                for key, _ in waiting.select(until - monotonic()):
                    if key.data is not None:
                        key.data.recv(4096)
            elif is_asked:
                raise exceptions.TimeoutError("no answer")
            else:
                is_asked, until = True, monotonic() + _ALIVE
                line.send_command("PING")

    def _ask_for_channels(self, line: Any) -> None:
        with self._lock:
            new = [channel for channel in self._channels if channel not in self._asked]
            self._asked.update(new)
        for channel in new:
            line.send_command("SUBSCRIBE", channel)

    def _take(self, message: Any) -> None:
        kind, channel = message[0], message[1].decode()
        if kind == b"message":
            self._bells.ring(channel)
        elif kind == b"subscribe":
            self._was_heard = True
            self._bells.ring(channel)
            self._channels[channel].set()
