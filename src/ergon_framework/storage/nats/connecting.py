"""Connecting to a NATS server: who we are to it, and whether it is the one that the URL means."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ergon_framework.errors import ErgonError
from ergon_framework.storage.nats.address import TLS_OPTIONS, Address
from ergon_framework.storage.nats.asking import last_words
from ergon_framework.storage.nats.client import PlainServerError, QuickClient
from ergon_framework.storage.nats.faults import away, expired, refused
from ergon_framework.storage.nats.signing import Signer, signer_of
from ergon_framework.storage.tls import context_of

if TYPE_CHECKING:
    from nats.aio.client import Client

logger = logging.getLogger("ergon_framework.storage")

CONNECTING = 3.0
"""Seconds that connecting may take."""
_GIVEN_UP = (
    0.5  # seconds for hanging up where no connection came about: the library may wait for it
)


async def connect(address: Address, when_over: Callable[[], None]) -> QuickClient:
    """A connection, not mended when it is lost: ``when_over`` is called then.

    The files that the URL names are read each time, so that they can be renewed.
    """
    signer = signer_of(address.creds, address.nkey)
    public_key = None if signer is None else signer.public()
    client = QuickClient(needs_tls=address.has_tls, public_key=public_key)
    troubles = list[Exception]()

    async def trouble(error: Exception) -> None:
        troubles.append(error)

    async def over() -> None:
        when_over()

    opening = client.connect(
        servers=list(address.servers),
        name="ergon",
        no_echo=True,
        allow_reconnect=False,
        max_reconnect_attempts=1,
        reconnect_time_wait=0,
        connect_timeout=int(CONNECTING),
        ping_interval=5,
        # Without one it trusts whom this machine trusts, should the server ask for TLS.
        tls=_context(address) if address.has_tls else None,
        tls_handshake_first=address.is_tls_first,
        error_cb=trouble,
        closed_cb=over,
        **_identity(address, signer),
    )
    try:
        await asyncio.wait_for(opening, CONNECTING)
        _refuse_unchecked(client)
    except Exception as error:
        await quietly(client, _GIVEN_UP)
        if signer is not None and signer.has_expired(time.time()):
            raise expired(address.name) from error
        causes = [*reversed(troubles), error]
        told = (refused(address, cause) for cause in causes)
        found = next((each for each in told if each is not None), None)
        found = found or await _unheard(address, causes)
        raise found or away(address.name, causes[0]) from error
    return client


async def _unheard(address: Address, causes: list[Exception]) -> ErgonError | None:
    """What the server had against us, when it hung up before anybody listened."""
    if not (address.has_tls and any(isinstance(each, ConnectionError) for each in causes)):
        return None
    said = await asyncio.to_thread(last_words, address, _context(address))
    return refused(address, OSError(said))


async def quietly(client: Client, seconds: float = CONNECTING) -> None:
    """Hang up, whatever comes of it."""
    try:
        await asyncio.wait_for(client.close(), seconds)
    except Exception as error:
        logger.debug("closing a connection to NATS: %s", error)


def _identity(address: Address, signer: Signer | None) -> dict[str, Any]:
    """What the library is told about who we are."""
    if signer is None:
        return {"user": address.user, "password": address.password, "token": address.token}
    jwt = signer.jwt
    claim = None if jwt is None else lambda: bytearray(jwt.encode())
    return {"signature_cb": signer.sign, "user_jwt_cb": claim}


def _context(address: Address) -> ssl.SSLContext:
    return context_of(TLS_OPTIONS, address.tls_ca, address.tls_cert, address.tls_key)


def _refuse_unchecked(client: QuickClient) -> None:
    """A version of the library that asks nobody before it talks is not to be used with TLS."""
    if client.needs_tls and not client.is_checked:
        raise PlainServerError("nobody asked whether the line is encrypted")
