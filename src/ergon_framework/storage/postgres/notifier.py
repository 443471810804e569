"""PostgreSQL LISTEN/NOTIFY: one connection that listens, and the one thread that uses it.

Behind a pooler in transaction mode LISTEN does not work, so subscribers poll there.
"""

from __future__ import annotations

import logging
import os
import secrets
import select
import threading

import psycopg
from psycopg import sql

from ergon_framework.core.retry import Backoff
from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.engine.clocks import SYSTEM_CLOCK
from ergon_framework.storage.deadlines import CALL_BUDGET
from ergon_framework.storage.notifier import LocalNotifier, LocalSubscription
from ergon_framework.storage.postgres.pool import (
    DEFAULT_TIMEOUTS,
    Connection,
    ConnectionPool,
    PostgresTimeouts,
)

logger = logging.getLogger("ergon.storage")

RECONNECT_BACKOFF = Backoff(base=0.1, factor=2.0, cap=5.0, low=0.8, high=1.2)
POLL_BACKOFF = Backoff(base=0.05, factor=2.0, cap=1.0)
"""How long behind a pooler until those who wait are woken to look for themselves."""
_LISTEN_TIMEOUT = 5.0  # seconds until a new channel is listened to, with a server that answers
_CLOSE_TIMEOUT = 2.0  # seconds for the thread to end, which a frozen server may keep longer


class ListenNotifier:
    """The subscriptions of one database, by channel."""

    def __init__(
        self, pool: ConnectionPool, name: str, *, timeouts: PostgresTimeouts = DEFAULT_TIMEOUTS
    ) -> None:
        self._pool = pool
        self._name = name
        self._timeouts = timeouts
        self.own_payload = secrets.token_hex(8)
        """The payload of a NOTIFY that the subscribers of this object ignore."""
        self._begin()
        renew_after_fork(self)

    def _begin(self) -> None:
        self._local = LocalNotifier()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._channels: set[str] = set()
        self._listening: set[str] = set()  # that the current connection listens to
        self._late: set[str] = set()  # channels on which something may have been missed
        self._is_away = False
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._wake_pipe: tuple[int, int] | None = None

    def renew(self) -> None:
        """In a process that was just forked: its threads and waiters stayed behind."""
        self._begin()

    def subscribe(self, channel: str) -> LocalSubscription:
        """Subscribe to a channel; the thread starts with the first subscription.

        While the server is away nothing is received; its return counts as a notification.
        """
        # Before the channel is listened to: a notification that comes at once finds it.
        subscription = self._local.subscribe(channel)
        with self._changed:
            self._channels.add(channel)
            if self._thread is None and not self._closing.is_set():
                self._wake_pipe = os.pipe()
                self._thread = threading.Thread(
                    target=self._serve, name="ergon-listen", daemon=True
                )
                self._thread.start()
            # The thread sleeps in ``poll``: without a byte in the pipe it would notice the channel
            # only when something else wakes it.
            elif channel not in self._listening:
                self._wake_thread()
            self._changed.wait_for(
                lambda: channel in self._listening or self._is_away or self._closing.is_set(),
                CALL_BUDGET.at_most(_LISTEN_TIMEOUT),
            )
            # Something may be missed until the thread listens: that counts as a notification later.
            if channel not in self._listening:
                self._late.add(channel)
        return subscription

    def close(self) -> None:
        """Close every subscription and end the thread."""
        with self._lock:
            self._closing.set()
            thread, self._thread = self._thread, None
            if thread is not None:
                self._wake_thread()
        # A callback in the thread itself may close: it cannot wait for its own end.
        if thread is not None and thread is not threading.current_thread():
            thread.join(_CLOSE_TIMEOUT)
        with self._lock:
            wake, self._wake_pipe = self._wake_pipe, None
            # A thread that a frozen server keeps still uses the pipe; its number must not be given
            # to another file.
            if thread is None or not thread.is_alive():
                for descriptor in wake or ():
                    os.close(descriptor)
        self._local.close()

    def _wake_thread(self) -> None:
        if self._wake_pipe is not None:
            os.write(self._wake_pipe[1], b"!")

    # ---- the thread -----------------------------------------------------------------------------

    def _serve(self) -> None:
        failures = 0
        while not self._closing.is_set():
            try:
                connection = self._pool.connect()
                try:
                    failures = 0
                    self._receive(connection)
                finally:
                    connection.close()
            except Exception as error:  # whatever it is: without this thread nothing is received
                if failures == 0 and not self._closing.is_set():
                    logger.info("%s is not heard for now: %s", self._name, error)
                failures += 1
                # Whatever is notified from now on is missed: all subscribers look for themselves
                # afterwards.
                self._went_away()
            self._closing.wait(RECONNECT_BACKOFF.delay(failures, 0.5))

    def _went_away(self) -> None:
        with self._changed:
            self._is_away = True
            self._listening.clear()
            self._late |= self._channels
            self._changed.notify_all()

    def _receive(self, connection: Connection) -> None:
        assert self._wake_pipe is not None  # noqa: S101 - it was made before the thread
        received: list[psycopg.Notify] = []
        connection.add_notify_handler(received.append)  # for those that come along with an answer
        wake = self._wake_pipe[0]
        poll = select.poll()
        poll.register(connection.fileno(), select.POLLIN)
        poll.register(wake, select.POLLIN)
        keepalive_ms = self._timeouts.keepalive_interval * 1000
        while not self._closing.is_set():
            self._listen_to_all(connection)
            ready = {descriptor for descriptor, _ in poll.poll(keepalive_ms)}
            # A firewall may have forgotten a silent connection: nothing would ever arrive, and
            # nothing would say so.
            if not ready:
                with self._pool.at_most(self._timeouts.keepalive_response, connection):
                    connection.execute("SELECT 1")
            if wake in ready:
                os.read(wake, 4096)
            notified = {(each.channel, each.payload) for each in received} | _notified(connection)
            received.clear()
            for channel in {
                channel for channel, payload in notified if payload != self.own_payload
            }:
                self._local.notify(channel)

    def _listen_to_all(self, connection: Connection) -> None:
        with self._lock:
            # Copied: LISTEN is a round trip, and the lock is not held meanwhile.
            wanted = self._channels - self._listening
        if not wanted:
            return
        with self._pool.at_most(self._timeouts.keepalive_response, connection):
            for channel in wanted:
                connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        with self._changed:
            self._listening |= wanted
            late, self._late = self._late, set()
            self._is_away = False
            self._changed.notify_all()
        # After LISTEN: looking before it could miss what is written in between.
        for channel in late:
            self._local.notify(channel)


class PollingNotifier:
    """The subscriptions of one database behind a pooler, where LISTEN does not work.

    Every subscriber is woken again and again, as if it had been notified: soon after this process
    has changed something, and then less and less often.
    """

    def __init__(self) -> None:
        self.own_payload = secrets.token_hex(8)
        """The payload of a NOTIFY, for processes that do listen."""
        self._begin()
        renew_after_fork(self)

    def _begin(self) -> None:
        self._local = LocalNotifier()
        self._lock = threading.Lock()
        self._channels: set[str] = set()
        self._rounds = 0  # without a change by this process
        self._thread: threading.Thread | None = None
        self._wakes = threading.Event()
        self._closing = threading.Event()

    def renew(self) -> None:
        """In a process that was just forked: its threads and waiters stayed behind."""
        self._begin()

    def subscribe(self, channel: str) -> LocalSubscription:
        """Subscribe to a channel; the thread starts with the first subscription."""
        subscription = self._local.subscribe(channel)
        with self._lock:
            self._channels.add(channel)
            if self._thread is None and not self._closing.is_set():
                self._thread = SYSTEM_CLOCK.spawn("ergon-poll", self._serve)
        self.changed()
        return subscription

    def changed(self) -> None:
        """Note that this process has changed something: others may answer soon."""
        is_slow, self._rounds = self._rounds > 1, 0
        # Last: the thread that wakes computes its next wait from the rounds.
        if is_slow:
            self._wakes.set()

    def close(self) -> None:
        """Close every subscription and end the thread."""
        self._closing.set()
        self._wakes.set()
        self._local.close()

    def _serve(self) -> None:
        while not self._closing.is_set():
            self._wakes.wait(POLL_BACKOFF.delay(self._rounds, 0.5))
            if self._wakes.is_set():  # wait anew, for a shorter time
                self._wakes.clear()
                continue
            self._rounds += 1
            with self._lock:
                channels = tuple(self._channels)
            for channel in channels:
                self._local.notify(channel)


def _notified(connection: Connection) -> set[tuple[str, str]]:
    """Channel and payload of each notification that has arrived; raises when the server has closed
    the connection.
    """
    pgconn = connection.pgconn
    pgconn.consume_input()
    found = set()
    while (notice := pgconn.notifies()) is not None:
        found.add((notice.relname.decode(), notice.extra.decode()))
    return found
