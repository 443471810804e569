"""A database with the tables of a job store, which is emptied between tests."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from ergon_framework.jobs.stores.postgres import PostgresJobStore
from tests.servers.postgres import PostgresServer

TABLES = (
    "ergon_jobs, ergon_queues, ergon_workers, ergon_schedules, ergon_job_moves,"
    " ergon_job_tags, ergon_job_keys, ergon_queue_keys, ergon_flows, ergon_flow_joins,"
    " ergon_flow_work"
)


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
    with psycopg.connect(jobs_database, autocommit=True) as connection:
        connection.execute(f"TRUNCATE {TABLES}".encode())
    return jobs_database
