"""The connector suite with rows of a table, on SQLite and PostgreSQL, in both colours."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from psycopg import sql

from ergon_framework.testing.suites import ConnectorFaults, SuiteReport, exercise_connector
from tests.connectors.database.tables import ORDERS, Addressed, engine_of, seed
from tests.connectors.recorded_results import check_recorded

pytestmark = pytest.mark.slow
NUMBERS = itertools.count()


MARKS: dict[str, Any] = {}
WORKING = {"status": "status", "error": "error", "statuses": "new, working, done, failed"}
options = pytest.mark.parametrize("options", [MARKS, WORKING], ids=["marks", "status"])


def opened(url: str, how: dict[str, Any]) -> Addressed:
    """A connector to a table that is there."""
    found = Addressed(url, table="orders", payload="data", ids="tid", **how)
    found.address = url
    return found


@contextmanager
def fresh(url: str, how: dict[str, Any]) -> Iterator[Addressed]:
    """A connector to an empty table."""
    engine_of(url).dispose()
    with opened(url, how) as connector:
        yield connector


def dead_letters(connector: Addressed) -> list[tuple[str, str]]:
    """The ids and reasons of what failed for good."""
    engine = engine_of(connector.address)
    with engine.connect() as connection:
        rows = connection.execute(sa.select(ORDERS.c.id, ORDERS.c.tid))
        ids = {str(key): tid for key, tid in rows}
    engine.dispose()
    return [(ids[key], reason) for key, _, reason in connector.dead_letters()]


def put_malformed(connector: Addressed) -> None:
    """A row without the id that its column should have."""
    engine = engine_of(connector.address)
    with engine.begin() as connection:
        connection.execute(ORDERS.insert().values(data="0"))
    engine.dispose()


def crashed(connector: Addressed, how: dict[str, Any]) -> Addressed:
    """Another one after it: of a process that lives, the lease has to be let go of."""
    connector.close()  # nothing is given back by it
    return opened(connector.address, how)


def run_suite(make: object, how: dict[str, Any]) -> SuiteReport:
    """The whole suite with what a table has; another process finds what the first one left."""
    return exercise_connector(
        make,  # type: ignore[arg-type]
        colour="both",
        seed=seed,
        dead_letters=dead_letters,
        order="strict",
        carries=(),
        shape=(json.dumps, json.loads),
        faults=ConnectorFaults(
            crash=lambda first: crashed(first, how), put_malformed=put_malformed
        ),
        skip=["unserialisable_payload_is_refused"],  # rows are written by others
        patience=20,
    )


@options
def test_on_sqlite(tmp_path: Path, options: dict[str, Any]) -> None:
    """Every check, each with a file of its own."""
    report = run_suite(lambda: fresh(f"sqlite:///{tmp_path}/{next(NUMBERS)}.db", options), options)
    if options is MARKS:
        check_recorded("database", report)


def test_on_postgresql(postgres_url: str) -> None:
    """Every check, each with a schema of its own: a database of its own takes ten times as long."""

    @contextmanager
    def on_server() -> Iterator[Addressed]:
        name = f"check_{next(NUMBERS)}"
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))
        with fresh(f"{postgres_url}&options=-csearch_path%3D{name}", MARKS) as connector:
            yield connector

    run_suite(on_server, MARKS)
