"""Where a database is. Nothing here shows a password."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ergon_framework.errors import ConfigurationError, MissingExtraError
from ergon_framework.storage.urls import is_cut_short, taken_apart

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


@dataclass(frozen=True, slots=True)
class Address:
    """One database on one server."""

    name: str
    """What to call it in front of people."""
    options: dict[str, Any] = field(repr=False)
    """What the driver needs."""


def address_of(url: str) -> Address:
    """The database that a URL names; nothing is opened."""
    _, rest = taken_apart(url, ("postgresql",), FORMS)
    if is_cut_short(rest):
        raise _unreadable()
    try:
        import psycopg
        from psycopg.conninfo import conninfo_to_dict
    except ImportError as error:
        raise MissingExtraError(
            "a store on PostgreSQL needs psycopg", remedy="pip install 'ergon-framework[postgres]'"
        ) from error
    try:
        found = {k: v for k, v in conninfo_to_dict(f"postgresql://{rest}").items() if v is not None}
    except psycopg.Error:  # its text may hold the password
        raise _unreadable() from None
    is_ambiguous = rest.partition("?")[0].count("@") > 1  # one of them belongs to the password
    if is_ambiguous or not all(each.isdigit() for each in str(found.get("port", "0")).split(",")):
        raise _unreadable()
    return Address(_name(found), _DEFAULTS | found | {"client_encoding": "UTF8"})


def _unreadable() -> ConfigurationError:
    return ConfigurationError(
        "the URL of the PostgreSQL store cannot be read",
        remedy=f"{FORMS}; write @, :, /, ? and # in a password as %40, %3A, %2F, %3F and %23",
    )


def _name(found: dict[str, Any]) -> str:
    user = f"{found['user']}@" if "user" in found else ""
    host = str(found.get("host", found.get("hostaddr", "")))
    port = f":{found['port']}" if "port" in found else ""
    if host.startswith("/"):
        return f"postgresql://{user}{port}/{found.get('dbname', '')}?host={host}"
    return f"postgresql://{user}{host}{port}/{found.get('dbname', '')}"
