"""Job stores that are filled with SQL: a million jobs are there within a minute."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from harness import temporary_folder

from ergon_framework.jobs.store_urls import open_store
from jobs_parts.servers import Servers


@contextmanager
def without_indexes(execute: Callable[[str], Any], kind: str) -> Iterator[None]:
    """Drop the indexes of the jobs, and make them anew at the end: that takes less time."""
    if kind == "postgresql":
        wanted = """
            SELECT i.indexrelid::regclass::text, pg_get_indexdef(i.indexrelid) FROM pg_index AS i
            WHERE i.indrelid = 'ergon_jobs'::regclass AND NOT i.indisprimary
        """
    else:
        wanted = """
            SELECT name, sql FROM sqlite_master
            WHERE tbl_name = 'ergon_jobs' AND type = 'index' AND sql IS NOT NULL
        """
    indexes = execute(wanted).fetchall()
    for name, _ in indexes:
        execute(f"DROP INDEX {name}")
    yield
    for _, statement in indexes:
        execute(statement)


@contextmanager
def database(kind: str, prefix: str) -> Iterator[tuple[str, Callable[[str], Any]]]:
    """A new store in a server or file of its own: its URL, and what executes SQL there."""
    with temporary_folder(prefix, None) as folder:
        if kind == "sqlite":
            url = f"sqlite:///{folder / 'jobs.db'}"
            open_store(url).close()
            with closing(sqlite3.connect(folder / "jobs.db", isolation_level=None)) as connection:
                yield url, connection.execute
            return
        import psycopg

        folder.chmod(0o711)  # PostgreSQL does not run as root, and has to get to its part of it
        servers = Servers(folder)
        try:
            url = servers.url("postgres")
            open_store(url).close()
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("SET maintenance_work_mem = '512MB'")
                yield url, lambda text: connection.execute(text.encode())
        finally:
            servers.stop()
