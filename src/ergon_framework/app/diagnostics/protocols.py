"""Which protocol is spoken at an address: for URLs that lead to a server of another kind.

Nothing of the URL but host and port is used, so no credentials are sent. Some servers speak first;
the others are asked what each kind of server answers without a login.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from contextlib import suppress

ANSWER_TIMEOUT = 0.5
"""Seconds for each answer."""
_ENOUGH = 64
_GET = b"GET / HTTP/1.0\r\n\r\n"
_SSL_REQUEST = b"\x00\x00\x00\x08\x04\xd2\x16\x2f"
_CONNECT = b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x0a\x00\x00\x00"
_API_VERSIONS = b"\x00\x00\x00\x0a\x00\x12\x00\x00ergo\xff\xff"
_MYSQL_GREETING = re.compile(rb"...\x00[\x0a\xff]", re.DOTALL)

KINDS = {
    "amqp": "RabbitMQ",
    "kafka": "Kafka",
    "mqtt": "MQTT",
    "nats": "NATS",
    "postgresql": "PostgreSQL",
    "postgres": "PostgreSQL",
    "redis": "Redis",
    "http": "HTTP",
    "poll": "HTTP",
    "post": "HTTP",
    "sqs": "HTTP",
    "mysql": "MySQL",
    "mariadb": "MySQL",
}
"""What is expected behind a scheme; those with TLS are left out, as nothing answers in plain."""


def _greeting(said: bytes) -> str | None:
    if said.startswith(b"INFO {"):
        return "NATS"
    if said.startswith(b"SSH-"):
        return "SSH"
    if said.startswith(b"220"):
        return "SMTP or FTP"
    return "MySQL" if _MYSQL_GREETING.match(said) else None


def _to_get(said: bytes) -> str | None:
    if said.startswith(b"HTTP/"):
        return "HTTP"
    if said.startswith(b"AMQP"):
        return "RabbitMQ"
    if said.startswith(b"\x15\x03"):
        return "TLS"
    return "Redis" if said.startswith((b"-ERR", b"-NOAUTH", b"-DENIED", b"-NOPERM")) else None


def _to_ssl_request(said: bytes) -> str | None:
    return "PostgreSQL" if said in (b"S", b"N") else None


def _to_connect(said: bytes) -> str | None:
    return "MQTT" if said.startswith(b"\x20") else None


def _to_api_versions(said: bytes) -> str | None:
    return "Kafka" if said[4:8] == b"ergo" else None


_QUESTIONS: tuple[tuple[bytes, Callable[[bytes], str | None]], ...] = (
    (b"", _greeting),
    (_GET, _to_get),
    (_SSL_REQUEST, _to_ssl_request),
    (_CONNECT, _to_connect),
    (_API_VERSIONS, _to_api_versions),
)


def spoken_at(host: str, port: int, *, timeout: float = ANSWER_TIMEOUT) -> str | None:
    """Whose protocol is spoken there; None when nothing listens, or nothing known answers."""
    for question, kind_of in _QUESTIONS:
        try:
            line = socket.create_connection((host, port), timeout)
        except OSError:
            return None
        with line, suppress(OSError):  # it hangs up, or says nothing
            line.settimeout(timeout)
            line.sendall(question)
            found = kind_of(line.recv(_ENOUGH))
            if found is not None:
                return found
    return None
