"""Asking a NATS server why it hung up, without a word about who we are."""

from __future__ import annotations

import socket
import ssl
from urllib.parse import urlsplit

from ergon_framework.storage import tls
from ergon_framework.storage.nats.address import PORT, Address

ASKED = 3.0
"""Seconds for a server to say what is wrong."""
_LONGEST = 1 << 16  # bytes of what it says of itself before TLS


def last_words(address: Address, context: ssl.SSLContext) -> str:
    """What the first server to say anything says about our certificate; nothing if none does.

    The library goes on talking after the handshake. By then the server may have refused our
    certificate and hung up, and what it said about it is lost with the connection.
    """
    told = (_told(server, context, address.is_tls_first) for server in address.servers)
    return next((each for each in told if each), "")


def _told(server: str, context: ssl.SSLContext, is_tls_first: bool) -> str:
    parts = urlsplit(server)
    host = parts.hostname or ""
    try:
        with socket.create_connection((host, parts.port or PORT), ASKED) as line:
            line.settimeout(ASKED)
            if not is_tls_first:
                _let_it_speak(line)
            return tls.last_words(line, context, host)
    except OSError:
        return ""


def _let_it_speak(line: socket.socket) -> None:
    """To the end of its line: not a byte further, where TLS begins."""
    for _ in range(_LONGEST):
        if line.recv(1) in (b"", b"\n"):
            return
