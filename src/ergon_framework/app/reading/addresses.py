"""Whether somebody answers at a URL. Of a URL only its host and port are ever shown."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ergon_framework.app.checking.findings import Finding, Status
from ergon_framework.errors import ConfigurationError
from ergon_framework.storage.urls import refuse_secrets
from ergon_framework.task.mixins.utils import run_with_timeout

PORTS = {
    "amqp": 5672,
    "amqps": 5671,
    "http": 80,
    "https": 443,
    "mysql": 3306,
    "nats": 4222,
    "postgres": 5432,
    "postgresql": 5432,
    "redis": 6379,
    "rediss": 6379,
    "tls": 4222,
}
"""Where a server listens whose URL names no port."""


def examine_store(url: str, timeout: float) -> Finding:
    """The store: a file whose directory can be written, or a server that answers."""
    if _scheme(url) == "sqlite":
        return _file(url)
    return examine_server("store", url, timeout)


def examine_server(check: str, url: str, timeout: float) -> Finding:
    """Whether a TCP connection to it can be made in time, finding its address included."""
    address = address_of(url)
    if address is None:
        found = "its URL names no host and port that could be tried"
        return Finding(check, Status.NOTE, found, "write scheme://host:port to have it checked")
    where = f"{address[0]}:{address[1]}"
    remedy = "start the server, or correct the address; a firewall may be in between"
    try:
        run_with_timeout(lambda: socket.create_connection(address, timeout).close(), timeout)
    except TimeoutError:
        return Finding(check, Status.BAD, f"{where} did not answer within {timeout:g} s", remedy)
    except OSError as error:
        return Finding(check, Status.BAD, f"{where}: {error.strerror or error}", remedy)
    return Finding(check, Status.OK, f"{where} answers")


def address_of(url: str) -> tuple[str, int] | None:
    """Host and port of a URL, or None when it does not clearly name them."""
    try:
        parts = urlsplit(url if "://" in url else f"//{url}")
        host, port = parts.hostname, parts.port or PORTS.get(_scheme(url))
    except ValueError:
        return None
    if "@" in parts.path + parts.query + parts.fragment:
        return None  # a password with a slash in it: what looks like the host is part of it
    return (host, port) if host and port else None


def _scheme(url: str) -> str:
    return url.partition(":")[0].partition("+")[0].lower()


def _file(url: str) -> Finding:
    text = url.partition(":")[2].partition("?")[0]
    path = unquote(text.removeprefix("//").removeprefix("/") if text[:2] == "//" else text)
    if path in ("", ":memory:"):
        return Finding("store", Status.OK, "in memory")
    try:
        refuse_secrets(path)
    except ConfigurationError as error:
        return Finding("store", Status.BAD, error.message, error.remedy)
    directory = Path(path).parent
    try:
        with tempfile.TemporaryFile(dir=directory):
            return Finding("store", Status.OK, f"{directory} can be written")
    except OSError as error:
        found = f"{directory} cannot be written: {error.strerror}"
        remedy = "create the directory, and let this user write there"
        return Finding("store", Status.BAD, found, remedy)
