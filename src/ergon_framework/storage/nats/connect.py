"""Connecting to a NATS server: nkeys and credentials, TLS, and why a server refused us."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import logging
import re
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from nats.aio.client import Client
from nats.errors import Error

from ergon_framework.errors import ConfigurationError, ErgonError
from ergon_framework.storage import connection_errors
from ergon_framework.storage.connection_errors import context_of
from ergon_framework.storage.nats.address import (
    DEFAULT_TIMEOUTS,
    PORT,
    TLS_OPTIONS,
    NatsAddress,
    NatsTimeouts,
)
from ergon_framework.storage.nats.errors import PermissionsError, away, expired, refused

_SEED, _USER = 18 << 3, 20 << 3  # the letters S and U
_LENGTH = 2 + 32 + 2  # what it is, the key, a checksum
_JWT = re.compile(r"-+BEGIN NATS USER JWT-+\s+(\S+)\s+-+END NATS USER JWT-+")
_SECRET = re.compile(r"-+BEGIN USER NKEY SEED-+\s+(\S+)\s+-+END USER NKEY SEED-+")
_BARE = re.compile(r"^\s*(SU[A-Z2-7]+)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Signer:
    """A user's key, and the user's JWT if the server authenticates by JWT."""

    key: bytes
    jwt: str | None = None

    def sign(self, nonce: str) -> bytes:
        """Sign the server's nonce."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        key = Ed25519PrivateKey.from_private_bytes(self.key)
        return base64.b64encode(key.sign(nonce.encode()))

    def public(self) -> str:
        """The name under which the server knows the key."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        key = Ed25519PrivateKey.from_private_bytes(self.key).public_key().public_bytes_raw()
        return _spelt(bytes([_USER]) + key)

    def has_expired(self, now: float) -> bool:
        """Whether the JWT has expired: only to explain why the server refused us."""
        try:
            claims = json.loads(_decoded((self.jwt or "").split(".")[1]))
            return bool(0 < float(claims.get("exp") or 0) < now)
        except (IndexError, ValueError, AttributeError):
            return False

    def __repr__(self) -> str:
        return "Signer()"


def signer_of(creds: str | None, nkey: str | None) -> Signer | None:
    """The signer for the credentials or the key that a URL names; None if it names none."""
    if creds is not None:
        text = _read(creds, "creds")
        jwt, seed = _JWT.search(text), _SECRET.search(text)
        if jwt is None or seed is None:
            raise ConfigurationError(
                "the file that creds names in the URL has no JWT and seed of a user",
                remedy="take the .creds file of the user: nsc generate creds",
            )
        return Signer(_key_in(seed[1], "creds"), jwt[1])
    if nkey is not None:
        seed = _BARE.search(_read(nkey, "nkey"))
        if seed is None:
            raise ConfigurationError(
                "the file that nkey names in the URL has no seed of a user, which begins with SU",
                remedy="put the seed there, and the key that begins with U into the server's"
                " configuration: nsc generate nkey --user",
            )
        return Signer(_key_in(seed[1], "nkey"))
    return None


def _read(path: str, option: str) -> str:
    # Only ASCII may stand in such a file; anything else is the wrong file.
    try:
        return Path(path).read_text(encoding="ascii")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a text of ASCII"
        raise ConfigurationError(
            f"the file that {option} names in the URL cannot be read: {reason}",
            remedy="name a file that is there and that this user may read",
        ) from None  # its text may hold the key


def _key_in(seed: str, option: str) -> bytes:
    """The key that a seed spells out."""
    try:
        raw = base64.b32decode(seed + "=" * (-len(seed) % 8))
    except binascii.Error:
        raw = b""
    is_whole = len(raw) == _LENGTH and _checksum(raw[:-2]) == raw[-2:]
    if not is_whole or (raw[0] & 0xF8, (raw[0] & 7) << 5 | raw[1] >> 3) != (_SEED, _USER):
        raise ConfigurationError(
            f"the seed in the file that {option} names in the URL is damaged, or not one of a user",
            remedy="copy the file again",
        )
    return raw[2:-2]


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _spelt(raw: bytes) -> str:
    return base64.b32encode(raw + _checksum(raw)).decode().rstrip("=")


def _checksum(raw: bytes) -> bytes:
    return binascii.crc_hqx(raw, 0).to_bytes(2, "little")


_MAX_GREETING = 1 << 16  # bytes of what a server says of itself before TLS


def tls_alert(address: NatsAddress, context: ssl.SSLContext, timeout: float) -> str:
    """The TLS alert of the first server that sends one about our certificate; empty if none does.

    The library sends its next message right after the handshake. By then the server may have
    refused our certificate and closed the connection, and its alert is lost with the connection.
    """
    alerts = (
        _alert_of_server(server, context, address.is_tls_first, timeout)
        for server in address.servers
    )
    return next((each for each in alerts if each), "")


def _alert_of_server(
    server: str, context: ssl.SSLContext, is_tls_first: bool, timeout: float
) -> str:
    parts = urlsplit(server)
    host = parts.hostname or ""
    try:
        with socket.create_connection((host, parts.port or PORT), timeout) as sock:
            sock.settimeout(timeout)
            if not is_tls_first:
                _skip_greeting(sock)
            return connection_errors.tls_alert_of(sock, context, host)
    except OSError:
        return ""


def _skip_greeting(sock: socket.socket) -> None:
    """Read the greeting, up to its newline and not a byte further, where TLS begins."""
    for _ in range(_MAX_GREETING):
        if sock.recv(1) in (b"", b"\n"):
            return


class PlainServerError(Error):
    """A server did not begin with TLS, and the URL asks for it."""


def read_headers(raw: bytes) -> dict[str, str]:
    """The headers of a message; the library takes three times as long."""
    found = {}
    for line in raw.decode("utf-8", "surrogateescape").split("\r\n"):
        key, mark, value = line.partition(":")
        if mark:
            found[key] = value.strip()
    return found


class PatchedClient(Client):
    """A client of the library, changed in four places, and with one more way to end.

    It reads what our own messages and the server's answers have for headers, and nothing else.
    Should the library call this no longer, its own reading is used, which is only slower.

    It closes a connection that should be encrypted and is not, before it sends credentials: the
    library leaves it to the server whether there is TLS. ``is_checked`` is set by that check.

    It uses TLS also where the server leaves that to its clients (``allow_non_tls``).

    It knows the public half of a key by which the server knows the user.
    """

    def __init__(self, *, needs_tls: bool, public_key: str | None) -> None:
        super().__init__()
        self.needs_tls = needs_tls
        self.is_checked = False
        self._public_nkey = public_key

    def _process_info(self, info: dict[str, Any], *args: Any, **more: Any) -> Any:
        """Older versions of the library do not wait for it: what it returns is theirs to know."""
        # ``allow_non_tls``: the server offers TLS and does not insist. A URL with tls:// does
        # insist.
        if self.needs_tls and self._server_info.get("tls_available"):
            self._server_info["tls_required"] = True  # by which the library decides
        return super()._process_info(info, *args, **more)

    def _connect_command(self) -> bytes:
        # The last moment before the password leaves this machine.
        if self.needs_tls and not self._is_encrypted():
            raise PlainServerError("the line to the server is not encrypted")
        self.is_checked = True
        return super()._connect_command()

    def hang_up(self) -> None:
        """Close the connection without waiting for pending messages. Called in its event loop."""
        transport: Any = self._transport
        if transport is not None:
            transport.close()

    def _is_encrypted(self) -> bool:
        """Asked of the transport itself: what the server announced about TLS does not show whether
        it was used.
        """
        writer = getattr(self._transport, "_io_writer", None)
        return writer is not None and writer.get_extra_info("ssl_object") is not None

    _parse_header_lines = staticmethod(read_headers)


logger = logging.getLogger("ergon_framework.storage")

# Seconds for hanging up where no connection was established: the library may wait for it.
_ABORT_TIMEOUT = 0.5
_DENIED = "permissions violation"


async def connect(
    address: NatsAddress,
    when_over: Callable[[], None],
    timeouts: NatsTimeouts = DEFAULT_TIMEOUTS,
    when_denied: Callable[[PermissionsError], None] = lambda _: None,
) -> PatchedClient:
    """A connection, not fixed when it is lost: ``when_over`` is called then.

    ``when_denied`` is called when the server says that the user lacks a permission: it says so
    beside the request, which it does not answer.

    The files that the URL names are read each time, so that they can be renewed.
    """
    signer = signer_of(address.creds, address.nkey)
    public_key = None if signer is None else signer.public()
    client = PatchedClient(needs_tls=address.has_tls, public_key=public_key)
    troubles = list[Exception]()
    opening_is_over = False

    async def trouble(error: Exception) -> None:
        if _DENIED in str(error).lower():
            when_denied(PermissionsError(str(error).removeprefix("nats: ")))
        if not opening_is_over:  # later ones are of nobody's interest, and may come for ever
            troubles.append(error)

    async def over() -> None:
        when_over()

    opening = client.connect(
        servers=list(address.servers),
        name="ergon",
        # Our own messages would wake our own subscribers, which know already.
        no_echo=True,
        # We connect again ourselves: the library would keep requests and send them late, when their
        # callers have given up.
        allow_reconnect=False,
        max_reconnect_attempts=1,
        reconnect_time_wait=0,
        connect_timeout=int(timeouts.connect),
        ping_interval=5,
        # Without one it uses the trust store of this machine, should the server ask for TLS.
        tls=_context(address) if address.has_tls else None,
        tls_handshake_first=address.is_tls_first,
        error_cb=trouble,
        closed_cb=over,
        **_identity(address, signer),
    )
    try:
        await asyncio.wait_for(opening, timeouts.connect)
        _refuse_unchecked(client)
    except Exception as error:
        await quietly(client, _ABORT_TIMEOUT)
        # Servers refuse expired credentials with the same message as wrong ones; only the token
        # tells.
        if signer is not None and signer.has_expired(time.time()):
            raise expired(address.name) from error
        # The latest trouble first: it is the nearest to why the attempt ended.
        causes = [*reversed(troubles), error]
        refusals = (refused(address, cause) for cause in causes)
        found = next((each for each in refusals if each is not None), None)
        found = found or await _unheard(address, causes, timeouts.probe)
        raise found or away(address.name, causes[0]) from error
    opening_is_over = True
    return client


async def _unheard(
    address: NatsAddress, causes: list[Exception], probe_timeout: float
) -> ErgonError | None:
    """Why the server refused us, when it closed the connection before the library read from it."""
    if not (address.has_tls and any(isinstance(each, ConnectionError) for each in causes)):
        return None
    said = await asyncio.to_thread(tls_alert, address, _context(address), probe_timeout)
    return refused(address, OSError(said))


async def quietly(client: Client, seconds: float) -> None:
    """Close the connection, and ignore any error."""
    try:
        await asyncio.wait_for(client.close(), seconds)
    except Exception as error:
        logger.debug("closing a connection to NATS: %s", error)


def _identity(address: NatsAddress, signer: Signer | None) -> dict[str, Any]:
    """The credentials as options of the library."""
    if signer is None:
        return {"user": address.user, "password": address.password, "token": address.token}
    jwt = signer.jwt
    claim = None if jwt is None else lambda: bytearray(jwt.encode())
    return {"signature_cb": signer.sign, "user_jwt_cb": claim}


def _context(address: NatsAddress) -> ssl.SSLContext:
    return context_of(TLS_OPTIONS, address.tls_ca, address.tls_cert, address.tls_key)


def _refuse_unchecked(client: PatchedClient) -> None:
    """Refuse TLS with a version of the library that does not call our check before it sends."""
    if client.needs_tls and not client.is_checked:
        raise PlainServerError("nobody asked whether the line is encrypted")
