"""Where a database is. Nothing here shows a password."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from ipaddress import ip_address
from typing import Any

from ergon_framework.errors import ConfigurationError, MissingExtraError
from ergon_framework.storage.urls import is_cut_short, refuse_unreadable, taken_apart

FORMS = "write postgresql://user@host/name"
_DEFAULTS = {
    "connect_timeout": 3,
    "tcp_user_timeout": 5000,  # milliseconds
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
}
"""How soon a network that is cut is noticed. What the URL says goes before it."""
_FILES = ("sslrootcert", "sslcert", "sslkey", "sslcrl")
_UNKNOWN = re.compile(r'invalid (?:URI query parameter:|connection option) "(\w+)"')


@dataclass(frozen=True, slots=True)
class PostgresAddress:
    """The address of one database, and what the driver needs to connect to it."""

    name: str
    """The name shown to users."""
    options: dict[str, Any] = field(repr=False)
    """What the driver needs."""
    is_shared: bool = False
    """Whether a pooler gives each transaction another connection of the server."""


def address_of(url: str) -> PostgresAddress:
    """The database that a URL names; nothing is opened."""
    _, rest = taken_apart(url, ("postgresql",), FORMS)
    rest, is_shared = without_pooler(rest)
    if is_cut_short(rest):
        raise unreadable()
    try:
        import psycopg
        from psycopg.conninfo import conninfo_to_dict
    except ImportError as error:
        raise MissingExtraError(
            "a store on PostgreSQL needs psycopg", remedy="pip install 'ergon-framework[postgres]'"
        ) from error
    try:
        found = {k: v for k, v in conninfo_to_dict(f"postgresql://{rest}").items() if v is not None}
    except psycopg.Error as error:  # its text may hold the password
        is_sure = "@" not in rest.partition("?")[2]  # it is an option, and not half a password
        raise (unknown_option(str(error)) if is_sure else None) or unreadable() from None
    place = rest.partition("?")[0]
    is_ambiguous = place.count("@") > 1 or "@" in place.partition("/")[2]  # of the password
    ports = str(found.get("port", "")).split(",")  # of several hosts, each may leave it out
    if is_ambiguous or not all(not each or each.isdigit() for each in ports):
        raise unreadable()
    refuse_missing_files(found)
    options: dict[str, Any] = {**_DEFAULTS, **encryption(found), **found}
    options["client_encoding"] = "UTF8"
    if is_shared:
        options["prepare_threshold"] = None
    return PostgresAddress(_name(found), options, is_shared)


def refuse_missing_files(given: Mapping[str, Any]) -> None:
    """Refuse options that name files for TLS which cannot be read.

    libpq connects without a certificate of ours or a list of revoked ones that is not there, and
    misses an authority only when the server answers.
    """
    files = {name: str(given[name]) for name in _FILES if given.get(name)}
    if files.get("sslrootcert") == "system":  # the authorities of this machine
        del files["sslrootcert"]
    if ":" in files.get("sslkey", ""):  # a key in a device: pkcs11:…
        del files["sslkey"]
    if given.get("sslmode") != "disable":
        refuse_unreadable(**files)


def without_pooler(rest: str) -> tuple[str, bool]:
    """A URL without the option that is ours, and whether that says ``pooler=transaction``."""
    place, mark, query = rest.partition("?")
    options = [each.partition("=") for each in query.split("&")] if mark else []
    modes = [value for name, _, value in options if name == "pooler"]
    if not modes:
        return rest, False
    if not set(modes) <= {"transaction", "session"}:
        raise ConfigurationError(
            "the option pooler in the URL of a PostgreSQL store is neither transaction nor session",
            remedy="write ?pooler=transaction where a pooler in transaction mode stands before the"
            " server, and leave it out otherwise",
        )
    kept = "&".join("".join(each) for each in options if each[0] != "pooler")
    return f"{place}?{kept}" if kept else place, modes[-1] == "transaction"


def encryption(given: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The options that make a connection encrypted.

    By default libpq asks for TLS, and continues in plain text when the peer says that it has none.
    Nothing is added when the URL or the environment variables of libpq set ``sslmode``, or the
    server is on this machine.
    """
    if "sslmode" in given or environ.get("PGSSLMODE") or _is_local(given, environ):
        return {}
    return {"sslmode": "require"}


def _is_local(given: Mapping[str, Any], environ: Mapping[str, str]) -> bool:
    """Whether every host is this machine; one that a service names is the service's business."""
    host = str(given.get("host") or environ.get("PGHOST") or "")
    address = str(given.get("hostaddr") or environ.get("PGHOSTADDR") or "")
    if not host and not address:
        return True  # a socket on this machine, or a service
    return all(map(_is_this_machine, (address or host).split(",")))


def _is_this_machine(host: str) -> bool:
    if not host or host[0] in "/@" or host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def verification(
    address: PostgresAddress, environ: Mapping[str, str] = os.environ
) -> tuple[str, str]:
    """How sure a connection is of its server, and what to do about it; "" if nothing."""
    if _is_local(address.options, environ):
        return "on this machine", ""
    mode = str(address.options.get("sslmode") or environ.get("PGSSLMODE") or "")
    if mode == "verify-full":
        return "encrypted, and the certificate is verified", ""
    reasons = {
        "verify-ca": "encrypted; the certificate is verified, but not whether it is of this host",
        "require": "encrypted, but the certificate is not verified: whoever answers is believed",
    }
    clear = f"sslmode={mode}: passwords and work may travel in clear text"
    return reasons.get(mode, clear), "write ?sslmode=verify-full&sslrootcert=FILE in the URL"


def unknown_option(text: str) -> ConfigurationError | None:
    """The error about an option that the driver does not know; None for other messages."""
    found = _UNKNOWN.search(text)
    if found is None:
        return None
    from psycopg.pq import Conninfo

    known = [each.keyword.decode() for each in Conninfo.get_defaults()]
    close = get_close_matches(found[1], known, n=1)
    meant = f"did you mean {close[0]}? " if close else ""
    return ConfigurationError(
        f"the URL of a PostgreSQL store has no option {found[1]!r}",
        remedy=f"{meant}It takes what libpq takes: {FORMS}?sslmode=verify-full, for example",
    )


def unreadable() -> ConfigurationError:
    """The error about a URL that can be read in more than one way."""
    return ConfigurationError(
        "the URL of the PostgreSQL store cannot be read",
        remedy=f"{FORMS}; write @, :, /, ? and # in a password as %40, %3A, %2F, %3F and %23",
    )


def _name(found: dict[str, Any]) -> str:
    user = f"{found['user']}@" if "user" in found else ""
    host = str(found.get("host", found.get("hostaddr", "")))
    port = f":{found['port']}" if str(found.get("port", "")).strip(",") else ""
    if host.startswith("/"):
        return f"postgresql://{user}{port}/{found.get('dbname', '')}?host={host}"
    return f"postgresql://{user}{host}{port}/{found.get('dbname', '')}"
