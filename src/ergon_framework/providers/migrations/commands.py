"""Runs the migrations of provider calls on an open connection, or writes them as SQL."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, MetaData, Table, inspect, text
from sqlalchemy.schema import SchemaItem

from ergon_framework.errors import ConfigurationError, StoreSchemaError
from ergon_framework.providers.migrations import HEAD, REVISIONS, VERSION_TABLE

if TYPE_CHECKING:
    from alembic.config import Config

BASE = "base"
"""What is there before the first revision: nothing."""
_LOCK_ID = 0x4572676F  # of one migration at a time, among all users of a PostgreSQL database


def current(connection: Connection) -> str | None:
    """The revision of the tables; None without tables."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    revision: str | None = connection.scalar(text(f"SELECT version_num FROM {VERSION_TABLE}"))  # noqa: S608 - our own name
    return revision


def check_tables(connection: Connection, name: str) -> None:
    """Refuse a database that has lost tables which were made; ``name`` is what it is called."""
    lost = sorted({*_models().tables} - _taken(connection))
    if lost:
        raise StoreSchemaError(
            f"{name} has lost tables of provider calls that were made: {', '.join(lost)}",
            remedy="stop what uses it, and put a backup of it in its place",
        )


def upgrade(connection: Connection) -> str | None:
    """Bring the tables up to date, in one process at a time; the revision that was there before.

    In the transaction of the connection, or in one of its own when none is open.
    """
    with nullcontext() if connection.in_transaction() else connection.begin():
        before = current(connection)
        if before != HEAD:
            _take_turn(connection)
            before = current(connection)
            _refuse_unknown(before)
            if before is None and _taken(connection):
                _adopt(connection)
            else:
                _run("upgrade", HEAD, connection=connection)
        return before


def downgrade(connection: Connection, revision: str = BASE) -> str | None:
    """Go back to a revision; to ``base`` removes every table. The revision that was there before.

    What is in the tables that go is lost.
    """
    with nullcontext() if connection.in_transaction() else connection.begin():
        _take_turn(connection)
        before = current(connection)
        _refuse_unknown(before)
        _check_target(before, revision)
        if before is not None:
            _run("downgrade", revision, connection=connection, is_last=revision == BASE)
        return before


def upgrade_script(dialect: str) -> str:
    """The SQL that makes the tables in an empty database, or in a host's."""
    return _run("upgrade", f"{BASE}:{HEAD}", dialect=dialect)


def downgrade_script(dialect: str, revision: str = BASE) -> str:
    """The SQL that goes back from the newest revision to another one."""
    _check_target(HEAD, revision)
    return _run("downgrade", f"{HEAD}:{revision}", dialect=dialect, is_last=revision == BASE)


def _run(what: str, revision: str, **given: Any) -> str:
    with _quiet():
        from alembic import command

        told = io.StringIO()
        config = _config(told)
        config.attributes.update(given)
        getattr(command, what)(config, revision, sql="dialect" in given)
    return told.getvalue()


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Alembic's messages out of the log of programs that merely open a store."""
    log = logging.getLogger("alembic")
    before = log.level
    if before == logging.NOTSET:
        log.setLevel(logging.WARNING)
    try:
        yield
    finally:
        log.setLevel(before)


def _config(told: io.StringIO) -> Config:
    from alembic.config import Config

    config = Config(output_buffer=told)
    config.set_main_option("script_location", __package__.replace(".migrations", ":migrations"))
    return config


def _take_turn(connection: Connection) -> None:
    """Lock the tables so that one process migrates at a time, and does all or nothing."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK_ID})
    elif connection.dialect.name == "sqlite":
        driver: Any = connection.connection.dbapi_connection
        if not driver.in_transaction:  # by itself the driver begins none for statements like these
            connection.exec_driver_sql("BEGIN IMMEDIATE")


def _refuse_unknown(revision: str | None) -> None:
    if revision is not None and revision not in REVISIONS:
        raise StoreSchemaError(
            f"the tables of provider calls are of revision {revision!r}; this program works with"
            f" {HEAD!r} and knows nothing newer",
            remedy="upgrade ergon-framework here, or name another store",
        )


def _models() -> MetaData:
    """The tables as the models say. Imported late: tables that are up to date need no mapper."""
    from ergon_framework.providers.models import metadata

    return metadata


def _taken(connection: Connection) -> set[str]:
    """The tables that have names of ours."""
    return {*inspect(connection).get_table_names()} & {*_models().tables}


def _adopt(connection: Connection) -> None:
    """Adopt tables that a host created from our models, and create the missing ones."""
    foreign = sorted(_foreign(connection))
    if foreign:
        raise StoreSchemaError(
            f"the database has tables of these names that no migration of ours made, and that are"
            f" not like ours: {', '.join(foreign)}",
            remedy="rename or drop them, or name another database or schema",
        )
    _models().create_all(connection)
    _run("stamp", HEAD, connection=connection)


def _foreign(connection: Connection) -> set[str]:
    """The tables of our names that are not as the models say."""
    with _quiet():
        from alembic.autogenerate import compare_metadata
        from alembic.migration import MigrationContext

        context = MigrationContext.configure(
            connection, opts={"include_name": _is_ours, "compare_server_default": True}
        )
        found = compare_metadata(context, _models())
    missing = {*_models().tables} - _taken(connection)
    return {name for each in found for name in _named_in(each)} - missing


def _is_ours(name: str | None, kind: str, _parents: Any) -> bool:
    return kind != "table" or name in _models().tables


def _named_in(difference: Any) -> Iterator[str]:
    """The table that a difference is about: Alembic gives it as a tuple, or as a list of those."""
    if isinstance(difference, list):
        for each in difference:
            yield from _named_in(each)
    elif isinstance(difference[1], Table):
        yield difference[1].name
    elif isinstance(difference[1], SchemaItem):
        yield difference[1].table.name  # type: ignore[attr-defined] # an index or a constraint
    else:
        yield difference[2]  # of a column: the schema comes first


def _check_target(before: str | None, revision: str) -> None:
    if revision != BASE and revision not in REVISIONS:
        raise ConfigurationError(
            f"there is no revision {revision!r}",
            remedy=f"known are {', '.join((BASE, *REVISIONS))}",
        )
    if before is not None and REVISIONS.index(before) < _place(revision):
        raise ConfigurationError(
            f"revision {revision!r} is newer than {before!r}, the store's",
            remedy="write upgrade instead of downgrade, with the same options",
        )


def _place(revision: str) -> int:
    return -1 if revision == BASE else REVISIONS.index(revision)
