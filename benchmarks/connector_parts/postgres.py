"""A PostgreSQL table: rows are claimed with SKIP LOCKED; each is deleted in a commit of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from comparison import Record, RunOptions, Turn

from connector_parts import turns
from connector_parts.brokers import broker
from connector_parts.turns import BARE, BODY, PREFETCH, Countdown, Entrant, Heat
from ergon_framework.connector.postgres import PostgresConnector

RATE = 1000
"""Rows of a turn, for each second that it should take."""
COLUMNS = "status, lease, visible_at"
TABLE = (
    "id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payload jsonb,"
    " status text DEFAULT 'pending', lease text, visible_at timestamptz"
)
_NUMBERS = itertools.count()


def postgres(options: RunOptions) -> Iterator[Record]:
    """With asyncio and with threads."""
    with broker("postgres") as server:
        count = round(RATE * options.seconds)
        yield from turns.run_heats(heats(server.url()), options.rounds, count)


def heats(url: str) -> list[Heat]:
    """The contestants on the server there."""
    ours = Entrant("ergon", lambda count: turns.ours_async(count, _connector(url, count)))
    bare = Entrant("psycopg asyncio", lambda count: _bare_async(url, count), BARE)
    ours_threads = Entrant("ergon threads", lambda count: turns.ours(count, _connector(url, count)))
    bare_threads = Entrant("psycopg", lambda count: _bare(url, count), BARE)
    return [
        Heat("postgres", ours, [bare]),
        Heat("postgres-threads", ours_threads, [bare_threads]),
    ]


def filled(url: str, count: int) -> str:
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


def _connector(url: str, count: int) -> Any:
    table = filled(url, count)
    return lambda: PostgresConnector(url, table=table, columns=COLUMNS)


def _bare(url: str, count: int) -> Turn:
    import psycopg

    countdown, table = Countdown(count), filled(url, count)
    claim, done = _claim(table), _done(table)

    def consume() -> None:
        with psycopg.connect(url, autocommit=True) as db:
            while countdown.left:
                for identity, payload in db.execute(claim).fetchall():
                    countdown.handle(payload)
                    db.execute(done, (identity,))

    return countdown.timed(consume)


def _bare_async(url: str, count: int) -> Turn:
    import psycopg

    countdown, table = Countdown(count), filled(url, count)
    claim, done = _claim(table), _done(table)

    async def consume() -> None:
        db = await psycopg.AsyncConnection.connect(url, autocommit=True)
        async with db:
            while countdown.left:
                for identity, payload in await (await db.execute(claim)).fetchall():
                    countdown.handle(payload)
                    await db.execute(done, (identity,))

    return countdown.timed_async(consume)
