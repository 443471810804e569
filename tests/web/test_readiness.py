"""What ``/ready`` says of a store that lost something while the server runs."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
import redis
from fastapi import FastAPI

from ergon_framework.app.settings import load_settings
from ergon_framework.jobs.store_urls import open_store
from ergon_framework.web.application import create_app
from tests.providers.asgi_client import ask
from tests.web.content import fill_calls, fill_jobs

pytestmark = pytest.mark.req("ONE:serve")
READY = {"status": "ready"}


def application(tmp_path: Path, url: str) -> FastAPI:
    """The server over a store with a job and, where they can be kept, provider calls."""
    fill_jobs(url, waiting=1)
    if not url.startswith("redis"):
        fill_calls(url)
    file = tmp_path / "ergon.toml"
    file.write_text(f'[store]\nurl = "{url}"\n')
    app = create_app(settings=load_settings(file, {}))
    assert ask(app, path="/ready").json() == READY
    return app


def drop_in_file(path: Path) -> Callable[[str], None]:
    """Drops a table of an SQLite file, as somebody with another program does."""

    def drop(table: str) -> None:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(f"DROP TABLE {table}")

    return drop


def check_noticed(app: FastAPI, drop: Callable[[str], None], table: str, part: str) -> None:
    """Drop a table, and see that the part is away, for what wants it as for the probe."""
    drop(table)
    answer = ask(app, path="/ready")
    assert answer.status_code == 503, answer.text
    assert answer.json()["details"]["away"] == {part: "store_schema"}


@pytest.mark.parametrize(
    ("table", "part"),
    [
        ("ergon_jobs", "jobs"),
        ("ergon_schedules", "jobs"),
        ("provider_dead_letters", "providers"),
        ("provider_execution_metrics", "providers"),
    ],
)
def test_a_table_that_was_dropped_from_a_file(tmp_path: Path, table: str, part: str) -> None:
    """Also one that the probe itself reads nothing from."""
    app = application(tmp_path, f"sqlite:///{tmp_path}/work.db")
    check_noticed(app, drop_in_file(tmp_path / "work.db"), table, part)


def test_a_file_without_its_jobs_is_no_empty_store(tmp_path: Path) -> None:
    """Whoever looks for jobs is not told that there are none."""
    app = application(tmp_path, f"sqlite:///{tmp_path}/work.db")
    drop_in_file(tmp_path / "work.db")("ergon_jobs")
    answer = ask(app, path="/api/v1/jobs")
    assert (answer.status_code, answer.json()["code"]) == (503, "store_schema")


@pytest.mark.parametrize(
    ("table", "part"),
    [("ergon_jobs", "jobs"), ("ergon_flows", "jobs"), ("provider_metric_rollups", "providers")],
)
def test_a_table_that_was_dropped_from_a_database(
    postgres_url: str, tmp_path: Path, table: str, part: str
) -> None:
    """The connections of the server are still there, and say nothing of it."""
    app = application(tmp_path, postgres_url)

    def drop(name: str) -> None:
        with psycopg.connect(postgres_url) as connection:
            connection.execute(f"DROP TABLE {name} CASCADE".encode())

    check_noticed(app, drop, table, part)


def test_a_redis_that_was_flushed_is_ready(redis_url: str, tmp_path: Path) -> None:
    """It is a store without jobs that takes new ones; workers tell that it was emptied."""
    app = application(tmp_path, redis_url)
    with closing(open_store(redis_url)) as store:
        with redis.Redis.from_url(redis_url) as client:
            for key in client.scan_iter():
                client.delete(key)
        assert ask(app, path="/ready").json() == READY
        assert ask(app, path="/api/v1/jobs").json()["items"] == []
        store.check_tables()
    fill_jobs(redis_url, waiting=1)
    assert [each["id"] for each in ask(app, path="/api/v1/jobs").json()["items"]] == ["w0"]


def test_keys_of_a_newer_version_are_noticed(redis_url: str, tmp_path: Path) -> None:
    """A program of tomorrow may have moved them: what is read now would be wrong."""
    app = application(tmp_path, redis_url)
    with redis.Redis.from_url(redis_url) as client:
        [key] = [each for each in client.scan_iter() if each.endswith(b":schema")]
        client.set(key, 999)
    answer = ask(app, path="/ready")
    assert answer.json()["details"]["away"] == {"jobs": "store_schema"}
