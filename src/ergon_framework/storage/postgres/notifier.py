"""LISTEN and NOTIFY: one connection that listens, and one thread."""

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
from ergon_framework.storage.deadlines import ASKING
from ergon_framework.storage.notifier import Belfry as Bells
from ergon_framework.storage.notifier import MemoryBell
from ergon_framework.storage.postgres.pool import Connection, Connections

logger = logging.getLogger("ergon.storage")

AGAIN = Backoff(base=0.1, factor=2.0, cap=5.0, low=0.8, high=1.2)
_HEARD = 5.0  # seconds until a new channel is listened to, with a server that answers
_ASKED = 5.0  # seconds for a server to answer that it is there
_LEFT = 2.0  # seconds that closing waits for the thread, which a frozen server may keep longer
_ALIVE = 15.0  # seconds without a word after which the server is asked whether it still is there


class Belfry:
    """The bells of one database, by channel."""

    def __init__(self, connections: Connections, name: str) -> None:
        self._connections = connections
        self._name = name
        self.word = secrets.token_hex(8)
        """The payload of announcements that are meant for others only."""
        self._begin()
        renew_after_fork(self)

    def _begin(self) -> None:
        self._bells = Bells()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._channels: set[str] = set()
        self._heard: set[str] = set()  # by the connection that there is
        self._late: set[str] = set()  # channels on which something may have been missed
        self._is_away = False
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._wake: tuple[int, int] | None = None

    def renew(self) -> None:
        """In a process that was just forked: its threads and waiters stayed behind."""
        self._begin()

    def listen(self, channel: str) -> MemoryBell:
        """A bell for a channel, from now on; the thread comes with the first one.

        Should the server be away, the bell rings when it is back.
        """
        bell = self._bells.listen(channel)
        with self._changed:
            self._channels.add(channel)
            if self._thread is None and not self._closing.is_set():
                self._wake = os.pipe()
                self._thread = threading.Thread(
                    target=self._serve, name="ergon-listen", daemon=True
                )
                self._thread.start()
            elif channel not in self._heard:
                self._rouse()
            self._changed.wait_for(
                lambda: channel in self._heard or self._is_away or self._closing.is_set(),
                ASKING.at_most(_HEARD),
            )
            if channel not in self._heard:
                self._late.add(channel)
        return bell

    def close(self) -> None:
        """Take all bells down."""
        with self._lock:
            self._closing.set()
            thread, self._thread = self._thread, None
            if thread is not None:
                self._rouse()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_LEFT)
        with self._lock:
            wake, self._wake = self._wake, None
            if thread is None or not thread.is_alive():
                for descriptor in wake or ():
                    os.close(descriptor)
        self._bells.close()

    def _rouse(self) -> None:
        if self._wake is not None:
            os.write(self._wake[1], b"!")

    # ---- the thread -----------------------------------------------------------------------------

    def _serve(self) -> None:
        failures = 0
        while not self._closing.is_set():
            try:
                connection = self._connections.connect()
                try:
                    failures = 0
                    self._hear(connection)
                finally:
                    connection.close()
            except Exception as error:  # whatever it is: without this thread nothing is heard
                if failures == 0 and not self._closing.is_set():
                    logger.info("%s is not heard for now: %s", self._name, error)
                failures += 1
                self._went_away()
            self._closing.wait(AGAIN.delay(failures, 0.5))

    def _went_away(self) -> None:
        with self._changed:
            self._is_away = True
            self._heard.clear()
            self._late |= self._channels
            self._changed.notify_all()

    def _hear(self, connection: Connection) -> None:
        assert self._wake is not None  # noqa: S101 - it was made before the thread
        heard: list[psycopg.Notify] = []
        connection.add_notify_handler(heard.append)  # for those that come along with an answer
        wake = self._wake[0]
        lines = select.poll()
        lines.register(connection.fileno(), select.POLLIN)
        lines.register(wake, select.POLLIN)
        while not self._closing.is_set():
            self._listen_to_all(connection)
            ready = {descriptor for descriptor, _ in lines.poll(_ALIVE * 1000)}
            if not ready:
                with self._connections.at_most(_ASKED, connection):
                    connection.execute("SELECT 1")
            if wake in ready:
                os.read(wake, 4096)
            told = {(each.channel, each.payload) for each in heard} | _notified(connection)
            heard.clear()
            for channel in {channel for channel, word in told if word != self.word}:
                self._bells.ring(channel)

    def _listen_to_all(self, connection: Connection) -> None:
        with self._lock:
            wanted = self._channels - self._heard
        if not wanted:
            return
        with self._connections.at_most(_ASKED, connection):
            for channel in wanted:
                connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        with self._changed:
            self._heard |= wanted
            late, self._late = self._late, set()
            self._is_away = False
            self._changed.notify_all()
        for channel in late:
            self._bells.ring(channel)


def _notified(connection: Connection) -> set[tuple[str, str]]:
    """The channels on which something was announced, with the word that came along; raises when
    the server has hung up.
    """
    line = connection.pgconn
    line.consume_input()
    found = set()
    while (notice := line.notifies()) is not None:
        found.add((notice.relname.decode(), notice.extra.decode()))
    return found
