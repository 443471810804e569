"""Where a client stands until it is known who it is."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Mapping
from typing import Any, cast

from ergon_framework.boundary.http import refusals, replies
from ergon_framework.boundary.http.connection import LINGER, Connection
from ergon_framework.boundary.http.exchange import Caller
from ergon_framework.boundary.http.guest import Guest
from ergon_framework.boundary.http.handshake import LookedIn, secured
from ergon_framework.boundary.http.identity import peer_identity
from ergon_framework.boundary.http.service import Service
from ergon_framework.errors import NotPermittedError, describe


class Doorstep(asyncio.Protocol):
    """Counts the client in, does the handshake, and makes a ``Connection`` of it."""

    is_busy = False

    def __init__(
        self, service: Service, context: Callable[[], ssl.SSLContext] | None = None
    ) -> None:
        self._service = service
        self._context = context
        self._raw: asyncio.Transport | None = None
        self._address = self.ip = "unknown"
        self._lingers_until: float | None = None  # it was refused, and may read why

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Let a client in, if there is room."""
        self._raw = raw = cast("asyncio.Transport", transport)
        self._address, self.ip = _address(transport)
        why = self._service.why_full(self.ip)
        if why and self._service.make_room():
            why = ""
        if why:
            self._turn_away(raw, why)
        elif self._context is None:
            connection = Connection(self._service, self.ip)
            raw.set_protocol(connection)
            connection.open(raw, Guest(Caller(address=self._address)))
        else:
            raw.pause_reading()  # the first bytes belong to the handshake
            self._make_room()
            self._service.add(self)
            self._service.handshakes[self] = None
            self._service.spawn(self._secure(raw, self._context))

    def sweep(self, now: float) -> None:
        """Send away a client that was refused and stays; the handshake has a limit of its own."""
        if self._lingers_until is not None and now > self._lingers_until:
            self.abort()

    def close(self) -> None:
        """A handshake need not be finished."""
        self.abort()

    def abort(self) -> None:
        """Close at once."""
        if self._raw is not None:
            self._raw.abort()

    body_bytes = 0
    rested_at = 0.0

    def shed(self) -> None:
        """Nothing has arrived."""

    def _make_room(self) -> None:
        """End a handshake that is under way, when there are as many as there may be."""
        service = self._service
        if len(service.handshakes) < service.limits.handshakes:
            return
        oldest = service.crowded_out(service.handshakes)
        if oldest is not None:
            service.denied(oldest.ip, "too many TLS handshakes are under way")
            oldest.abort()
            service.forget(oldest)

    def _turn_away(self, raw: asyncio.Transport, why: str) -> None:
        self._service.denied(self._address, why)
        if self._context is None:
            refusal = refusals.too_many_connections(self._service.limits.connections, why)
            raw.write(replies.whole_error(refusal, self._service.date))
            raw.close()
        else:
            raw.abort()  # a handshake would cost more than it gives

    async def _secure(self, raw: asyncio.Transport, context: Callable[[], ssl.SSLContext]) -> None:
        connection = Connection(self._service, self.ip)
        try:
            current = self._service.context = context()
            limit = self._service.limits.handshake_seconds
            transport = await secured(raw, connection, current, self._refused, limit)
        except LookedIn:
            raw.abort()  # a probe does that every few seconds, and harms nobody
        except OSError as error:
            if self._lingers_until is None:
                self._service.denied(self._address, _why(error))
            raw.abort()
        else:
            self._service.forget(self)
            self._admit(connection, transport, current)
        finally:
            self._service.forget(self)

    def _refused(self, error: ssl.SSLError) -> None:
        self._lingers_until = self._service.clock() + LINGER
        self._service.denied(self._address, _why(error))
        # Not yet: the alert is sent right after this.
        asyncio.get_running_loop().call_soon(self._end_speaking)

    def _end_speaking(self) -> None:
        """Closing with unread bytes could take the alert from the client again."""
        if self._raw is not None and not self._raw.is_closing():
            with contextlib.suppress(OSError):  # the client may be gone already
                self._raw.write_eof()

    def _admit(
        self,
        connection: Connection,
        transport: asyncio.Transport,
        context: ssl.SSLContext,
    ) -> None:
        if why := self._service.why_full(self.ip):
            self._service.denied(self._address, why)
            transport.abort()
            return
        certificate = _certificate(transport)
        expires_at = ssl.cert_time_to_seconds(certificate["notAfter"]) if certificate else None
        identity, denial = "", None
        try:
            identity = peer_identity(certificate)
        except NotPermittedError as error:
            denial = error
            self._service.denied(self._address, error.message)
        caller = Caller(identity=identity, address=self._address, is_secure=True)
        connection.open(transport, Guest(caller, context, expires_at, denial))


def _certificate(transport: asyncio.Transport) -> Mapping[str, Any]:
    secured = transport.get_extra_info("ssl_object")
    return (secured.getpeercert() if secured is not None else None) or {}


def _why(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate was refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return f"the TLS handshake failed: {error.reason.lower().replace('_', ' ')}"
    if isinstance(error, ConnectionResetError):
        return "it hung up during the TLS handshake"
    return f"the TLS handshake failed: {describe(error)}"


def _address(transport: asyncio.BaseTransport) -> tuple[str, str]:
    """Where the client is, with its port and without."""
    peer = transport.get_extra_info("peername")
    if not isinstance(peer, tuple):
        return "unknown", "unknown"
    ip, port = str(peer[0]), peer[1]
    return (f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"), ip
