"""Opens the database that a store's URL names, for a migration or a look at its tables."""

from __future__ import annotations

import shlex
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, NullPool, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from ergon_framework.errors import (
    ConfigurationError,
    ErgonError,
    StoreSchemaError,
    StoreUnavailableError,
    describe,
)
from ergon_framework.providers.spill import DATABASE_KEYS
from ergon_framework.storage.postgres.address import (
    address_of,
    encryption,
    refuse_missing_files,
    unreadable,
    without_pooler,
)
from ergon_framework.storage.sqlite import errors
from ergon_framework.storage.sqlite.connections import prepare_file, tighten_file
from ergon_framework.storage.urls import is_cut_short, path_in, store_operand, taken_apart

_FORMS = "write sqlite:///work.db, sqlite:////var/lib/work.db or postgresql://user@host/name"
_CONNECT_TIMEOUT = 10.0


@dataclass(frozen=True, slots=True)
class MigrationDatabase:
    """A database that can be migrated. Nothing here shows a password."""

    url: URL
    is_shared: bool = False
    """Whether a pooler gives each transaction another connection of the server."""

    @property
    def dialect(self) -> str:
        """``sqlite`` or ``postgresql``."""
        return self.url.get_backend_name()

    @property
    def file(self) -> Path | None:
        """The file of an SQLite database."""
        return Path(self.url.database or "") if self.dialect == "sqlite" else None

    @property
    def name(self) -> str:
        """The name in messages, which distinguishes the database from any other."""
        if self.file is not None:
            return str(self.file)
        named = {key: value for key, value in self.url.query.items() if key in DATABASE_KEYS}
        shown = self.url.set(drivername="postgresql", query=named)
        return shown.render_as_string(hide_password=True)

    @property
    def upgrade_command(self) -> str:
        """The command that makes its tables, to be pasted into a shell; a URL with a password is
        left out.
        """
        if self.file is None:
            named = self.url.set(drivername="postgresql")
            if self.is_shared:
                named = named.update_query_dict({"pooler": "transaction"})
            url = named.render_as_string(hide_password=False)
            return f"ergon db upgrade --store {store_operand(url)}"
        return shlex.join(["ergon", "db", "upgrade", "--store", f"sqlite:///{self.file}"])

    @contextmanager
    def connect(
        self, *, creates: bool = False, timeout: float = _CONNECT_TIMEOUT
    ) -> Iterator[Connection]:
        """A connection in a transaction. A missing file is created only with ``creates``.

        ``timeout`` is in seconds: for a server to answer, and for another writer of a file to end.
        """
        if self.file is not None and not creates and not self.file.exists():
            raise StoreUnavailableError(
                f"there is no file {self.file}", remedy=f"{self.upgrade_command} makes it"
            )
        if self.file is not None:
            prepare_file(self.file.absolute(), may_create=creates)
        bound = {"connect_timeout": int(timeout)} if self.file is None else {"timeout": timeout}
        engine = create_engine(
            self.url,
            poolclass=NullPool,
            connect_args=bound | ({"prepare_threshold": None} if self.is_shared else {}),
            hide_parameters=True,
        )
        if self.file is None and not self.is_shared:
            event.listen(engine, "connect", _set_up_connection)
        try:
            with engine.begin() as connection:
                if self.file is not None:
                    connection.exec_driver_sql("PRAGMA schema_version")  # whether it is a database
                    tighten_file(self.file.absolute())
                yield connection
        except SQLAlchemyError as error:
            raise self._translated(error) from error
        finally:
            engine.dispose()

    def _translated(self, error: SQLAlchemyError) -> ErgonError:
        cause = error.orig if isinstance(error, DBAPIError) else None
        if self.file is None:
            from ergon_framework.storage.postgres import errors as postgres_errors

            return postgres_errors.translate_any(cause or error, self.name)
        found = errors.translate(cause, self.file) if isinstance(cause, sqlite3.Error) else None
        return found or StoreSchemaError(
            f"the tables of {self.name} cannot be used: {describe(cause or error)}",
            remedy="see what another program did to them, or name another store",
        )


def _set_up_connection(connection: Any, _record: Any) -> None:
    import psycopg

    from ergon_framework.storage.postgres.pool import SESSION_SETTINGS

    try:
        connection.execute(SESSION_SETTINGS)
        connection.commit()
    except psycopg.Error as error:  # which SQLAlchemy does not translate here
        raise DBAPIError(SESSION_SETTINGS, None, error) from error


def database_of(url: str) -> MigrationDatabase:
    """The database that a URL names; the URL is checked, nothing is opened."""
    kind, rest = taken_apart(url, ("sqlite", "postgresql", "memory"), _FORMS, "provider calls")
    if kind == "memory":
        raise ConfigurationError(
            "a store in memory has no tables: there is nothing to migrate", remedy=_FORMS
        )
    if kind == "sqlite":
        return MigrationDatabase(URL.create("sqlite", database=path_in(rest)))
    rest, is_shared = without_pooler(rest)
    return MigrationDatabase(_postgres(rest), is_shared)


def _postgres(rest: str) -> URL:
    if is_cut_short(rest):
        raise unreadable()
    # By the rules of all stores. Options are looked at by the driver: it has some of its own.
    address_of(f"postgresql://{rest.partition('?')[0]}")
    try:
        url = make_url(f"postgresql+psycopg://{rest}")
    except (ArgumentError, ValueError):  # its text may hold the password
        raise unreadable() from None
    given = {**({"host": url.host} if url.host else {}), **url.query}
    refuse_missing_files(given)
    return url.update_query_dict(encryption(given))
