"""Where a client stands until it is known who it is."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from typing import Any, cast

from ergon_framework.boundary.http import refusals, replies
from ergon_framework.boundary.http.connection import Connection
from ergon_framework.boundary.http.exchange import Caller
from ergon_framework.boundary.http.guest import Guest
from ergon_framework.boundary.http.identity import peer_identity
from ergon_framework.boundary.http.service import Service
from ergon_framework.errors import NotPermittedError, describe

SHUTDOWN = 2.0
"""Seconds for a client to say goodbye in TLS."""


class Doorstep(asyncio.Protocol):
    """Counts the client in, does the handshake, and makes a ``Connection`` of it."""

    is_busy = False

    def __init__(
        self, service: Service, context: Callable[[], ssl.SSLContext] | None = None
    ) -> None:
        self._service = service
        self._context = context
        self._raw: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Let a client in, if there is room."""
        self._raw = raw = cast("asyncio.Transport", transport)
        address = _address(transport)
        if len(self._service.connections) >= self._service.limits.connections:
            self._turn_away(raw, address)
        elif self._context is None:
            connection = Connection(self._service)
            raw.set_protocol(connection)
            connection.open(raw, Guest(Caller(address=address)))
        else:
            raw.pause_reading()  # the first bytes belong to the handshake
            self._service.connections.add(self)
            self._service.spawn(self._secure(raw, self._context, address))

    def sweep(self, now: float) -> None:
        """The handshake has a limit of its own."""

    def close(self) -> None:
        """A handshake need not be finished."""
        self.abort()

    def abort(self) -> None:
        """Close at once."""
        if self._raw is not None:
            self._raw.abort()

    def _turn_away(self, raw: asyncio.Transport, address: str) -> None:
        limit = self._service.limits.connections
        self._service.denied(address, f"{limit} connections are open already")
        if self._context is None:
            refusal = refusals.too_many_connections(limit)
            raw.write(replies.whole_error(refusal, self._service.date))
            raw.close()
        else:
            raw.abort()  # a handshake would cost more than it gives

    async def _secure(
        self, raw: asyncio.Transport, context: Callable[[], ssl.SSLContext], address: str
    ) -> None:
        connection = Connection(self._service)
        try:
            current = self._service.context = context()
            transport = await asyncio.get_running_loop().start_tls(
                raw,
                connection,
                current,
                server_side=True,
                ssl_handshake_timeout=self._service.limits.body_seconds,
                ssl_shutdown_timeout=SHUTDOWN,
            )
            if transport is None:
                raise ConnectionResetError("it hung up")
        except OSError as error:
            self._service.denied(address, _why(error))
            raw.abort()
        else:
            self._admit(connection, transport, current, address)
        finally:
            self._service.forget(self)

    def _admit(
        self,
        connection: Connection,
        transport: asyncio.Transport,
        context: ssl.SSLContext,
        address: str,
    ) -> None:
        certificate = _certificate(transport)
        expires_at = ssl.cert_time_to_seconds(certificate["notAfter"]) if certificate else None
        identity, denial = "", None
        try:
            identity = peer_identity(certificate)
        except NotPermittedError as error:
            denial = error
            self._service.denied(address, error.message)
        caller = Caller(identity=identity, address=address, is_secure=True)
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


def _address(transport: asyncio.BaseTransport) -> str:
    peer = transport.get_extra_info("peername")
    if not isinstance(peer, tuple):
        return "unknown"
    return f"[{peer[0]}]:{peer[1]}" if ":" in peer[0] else f"{peer[0]}:{peer[1]}"
