"""Whether two names mean the same place: a host and a port can be written in more than one way."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit

_PORTS = {"postgresql": 5432, "redis": 6379, "nats": 4222}
_KINDS = {"postgres": "postgresql", "rediss": "redis", "tls": "nats"}
_DEFAULT_PATHS = {"redis": "0", "nats": "ergon"}
_HERE = frozenset({"", "localhost", "127.0.0.1", "::1"})
_TELLING = frozenset({"host", "hostaddr", "port", "dbname", "service", "options", "prefix"})
"""Options that say where something is; the others say how to get there."""
_ACCOUNTS = frozenset({"creds", "nkey", "tls_cert"})
"""By which NATS knows in whose account somebody is: each of them has streams of its own."""
_GIVEN = {("prefix", "ergon")}


def is_same(one: str, other: str) -> bool:
    """Whether two names of places, or of what is kept there, mean the same."""
    return one == other or plain(one) == plain(other)


def plain(name: str) -> str:
    """A name with what may be left out, and without what may be added: ``jobs of PLACE``."""
    what, of, place = name.rpartition(" of ")
    if "://" in place:
        return f"{what}{of}{_plain_url(place)}"
    return f"{what}{of}{Path(place).resolve()}" if place.startswith("/") else name


def _plain_url(url: str) -> str:
    parts = urlsplit(url)
    scheme = parts.scheme.lower().partition("+")[0]
    kind = _KINDS.get(scheme, scheme)
    hosts = ",".join(sorted(_plain_host(each, kind) for each in parts.netloc.split(",")))
    path = parts.path.strip("/") or _DEFAULT_PATHS.get(kind, "")
    telling = _TELLING | _ACCOUNTS if kind == "nats" else _TELLING
    query = {pair for pair in parse_qsl(parts.query) if pair[0] in telling} - _GIVEN
    return f"{kind}://{hosts}/{path}?{urlencode(sorted(query))}"


def _plain_host(text: str, kind: str) -> str:
    try:
        parts = urlsplit(f"{kind}://{text}")
        host, port = parts.hostname or "", parts.port or _PORTS.get(kind)
    except ValueError:  # whoever opens it says so
        return text
    # Without a host, PostgreSQL is where PGHOST says, or behind a socket that others do not reach.
    is_here = host in _HERE and bool(host or kind != "postgresql")
    return f"{'localhost' if is_here else host}:{port}"
