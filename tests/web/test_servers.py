"""The same answers when the jobs are on a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from ergon_framework.app.settings import load_settings
from ergon_framework.web.application import create_app
from ergon_framework.web.backends import backends_of
from tests.jobs.real_worker import wait_until
from tests.providers.asgi_client import ask
from tests.servers.postgres import PostgresServer
from tests.web.content import fill_jobs

ENGINES = ["postgres", "redis"]


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    """An empty store on that kind of server."""
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


def application(url: str, tmp_path: Path) -> FastAPI:
    """The server over that store."""
    file = tmp_path / "ergon.toml"
    file.write_text(f'[store]\nurl = "{url}"\n')
    return create_app(settings=load_settings(file, {}))


def get(app: FastAPI, path: str, **query: Any) -> Any:
    """The document at a path."""
    answer = ask(app, path=path, **query)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.req("SCALE:jobs-postgres", "SCALE:jobs-redis")
@pytest.mark.parametrize("url", ENGINES, indirect=True)
def test_jobs_are_found_in_pages(url: str, tmp_path: Path) -> None:
    """The newest first; a cursor of that store leads to the next page."""
    fill_jobs(url, waiting=5, dead=2)
    app = application(url, tmp_path)
    found: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = get(app, "/api/v1/jobs", limit=3, **cursor)
        found += [item["id"] for item in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert found == ["w4", "w3", "w2", "w1", "w0", "d1", "d0"]
    assert get(app, "/api/v1/jobs/w0")["status"] == "pending"
    assert get(app, "/api/v1/jobs/d0/why")["why"]
    assert [queue["name"] for queue in get(app, "/api/v1/queues")["items"]] == ["mail", "pics"]
    assert [worker["id"] for worker in get(app, "/api/v1/workers")["items"]] == ["w1"]


@pytest.mark.parametrize("url", ENGINES, indirect=True)
def test_a_store_that_nobody_has_used_is_empty(url: str, tmp_path: Path) -> None:
    """Looking makes no tables, and what comes later is seen."""
    app = application(url, tmp_path)
    assert get(app, "/api/v1/jobs")["items"] == []
    assert get(app, "/ready") == {"status": "ready"}
    fill_jobs(url, waiting=1)
    assert [item["id"] for item in get(app, "/api/v1/jobs")["items"]] == ["w0"]


@pytest.mark.slow
@pytest.mark.req("SCALE:fleet-outage")
def test_a_server_that_comes_back_is_read_again(
    own_postgres: PostgresServer, tmp_path: Path
) -> None:
    """Meanwhile the part is not ready, and the answer says which it is."""
    url = own_postgres.new_database()
    fill_jobs(url, waiting=1)
    app = application(url, tmp_path)
    assert get(app, "/ready") == {"status": "ready"}
    own_postgres.kill()
    answer = ask(app, path="/api/v1/jobs")
    assert answer.status_code == 503
    assert answer.json()["details"]["part"] == "jobs"
    own_postgres.start()
    wait_until(lambda: ask(app, path="/api/v1/jobs").status_code == 200)
    assert [item["id"] for item in get(app, "/api/v1/jobs")["items"]] == ["w0"]


def test_what_an_engine_does_not_keep_is_left_out(tmp_path: Path) -> None:
    """Redis keeps no provider calls, and NATS no jobs: there is nothing to tell about them."""
    file = tmp_path / "ergon.toml"
    file.write_text('[store]\nurl = "redis://127.0.0.1:1/0"\n')
    sources = backends_of(load_settings(file, {}))
    assert sources.jobs is not None
    assert sources.providers == {}
    file.write_text('[store]\nurl = "nats://127.0.0.1:1"\n')
    sources = backends_of(load_settings(file, {}))
    assert sources.jobs is None
