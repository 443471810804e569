"""A server's TLS handshake that lets a client it refuses know why.

When a handshake fails, OpenSSL writes an alert that says so, and asyncio closes the connection
without sending it. Here a refused handshake asks for more bytes instead, as one under way does:
that sends what there is to send. From then on it never succeeds, and throws away what comes in.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

SHUTDOWN = 2.0
"""Seconds for a client to say goodbye in TLS."""

Refused = Callable[[ssl.SSLError], None]


class LookedIn(ConnectionResetError):
    """Somebody connected and went without a word, as whoever only looks whether we listen."""


@dataclass(slots=True)
class _Door:
    """One handshake, as seen from outside."""

    on_refused: Refused
    has_heard: bool = False


# asyncio makes the object that does the handshake, so this is how it learns whose handshake it is.
_door: ContextVar[_Door | None] = ContextVar("door", default=None)


async def secured(
    raw: asyncio.Transport,
    protocol: asyncio.BaseProtocol,
    context: ssl.SSLContext,
    on_refused: Refused,
    seconds: float,
) -> asyncio.Transport:
    """The encrypted transport, once the client has shown who it is.

    When the client is refused with an alert, ``on_refused`` is told right before it is sent. The
    connection stays open for the client to read it, until ``raw`` or the client ends it.
    """
    door = _Door(on_refused)
    token = _door.set(door)
    try:
        transport = await asyncio.get_running_loop().start_tls(
            raw,
            protocol,
            context,
            server_side=True,
            ssl_handshake_timeout=seconds,
            ssl_shutdown_timeout=SHUTDOWN,
        )
    except ConnectionResetError:
        if not door.has_heard:
            raise LookedIn("it hung up without a word") from None
        raise
    finally:
        _door.reset(token)
    if transport is None:
        raise ConnectionResetError("it hung up") if door.has_heard else LookedIn("it hung up")
    return transport


class _Handshake(ssl.SSLObject):
    """The server's side of one connection."""

    incoming: ssl.MemoryBIO
    outgoing: ssl.MemoryBIO
    door: _Door | None = None
    _is_refused = False

    def do_handshake(self) -> None:
        """One step; after a refusal it only waits for the client to hang up."""
        if self.door is not None and self.incoming.pending:
            self.door.has_heard = True
        if not self._is_refused:
            try:
                super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLError as error:
                if self.door is None or not self.outgoing.pending:  # there is no alert
                    raise
                self._is_refused = True
                self.door.on_refused(error)
            else:
                self.door = None  # a connection lives long, and nobody is told any more
                return
        self.incoming.read()
        raise ssl.SSLWantReadError


class ServerContext(ssl.SSLContext):
    """A context whose connections do their handshake that way, when ``secured`` begins it."""

    sslobject_class = _Handshake

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """Begin a connection whose bytes somebody else carries."""
        made = super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        if isinstance(made, _Handshake):
            made.incoming, made.outgoing = incoming, outgoing
            made.door = _door.get()
        return made
