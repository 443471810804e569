"""Two that read rows as one consumer: one reads, and the other when it is gone."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa

from ergon_framework.connector.database import DatabaseConnector, RowTakenError
from ergon_framework.connector.database.lease import LEASE, ReaderLease
from ergon_framework.connector.database.reading import READERS
from tests import fork_server
from tests.connectors.database import reader_child
from tests.connectors.database.tables import EFFECTS, effects, engine_of, insert
from tests.waiting import until


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of the test's own, or one whose two tables are empty."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/shop.db"
    found: str = request.getfixturevalue("postgres_url")
    return found


@pytest.fixture
def engine(url: str) -> Iterator[sa.Engine]:
    """To look at the database from outside."""
    made = engine_of(url)
    yield made
    made.dispose()


def test_the_second_reader_stands_by(url: str, engine: sa.Engine) -> None:
    """With bad health and a reason; questions are answered meanwhile, and it takes over at once."""
    with engine.begin() as connection:
        insert(connection, 1, 2)
    with (
        DatabaseConnector(url, table="orders") as one,
        DatabaseConnector(url, table="orders") as two,
        ThreadPoolExecutor(1) as pool,
    ):
        (first,) = one.fetch_transactions(1)
        fetching = pool.submit(two.fetch_transactions, 2)
        until(lambda: not two.health(), "a reader that stands by")
        assert two.get_transactions_count() == 2
        assert one.health()
        one.ack(first)
        assert not fetching.done()
        one.close()
        (second,) = fetching.result(60)
        assert second.payload["id"] == 2
        assert two.health()
        two.ack(second)


def test_a_stop_ends_the_wait_of_the_second(url: str, engine: sa.Engine) -> None:
    """A process that stands by can be ended."""
    with (
        DatabaseConnector(url, table="orders") as one,
        DatabaseConnector(url, table="orders") as two,
        DatabaseConnector(url, table="orders", consumer="other") as other,
        ThreadPoolExecutor(1) as pool,
    ):
        assert one.fetch_transactions(1) == []
        assert other.fetch_transactions(1) == []
        fetching = pool.submit(two.fetch_transactions, 1)
        until(lambda: not two.health(), "a reader that stands by")
        two.stop_waiting()
        assert fetching.result(30) == []


def test_one_that_was_held_up_for_too_long_settles_nothing(url: str, engine: sa.Engine) -> None:
    """Another one has its rows by then: neither its effect nor its outcome is committed."""
    with engine.begin() as connection:
        insert(connection, 1, 2)
    with DatabaseConnector(url, table="orders") as one:
        first, second = one.fetch_transactions(2)
        with engine.begin() as connection:
            connection.execute(READERS.update().values(holder="another"))
        with pytest.raises(RowTakenError, match="begun to read"), one.transaction(first) as on:
            on.execute(EFFECTS.insert().values(order_id=1))
        with pytest.raises(RowTakenError, match="begun to read"):
            one.ack(second)
        assert effects(engine) == []
        assert one.get_transactions_count() == 2


def test_signs_of_life_are_judged_by_the_clock_of_who_waits(url: str, engine: sa.Engine) -> None:
    """Of a process elsewhere, of which nobody can see whether it runs."""
    with DatabaseConnector(url, table="orders") as connector:
        connector.open()
    now = [5000.0]
    one = ReaderLease(engine, READERS, "a@b")
    two, three = (ReaderLease(engine, READERS, "a@b", lambda: now[0]) for _ in range(2))
    assert one.take() is None
    with engine.begin() as connection:
        connection.execute(READERS.update().values(about='{"pid": 1, "host": "elsewhere"}'))
    assert two.take() == three.take() == "process 1 on elsewhere"
    now[0] += LEASE - 1
    with engine.begin() as connection:
        connection.execute(READERS.update().values(beat=READERS.c.beat + 1))
    assert two.take() is not None
    now[0] += LEASE - 1
    assert two.take() is not None
    now[0] += 1
    assert two.take() is None
    assert three.take() is not None
    assert one.take() is not None
    for each in (one, two, three):
        each.close()


@pytest.mark.slow
def test_the_second_process_takes_over_from_one_that_was_killed(
    url: str, engine: sa.Engine
) -> None:
    """Both run at once: no order has two effects, and none is missing."""
    with engine.begin() as connection:
        insert(connection, *range(1, 31))
    command = [sys.executable, reader_child.__file__, url]
    with fork_server.start(command, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        for _ in range(3):
            assert first.stdout.readline() == "x\n"
        with fork_server.start(command, stdout=subprocess.PIPE, text=True) as second:
            for _ in range(4):
                assert first.stdout.readline() == "x\n"
            first.send_signal(signal.SIGKILL)
            first.wait()
            done = len(effects(engine))
            told, _ = second.communicate(timeout=60)
            assert second.returncode == 0
            assert told.count("x") >= 30 - done
    assert effects(engine) == list(range(1, 31))
