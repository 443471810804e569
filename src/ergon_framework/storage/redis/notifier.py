"""Redis publish/subscribe: one connection that listens, and the one thread that uses it."""

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
from ergon_framework.storage.deadlines import CALL_BUDGET
from ergon_framework.storage.notifier import LocalNotifier, LocalSubscription
from ergon_framework.storage.redis.client import RedisClient

logger = logging.getLogger("ergon.storage")

RECONNECT_BACKOFF = Backoff(base=0.1, factor=2.0, cap=5.0, low=0.8, high=1.2)
SUBSCRIBE_TIMEOUT = 2.0
"""Seconds that a new subscriber waits for its channel to be subscribed; then it goes on without."""
KEEPALIVE_INTERVAL = 15.0
"""Seconds without a message until the server is sent a ``PING``, and for its answer."""
_CLOSE_TIMEOUT = 2.0  # seconds for the thread to end


class PubSubNotifier:
    """The subscriptions of one store, by channel."""

    def __init__(
        self,
        client: RedisClient,
        *,
        subscribe_timeout: float = SUBSCRIBE_TIMEOUT,
        keepalive_interval: float = KEEPALIVE_INTERVAL,
    ) -> None:
        self._client = client
        self._subscribe_timeout = subscribe_timeout
        self._keepalive_interval = keepalive_interval
        self._begin()
        client.on_failover(self._reconnect)
        renew_after_fork(self)

    def _begin(self) -> None:
        self._local = LocalNotifier()
        self._lock = threading.Lock()
        self._channels: dict[str, threading.Event] = {}  # and whether the server has confirmed each
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._requested: set[str] = set()  # channels that SUBSCRIBE was sent for
        self._wake_socket: socket.socket | None = None  # wakes the thread while it listens
        self._was_subscribed = False
        self._has_moved = False

    def renew(self) -> None:
        """In a process that was just forked: its threads and waiters stayed behind."""
        self._begin()

    def subscribe(self, channel: str) -> LocalSubscription:
        """Subscribe to a channel; the thread starts with the first subscription."""
        subscription = self._local.subscribe(channel)
        with self._lock:
            is_subscribed = self._channels.get(channel)
            if is_subscribed is None:
                is_subscribed = self._channels[channel] = threading.Event()
                self._wake()
            if self._thread is None and not self._closing.is_set():
                self._thread = threading.Thread(
                    target=self._serve, name="ergon-listen", daemon=True
                )
                self._thread.start()
        if not is_subscribed.wait(CALL_BUDGET.at_most(self._subscribe_timeout)):
            logger.info("%s is not heard yet", self._client.name)
        # The confirmation of the channel itself counts as a notification here.
        subscription.wait(0.0)  # notifications up to now were for earlier subscribers
        return subscription

    def close(self) -> None:
        """Close every subscription and end the thread."""
        with self._lock:
            self._closing.set()
            thread, self._thread = self._thread, None
            self._wake()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_CLOSE_TIMEOUT)
        self._local.close()

    def _reconnect(self) -> None:
        """Connect again, to the server that the name in the URL leads to now."""
        with self._lock:
            self._has_moved = True
            self._wake()

    def _wake(self) -> None:
        """Wake the thread, so that it reads what has changed. The caller holds the lock."""
        if self._wake_socket is not None:
            with suppress(BlockingIOError):  # it has bytes to read already
                self._wake_socket.send(b".")

    # ---- the thread -----------------------------------------------------------------------------

    def _serve(self) -> None:
        failures = 0
        while not self._closing.is_set():
            # A failover from now on concerns the connection that is made next.
            self._was_subscribed = self._has_moved = False
            try:
                connection = self._client.connect()
                try:
                    with self._listening(connection) as waiting:
                        self._receive(connection, waiting)
                finally:
                    connection.disconnect()
            except (exceptions.RedisError, ErgonError, OSError) as error:
                if failures == 0 and not self._closing.is_set():
                    logger.info("%s is not heard for now: %s", self._client.name, error)
                failures = 0 if self._was_subscribed else failures + 1
            self._closing.wait(RECONNECT_BACKOFF.delay(failures, 0.5))

    @contextmanager
    def _listening(self, connection: Any) -> Iterator[selectors.BaseSelector]:
        """A selector that waits for the server, and for callers that wake the thread."""
        inside, outside = socket.socketpair()
        with inside, outside, selectors.DefaultSelector() as waiting:
            inside.setblocking(False)
            outside.setblocking(False)
            waiting.register(connection._sock, selectors.EVENT_READ)  # noqa: SLF001 - it has no other name
            waiting.register(inside, selectors.EVENT_READ, inside)
            with self._lock:
                self._requested.clear()
                self._wake_socket = outside
            try:
                yield waiting
            finally:
                with self._lock:
                    self._wake_socket = None

    def _receive(self, connection: Any, waiting: selectors.BaseSelector) -> None:
        is_asked, until = False, monotonic() + self._keepalive_interval
        while not (self._closing.is_set() or self._has_moved):
            self._subscribe_channels(connection)
            if connection.can_read(timeout=0):
                self._take(connection.read_response())
                is_asked, until = False, monotonic() + self._keepalive_interval
            elif monotonic() < until:
                for key, _ in waiting.select(until - monotonic()):
                    if key.data is not None:
                        key.data.recv(4096)
            elif is_asked:
                raise exceptions.TimeoutError("no answer")
            else:
                is_asked, until = True, monotonic() + self._keepalive_interval
                connection.send_command("PING")

    def _subscribe_channels(self, connection: Any) -> None:
        with self._lock:
            new = [channel for channel in self._channels if channel not in self._requested]
            self._requested.update(new)
        for channel in new:
            connection.send_command("SUBSCRIBE", channel)

    def _take(self, message: Any) -> None:
        kind, channel = message[0], message[1].decode()
        if kind == b"message":
            self._local.notify(channel)
        elif kind == b"subscribe":
            self._was_subscribed = True
            self._local.notify(channel)
            self._channels[channel].set()
