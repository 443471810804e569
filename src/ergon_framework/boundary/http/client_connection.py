"""One connection of the client for threads."""

from __future__ import annotations

import select
import socket
import time

from ergon_framework.boundary.http.client_endpoint import Endpoint
from ergon_framework.boundary.http.codec import AnswerReader

RECEIVE = 64 << 10
"""Bytes asked of a socket at once; more than that would cost a fresh mapping each time."""


class Connection:
    """One socket; used by one thread at a time."""

    def __init__(self, endpoint: Endpoint, timeout: float, patience: float) -> None:
        self._timeout = timeout
        self._socket = _connected(endpoint, patience)
        self._news = news_of(self._socket.fileno())

    def expire(self, deadline: float | None) -> None:
        """Let the next step end by ``deadline``; without one, after the usual time."""
        seconds = self._timeout if deadline is None else deadline - time.monotonic()
        if seconds <= 0:
            raise TimeoutError
        self._socket.settimeout(seconds)

    def send(self, data: bytes) -> None:
        """Send all of it."""
        self._socket.sendall(data)

    def receive(self, reader: AnswerReader) -> None:
        """Let the reader have what comes next."""
        data = self._socket.recv(RECEIVE)
        if data:
            reader.feed(data)
        else:
            reader.end()

    def is_quiet(self) -> bool:
        """Whether nothing came since the last answer, least of all the end of the connection."""
        return not self._news.poll(0)

    def close(self) -> None:
        """Let go of the socket."""
        self._socket.close()


def news_of(descriptor: int) -> select.poll:
    """Tells whether something came in, or the other side has gone; nothing is taken away."""
    news = select.poll()
    news.register(descriptor, select.POLLIN)
    return news


def _connected(endpoint: Endpoint, timeout: float) -> socket.socket:
    context = endpoint.context()
    plain = socket.create_connection((endpoint.host, endpoint.port), timeout)
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is None:
            return plain
        secure = context.wrap_socket(plain, server_hostname=endpoint.host)
    except BaseException:
        plain.close()
        raise
    try:
        endpoint.check_zone(secure.getpeercert())
    except BaseException:
        secure.close()
        raise
    return secure
