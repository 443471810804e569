"""Where a Redis database is. Nothing here shows a password."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from ergon_framework.errors import ConfigurationError, MissingExtraError
from ergon_framework.storage.connection_errors import Options
from ergon_framework.storage.urls import ACKNOWLEDGE, accepts_unsynced, refuse_undecodable

FORMS = "write redis://host:6379/0, redis://user:password@host/0, or rediss:// for TLS"
PORT = 6379
TLS_OPTIONS = Options("?ssl_ca_certs=FILE", "?ssl_certfile=FILE&ssl_keyfile=FILE", "redis://")
_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_TLS = (*_FILES, "ssl_cert_reqs", "ssl_check_hostname")
_DEMANDS = ("required", "optional", "none")
_CHECKED = {"true": True, "false": False}
_OWN = ("prefix", "persistence", ACKNOWLEDGE)


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """The address of a Redis database, and the key prefix of the store in it."""

    name: str
    """The name shown to users."""
    options: dict[str, Any] = field(repr=False)
    """What the driver needs."""
    database: int = 0
    prefix: str = "ergon"
    """How the keys of the store begin."""
    is_volatile: bool = False
    """Whether a server that keeps nothing on disk will do."""
    has_tls: bool = False
    accepts_unsynced: bool = False
    """Whether a server will do that acknowledges before it has synced."""

    @property
    def files(self) -> dict[str, str | None]:
        """The files that the URL names, by their options."""
        return {name: self.options.get(name) for name in _FILES}


def address_of(url: str, prefix: str | None = None) -> RedisAddress:
    """The database that a URL names; nothing is opened."""
    try:
        import redis  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            "a store on Redis needs redis-py", remedy="pip install 'ergon-framework[redis]'"
        ) from error
    refuse_undecodable(url, "a redis store")
    try:
        parts = urlsplit(url)
        port = parts.port or PORT
    except ValueError:  # its text may hold the password
        raise _unreadable() from None
    if parts.scheme.lower() not in {"redis", "rediss"} or parts.fragment or _is_torn(parts):
        raise _unreadable()
    has_tls = parts.scheme.lower() == "rediss"
    query = _query(parts, has_tls=has_tls)
    database = _database(parts.path)
    host = parts.hostname or "localhost"
    shown = f"[{host}]" if ":" in host else host
    return RedisAddress(
        f"{parts.scheme.lower()}://{shown}:{port}/{database}",
        {
            "host": host,
            "port": port,
            "db": database,
            "username": unquote(parts.username) if parts.username else None,
            "password": unquote(parts.password) if parts.password else None,
            **(_tls(query) if has_tls else {}),
        },
        database,
        _prefix(prefix or query.get("prefix", "ergon")),
        _is_volatile(query.get("persistence", "disk")),
        has_tls,
        accepts_unsynced(query),
    )


def _tls(query: dict[str, str]) -> dict[str, Any]:
    """The TLS options of the driver: unless the URL says otherwise, certificate and host name are
    checked.

    Older drivers do not check the host's name by themselves.
    """
    demand = query.get("ssl_cert_reqs", "required")
    checked = query.get("ssl_check_hostname", "true")
    if demand not in _DEMANDS or checked not in _CHECKED:
        raise ConfigurationError(
            "ssl_cert_reqs in the URL of a Redis store is required, optional or none, and"
            " ssl_check_hostname is true or false",
            remedy="leave both out to have the certificate and the name checked",
        )
    if ("ssl_certfile" in query) != ("ssl_keyfile" in query):
        raise ConfigurationError(
            "the URL of a Redis store names a certificate without its key, or a key alone",
            remedy=f"write both: {TLS_OPTIONS.own}",
        )
    return {
        **{name: query[name] for name in _FILES if name in query},
        "ssl_cert_reqs": demand,
        "ssl_check_hostname": _CHECKED[checked] and demand != "none",
    }


def _is_torn(parts: SplitResult) -> bool:
    """Whether a ``/`` or ``?`` in the password has parted it: what comes later has the ``@``."""
    return "@" in parts.path or "@" in parts.query


def _query(parts: SplitResult, *, has_tls: bool) -> dict[str, str]:
    known = _OWN + (_TLS if has_tls else ())
    found = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in found:
        if name not in known:
            raise ConfigurationError(
                f"the URL of a Redis store has no option {name[:32]!r}",
                remedy=f"known are {', '.join(known)}",
            )
    return found


def _database(path: str) -> int:
    text = path.removeprefix("/")
    if not text:
        return 0
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        raise ConfigurationError(
            "the database in the URL of a Redis store is a number",
            remedy="write redis://host:6379/0",
        )
    return int(text)


def _prefix(text: str) -> str:
    if not text or not text.isprintable() or {*text} & {"{", "}"} or len(text) > 64:
        raise ConfigurationError(
            "the prefix of a Redis store has 1 to 64 printable characters, no braces among them",
            remedy="write redis://host/0?prefix=ergon, or leave it out",
        )
    return text


def _is_volatile(text: str) -> bool:
    if text not in {"disk", "none"}:
        raise ConfigurationError(
            "persistence in the URL of a Redis store is disk or none",
            remedy="leave it out to refuse a server that keeps nothing on disk",
        )
    return text == "none"


def _unreadable() -> ConfigurationError:
    return ConfigurationError(
        "the URL of the Redis store cannot be read",
        remedy=f"{FORMS}; write @, :, /, ? and # in a password as %40, %3A, %2F, %3F and %23",
    )
