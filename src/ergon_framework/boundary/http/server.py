"""An HTTP/1.1 server for one application: fast for small requests, with limits against slow or
hostile clients.

``Acceptor`` has a connection until the TLS handshake has identified the client. A client that is
refused gets the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, cast

from ergon_framework.boundary.http import responses
from ergon_framework.boundary.http.addresses import BACKLOG, bound_sockets
from ergon_framework.boundary.http.connection import LINGER_TIME, Peer, ServerConnection
from ergon_framework.boundary.http.exchange import Application, Caller
from ergon_framework.boundary.http.server_state import Denied, Failed, ServerState
from ergon_framework.boundary.http.tls import ProbeDisconnected, peer_identity, secured
from ergon_framework.boundary.settings import LimitSettings
from ergon_framework.errors import ConfigurationError, NotPermittedError, describe


class Acceptor(asyncio.Protocol):
    """Counts the client in, does the handshake, and makes a ``ServerConnection`` of it."""

    is_busy = False

    def __init__(
        self, service: ServerState, context: Callable[[], ssl.SSLContext] | None = None
    ) -> None:
        self._service = service
        self._context = context
        self._raw: asyncio.Transport | None = None
        self._address = self.ip = "unknown"
        self._lingers_until: float | None = None  # it was refused, and may read why

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept a client, if there is room."""
        self._raw = raw = cast("asyncio.Transport", transport)
        self._address, self.ip = _address(transport)
        why = self._service.why_full(self.ip)
        # One that asks nothing goes for one that may ask something.
        if why and self._service.make_room():
            why = ""
        if why:
            self._turn_away(raw, why)
        elif self._context is None:
            connection = ServerConnection(self._service, self.ip)
            raw.set_protocol(connection)
            connection.open(raw, Peer(Caller(address=self._address)))
        else:
            raw.pause_reading()  # the first bytes belong to the handshake
            self._make_room()
            self._service.add(self)
            # In the order they began: the oldest goes first when there are too many.
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
    idle_since = 0.0

    def shed(self) -> None:
        """Do nothing: a client in its handshake has sent no request."""

    def _make_room(self) -> None:
        """Close the oldest handshake if the limit of concurrent handshakes is reached."""
        service = self._service
        if len(service.handshakes) < service.limits.handshakes:
            return
        oldest = service.connection_to_evict(service.handshakes)
        if oldest is not None:
            service.denied(oldest.ip, "too many TLS handshakes are under way")
            oldest.abort()
            service.forget(oldest)

    def _turn_away(self, raw: asyncio.Transport, why: str) -> None:
        self._service.denied(self._address, why)
        if self._context is None:
            refusal = responses.too_many_connections(self._service.limits.connections, why)
            raw.write(responses.whole_error(refusal, self._service.date))
            raw.close()
        else:
            raw.abort()  # a handshake would cost more than it gives

    async def _secure(self, raw: asyncio.Transport, context: Callable[[], ssl.SSLContext]) -> None:
        connection = ServerConnection(self._service, self.ip)
        try:
            # Asked for each connection, so that renewed certificates count at once.
            current = self._service.context = context()
            limit = self._service.limits.handshake_seconds
            transport = await secured(raw, connection, current, self._refused, limit)
        except ProbeDisconnected:
            raw.abort()  # health probes do that every few seconds
        except OSError as error:
            if self._lingers_until is None:
                self._service.denied(self._address, _why(error))
            raw.abort()
        else:
            # Before it is admitted: it must not be counted twice.
            self._service.forget(self)
            self._admit(connection, transport, current)
        finally:
            self._service.forget(self)

    def _refused(self, error: ssl.SSLError) -> None:
        self._lingers_until = self._service.clock() + LINGER_TIME
        self._service.denied(self._address, _why(error))
        # Not yet: the alert is sent right after this.
        asyncio.get_running_loop().call_soon(self._shut_down_sending)

    def _shut_down_sending(self) -> None:
        """Send no more, but stay open: closing now could reset the connection before the client
        has read the alert.
        """
        if self._raw is not None and not self._raw.is_closing():
            with contextlib.suppress(OSError):  # the client may be gone already
                self._raw.write_eof()

    def _admit(
        self,
        connection: ServerConnection,
        transport: asyncio.Transport,
        context: ssl.SSLContext,
    ) -> None:
        # Others may have come while this one shook hands.
        if why := self._service.why_full(self.ip):
            self._service.denied(self._address, why)
            transport.abort()
            return
        certificate = _certificate(transport)
        # Asked now and looked at later: a connection may outlive its certificate.
        expires_at = ssl.cert_time_to_seconds(certificate["notAfter"]) if certificate else None
        identity, denial = "", None
        try:
            identity = peer_identity(certificate)
        except NotPermittedError as error:
            denial = error
            self._service.denied(self._address, error.message)
        caller = Caller(identity=identity, address=self._address, is_secure=True)
        connection.open(transport, Peer(caller, context, expires_at, denial))


def _certificate(transport: asyncio.Transport) -> Mapping[str, Any]:
    secured = transport.get_extra_info("ssl_object")
    return (secured.getpeercert() if secured is not None else None) or {}


_CRL_HAS_EXPIRED = 12  # X509_V_ERR_CRL_HAS_EXPIRED of OpenSSL; its alert is that of a certificate


def _why(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code == _CRL_HAS_EXPIRED:
            return "the list of revoked certificates of this node has run out: renew the file crl"
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


SWEEP_INTERVAL = 1.0
"""Seconds between two rounds of housekeeping, which all time limits share."""


class Contexts(Protocol):
    """Gives the current TLS context, as ``Certificates`` does."""

    def server(self) -> ssl.SSLContext:
        """The context for the next connection."""


class Server:
    """Serves an application from ``start`` to ``stop``, on the running event loop.

    With ``names`` it answers under these and those of loopback only. With ``crowds_out`` a
    connection that asks nothing makes room for a new one when there are too many: for an
    application whose clients ask at once, such as probes.
    """

    def __init__(
        self,
        application: Application,
        *,
        host: str,
        port: int,
        limits: LimitSettings | None = None,
        tls: ssl.SSLContext | Contexts | None = None,
        names: Iterable[str] | None = None,
        crowds_out: bool = False,
        on_denied: Denied | None = None,
        on_error: Failed | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._host = host
        self._port = port
        self._context = _source(tls)
        limits = limits or LimitSettings()
        self.state = ServerState(application, limits, clock, wall, on_error, on_denied)
        """What the connections share: who is connected, and whether the server stops."""
        if names is not None:
            self.state.names = frozenset(name.lower().rstrip(".") for name in names)
        self.state.crowds_out = crowds_out
        self._listeners: list[asyncio.Server] = []
        self._timer: asyncio.TimerHandle | None = None

    @property
    def address(self) -> tuple[str, int]:
        """The host and port it really listens on."""
        if not self._listeners:
            raise ConfigurationError("the server does not listen", remedy="start it first")
        return self.addresses[0]

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Every host and port it listens on: a name may have several addresses."""
        sockets = [sock for listener in self._listeners for sock in listener.sockets]
        names = [sock.getsockname() for sock in sockets]
        return [(str(name[0]), int(name[1])) for name in names]

    @property
    def connections(self) -> int:
        """How many are open now, unfinished handshakes included."""
        return len(self.state.connections)

    @property
    def held_bytes(self) -> int:
        """Bytes of request bodies in memory, blobs aside."""
        return self.state.held_bytes

    async def start(self) -> None:
        """Listen. An address that cannot be had is a ``ConfigurationError``."""
        loop = asyncio.get_running_loop()
        self.state.is_stopping = False
        if self._context is not None:
            self.state.context = self._context()
        for sock in bound_sockets(self._host, self._port):
            listener = await loop.create_server(self._new_protocol, sock=sock, backlog=BACKLOG)
            self._listeners.append(listener)
        self._timer = loop.call_later(SWEEP_INTERVAL, self._tick)

    async def stop(self, grace: float = 10.0) -> None:
        """Accept no more clients, let requests end within ``grace`` seconds, then close all."""
        self.state.is_stopping = True
        for listener in self._listeners:
            listener.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                # First the answers that are due, then the connections.
                await self.state.until_quiet()
                await self.state.until_empty()
        await self.state.cut()
        self._listeners.clear()
        if self._timer is not None:
            self._timer.cancel()

    def sweep(self) -> None:
        """Read the certificate anew if it was replaced, and close overdue connections. Runs every
        second.
        """
        if self._context is not None:
            self.state.context = self._context()
        self.state.sweep()

    def _new_protocol(self) -> Acceptor:
        return Acceptor(self.state, self._context)

    def _tick(self) -> None:
        # Before the round: one that fails must not end all later ones.
        self._timer = asyncio.get_running_loop().call_later(SWEEP_INTERVAL, self._tick)
        self.sweep()


def _source(tls: ssl.SSLContext | Contexts | None) -> Callable[[], ssl.SSLContext] | None:
    if tls is None:
        return None
    return (lambda: tls) if isinstance(tls, ssl.SSLContext) else tls.server
