"""What a connection is held to: whole requests in time, and no more connections than there may be.

uvicorn gives a connection that rests a limit, but none to a request that has begun: half a head
would keep its place for ever.
"""

from __future__ import annotations

import asyncio
import resource
from collections import Counter

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from ergon_framework.web.middleware import HEAD
from ergon_framework.web.responses import error_response

REQUEST = 10.0
"""Seconds in which a whole request must have come, or the first one must have begun."""
CONNECTIONS = 500
"""Open at the same time; fewer where the process may open fewer than twice as many files."""
_INCOMPLETE = (h11.IDLE, h11.SEND_BODY)


def most_connections() -> int:
    """How many connections leave enough files for everything else."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CONNECTIONS if files == resource.RLIM_INFINITY else max(1, min(CONNECTIONS, files // 2))


class LimitedProtocol(H11Protocol):
    """uvicorn's, with a limit for requests and for connections, and our shape of errors."""

    waits_since: float | None = None
    """Since when the rest of a request is waited for; None while one is answered."""
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Somebody connects; when there are too many, one who keeps his request back goes."""
        super().connection_made(transport)
        self._look()
        if len(self.connections) > most_connections():
            self._make_room()

    def data_received(self, data: bytes) -> None:
        """Bytes of a request."""
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        """A request was answered; the next one may be on its way."""
        super().on_response_complete()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        self._wait_no_more()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Refuse what cannot be understood, or whose head has no end, and hang up."""
        waiting, _ = self.conn.trailing_data
        if len(waiting) > HEAD and self.conn.their_state is h11.ERROR:
            told, remedy = "the head of the request is too large", f"send at most {HEAD} bytes"
            self._refuse(431, "Request Header Fields Too Large", "too_large", told, remedy)
            return
        remedy = "send HTTP/1.1, with a short head"
        self._refuse(400, "Bad Request", "bad_request", msg.rstrip(".").lower(), remedy)

    def _look(self) -> None:
        """Begin to wait for the rest of a request, or stop waiting: it is complete."""
        if self.conn.their_state not in _INCOMPLETE or self.transport.is_closing():
            self._wait_no_more()
        elif self._timer is None:
            self.waits_since = self.loop.time()
            self._timer = self.loop.call_later(REQUEST, self._too_late)

    def _wait_no_more(self) -> None:
        self.waits_since = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_late(self) -> None:
        self._wait_no_more()
        if self.transport.is_closing():
            return
        if self.conn.their_state is h11.SEND_BODY:
            self.transport.abort()  # its body stopped coming: whoever reads it hears of it
            return
        told = "the request did not come in time"
        self._refuse(408, "Request Timeout", "request_timeout", told, "send it again")

    def _make_room(self) -> None:
        """End the oldest that waits, of the client that has most of them; or this one."""
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
        counts = Counter(ip for _, ip, _ in waiting)
        most = max(counts.values())
        _, _, oldest = min(
            (each for each in waiting if counts[each[1]] == most), key=lambda each: each[0]
        )
        oldest.transport.abort()

    def _refuse(self, status: int, phrase: str, code: str, told: str, remedy: str) -> None:
        answer = error_response(status, code, told, {"remedy": remedy})
        lines = [b"HTTP/1.1 %d %b" % (status, phrase.encode()), b"connection: close"]
        lines += [b"%b: %b" % each for each in answer.raw_headers]
        self.transport.write(b"\r\n".join([*lines, b"", bytes(answer.body)]))
        self.transport.close()
