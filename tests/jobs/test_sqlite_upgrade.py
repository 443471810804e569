"""Files of job stores that an earlier version made, as this version finds them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ergon_framework.core.unique import UniqueRule
from ergon_framework.jobs.stores.sqlite import SqliteJobStore
from ergon_framework.jobs.stores.sqlite.transactions import SCHEMA
from ergon_framework.ports.jobstore import Search
from ergon_framework.storage.sql_files import statements_of
from ergon_framework.testing.suites.drivers import HandClock
from ergon_framework.testing.suites.jobstore.under_test import SUCCEEDED, JobStoreSubject, new

pytestmark = pytest.mark.req("JOBS:store")

WITH_FOREIGN_KEYS = 8
"""The last version in which labels and unique keys went with their jobs by foreign keys."""


def make_tables(path: Path, version: int) -> None:
    """The tables of a version, with nothing in them."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(
            "CREATE TABLE ergon_schema (part TEXT PRIMARY KEY, version INTEGER NOT NULL,"
            " applied_at REAL NOT NULL) WITHOUT ROWID"
        )
        for _, text in SCHEMA.files[:version]:
            for statement in statements_of(text):
                connection.execute(statement)
        connection.execute("INSERT INTO ergon_schema VALUES ('jobs', ?, 0.0)", (version,))


def rows(path: Path, table: str) -> list[tuple[object, ...]]:
    """The rows of a table."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall()  # noqa: S608


def test_labels_and_unique_keys_outlive_an_upgrade_and_go_with_their_jobs(tmp_path: Path) -> None:
    """Those that an earlier version wrote are found afterwards, and are deleted with their jobs."""
    path, clock = tmp_path / "jobs.db", HandClock()
    rule = UniqueRule(("pending", "active", "completed"), 60.0)
    with closing(SqliteJobStore(path, clock=clock)) as store:
        s = JobStoreSubject(store, clock, None, 15.0)
        store.add([new("a", tags=("mail",), unique_key="k", unique=rule), new("b", tags=("mail",))])
        s.settle(s.take("a"), SUCCEEDED, keep=1.0)
        s.settle(s.take("b"), SUCCEEDED, keep=1.0)
    old = tmp_path / "old.db"
    make_tables(old, WITH_FOREIGN_KEYS)
    copied = ("ergon_jobs", "ergon_job_tags", "ergon_job_keys")
    with closing(sqlite3.connect(old)) as connection:
        connection.execute("ATTACH ? AS fresh", (str(path),))
        with connection:
            for table in copied:
                connection.execute(f"INSERT INTO main.{table} SELECT * FROM fresh.{table}")  # noqa: S608
    before = [rows(old, table) for table in copied]
    with closing(SqliteJobStore(old, clock=clock)) as store:
        assert [rows(old, table) for table in copied] == before
        assert {job.id for job in store.search(Search(tags=("mail",)))} == {"a", "b"}
        assert store.holder("k") == "a"
        clock.forward(10.0)
        assert store.prune(100).purged == 1  # the other one holds its key for a minute
        assert store.holder("k") == "a"
        clock.forward(60.0)
        assert store.prune(100).purged == 1
    assert [rows(old, table) for table in copied] == [[], [], []]
