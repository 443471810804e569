"""Where a stream is. Nothing here shows a password."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from importlib.util import find_spec
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from ergon_framework.errors import ConfigurationError, MissingExtraError
from ergon_framework.storage.urls import taken_apart

FORMS = "write nats://host:4222, or nats://user:password@host:4222/name?replicas=3"
PORT = 4222
DEFAULT_SPACE = "ergon"
_SPACE = re.compile(r"[A-Za-z0-9_-]{1,40}")
_OPTIONS = frozenset({"replicas", "monitor", "tls"})
_YES = frozenset({"1", "true", "yes"})


@dataclass(frozen=True, slots=True)
class Address:
    """Servers of one cluster, and the name under which ours is kept there."""

    name: str
    """What to call it in front of people."""
    servers: tuple[str, ...]
    space: str = DEFAULT_SPACE
    replicas: int = 1
    """On how many servers a stream is kept that is made here."""
    monitor: str | None = None
    """Where the server tells about itself, such as ``http://host:8222``."""
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)


def address_of(url: str) -> Address:
    """What a URL names; nothing is opened."""
    _, rest = taken_apart(url, ("nats",), FORMS)
    if find_spec("nats") is None:
        raise MissingExtraError(
            "a store on NATS needs nats-py", remedy="pip install 'ergon-framework[nats]'"
        )
    parts = urlsplit(f"nats://{rest}")
    options = dict(parse_qsl(parts.query))
    unknown = sorted(options.keys() - _OPTIONS)
    if unknown:
        raise ConfigurationError(
            f"a store on NATS takes no option {unknown[0]!r} in its URL",
            remedy=f"the options are {', '.join(sorted(_OPTIONS))}",
        )
    space = parts.path.strip("/") or DEFAULT_SPACE
    if not _SPACE.fullmatch(space):
        raise ConfigurationError(
            "the name at the end of a NATS URL has letters, digits, - and _ only", remedy=FORMS
        )
    scheme = "tls" if options.get("tls", "").lower() in _YES else "nats"
    hosts = _hosts(parts)
    user, mark, password = parts.netloc.rpartition("@")[0].partition(":")
    return Address(
        f"nats://{','.join(hosts)}/{space}",
        tuple(f"{scheme}://{each}" for each in hosts),
        space,
        _replicas(options.get("replicas", "1")),
        options.get("monitor", "").rstrip("/") or None,
        unquote(user) if mark else None,
        unquote(password) if mark else None,
        unquote(user) if user and not mark else None,
    )


def _hosts(parts: SplitResult) -> list[str]:
    found = []
    for each in parts.netloc.rpartition("@")[2].split(","):
        host, port = _host_and_port(each)
        found.append(f"{host}:{port}")
    return found


def _host_and_port(text: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"nats://{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or set(host) & {" ", "\0"}:
        raise ConfigurationError(
            "the URL of the NATS store cannot be read",
            remedy=f"{FORMS}; write @, : and / in a password as %40, %3A and %2F",
        )
    return (f"[{host}]" if ":" in host else host), port or PORT


def _replicas(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 5:
        raise ConfigurationError(
            "replicas in the URL of a NATS store is a number from 1 to 5", remedy=FORMS
        )
    return int(text)
