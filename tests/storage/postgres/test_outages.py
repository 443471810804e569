"""Servers and databases that are set up in ways one does not expect."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

import psycopg
import pytest

from ergon_framework.errors import ConfigurationError, StoreUnavailableError
from ergon_framework.storage.postgres.database import PostgresDatabase
from ergon_framework.storage.postgres.pool import Connection, PostgresTimeouts
from tests.servers.postgres import PostgresServer, name_of
from tests.storage.conftest import until
from tests.storage.postgres.test_database import ONE, PATIENCE, in_transaction, names, put


def backend(connection: Connection) -> int:
    """The process of the server that serves a connection."""
    return connection.info.backend_pid


def test_texts_are_kept_whatever_the_environment_says(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is sent as UTF-8 is read as UTF-8."""
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    with closing(PostgresDatabase(postgres_url, schema=ONE)) as database:
        in_transaction(database, lambda connection: put(connection, "größe"))
        assert names(database) == ["größe"]


@pytest.mark.req("SCALE:url-errors")
@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_that_cannot_keep_every_text_is_refused(
    postgres_server: PostgresServer, postgres_url: str, encoding: str
) -> None:
    """Before anything is made in it."""
    name = f"{name_of(postgres_url)}_{encoding.lower()}"
    url = postgres_server.url(name)
    with psycopg.connect(postgres_server.url(), autocommit=True) as connection:
        words = f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}'"
        connection.execute(words.encode())
    try:
        with pytest.raises(ConfigurationError, match=f"the encoding {encoding}") as told:
            PostgresDatabase(url, schema=ONE)
        assert "createdb -E UTF8" in told.value.remedy
    finally:
        postgres_server.drop_database(url)


def test_who_waited_sees_what_happened_whatever_the_default_is(postgres_url: str) -> None:
    """Locks are taken to look afterwards: a look from before would break every limit."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        words = f"ALTER DATABASE {name_of(postgres_url)} SET default_transaction_isolation = "
        connection.execute(f"{words} 'repeatable read'".encode())
    with closing(PostgresDatabase(postgres_url, schema=ONE)) as database:
        level = in_transaction(
            database, lambda c: c.execute("SHOW transaction_isolation").fetchall()
        )
        assert level == [("read committed",)]


@pytest.mark.req("SCALE:url-errors")
@pytest.mark.parametrize(
    "url", ["postgresql://me:se@cret@localhost/work", "postgresql://me:hi@cret/x@/work?host=/tmp"]
)
def test_a_password_with_an_at_sign_is_not_taken_for_the_host(url: str) -> None:
    """It is refused with how to write it, and nothing of it is shown."""
    with pytest.raises(ConfigurationError, match="cannot be read") as told:
        PostgresDatabase(url, schema=ONE)
    assert "%40" in told.value.remedy
    assert "cret" not in f"{told.value}{told.value.remedy}"


@contextmanager
def many_files(number: int) -> Iterator[None]:
    """So many descriptors in use."""
    taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(number)]
    try:
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)


def test_a_process_with_many_files_keeps_its_connections(postgres_url: str) -> None:
    """Descriptors above a thousand are connections like others, and are heard."""
    with many_files(1100), closing(PostgresDatabase(postgres_url, schema=ONE)) as database:
        first = database.run(backend)
        assert database.run(backend) == first
        subscription = database.subscribe("many")
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute("NOTIFY many")
        assert subscription.wait(PATIENCE)


def test_a_forked_child_gives_up_on_a_silent_server(postgres_url: str) -> None:
    """It has somebody who looks at the clock, like its parent."""
    timeouts = PostgresTimeouts(transaction=0.5)
    with closing(PostgresDatabase(postgres_url, schema=ONE, timeouts=timeouts)) as database:
        with suppress(StoreUnavailableError):
            database.run(lambda connection: connection.execute("SELECT pg_sleep(1)"))
        child = os.fork()
        if child == 0:
            with suppress(BaseException):
                try:
                    database.run(lambda connection: connection.execute("SELECT pg_sleep(600)"))
                except StoreUnavailableError:
                    os._exit(0)
            os._exit(1)
        watch = threading.Timer(PATIENCE, os.kill, (child, signal.SIGKILL))
        watch.start()
        try:
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        finally:
            watch.cancel()


def test_closing_does_not_wait_for_a_frozen_server(postgres_url: str) -> None:
    """Who listens is cut off."""
    timeouts = PostgresTimeouts(keepalive_interval=0.05, keepalive_response=0.5)
    database = PostgresDatabase(postgres_url, schema=ONE, timeouts=timeouts)
    database.subscribe("frozen")
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        asked = "SELECT pid FROM pg_stat_activity WHERE query IN ('LISTEN \"frozen\"', 'SELECT 1')"
        frozen: list[int] = []

        def is_there() -> bool:
            frozen[:] = [pid for (pid,) in connection.execute(asked)]
            return bool(frozen)

        until(is_there)  # where the server was slow to answer, who listens is just coming again
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        try:
            closer = threading.Thread(target=database.close, daemon=True)
            closer.start()
            closer.join(PATIENCE)
            assert not closer.is_alive()
        finally:
            for pid in frozen:
                os.kill(pid, signal.SIGCONT)
