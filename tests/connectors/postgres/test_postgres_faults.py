"""A table as a connector when its consumer is killed, its connection is cut, or its server dies."""

# ruff: noqa: S608 - tables are named by the test itself

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ergon_framework.connector.broker.leases import DeliveryExpiredError
from ergon_framework.connector.postgres import PostgresConnector
from ergon_framework.errors import (
    ChannelLostError,
    ConfigurationError,
    ErgonError,
    StoreUnavailableError,
)
from ergon_framework.ports.transaction import Transaction
from tests import fork_server
from tests.connectors import diary_consumer
from tests.connectors.diary_consumer import consuming, consuming_in, noted
from tests.connectors.postgres.tables import LEASED, LEASED_COLUMNS, OUTBOX, execute, new_table
from tests.jobs.postgres.silent_proxy import SilentProxy
from tests.servers.postgres import PostgresServer, name_of
from tests.waiting import until

pytestmark = pytest.mark.slow

SHORT = 1.0
"""Seconds that a lease lasts in these tests."""


def options(url: str, table: str, **more: Any) -> dict[str, Any]:
    """The arguments of a connector that shares the table by leases."""
    given = {"url": url, "table": table, "columns": LEASED_COLUMNS, "wait": 0.2, "lease": SHORT}
    return {**given, **more}


def some(count: int, prefix: str = "t") -> list[Transaction]:
    """So many transactions."""
    return [Transaction(f"{prefix}{n}", {"n": n}) for n in range(count)]


def rows(url: str, table: str) -> int:
    """How many there are."""
    [(found,)] = execute(url, f"SELECT count(*) FROM {table}")
    return int(found)


def child(given: dict[str, Any], diary: Path) -> Any:
    """A consumer in a process of its own."""
    kind = "ergon_framework.connector.postgres:PostgresConnector"
    program = [sys.executable, diary_consumer.__file__, kind, json.dumps(given), str(diary)]
    return fork_server.start(program)


@pytest.mark.parametrize("is_leased", [True, False], ids=["leases", "one reader"])
def test_a_killed_consumer_loses_nothing(
    postgres_url: str, tmp_path: Path, is_leased: bool
) -> None:
    """Its rows are free when their leases end, or at once where one reader locked the table."""
    diary = tmp_path / "diary"
    table = new_table(postgres_url, LEASED if is_leased else OUTBOX, dead=not is_leased)
    given = options(postgres_url, table)
    if not is_leased:
        given |= {"columns": "headers", "dead_letters": f"{table}_dead"}
    with PostgresConnector(**given) as connector:
        connector.dispatch_transactions(some(300))
        killed = child(given, diary)
        until(lambda: noted(diary, "ended").total() >= 10, "some work")
        if not is_leased:
            assert connector.fetch_transactions(5) == []  # it stands by
        killed.kill()
        killed.wait()
        assert noted(diary, "ended").total() < 300
        with consuming(connector, diary):
            until(lambda: rows(postgres_url, table) == 0, "everything")
    ended = noted(diary, "ended")
    assert set(ended) == {f"t{n}" for n in range(300)}
    # At most what four workers had ended, and the table had not heard of, when their process died.
    assert ended.total() - 300 <= 4


def test_a_cut_connection_keeps_deliveries(
    postgres_server: PostgresServer, postgres_url: str, tmp_path: Path
) -> None:
    """A lease belongs to no connection: work goes on, and its outcome counts over the next one."""
    diary, table = tmp_path / "diary", new_table(postgres_url, LEASED)
    with SilentProxy(postgres_server.folder) as line:
        given = options(line.url(name_of(postgres_url)), table, lease=20.0)
        with PostgresConnector(**given) as connector:
            connector.dispatch_transactions(some(4))
            with consuming(connector, diary, seconds=0.5):
                until(lambda: noted(diary, "began").total() == 4, "the work")
                line.cut()
                until(lambda: rows(postgres_url, table) == 0, "everything")
                connector.dispatch_transactions(some(3, "later"))
                until(lambda: noted(diary, "ended").total() == 7, "the rest")
    assert set(noted(diary, "began").values()) == {1}


def test_an_answer_that_was_lost_is_no_lost_lease(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    """An ack that was carried out, and of which nobody heard, is not reported as come too late."""
    table = new_table(postgres_url, LEASED)
    with SilentProxy(postgres_server.folder) as line:
        given = options(line.url(name_of(postgres_url)), table, lease=20.0)
        with PostgresConnector(**given) as connector:
            connector.dispatch_transactions(some(2))
            first, held = connector.fetch_transactions(2)
            connector.ack(first)  # the statement is prepared then: the next ack is one message
            line.is_deaf = True
            with ThreadPoolExecutor(1) as pool:
                acking = pool.submit(connector.ack, held)
                until(lambda: rows(postgres_url, table) == 0, "the ack, which the server heard")
                line.cut()
                acking.result(30)


def test_an_outcome_after_the_lease_is_refused(postgres_url: str) -> None:
    """A row that another consumer has by now is not settled by the first one."""
    table = new_table(postgres_url, LEASED)
    given = options(postgres_url, table, lease=60.0)
    with PostgresConnector(**given) as late, PostgresConnector(**given) as other:
        late.dispatch_transactions(some(2))
        first, second = late.fetch_transactions(2)
        # As if its process had been stopped for longer than a lease.
        execute(postgres_url, f"UPDATE {table} SET visible_at = now()")
        assert len(other.fetch_transactions(2)) == 2
        with pytest.raises(DeliveryExpiredError, match="lease has ended"):
            late.ack(first)
        with pytest.raises(DeliveryExpiredError, match="lease has ended"):
            late.nack(second, ValueError("late"))
    assert execute(postgres_url, f"SELECT status FROM {table}") == [("pending",), ("pending",)]


def test_a_reader_that_lost_its_lock_cannot_settle(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    """Without leases a row belongs to the connection: it is delivered again, and settled once."""
    table = new_table(postgres_url, OUTBOX, dead=True)
    more = {"columns": "headers", "dead_letters": f"{table}_dead"}
    with SilentProxy(postgres_server.folder) as line:
        cut_off = PostgresConnector(**options(line.url(name_of(postgres_url)), table, **more))
        with cut_off, PostgresConnector(**options(postgres_url, table, **more)) as other:
            cut_off.dispatch_transactions(some(1))
            (first,) = cut_off.fetch_transactions(1)
            assert other.fetch_transactions(1) == []
            line.cut()
            again: list[Transaction] = []

            def came() -> bool:
                again.extend(other.fetch_transactions(1))
                return bool(again)

            until(came, "the other reader's turn")
            with pytest.raises(ChannelLostError):
                cut_off.ack(first)
            assert cut_off.fetch_transactions(1) == []
            other.ack(again[0])
    assert rows(postgres_url, table) == 0


def test_a_long_handler_keeps_its_row(postgres_url: str, tmp_path: Path) -> None:
    """Work that takes thrice as long as a lease is done once."""
    diary, table = tmp_path / "diary", new_table(postgres_url, LEASED)
    with PostgresConnector(**options(postgres_url, table)) as connector:
        connector.dispatch_transactions(some(2))
        with consuming(connector, diary, seconds=3 * SHORT):
            until(lambda: rows(postgres_url, table) == 0, "the work")
    assert noted(diary, "began").total() == 2


def test_a_row_that_somebody_locks_ends_no_lease(postgres_url: str) -> None:
    """A handler's own transaction may hold its row. No lease in hand ends, and both settle."""
    table = new_table(postgres_url, LEASED)
    given = options(postgres_url, table, lease=3 * SHORT)
    look = f"SELECT visible_at > now() + interval '2 s' FROM {table} WHERE id = 't1'"
    with PostgresConnector(**given) as connector, PostgresConnector(**given) as other:
        connector.dispatch_transactions(some(2))
        first, second = connector.fetch_transactions(2)
        with psycopg.connect(postgres_url) as holder:
            holder.execute(f"SELECT FROM {table} WHERE id = 't0' FOR UPDATE".encode())
            [(ends,)] = execute(postgres_url, f"SELECT visible_at FROM {table} WHERE id = 't1'")
            passed = "SELECT now() > %s + interval '1 s'"
            until(lambda: execute(postgres_url, passed, (ends,)) == [(True,)])
            assert execute(postgres_url, look) == [(True,)]  # it was renewed beside the other
            assert other.fetch_transactions(2) == []
            connector.ack(second)
        connector.ack(first)
    assert rows(postgres_url, table) == 0


def test_a_settlement_that_a_lock_stops_is_no_outage(postgres_url: str) -> None:
    """It fails by itself: the connection is good, and so is the health of the connector."""
    table = new_table(postgres_url, LEASED)
    says_no = (
        "LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'canceling statement due to lock timeout'"
        " USING ERRCODE = '55P03'; END $$"
    )
    execute(postgres_url, f"CREATE FUNCTION {table}_held() RETURNS trigger {says_no}")
    with PostgresConnector(**options(postgres_url, table, lease=60)) as connector:
        connector.dispatch_transactions(some(2))
        first, second = connector.fetch_transactions(2)
        execute(
            postgres_url,
            f"CREATE TRIGGER held BEFORE DELETE ON {table} FOR EACH ROW WHEN (OLD.id = 't0')"
            f" EXECUTE FUNCTION {table}_held()",
        )
        with pytest.raises(StoreUnavailableError, match="lock timeout"):
            connector.ack(first)
        assert connector.health()
        connector.ack(second)
        execute(postgres_url, f"DROP TRIGGER held ON {table}")
        connector.ack(first)
    assert rows(postgres_url, table) == 0


def test_two_consumers_share_a_table(postgres_url: str, tmp_path: Path) -> None:
    """Two connectors get each row once, and both get some."""
    table, diaries = new_table(postgres_url, LEASED), (tmp_path / "one", tmp_path / "other")
    given = options(postgres_url, table, lease=20.0)
    with PostgresConnector(**given) as one, PostgresConnector(**given) as other:
        one.dispatch_transactions(some(80))
        with consuming(one, diaries[0]), consuming(other, diaries[1]):
            until(lambda: rows(postgres_url, table) == 0, "everything")
    shares = [noted(diary, "ended") for diary in diaries]
    assert all(shares)
    assert shares[0] + shares[1] == dict.fromkeys((f"t{n}" for n in range(80)), 1)


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_server_that_dies_is_waited_for(
    own_postgres: PostgresServer, tmp_path: Path, colour: str
) -> None:
    """Away at the start, and killed later: it is waited for, and what it stored is delivered."""
    diary, url = tmp_path / "diary", own_postgres.url()
    table = new_table(url, LEASED)
    own_postgres.stop()
    connector = PostgresConnector(**options(url, table))
    with consuming_in(colour, connector, diary):
        until(lambda: not connector.health(), "a server that is away")
        own_postgres.start()
        execute(url, f"INSERT INTO {table} (id, payload) VALUES ('before', '1')")
        until(lambda: noted(diary, "ended")["before"], "the first row")
        own_postgres.kill()
        until(lambda: not connector.health(), "a server that was killed")
        own_postgres.start()
        execute(url, f"INSERT INTO {table} (id, payload) VALUES ('after', '2')")
        until(lambda: noted(diary, "ended")["after"], "the second row")
        until(lambda: rows(url, table) == 0, "their outcomes")
        assert connector.health()
    connector.close()


def test_settling_while_the_server_is_away_says_so(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    """A settlement does not wait for the server; the lease is kept for when it is back."""
    table = new_table(postgres_url, LEASED)
    line = SilentProxy(postgres_server.folder)
    given = options(line.url(name_of(postgres_url)), table, lease=20.0)
    with line, PostgresConnector(**given) as connector:
        connector.dispatch_transactions(some(1))
        (held,) = connector.fetch_transactions(1)
        line.leave()
        with pytest.raises(ErgonError, match="cannot be reached"):
            connector.ack(held)
        assert not connector.health()
    assert rows(postgres_url, table) == 1


@pytest.mark.parametrize("is_leased", [True, False], ids=["leases", "one reader"])
@pytest.mark.parametrize(
    ("change", "repair", "told"),
    [
        ("DROP TABLE {}", "", "has no table 'orders_"),
        ("ALTER TABLE {} RENAME TO {}_old", "ALTER TABLE {}_old RENAME TO {}", "has no table"),
        (
            "ALTER TABLE {} RENAME headers TO other",
            "ALTER TABLE {} RENAME other TO headers",
            "has no column 'headers'",
        ),
        (
            "ALTER TABLE {} ALTER payload TYPE int[] USING ARRAY[5]",
            "ALTER TABLE {} ALTER payload TYPE text USING '{{}}'",
            "is integer.., which no payload is",
        ),
        (
            "ALTER TABLE {} ALTER payload TYPE int USING 2000000000",
            "ALTER TABLE {} ALTER payload TYPE text USING '{{}}'",
            "is integer, which no payload is",
        ),
    ],
)
def test_a_table_that_is_changed_while_it_is_read(
    postgres_url: str, is_leased: bool, change: str, repair: str, told: str
) -> None:
    """The next fetch says what it lacks, no row is set aside for it, and a repair is seen."""
    definition = LEASED.replace("bytea", "text") if is_leased else OUTBOX
    table = new_table(postgres_url, definition, dead=not is_leased)
    given = options(postgres_url, table, max_in_flight=2)
    if not is_leased:
        given |= {"columns": "headers", "dead_letters": f"{table}_dead"}
    with PostgresConnector(**given) as connector:
        connector.dispatch_transactions(some(5))
        (first,) = connector.fetch_transactions(1)
        connector.ack(first)
        execute(postgres_url, change.format(table, table))
        with pytest.raises(ConfigurationError, match=told):
            connector.fetch_transactions(1)
        assert not connector.health()
        assert connector.malformed == 0
        if repair:
            execute(postgres_url, repair.format(table, table))
            found: list[Transaction] = []
            while not found:
                found = connector.fetch_transactions(1)
            connector.ack(found[0])
            assert rows(postgres_url, table) == 3
            assert connector.health()


@pytest.mark.req("X19")
@pytest.mark.parametrize(
    ("is_leased", "right", "verb"),
    [
        (True, "SELECT", "ack"),
        (True, "UPDATE", "release"),
        (True, "DELETE", "ack"),
        (False, "SELECT", "ack"),
        (False, "DELETE", "ack"),
    ],
)
def test_rights_that_are_taken_away(
    postgres_url: str, is_leased: bool, right: str, verb: str
) -> None:
    """The error says which, the health is bad until they are back, and then work goes on."""
    table = new_table(postgres_url, LEASED if is_leased else OUTBOX, dead=not is_leased)
    user = f"app_{table}"
    execute(postgres_url, f"CREATE ROLE {user} LOGIN")
    for each in (table, *([] if is_leased else [f"{table}_dead"])):
        execute(postgres_url, f"GRANT ALL ON {each} TO {user}")
    given = options(postgres_url.replace("//ergon@", f"//{user}@"), table, lease=20.0)
    if not is_leased:
        given |= {"columns": "headers", "dead_letters": f"{table}_dead"}
    with PostgresConnector(**given) as connector:
        connector.dispatch_transactions(some(3))
        first, second = connector.fetch_transactions(2)
        connector.ack(first)
        execute(postgres_url, f"REVOKE {right} ON {table} FROM {user}")
        grant = f"GRANT {right} ON {table} TO {user}"
        with pytest.raises(ErgonError, match=f"permission denied for table {table}") as caught:
            getattr(connector, verb)(second)
        assert caught.value.remedy == grant
        assert not connector.health()
        with pytest.raises(ErgonError, match="cannot be used") as caught:
            connector.dispatch_transactions(some(1, "u"))
        assert grant in str(caught.value)
        execute(postgres_url, grant)
        found: list[Transaction] = []
        while not found:
            found = connector.fetch_transactions(5)
        assert connector.health()
        assert len(found) == (1 if is_leased else 2)  # a lease is kept, and a lock was let go
        for delivery in [second, *found] if is_leased else found:
            connector.ack(delivery)
    assert rows(postgres_url, table) == 0


@pytest.mark.req("X19")
def test_a_fetch_waits_for_rights(postgres_url: str, tmp_path: Path) -> None:
    """It asks ever less often, instead of failing again and again, and goes on by itself."""
    diary, table = tmp_path / "diary", new_table(postgres_url, LEASED)
    execute(postgres_url, f"CREATE ROLE app_{table} LOGIN")
    execute(postgres_url, f"GRANT ALL ON {table} TO app_{table}")
    url = postgres_url.replace("//ergon@", f"//app_{table}@")
    with PostgresConnector(**options(url, table)) as connector, consuming(connector, diary):
        connector.dispatch_transactions(some(1))
        until(lambda: noted(diary, "ended")["t0"], "the first row")
        assert connector.health()
        execute(postgres_url, f"REVOKE UPDATE ON {table} FROM app_{table}")
        until(lambda: not connector.health(), "a refusal")
        execute(postgres_url, f"INSERT INTO {table} (id, payload) VALUES ('later', '1')")
        execute(postgres_url, f"GRANT UPDATE ON {table} TO app_{table}")
        until(lambda: rows(postgres_url, table) == 0, "the second row")
        assert connector.health()
