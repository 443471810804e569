"""Where a stream is. Nothing here shows a password."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from importlib.util import find_spec
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from ergon_framework.errors import ConfigurationError, MissingExtraError
from ergon_framework.storage.connection_errors import Options
from ergon_framework.storage.urls import ACKNOWLEDGE, accepts_unsynced, taken_apart

FORMS = "write nats://host:4222, or nats://user:password@host:4222/name?replicas=3, or tls://host"
PORT = 4222
DEFAULT_SPACE = "ergon"
TLS_OPTIONS = Options("?tls_ca=FILE", "?tls_cert=FILE&tls_key=FILE", "nats://")
_SPACE = re.compile(r"[A-Za-z0-9_-]{1,40}")
_TLS = frozenset({"tls_ca", "tls_cert", "tls_key"})
_FILES = ("tls_ca", "tls_cert", "tls_key", "creds", "nkey")
OPTIONS = frozenset({*_FILES, "replicas", "monitor", "tls", "tls_first", ACKNOWLEDGE})
"""What a URL may say behind its question mark."""
_ANSWERS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


@dataclass(frozen=True, slots=True)
class NatsTimeouts:
    """How long a client waits for its NATS server, in seconds."""

    connect: float = 3.0
    """Seconds to establish a connection, and to close it."""
    response: float = 10.0
    """Seconds for a response. Then the connection is closed, and whether the request was carried
    out is unknown.
    """
    probe: float = 3.0
    """Seconds to ask a server that hung up once more, so that it says why."""


DEFAULT_TIMEOUTS = NatsTimeouts()


@dataclass(frozen=True, slots=True)
class NatsAddress:
    """The servers of a cluster, and the name under which the store is kept there."""

    name: str
    """The name shown to users."""
    servers: tuple[str, ...]
    space: str = DEFAULT_SPACE
    replicas: int = 1
    """How many servers keep a stream that is created here."""
    monitor: str | None = None
    """The monitoring endpoint of the server, such as ``http://host:8222``."""
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    has_tls: bool = False
    """Whether the connection must be encrypted and the server's name verified before anything is
    sent.
    """
    is_tls_first: bool = False
    """Whether the server expects TLS before it says a word (``handshake_first``)."""
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    creds: str | None = None
    """A file with the JWT and the seed of a user."""
    nkey: str | None = None
    """A file with the seed of a user."""
    accepts_unsynced: bool = field(default=False, kw_only=True)
    """Whether a server will do that acknowledges before it has synced."""

    @property
    def files(self) -> dict[str, str | None]:
        """The files that the URL names, by their options."""
        return {name: getattr(self, name) for name in _FILES}


def address_of(url: str) -> NatsAddress:
    """What a URL names; nothing is opened."""
    _, rest = taken_apart(url, ("nats",), FORMS)
    if find_spec("nats") is None:
        raise MissingExtraError(
            "a store on NATS needs nats-py", remedy="pip install 'ergon-framework[nats]'"
        )
    try:
        parts = urlsplit(f"nats://{rest}")
    except ValueError:  # its text may hold the password
        raise _unreadable() from None
    options = _options(parts)
    space = parts.path.strip("/") or DEFAULT_SPACE
    if not _SPACE.fullmatch(space):
        raise ConfigurationError(
            "the name at the end of a NATS URL has letters, digits, - and _ only", remedy=FORMS
        )
    has_tls = _has_tls(url, options)
    scheme = "tls" if has_tls else "nats"
    hosts = _hosts(parts)
    user, mark, password = parts.netloc.rpartition("@")[0].partition(":")
    _refuse_two_users(user, options)
    return NatsAddress(
        f"{scheme}://{','.join(hosts)}/{space}",
        tuple(f"{scheme}://{each}" for each in hosts),
        space,
        _replicas(options.get("replicas", "1")),
        options.get("monitor", "").rstrip("/") or None,
        unquote(user) if mark else None,
        unquote(password) if mark else None,
        unquote(user) if user and not mark else None,
        has_tls,
        _is_yes(options, "tls_first"),
        *map(options.get, _FILES),
        accepts_unsynced=accepts_unsynced(options),
    )


def _options(parts: SplitResult) -> dict[str, str]:
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(options.keys() - OPTIONS)
    if unknown:
        raise ConfigurationError(
            f"a store on NATS takes no option {unknown[0][:32]!r} in its URL",
            remedy=f"the options are {', '.join(sorted(OPTIONS))}",
        )
    empty = sorted(name for name, value in options.items() if not value and name != "monitor")
    if empty:
        raise ConfigurationError(
            f"the option {empty[0]} in the URL of a NATS store is empty",
            remedy="write what it is for, or leave it out",
        )
    if ("tls_cert" in options) != ("tls_key" in options):
        raise ConfigurationError(
            "the URL of a NATS store names a certificate without its key, or a key alone",
            remedy=f"write both: {TLS_OPTIONS.own}",
        )
    return options


def _has_tls(url: str, options: dict[str, str]) -> bool:
    """Whether the connection must be encrypted; files that are for nothing else say so, too."""
    is_meant = url[:4].lower() == "tls:" or bool(_TLS & options.keys())
    is_meant = is_meant or _is_yes(options, "tls_first")
    if is_meant and "tls" in options and not _is_yes(options, "tls"):
        raise ConfigurationError(
            "the URL of the NATS store asks for TLS, and says tls=no",
            remedy="leave out one of them",
        )
    return is_meant or _is_yes(options, "tls")


def _is_yes(options: dict[str, str], name: str) -> bool:
    found = _ANSWERS.get(options.get(name, "no").lower())
    if found is None:
        raise ConfigurationError(
            f"{name} in the URL of a NATS store is yes or no", remedy=f"write {name}=yes"
        )
    return found


def _refuse_two_users(user: str, options: dict[str, str]) -> None:
    given = [name for name in ("creds", "nkey") if name in options]
    if len(given) + bool(user) > 1:
        raise ConfigurationError(
            "the URL of the NATS store says in more than one way who we are",
            remedy="write a user with a password, a token, creds=FILE, or nkey=FILE",
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
        raise _unreadable()
    return (f"[{host}]" if ":" in host else host), port or PORT


def _unreadable() -> ConfigurationError:
    return ConfigurationError(
        "the URL of the NATS store cannot be read",
        remedy=f"{FORMS}; write @, : and / in a password as %40, %3A and %2F",
    )


def _replicas(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 5:
        raise ConfigurationError(
            "replicas in the URL of a NATS store is a number from 1 to 5", remedy=FORMS
        )
    return int(text)
