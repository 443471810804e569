"""Rows that cannot be read, or that none of our programs has written: all others are shown."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ergon_framework.jobs.flow_why import tree_of
from ergon_framework.jobs.store_urls import open_store
from ergon_framework.jobs.views import moment
from ergon_framework.web.application import create_app
from ergon_framework.web.backends import JobBackend
from tests.web.console_client import ConsoleClient
from tests.web.content import fill_flow, fill_jobs, settings_in

pytestmark = pytest.mark.req("ONE:serve")

LISTS = ("/console", "/console/queues", "/console/jobs", "/console/dead-letters", "/console/flows")


@pytest.fixture
def client(tmp_path: Path) -> ConsoleClient:
    """A server over three jobs that wait, two that gave up, and a flow."""
    fill_jobs(tmp_path, waiting=3, dead=2)
    fill_flow(tmp_path)
    return ConsoleClient(create_app(settings=settings_in(tmp_path)))


def damage(folder: Path, statement: str) -> None:
    """Change rows as no program of ours does."""
    with closing(sqlite3.connect(folder / "work.db")) as store, store:
        store.execute(statement)


def test_an_instant_that_nothing_can_name(client: ConsoleClient, tmp_path: Path) -> None:
    """A job that is due before the year 0 keeps no page from being shown."""
    damage(tmp_path, "UPDATE ergon_jobs SET run_at = -1e300, created_at = 1e300 WHERE id = 'w0'")
    for path in (*LISTS, "/api/v1/queues", "/api/v1/jobs", "/metrics"):
        assert client.get(path).status_code == 200, path
    assert (moment(-1e300), moment(1e300)) == ("0000-01-01T00:00:00Z", "9999-12-31T23:59:59Z")


@pytest.mark.parametrize("instant", ["1e12", "1e300", "-1e300"])
def test_a_schedule_whose_next_fire_nothing_can_name(
    client: ConsoleClient, tmp_path: Path, instant: str
) -> None:
    """It is listed with what is wrong, beside the others."""
    damage(tmp_path, f"UPDATE ergon_schedules SET next_at = {instant}")  # noqa: S608
    text = client.get("/console/schedules").text
    assert "nightly" in text
    assert "its next fire is not a point in time" in text
    assert [each["name"] for each in client.get("/api/v1/schedules").json()["items"]] == ["nightly"]


def test_a_job_that_cannot_be_read(
    client: ConsoleClient, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its page says so and what lists it; the store is not said to be away."""
    damage(tmp_path, "UPDATE ergon_jobs SET history = '{', last_error = '[' WHERE id = 'd0'")
    for path in ("/console/jobs/d0", "/api/v1/jobs/d0"):
        answer = client.get(path)
        assert answer.status_code == 503
        assert "his job cannot be read" in answer.text
        assert "ergon jobs unreadable" in answer.text
    assert "does not answer" not in caplog.text
    assert "the row of job d0 cannot be read" in caplog.text
    assert 'href="/console/jobs/d1"' in client.get("/console/jobs").text


def test_a_flow_whose_plan_cannot_be_read(client: ConsoleClient, tmp_path: Path) -> None:
    """Its steps are listed all the same, on the page and as a tree."""
    for plan in ("x'ff'", "'[]'", "'{\"tree\": 5}'"):
        damage(tmp_path, f"UPDATE ergon_flows SET plan = CAST({plan} AS BLOB)")  # noqa: S608
        answer = client.get("/console/flows/album")
        assert answer.status_code == 200
        assert "album.4" in answer.text
        with closing(open_store(f"sqlite:///{tmp_path}/work.db")) as store:
            flow = store.flows.find("album")  # type: ignore[attr-defined]  # each of ours has them
            assert tree_of(flow, []) == []


@pytest.mark.parametrize(
    "tree",
    [
        '{"step": 1}',
        '{"chain": 5}',
        '{"group": [[]]}',
        '{"after": 3}',
        '{"step": "x", "handler": 1}',
        '{"chain": [' * 400 + '{"step": 1, "handler": "fetch"}' + "]}" * 400,
    ],
)
def test_a_flow_whose_plan_cannot_be_drawn(
    client: ConsoleClient, tmp_path: Path, tree: str
) -> None:
    """Its steps are, as those that no plan names."""
    damage(tmp_path, f"""UPDATE ergon_flows SET plan = CAST('{{"tree": {tree}}}' AS BLOB)""")  # noqa: S608
    answer = client.get("/console/flows/album")
    assert answer.status_code == 200
    assert "album.4" in answer.text


def test_what_is_not_foreseen_is_a_page(
    client: ConsoleClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A person reads a page and not a document, without what went wrong; the log has that."""

    def fail(_self: JobBackend) -> None:
        raise RuntimeError("password=hunter2")

    monkeypatch.setattr(JobBackend, "opened", fail)
    answer = client.get("/console/jobs")
    assert answer.status_code == 500
    assert "The server failed" in answer.text
    assert "<h1>" in answer.text
    assert "hunter2" not in answer.text
    assert "the page /console/jobs failed" in caplog.text
    assert client.get("/console/settings").status_code == 200
    told = client.get("/console/jobs?format=json")
    assert (told.status_code, told.json()["code"]) == (500, "internal")


@pytest.mark.parametrize("by", [-1, 50])
def test_tables_of_another_version(client: ConsoleClient, tmp_path: Path, by: int) -> None:
    """Asking again would not help: the answer says what does, on a page and in the API."""
    damage(tmp_path, f"UPDATE ergon_schema SET version = version + {by} WHERE part = 'jobs'")  # noqa: S608
    for path in ("/console/jobs", "/api/v1/jobs"):
        answer = client.get(path)
        assert answer.status_code == 503
        assert "ergon db upgrade" in answer.text
        assert "ask again" not in answer.text
