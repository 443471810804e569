"""The tables of every part, as ``ergon db`` looks at them and brings them up to date."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ergon_framework.app.settings import Settings, revealed
from ergon_framework.app.settings.stores import (
    call_stores,
    file_has_jobs,
    is_in_memory,
    keeps_calls,
)
from ergon_framework.errors import ConfigurationError
from ergon_framework.storage.postgres.address import address_of
from ergon_framework.storage.urls import file_of

if TYPE_CHECKING:
    from ergon_framework.providers.migrations.database import MigrationDatabase
    from ergon_framework.storage.postgres.migrations import PostgresSchema


class Tables(Protocol):
    """The tables of one part in one database."""

    @property
    def part(self) -> str:
        """The part that the tables belong to."""

    @property
    def latest(self) -> str:
        """The version that this program works with."""

    def current(self) -> str | None:
        """The version they have; None when there are none."""

    def upgrade(self) -> str | None:
        """Bring them up to date; the version they had."""

    def script(self) -> str:
        """The SQL that makes all of them, for those who run it by themselves."""


@dataclass(frozen=True)
class CallTables:
    """The tables of provider calls, on SQLite or PostgreSQL."""

    url: str = field(repr=False)
    part: str = "providers"

    @property
    def database(self) -> MigrationDatabase:
        """Where they are."""
        from ergon_framework.providers.migrations.database import database_of

        return database_of(self.url)

    @property
    def latest(self) -> str:
        """The revision that this program works with."""
        from ergon_framework.providers.migrations import HEAD

        return HEAD

    def current(self) -> str | None:
        """The revision they have."""
        from ergon_framework.providers.migrations import commands

        with self.database.connect() as connection:
            return commands.current(connection)

    def upgrade(self) -> str | None:
        """Make them, or bring them up to date."""
        from ergon_framework.providers.migrations import commands

        with self.database.connect(creates=True) as connection:
            return commands.upgrade(connection)

    def script(self) -> str:
        """The SQL."""
        from ergon_framework.providers.migrations import commands

        return commands.upgrade_script(self.database.dialect)


@dataclass(frozen=True)
class FileJobTables:
    """The tables of jobs in an SQLite file. Every program that opens the file migrates them."""

    file: Path
    part: str = "jobs"

    @property
    def latest(self) -> str:
        """The version that this program works with."""
        from ergon_framework.jobs.stores.sqlite.transactions import SCHEMA

        return str(SCHEMA.version)

    def is_there(self) -> bool:
        """Whether the file has tables of jobs."""
        return self.file.exists() and file_has_jobs(self.file)

    def current(self) -> str | None:
        """The version they have; None when there are none."""
        import sqlite3

        if not self.is_there():
            return None
        with closing(sqlite3.connect(f"{self.file.absolute().as_uri()}?mode=ro", uri=True)) as file:
            found = file.execute("SELECT version FROM ergon_schema WHERE part = 'jobs'").fetchone()
        return None if found is None else str(found[0])

    def upgrade(self) -> str | None:
        """Open the store once."""
        from ergon_framework.jobs.stores.sqlite.store import SqliteJobStore

        before = self.current()
        SqliteJobStore(self.file).close()
        return before

    def script(self) -> str:
        """None: a store that is opened makes them."""
        return ""


@dataclass(frozen=True)
class ServerTables:
    """The tables of jobs or of one zone in a PostgreSQL database."""

    part: str
    url: str = field(repr=False)
    schema: PostgresSchema
    namespace: str | None = None

    @property
    def latest(self) -> str:
        """The version that this program works with."""
        return str(self.schema.version)

    def current(self) -> str | None:
        """The version they have."""
        from ergon_framework.storage.postgres.migrations import version_of

        found = version_of(self.url, self.schema, self.namespace)
        return None if found is None else str(found)

    def upgrade(self) -> str | None:
        """Make them, or bring them up to date; programs that run may go on meanwhile."""
        from ergon_framework.storage.postgres.migrations import upgrade

        before = upgrade(self.url, self.schema, self.namespace)
        return str(before) if before else None

    def script(self) -> str:
        """The SQL."""
        return self.schema.script(self.namespace)


def tables_in(url: str, *, has_jobs: bool = False, is_offline: bool = False) -> Iterator[Tables]:
    """The parts that a named store has, provider calls first.

    Jobs that it has not yet only when ``has_jobs`` says that it shall have them. What there is is
    not asked when ``is_offline``.
    """
    if not keeps_calls(url):
        raise ConfigurationError(
            "a store on Redis or NATS has no tables: there is nothing to bring up to date",
            remedy="whoever opens it sees to it; name a store on SQLite or PostgreSQL",
        )
    yield CallTables(url)
    file = file_of(url)
    if has_jobs and file is not None:
        yield FileJobTables(file)
    else:
        yield from _job_tables(url, is_wanted=has_jobs, is_offline=is_offline)
    if _is_server(url) and not is_offline:
        yield from _zone_tables(url, zones_there(url))


def tables_of(settings: Settings) -> Iterator[Tables]:
    """What the settings name, each part where it is kept."""
    from ergon_framework.app.jobs import setup_of
    from ergon_framework.app.zones import zones_of

    calls = [url for url in call_stores(settings).values() if not is_in_memory(url)]
    yield from map(CallTables, calls)
    is_wanted = not settings.extensions.keys().isdisjoint({"jobs", "executors", "schedules"})
    yield from _job_tables(setup_of(settings).url, is_wanted=is_wanted)
    for name, zone in zones_of(settings).items():
        url = revealed(zone.settings.store) or ""
        if _is_server(url):
            yield from _zone_tables(url, [name])


def has_own_stores(settings: Settings) -> bool:
    """Whether a provider or a zone says itself where its store is."""
    from ergon_framework.app.zones import zones_of

    zones = (zone.settings.store for zone in zones_of(settings).values())
    return any(call_stores(settings).values()) or any(each is not None for each in zones)


def _is_server(url: str) -> bool:
    return url.lower().startswith("postgres")


def _job_tables(url: str, *, is_wanted: bool, is_offline: bool = False) -> Iterator[Tables]:
    file = file_of(url)
    if file is not None:
        found_there = FileJobTables(file)
        if found_there.is_there():
            yield found_there
    elif _is_server(url):
        # Asked before the import below, which would fail without the driver and not say what to
        # install.
        address_of(url)  # names the extra that is missing
        from ergon_framework.jobs.stores.postgres.transactions import SCHEMA

        found = ServerTables("jobs", url, SCHEMA)
        if is_wanted or (not is_offline and found.current() is not None):
            yield found


def _zone_tables(url: str, names: Sequence[str]) -> Iterator[Tables]:
    address_of(url)
    from ergon_framework.boundary.factstore.postgres.database import SCHEMA, namespace_of

    for name in names:
        yield ServerTables(f"zone {name}", url, SCHEMA, namespace_of(name))


def zones_there(url: str) -> list[str]:
    """The zones whose facts a database on a server holds."""
    address_of(url)
    from ergon_framework.boundary.factstore.postgres.database import zones_in
    from ergon_framework.storage.postgres.migrations import connected

    with connected(url) as (connection, _):
        return zones_in(connection)
