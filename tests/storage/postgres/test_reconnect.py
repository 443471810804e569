"""A server that does not let us in any more: who was in waits until it does again."""

from __future__ import annotations

from contextlib import closing

import psycopg
import pytest

from ergon_framework.errors import StoreReadOnlyError, StoreUnavailableError
from ergon_framework.storage.postgres.database import PostgresDatabase
from ergon_framework.storage.postgres.pool import Connection, PostgresTimeouts
from tests.servers.postgres import PostgresServer, name_of
from tests.servers.tls import Door, Papers
from tests.storage.postgres.test_database import ONE

pytestmark = pytest.mark.req("SCALE:jobs-postgres", "SCALE:fleet-outage")
_END = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE pid <> pg_backend_pid() AND datname = current_database()"
)


def opened(url: str, *, reconnect_delay: float = 0.0) -> closing[PostgresDatabase]:
    """A database; by default, a server that was away is asked again at once."""
    timeouts = PostgresTimeouts(reconnect_delay=reconnect_delay)
    return closing(PostgresDatabase(url, schema=ONE, timeouts=timeouts))


def hang_up(url: str) -> None:
    """End all connections to a database."""
    with psycopg.connect(url) as connection:
        connection.execute(_END)


def asked(database: PostgresDatabase) -> object:
    """An answer of the server; a connection that was lost is replaced."""

    def ask(connection: Connection) -> object:
        return connection.execute("SELECT 1").fetchone()

    return database.read(ask)


def refusal(database: PostgresDatabase, words: str) -> StoreUnavailableError:
    """What is said to who was connected before."""
    with pytest.raises(StoreUnavailableError, match=words) as caught:
        asked(database)
    assert caught.value.details["is_lost"] is False
    return caught.value


def test_what_was_wrong_is_said_again(postgres_server: PostgresServer) -> None:
    """Whoever comes while the server is left alone hears what was wrong, and not only that."""
    url = postgres_server.new_database()
    with opened(url, reconnect_delay=600.0) as database:
        postgres_server.drop_database(url)
        first = refusal(database, "has no database of that name")
        again = refusal(database, "has no database of that name.*, a moment ago")
        assert first.remedy == again.remedy


def test_a_certificate_that_is_wrong_for_a_while(
    postgres_server: PostgresServer, postgres_url: str, signed: Papers
) -> None:
    """It says what is wrong, and the same object is good again when that was fixed."""
    behind = str(postgres_server.folder / ".s.PGSQL.5432")
    with closing(Door(behind, signed, asks_first=True)) as door:
        place = f"postgresql://ergon@127.0.0.1:{door.port}/{name_of(postgres_url)}"
        url = f"{place}?sslmode=verify-full&sslrootcert={signed.ca}"
        with opened(url) as database:
            assert asked(database) == (1,)
            door.show("elsewhere")
            hang_up(postgres_url)
            assert "as the certificate has it" in refusal(database, "another name").remedy
            door.show("server")
            assert asked(database) == (1,)


def test_a_password_that_was_changed(own_postgres: PostgresServer) -> None:
    """It may be changed back, or stand in a file that is read for each connection."""
    url = own_postgres.new_database()
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("CREATE ROLE guest SUPERUSER LOGIN PASSWORD 'right'")
        rules = own_postgres.folder / "data" / "pg_hba.conf"
        rules.write_text("local all guest scram-sha-256\nlocal all all trust\n")
        admin.execute("SELECT pg_reload_conf()")
        guest = url.replace("ergon@", "guest:right@")
        with opened(guest) as database:
            admin.execute("ALTER ROLE guest PASSWORD 'other'")
            admin.execute(_END)
            assert "password" in refusal(database, "does not let this user in").remedy
            admin.execute("ALTER ROLE guest PASSWORD 'right'")
            assert asked(database) == (1,)


def test_a_server_that_could_only_be_read_for_a_while(postgres_server: PostgresServer) -> None:
    """A session that began then would be refused for ever; another one writes."""
    url = postgres_server.new_database()

    def write(connection: Connection) -> None:
        connection.execute("CREATE TABLE IF NOT EXISTS pies (name text)")

    def restrict(is_on: str) -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            name = connection.info.dbname
            connection.execute("SET default_transaction_read_only = off")
            connection.execute(
                f'ALTER DATABASE "{name}" SET default_transaction_read_only = {is_on}'.encode()
            )

    with opened(url) as database:
        restrict("on")
        hang_up(url)
        asked(database)  # the new session is one that may only read
        with pytest.raises(StoreReadOnlyError):
            database.run(write)
        restrict("off")
        database.run(write)
    postgres_server.drop_database(url)
