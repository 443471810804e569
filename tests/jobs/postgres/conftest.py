"""A database with the tables of a job store, which is emptied between tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ergon_framework.jobs.stores.postgres import PostgresJobStore
from tests.servers.postgres import PostgresServer, empty_tables


@pytest.fixture(scope="session")
def jobs_database(postgres_server: PostgresServer) -> Iterator[str]:
    """A database of this run's own."""
    url = postgres_server.new_database()
    PostgresJobStore(url).close()
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
def jobs_url(jobs_database: str) -> str:
    """The same database, empty."""
    empty_tables(jobs_database)
    return jobs_database
