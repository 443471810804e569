"""The HTTP protocol of ``ergon serve``: uvicorn's, with a request timeout and a connection limit.

uvicorn limits how long an idle connection is kept, but not how long a request may take to arrive:
a client that sends half a head would keep its connection for ever.
"""

from __future__ import annotations

import asyncio
import resource
from collections import Counter
from dataclasses import dataclass
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from ergon_framework.web.middleware import MAX_HEAD
from ergon_framework.web.responses import error_response

REQUEST_TIMEOUT = 10.0
"""Seconds within which a whole request must arrive, counted from the connection or the last
response.
"""
MAX_CONNECTIONS = 500
"""How many connections may be open at the same time; fewer if the process may open fewer than twice
as many files.
"""
# The client still has to send a head, or the rest of a body.
_INCOMPLETE = (h11.IDLE, h11.SEND_BODY)


@dataclass(frozen=True)
class ConnectionLimits:
    """The limits for the clients of one server."""

    request_timeout: float = REQUEST_TIMEOUT
    max_connections: int = MAX_CONNECTIONS

    def allowed_connections(self) -> int:
        """``max_connections``, or half of the files that the process may open, if that is less.

        The other half is left for the stores. It is computed for each connection, because an
        operator can change the limit of a running process.
        """
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if files == resource.RLIM_INFINITY:
            return self.max_connections
        return max(1, min(self.max_connections, files // 2))


DEFAULT_LIMITS = ConnectionLimits()


class LimitedProtocol(H11Protocol):
    """uvicorn's protocol with a request timeout, a connection limit and the errors of this API."""

    waits_since: float | None = None
    """Since when it waits for the rest of a request. None while a request is handled."""
    _timer: asyncio.TimerHandle | None = None

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: ConnectionLimits = DEFAULT_LIMITS,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = limits

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection. If too many are open, close one that waits for a request."""
        super().connection_made(transport)
        self._watch_request()
        if len(self.connections) > self._limits.allowed_connections():
            self._make_room()

    def data_received(self, data: bytes) -> None:
        """Take bytes of a request."""
        super().data_received(data)
        self._watch_request()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request on this connection."""
        super().on_response_complete()
        self._watch_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer of a connection that has ended."""
        self._stop_timer()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that is not HTTP, or whose head is too long, and close the
        connection.
        """
        # uvicorn reports a head that is too long like one that is not HTTP; only the unread bytes
        # tell them apart.
        waiting, _ = self.conn.trailing_data
        if len(waiting) > MAX_HEAD and self.conn.their_state is h11.ERROR:
            message, remedy = (
                "the head of the request is too large",
                f"send at most {MAX_HEAD} bytes",
            )
            self._refuse(431, "Request Header Fields Too Large", "too_large", message, remedy)
            return
        remedy = "send HTTP/1.1, with a short head"
        self._refuse(400, "Bad Request", "bad_request", msg.rstrip(".").lower(), remedy)

    def _watch_request(self) -> None:
        """Start the timer while a request is incomplete; stop it when the request is complete."""
        if self.conn.their_state not in _INCOMPLETE or self.transport.is_closing():
            self._stop_timer()
        # A running timer goes on: a client that sends one byte at a time gains no time by it.
        elif self._timer is None:
            self.waits_since = self.loop.time()
            self._timer = self.loop.call_later(self._limits.request_timeout, self._time_out)

    def _stop_timer(self) -> None:
        self.waits_since = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_out(self) -> None:
        self._stop_timer()
        if self.transport.is_closing():
            return
        if self.conn.their_state is h11.SEND_BODY:
            # The application already reads this body and may have begun a response, so a 408 would
            # come in the middle of it. Aborting the transport tells the application as well.
            self.transport.abort()
            return
        message = "the request did not come in time"
        self._refuse(408, "Request Timeout", "request_timeout", message, "send it again")

    def _make_room(self) -> None:
        """Close the connection that has waited longest, of the client with most waiting
        connections.

        Connections with a request under way are never closed. Without a waiting one, the new
        connection is refused.
        """
        waiting = [
            (each.waits_since, each.client[0] if each.client else "", each)
            for each in self.connections
            if isinstance(each, LimitedProtocol)
            and each is not self
            and each.waits_since is not None
        ]
        if not waiting:
            self.transport.abort()
            return
        # Of the client with most of them, so that one machine cannot push out all others.
        counts = Counter(ip for _, ip, _ in waiting)
        most = max(counts.values())
        _, _, oldest = min(
            (each for each in waiting if counts[each[1]] == most), key=lambda each: each[0]
        )
        oldest.transport.abort()

    def _refuse(self, status: int, phrase: str, code: str, message: str, remedy: str) -> None:
        answer = error_response(status, code, message, {"remedy": remedy})
        lines = [b"HTTP/1.1 %d %b" % (status, phrase.encode()), b"connection: close"]
        lines += [b"%b: %b" % each for each in answer.raw_headers]
        self.transport.write(b"\r\n".join([*lines, b"", bytes(answer.body)]))
        self.transport.close()
