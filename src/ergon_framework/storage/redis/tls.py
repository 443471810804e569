"""Encrypted connections to a Redis server, and why none came about."""

from __future__ import annotations

import socket
import ssl
from typing import Any

import redis

from ergon_framework.errors import ConfigurationError
from ergon_framework.storage import tls
from ergon_framework.storage.hurry import ASKING
from ergon_framework.storage.redis.address import TLS_OPTIONS, Address
from ergon_framework.storage.redis.connecting import in_time

SHAKEN = 3.0
"""Seconds for the two sides to agree on how to encrypt."""
_PROBED = 3.0  # seconds for a server to say what is wrong
_PLAIN = (b"+", b"-")  # how one without TLS begins, whatever it thinks of the question
_CUT = ("reset", "closed", "EOF", "Broken pipe", "Protocol Error")


class EncryptedConnection(redis.SSLConnection):
    """Does not wait as long for a handshake as for an answer: a server without TLS never ends it.

    Should the driver call this no longer, it waits as long as for an answer. A key with a
    passphrase is refused, and nobody is asked for it.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, ssl_password=tls.no_passphrase)

    def _connect(self) -> Any:
        return in_time(self, super()._connect, SHAKEN)


def fault_of(address: Address, error: BaseException) -> ConfigurationError | None:
    """What is wrong about TLS when no connection came about; None when it is something else.

    A server that hangs up at once often takes back what it said why; then it is asked again.
    """
    text = str(error)
    if not address.has_tls:
        is_cut = any(each in text for each in _CUT)
        return _encrypted(address.name) if is_cut and _speaks_tls(address) else None
    try:
        context = _context(address)
    except ConfigurationError as unreadable:
        return unreadable
    found = tls.refused(address.name, text, TLS_OPTIONS)
    if found is None and any(each in text for each in _CUT):
        found = tls.refused(address.name, _last_words(address, context), TLS_OPTIONS)
    if found is None and _speaks_plainly(address):
        found = tls.plain(address.name, TLS_OPTIONS)
    return found


def _context(address: Address) -> ssl.SSLContext:
    options = address.options
    files = (options.get(f"ssl_{each}") for each in ("ca_certs", "certfile", "keyfile"))
    context = tls.context_of(TLS_OPTIONS, *files)
    context.check_hostname = options["ssl_check_hostname"]
    if options["ssl_cert_reqs"] == "none":
        context.verify_mode = ssl.CERT_NONE
    return context


def _encrypted(name: str) -> ConfigurationError:
    return ConfigurationError(
        f"{name} speaks TLS there, and the URL is for a server without",
        remedy="write rediss:// in the URL, and the authority of its certificate:"
        f" {TLS_OPTIONS.authority}",
    )


# ---- asking the server without a word about who we are ------------------------------------------


def _line(address: Address) -> socket.socket:
    seconds = ASKING.at_most(_PROBED)
    line = socket.create_connection((address.options["host"], address.options["port"]), seconds)
    line.settimeout(seconds)
    return line


def _speaks_plainly(address: Address) -> bool:
    """Whether a Redis without TLS is there: to the beginning of TLS it may say nothing at all."""
    try:
        with _line(address) as line:
            line.sendall(b"PING\r\n")
            return line.recv(1) in _PLAIN
    except OSError:
        return False


def _speaks_tls(address: Address) -> bool:
    """Whether a server there shows a certificate, of whomever."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with _line(address) as line, context.wrap_socket(line):
            return True
    except OSError as error:
        return "alert" in str(error).lower()


def _last_words(address: Address, context: ssl.SSLContext) -> str:
    try:
        with _line(address) as line:
            return tls.last_words(line, context, address.options["host"])
    except OSError as error:
        return str(error)
