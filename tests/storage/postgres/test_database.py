"""Transactions on a real PostgreSQL server: what they promise, and what happens without it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TypeVar

import psycopg
import pytest

from ergon_framework.errors import (
    ConfigurationError,
    StoreError,
    StoreSchemaError,
    StoreUnavailableError,
)
from ergon_framework.storage.deadlines import CALL_BUDGET
from ergon_framework.storage.postgres import errors
from ergon_framework.storage.postgres.database import PostgresDatabase
from ergon_framework.storage.postgres.migrations import PostgresSchema
from ergon_framework.storage.postgres.pool import Connection, PostgresTimeouts
from tests.servers.postgres import PostgresServer, name_of

ONE = PostgresSchema("tries", "tests.storage.postgres.tries.one")
TWO = PostgresSchema("tries", "tests.storage.postgres.tries.two")
THREE = PostgresSchema("tries", "tests.storage.postgres.tries.three")
PATIENCE = 30.0

T = TypeVar("T")


@pytest.fixture
def database(postgres_url: str) -> Iterator[PostgresDatabase]:
    """A database with the tables of the first version."""
    with closing(PostgresDatabase(postgres_url, schema=ONE)) as database:
        yield database


def put(connection: Connection, name: str) -> None:
    """Write a row."""
    connection.execute("INSERT INTO ergon_tries (name) VALUES (%s)", (name,))


def in_transaction(database: PostgresDatabase, work: Callable[[Connection], T]) -> T:
    """Run work as one transaction; what it returns."""

    def whole(connection: Connection) -> T:
        with connection.transaction():
            return work(connection)

    return database.run(whole)


def names(database: PostgresDatabase) -> list[str]:
    """The rows that are there."""
    found = "SELECT name FROM ergon_tries ORDER BY name"
    return database.read(lambda connection: [row[0] for row in connection.execute(found)])


def test_a_transaction_is_whole(database: PostgresDatabase) -> None:
    """What is there after it is all of it."""

    def work(connection: Connection) -> int:
        put(connection, "a")
        put(connection, "b")
        return 2

    assert in_transaction(database, work) == 2
    assert names(database) == ["a", "b"]


def test_a_transaction_that_fails_leaves_nothing(database: PostgresDatabase) -> None:
    """Neither an error of the caller's nor one of the server's leaves a half of it behind."""

    def breaks(connection: Connection) -> None:
        put(connection, "a")
        raise LookupError

    def refused(connection: Connection) -> None:
        put(connection, "b")
        put(connection, "b")

    with pytest.raises(LookupError):
        in_transaction(database, breaks)
    with pytest.raises(StoreError, match="refused a statement"):
        in_transaction(database, refused)
    assert names(database) == []
    in_transaction(database, lambda connection: put(connection, "c"))
    assert names(database) == ["c"]


def test_a_deadlock_is_begun_again(database: PostgresDatabase) -> None:
    """The server ends one of two transactions that wait for each other; it is repeated."""
    in_transaction(database, lambda connection: put(connection, "a"))
    in_transaction(database, lambda connection: put(connection, "b"))
    met = threading.Barrier(2)
    turns: list[str] = []

    def take(first: str, second: str) -> None:
        def work(connection: Connection) -> None:
            touch = "UPDATE ergon_tries SET touched = touched + 1 WHERE name = %s RETURNING 1"
            connection.execute(touch, (first,)).fetchall()
            turns.append(first)
            if len(turns) <= 2:
                met.wait(PATIENCE)
            connection.execute(touch, (second,)).fetchall()

        in_transaction(database, work)

    other = threading.Thread(target=take, args=("b", "a"))
    other.start()
    take("a", "b")
    other.join(PATIENCE)
    assert len(turns) >= 3, "one of them was begun again"
    count = "SELECT touched FROM ergon_tries"
    assert database.read(lambda c: c.execute(count).fetchall()) == [(2,), (2,)]


@pytest.mark.slow
@pytest.mark.req("SCALE:fleet-outage")
def test_a_server_that_comes_back_is_used_again(own_postgres: PostgresServer) -> None:
    """While it is away the error says so; afterwards nobody has to open anything anew."""
    url = own_postgres.new_database()
    with closing(PostgresDatabase(url, schema=ONE)) as database:
        in_transaction(database, lambda connection: put(connection, "a"))
        subscription = database.subscribe("tries")
        own_postgres.kill()
        with pytest.raises(StoreUnavailableError) as told:
            in_transaction(database, lambda connection: put(connection, "b"))
        assert "see that the server runs" in told.value.remedy
        own_postgres.start()
        assert subscription.wait(PATIENCE), "after an outage every subscriber is notified"
        assert names(database) == ["a"]
        in_transaction(database, lambda connection: put(connection, "c"))
        database.run(lambda connection: connection.execute("NOTIFY tries"))
        assert subscription.wait(PATIENCE)


def test_a_bell_rings_across_connections(database: PostgresDatabase, postgres_url: str) -> None:
    """What is announced on a channel is heard by whoever listens there, and by nobody else."""
    subscription, other = database.subscribe("heard"), database.subscribe("unheard")
    assert not subscription.wait(0.0), "a subscriber is not notified of what was before"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("NOTIFY heard")
    assert subscription.wait(PATIENCE)
    assert not other.wait(0.0)


def test_an_announcement_for_others_only(database: PostgresDatabase, postgres_url: str) -> None:
    """What bears the word of a database is heard by others, and not by itself."""
    with closing(PostgresDatabase(postgres_url, schema=ONE)) as other:
        heard, unheard = other.subscribe("news"), database.subscribe("news")
        database.run(
            lambda link: link.execute("SELECT pg_notify('news', %s)", (database.own_payload,))
        )
        assert heard.wait(PATIENCE)
        database.run(lambda link: link.execute("SELECT pg_notify('news', '')"))
        assert heard.wait(PATIENCE)
        assert unheard.wait(PATIENCE)
        assert not unheard.wait(0)  # the second alone was notified


def test_a_forked_child_leaves_the_connections_alone(database: PostgresDatabase) -> None:
    """It opens its own, and the parent's go on working."""
    in_transaction(database, lambda connection: put(connection, "a"))
    child = os.fork()
    if child == 0:
        try:
            in_transaction(database, lambda connection: put(connection, "b"))
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert names(database) == ["a", "b"]


def test_the_clock_is_the_servers(database: PostgresDatabase, postgres_url: str) -> None:
    """Unless one is given."""
    [[there]] = database.read(
        lambda c: c.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchall()
    )
    assert abs(database.now() - there) < PATIENCE
    with closing(PostgresDatabase(postgres_url, schema=ONE, clock=lambda: 7.0)) as other:
        assert other.now() == 7.0


@pytest.mark.req("SCALE:url-errors")
@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("postgresql:/host/name", "lacks ://"),
        ("postgresql://user@host:port:9/name", "cannot be read"),
        ("postgresql://host/name?nonsense=1", "has no option 'nonsense'"),
        ("postgresql://user:a#b@host/name", "cannot be read"),
        ("postgresql://user:a?b=c@host/name", "cannot be read"),
        ("postgresql://user:12/ab@host/name", "cannot be read"),
    ],
)
def test_a_wrong_url_is_told(url: str, text: str) -> None:
    """Before anything is opened, and with the form that works."""
    with pytest.raises(ConfigurationError, match=text) as told:
        PostgresDatabase(url, schema=ONE)
    assert "postgresql://user@host/name" in told.value.remedy


def test_several_hosts_without_ports(postgres_server: PostgresServer, postgres_url: str) -> None:
    """Whichever answers is taken; the port that everybody knows need not be written."""
    folder = str(postgres_server.folder).replace("/", "%2F")
    url = f"postgresql://ergon@%2Fnowhere,{folder}/{name_of(postgres_url)}"
    with closing(PostgresDatabase(url, schema=ONE)) as database:
        assert ":," not in database.name


@pytest.mark.req("SCALE:url-errors")
def test_an_option_that_is_misspelt() -> None:
    """The right one is named; what may be half a password is not."""
    with pytest.raises(ConfigurationError, match="'sslmod'") as told:
        PostgresDatabase("postgresql://user:hush@host/name?sslmod=require", schema=ONE)
    assert "did you mean sslmode?" in told.value.remedy
    with pytest.raises(ConfigurationError, match="cannot be read") as told:
        PostgresDatabase("postgresql://user:a/b?hush=c@host/name", schema=ONE)
    assert "hush" not in f"{told.value}{told.value.remedy}"


@pytest.mark.req("SCALE:url-errors")
def test_a_server_that_is_not_there_is_told() -> None:
    """With its name, and never with its password."""
    with pytest.raises(StoreUnavailableError) as told:
        PostgresDatabase("postgresql://me:secret@127.0.0.1:1/work", schema=ONE)
    assert "127.0.0.1" in told.value.message
    assert "secret" not in f"{told.value}{told.value.remedy}"


@pytest.mark.req("SCALE:url-errors")
def test_a_missing_database_or_user_is_told(postgres_server: PostgresServer) -> None:
    """Asking again does not help: it is the URL that has to change."""
    with pytest.raises(ConfigurationError, match="no database of that name"):
        PostgresDatabase(postgres_server.url("nowhere"), schema=ONE)
    with pytest.raises(ConfigurationError, match="does not let this user in"):
        PostgresDatabase(postgres_server.url().replace("ergon@", "nobody@"), schema=ONE)


@pytest.mark.req("SCALE:url-errors")
def test_a_wrong_password_is_told(own_postgres: PostgresServer) -> None:
    """Where it can stand, and nothing of it is shown."""
    url = own_postgres.new_database()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE ROLE guest LOGIN PASSWORD 'right'")
        rules = own_postgres.folder / "data" / "pg_hba.conf"
        rules.write_text("local all guest scram-sha-256\nlocal all all trust\n")
        connection.execute("SELECT pg_reload_conf()")
    wrong = url.replace("ergon@", "guest:guessed@")
    with pytest.raises(ConfigurationError, match="does not let this user in") as told:
        PostgresDatabase(wrong, schema=ONE)
    assert "guessed" not in f"{told.value}{told.value.remedy}"


@pytest.mark.req("SCALE:upgrade", "SCALE:url-errors")
def test_tables_that_are_too_old_are_told(database: PostgresDatabase, postgres_url: str) -> None:
    """They are not changed behind the back of programs that run; a command does that."""
    with pytest.raises(StoreSchemaError, match="of version 1; this program works with version 2"):
        PostgresDatabase(postgres_url, schema=TWO)
    assert database.run(lambda c: TWO.upgrade(c, "it", None)) == 1
    with closing(PostgresDatabase(postgres_url, schema=TWO)) as later:
        in_transaction(later, lambda connection: put(connection, "new"))
    in_transaction(database, lambda connection: put(connection, "old"))
    with closing(PostgresDatabase(postgres_url, schema=ONE)) as older:
        assert names(older) == ["new", "old"], "an older program may start beside the newer one"


@pytest.mark.req("SCALE:upgrade", "SCALE:url-errors")
def test_tables_that_are_too_new_are_told(database: PostgresDatabase, postgres_url: str) -> None:
    """A version that says so shuts out older programs."""
    database.run(lambda c: THREE.upgrade(c, "it", None))
    with pytest.raises(StoreSchemaError, match="for programs that work with version 2 or later"):
        PostgresDatabase(postgres_url, schema=ONE)
    with closing(PostgresDatabase(postgres_url, schema=TWO)):
        pass


def test_tables_of_somebody_else_are_left_alone(postgres_url: str) -> None:
    """A table of that name that is not ours is named, and nothing is made beside it."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE ergon_tries (something text)")
        with pytest.raises(StoreSchemaError, match="not of this tries store"):
            PostgresDatabase(postgres_url, schema=ONE)
        found = connection.execute("SELECT to_regclass('ergon_schema')").fetchone()
    assert found == (None,)


def test_many_may_make_the_tables_at_once(postgres_url: str) -> None:
    """Whoever comes first makes them, in a place of their own if they are told."""
    failures: list[BaseException] = []

    def make() -> None:
        try:
            PostgresDatabase(postgres_url, schema=ONE, namespace="apart").close()
        except BaseException as error:  # the test tells of it
            failures.append(error)

    threads = [threading.Thread(target=make) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert failures == []
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("SELECT count(*) FROM apart.ergon_tries").fetchone() == (0,)


def test_no_connection_is_free(postgres_url: str) -> None:
    """Who asks for one more than there may be is told how many there are."""
    timeouts = PostgresTimeouts(acquire=0.01)
    with closing(PostgresDatabase(postgres_url, schema=ONE, size=1, timeouts=timeouts)) as database:

        def nested(_: Connection) -> None:
            database.run(lambda connection: connection.execute("SELECT 1"))

        with pytest.raises(StoreUnavailableError, match="all 1 connections"):
            database.run(nested)
        assert names(database) == []


def test_a_time_limit_of_centuries_is_none(database: PostgresDatabase) -> None:
    """No thread can be told to wait for so long."""

    def nested(_: Connection) -> list[str]:  # which has the one connection: another is made
        return CALL_BUDGET.run_within(float(sys.maxsize), lambda: names(database))

    assert database.run(nested) == []


def test_a_server_that_does_not_answer_is_given_up(database: PostgresDatabase) -> None:
    """Its connection is shut, and the error says that the outcome is not known."""
    with pytest.raises(StoreUnavailableError, match=r"within 0\.3 seconds") as told:
        database.run(lambda connection: connection.execute("SELECT pg_sleep(60)"), seconds=0.3)
    assert told.value.details["is_lost"]
    assert names(database) == []


def test_a_closed_database_says_so(database: PostgresDatabase) -> None:
    """Closing twice is fine."""
    database.close()
    database.close()
    with pytest.raises(StoreUnavailableError, match="is closed"):
        names(database)


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("53100", "StoreFullError"),
        ("25006", "StoreReadOnlyError"),
        ("42P01", "StoreSchemaError"),
        ("58030", "StoreBrokenError"),
        ("57P03", "StoreUnavailableError"),
        ("22003", "StoreError"),
    ],
)
def test_every_trouble_has_an_error_of_its_own(state: str, kind: str) -> None:
    """As the server's code tells."""
    error = psycopg.errors.lookup(state)("what the server said\nDETAIL: a value")
    told = errors.translate(error, "it")
    assert type(told).__name__ == kind
    assert "a value" not in told.message


def test_a_connection_that_dies_in_a_pipeline_is_lost() -> None:
    """Which state the driver was in is nothing that an operator can act upon."""
    told = errors.translate(psycopg.OperationalError("connection not in pipeline mode"), "it")
    assert told.message == "it cannot be used for now: the connection was lost"
    assert told.details["is_lost"]
