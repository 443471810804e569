"""A PostgreSQL table: our consumer, and psycopg's own loop. Both commit each row by itself."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from comparison import Contestant, ContestantError, Record, RunOptions, Turn, race
from jobs_parts.servers import MissingServerError, Servers

from connector_parts.turns import BARE, BODY, PREFETCH, Countdown, timed, timed_async, told
from ergon_framework import AsyncConsumerTask, ConsumerTask, Transaction
from ergon_framework.connector.postgres import PostgresConnector

RATE = 1000
"""Rows of a turn, for each second that it should take."""
LOOP = {"loop": {"batch": {"size": PREFETCH}}}
COLUMNS = "status, lease, visible_at"
TABLE = (
    "id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payload jsonb,"
    " status text DEFAULT 'pending', lease text, visible_at timestamptz"
)
_NUMBERS = itertools.count()


def postgres(options: RunOptions) -> Iterator[Record]:
    """With asyncio."""
    yield from _raced("postgres", options, _ours_async, _bare_async)


def postgres_threads(options: RunOptions) -> Iterator[Record]:
    """With a thread."""
    yield from _raced("postgres-threads", options, _ours, _bare)


Consume = Callable[[str, int], Turn]


def _raced(case: str, options: RunOptions, ours: Consume, bare: Consume) -> Iterator[Record]:
    servers = Servers(options.folder)
    try:
        url, count = servers.url("postgres"), round(RATE * options.seconds)
        us = Contestant("ergon", lambda: ours(url, count))
        them = Contestant("psycopg", lambda: bare(url, count))
        race([us, them], options.rounds)
        yield from told(case, us, (them, BARE))
    except MissingServerError as error:
        raise ContestantError(str(error)) from error
    finally:
        servers.stop()


def _filled(url: str, count: int) -> str:
    """A table with so many rows."""
    import psycopg

    name = f"orders_{next(_NUMBERS)}"
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(f"CREATE TABLE {name} ({TABLE})".encode())
        insert = f"INSERT INTO {name} (payload) SELECT %s::jsonb FROM generate_series(1, %s)"  # noqa: S608
        db.execute(insert.encode(), (BODY, count))
    return name


def _claim(table: str) -> bytes:
    return f"""
        UPDATE {table} SET lease = 'us', visible_at = now() + interval '30 s' WHERE id IN (
            SELECT id FROM {table} WHERE status = 'pending'
            AND (visible_at IS NULL OR visible_at <= now())
            ORDER BY id LIMIT {PREFETCH} FOR UPDATE SKIP LOCKED)
        RETURNING id, payload""".encode()  # noqa: S608


def _done(table: str) -> bytes:
    return f"DELETE FROM {table} WHERE id = %s AND lease = 'us'".encode()  # noqa: S608


def _ours(url: str, count: int) -> Turn:
    countdown, table = Countdown(count), _filled(url, count)

    class Orders(ConsumerTask):
        def process_transaction(self, transaction: Transaction) -> None:
            countdown.handle(transaction.payload)

    with PostgresConnector(url, table=table, columns=COLUMNS, wait=0.0) as source:
        turn = timed(count, lambda: Orders({"in": source}).consume_transactions(LOOP))
    return _whole(turn, countdown)


def _ours_async(url: str, count: int) -> Turn:
    countdown, table = Countdown(count), _filled(url, count)

    class Orders(AsyncConsumerTask):
        async def process_transaction(self, transaction: Transaction) -> None:
            countdown.handle(transaction.payload)

    async def consume() -> None:
        source = PostgresConnector(url, table=table, columns=COLUMNS, wait=0.0)
        await Orders({"in": source}).consume_transactions(LOOP)
        await source.aclose()

    return _whole(timed_async(count, consume), countdown)


def _bare(url: str, count: int) -> Turn:
    import psycopg

    countdown, table = Countdown(count), _filled(url, count)
    claim, done = _claim(table), _done(table)

    def consume() -> None:
        with psycopg.connect(url, autocommit=True) as db:
            while rows := db.execute(claim).fetchall():
                for identity, payload in rows:
                    countdown.handle(payload)
                    db.execute(done, (identity,))

    return _whole(timed(count, consume), countdown)


def _bare_async(url: str, count: int) -> Turn:
    import psycopg

    countdown, table = Countdown(count), _filled(url, count)
    claim, done = _claim(table), _done(table)

    async def consume() -> None:
        db = await psycopg.AsyncConnection.connect(url, autocommit=True)
        async with db:
            while rows := await (await db.execute(claim)).fetchall():
                for identity, payload in rows:
                    countdown.handle(payload)
                    await db.execute(done, (identity,))

    return _whole(timed_async(count, consume), countdown)


def _whole(turn: Turn, countdown: Countdown) -> Turn:
    if countdown.left:
        raise ContestantError(f"{countdown.left} messages were not handled")
    return turn
