"""A real PostgreSQL server for tests: private, temporary, reached by a socket in its own folder."""

from __future__ import annotations

import atexit
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from benchmarks.server_programs import (
    MissingProgramError,
    postgres_programs,
    server_folder,
    server_user,
)
from tests.servers.server import Server, started
from tests.servers.skip_loudly import MissingServerError


def name_of(url: str) -> str:
    """The database that a URL of a :class:`PostgresServer` names."""
    return url.partition("@/")[2].partition("?")[0]


def empty_tables(url: str) -> None:
    """Empty every table that job stores have in a database: what a test left is no other's.

    The tables are looked up, so that none is forgotten that a later version adds. The versions of
    the tables stay.
    """
    import psycopg
    from psycopg import sql

    with psycopg.connect(url, autocommit=True) as connection:
        rows = connection.execute(_JOB_TABLES).fetchall()
        names = sql.SQL(", ").join(sql.Identifier(name) for (name,) in rows)
        connection.execute(sql.SQL("TRUNCATE {}").format(names))


_JOB_TABLES = (
    "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
    " AND starts_with(tablename, 'ergon_') AND tablename <> 'ergon_schema'"
)
_QUICK = ("-c", "fsync=off", "-c", "jit=off", "-c", "max_wal_size=4GB")
"""Settings of a server whose machine does not lose its power: it survives kills all the same."""


@cache
def _data_folder(programs: Path) -> Path:
    """What ``initdb`` makes, which takes a second, once per process; each server has a copy."""
    folder = server_folder()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    words = [str(programs / "initdb"), "-D", str(folder / "data"), "-U", "ergon", "-A", "trust"]
    _run([*words, "-N", "-E", "UTF8", "--no-locale"], server_user())
    return folder / "data"


def _run(words: Sequence[str], options: Mapping[str, Any]) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False, **options)  # noqa: S603
    if done.returncode:
        raise MissingServerError(f"{words[0]}: {done.stderr.strip()[-300:]}")


class PostgresServer(Server):
    """One server; it can be stopped, killed and started again, with all it holds.

    What it acknowledged survives a kill either way; ``is_durable`` also syncs it to the disk.
    """

    NAME = "postgres"
    STOP = signal.SIGINT  # cuts off whoever is connected
    KILL = signal.SIGQUIT  # ends its children too, which would hold the folder after a SIGKILL

    def __init__(self, *, is_durable: bool = False) -> None:
        self._is_durable = is_durable
        try:
            self._programs, folder = postgres_programs(), server_folder()
        except MissingProgramError as error:
            raise MissingServerError(str(error)) from error
        super().__init__(folder)
        self._numbers = count(1)
        _run(["cp", "-a", str(_data_folder(self._programs)), str(self.folder / "data")], {})

    def _options(self) -> dict[str, Any]:
        return server_user()

    def url(self, database: str = "postgres") -> str:
        """How to reach a database."""
        return f"postgresql://ergon@/{database}?host={self.folder}"

    def _words(self) -> list[str]:
        words = [str(self._programs / "postgres"), "-D", str(self.folder / "data"), "-h", ""]
        words += ["-k", str(self.folder), "-c", "max_connections=200"]
        return words if self._is_durable else [*words, *_QUICK]

    def _answers(self) -> bool:
        ready = [str(self._programs / "pg_isready"), "-q", "-h", str(self.folder)]
        return subprocess.run(ready, check=False).returncode == 0  # noqa: S603

    def new_database(self, like: str = "template1") -> str:
        """Make a database, empty or a copy of another one that nobody is using; its URL."""
        import psycopg

        name = f"test_{next(self._numbers)}"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            # The usual strategy writes all of a template into the write-ahead log.
            words = f"CREATE DATABASE {name} TEMPLATE {like} STRATEGY FILE_COPY"
            connection.execute(words.encode())
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Delete one, whoever is connected to it."""
        import psycopg

        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name_of(url)} WITH (FORCE)".encode())


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL server for all tests of a run."""
    with started(PostgresServer) as server:
        yield server


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server that the test may stop."""
    with started(PostgresServer) as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """An empty PostgreSQL database of the test's own."""
    url = postgres_server.new_database()
    yield url
    postgres_server.drop_database(url)
