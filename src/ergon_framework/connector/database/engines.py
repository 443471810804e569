"""Opens the database of a URL, and translates its errors.

A driver's message may contain values of rows. So errors only repeat what it says about tables,
columns and statements.
"""

from __future__ import annotations

import os
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError

from ergon_framework.connector.broker.url import import_client
from ergon_framework.errors import ConfigurationError, ConnectorError
from ergon_framework.storage.urls import refuse_withheld

PREFIX = "rows+"
"""The prefix of a URL whose scheme alone would not name this connector."""
_DRIVER = "postgresql+psycopg"
_ROWS_FORMS = "write rows+sqlite:///shop.db, or rows+postgresql://user@host/shop"
_FORMS = 'write "postgresql+psycopg://host/name" or "sqlite:///file.db"'
_NOT_LET_IN = ("authentication failed", "no password supplied", 'database "', 'role "')
_FILE_AWAY = ("locked", "busy", "unable to open", "disk I/O")


def engine_of(url: str, *, host: str | None = None, sslmode: str | None = None) -> sa.Engine:
    """An engine of this module's own, whose errors show no values."""
    refuse_withheld(url)
    place = _rows_place(url) if url.startswith(PREFIX) else _place(url)
    kind = place.get_backend_name()
    if kind not in ("postgresql", "sqlite"):
        raise ConfigurationError("the database is neither PostgreSQL nor SQLite", remedy=_FORMS)
    given = {"host": host, "sslmode": sslmode}
    query = {name: value for name, value in given.items() if value is not None}
    if query and kind != "postgresql":
        raise ConfigurationError("host and sslmode are for PostgreSQL", remedy=_ROWS_FORMS)
    if place.drivername == _DRIVER:
        import_client("psycopg", extra="postgres", connector="database")
    place = place.update_query_dict(query)
    try:
        engine = sa.create_engine(place, pool_pre_ping=True, hide_parameters=True)
    except (ImportError, ArgumentError) as error:
        raise ConfigurationError(
            f"the driver of {place.drivername}:// cannot be used ({type(error).__name__})",
            remedy=f"{_FORMS}; psycopg comes with pip install 'ergon-framework[postgres]'",
        ) from None
    return checked(engine)


def _rows_place(url: str) -> sa.URL:
    """The database of a URL such as ``rows+postgresql://…``, by which an App recognises this
    connector.
    """
    bare = url.removeprefix(PREFIX)
    # Its query has gone to the options of the connector: what is left of one here is a mistake.
    if "?" in bare or "#" in bare:
        raise ConfigurationError("the URL of the rows cannot be read", remedy=_ROWS_FORMS)
    try:
        place = _place(bare)
    except ConfigurationError:
        raise ConfigurationError("the URL of the rows cannot be read", remedy=_ROWS_FORMS) from None
    if not place.database:
        raise ConfigurationError("the URL of the rows names no database", remedy=_ROWS_FORMS)
    return place


def _place(url: str) -> sa.URL:
    try:
        place = sa.make_url(url)
        if place.drivername in ("postgresql", "postgres"):
            place = place.set(drivername=_DRIVER)
        place.get_backend_name()
    except (ArgumentError, ValueError):  # their texts may hold the password
        raise ConfigurationError("that is no URL of a database", remedy=_FORMS) from None
    return place


def checked(engine: sa.Engine) -> sa.Engine:
    """Check that threads can use an engine."""
    if engine.dialect.is_async:
        raise ConfigurationError(
            f"{engine.dialect.name}+{engine.dialect.driver} is a driver for asyncio", remedy=_FORMS
        )
    return engine


def refuse_missing_file(engine: sa.Engine) -> None:
    """Refuse a file of SQLite that is not there: opening it would make an empty one."""
    name = engine.url.database
    if engine.dialect.name != "sqlite" or not name or name.startswith((":memory:", "file:")):
        return
    path = Path(name).absolute()
    if path.parent.is_dir() and not os.path.lexists(path):
        raise ConfigurationError(
            f"there is no file {path}", remedy="correct the URL; a database is not made here"
        )


def refusal(error: DBAPIError, place: str, table: str, *, is_file: bool) -> Exception:
    """Translate an error: of a database that cannot be reached, or of a statement that it refuses.
    The statement is left out.
    """
    text = str(error.orig)
    if any(sign in text for sign in _NOT_LET_IN):
        return ConfigurationError(
            f"{place} does not let this user in",
            remedy="correct the user, the password and the name of the database in its URL",
        )
    kinds = OperationalError | InterfaceError
    if error.connection_invalidated or (
        # SQLite says OperationalError of statements, too.
        any(sign in text for sign in _FILE_AWAY) if is_file else isinstance(error, kinds)
    ):
        return ConnectorError(f"the database does not answer ({type(error.orig).__name__})")
    return ConfigurationError(
        f"the database refused to read {table} ({told(error)})",
        remedy="look at table= and where=, the types of the columns, and the rights of the user",
    )


def told(error: DBAPIError) -> str:
    """The database's message, if it is about tables and statements and not about values."""
    cause = error.orig
    name = getattr(cause, "sqlite_errorname", None)
    text = str(cause) if name == "SQLITE_ERROR" else ""
    # Class 42 of PostgreSQL: a name, a right or a type in a statement.
    if (getattr(cause, "sqlstate", None) or "").startswith("42"):
        text = getattr(getattr(cause, "diag", None), "message_primary", None) or ""
    kind = name or type(cause).__name__
    return f"{kind}: {text[:200]}" if text else kind
