"""Stores that hang or refuse behind the console: a person reads a page, in time, and what to do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from ergon_framework.app.settings import Settings
from ergon_framework.app.settings.sections import ServerSettings
from ergon_framework.jobs.newjob import new_id
from ergon_framework.web.backends import Backends, JobBackend, ProviderBackend, backends_of
from ergon_framework.web.routes import build_app, server_plan
from ergon_framework.web.sessions import Sessions
from tests.web.console_client import ConsoleClient
from tests.web.content import fill_calls, fill_jobs, settings_in
from tests.web.test_console_acting import secret, send

pytestmark = pytest.mark.req("ONE:serve")


def server(folder: Path) -> tuple[ConsoleClient, Sessions]:
    """A server over a store in a file, and its sessions."""
    fill_jobs(folder, waiting=1, dead=1)
    fill_calls(f"sqlite:///{folder}/work.db")
    return over(backends_of(settings_in(folder)))


def over(backends: Backends) -> tuple[ConsoleClient, Sessions]:
    """A server that takes five seconds for a request at most, one of them for the page itself."""
    sessions = Sessions(None)
    plan = server_plan(ServerSettings(timeout=5.0), backends, None, sessions=sessions)
    return ConsoleClient(build_app(plan)), sessions


@pytest.fixture
def hangs(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Lets every store hang from when it is asked for until the end of the test."""
    let_go = threading.Event()

    def hang(*_: object, **_how: object) -> None:
        let_go.wait(60)
        raise OSError("too late")

    for backend in (JobBackend, ProviderBackend):
        monkeypatch.setattr(backend, "opened", hang)
    monkeypatch.setattr(JobBackend, "writing", hang)
    yield monkeypatch
    let_go.set()


@pytest.mark.usefixtures("hangs")
def test_a_page_says_that_its_store_hangs(tmp_path: Path) -> None:
    """Within the time of a request, although the figures beside it are waited for, too."""
    client, _ = server(tmp_path)
    for path in ("jobs", "find?q=d0"):
        answer = client.get(f"/console/{path}")
        assert answer.status_code == 503, path
        assert "does not answer" in answer.text
        assert "ask again in 5 seconds" in answer.text
        assert "<h1>" in answer.text


@pytest.mark.usefixtures("hangs")
def test_what_needs_no_store_is_shown(tmp_path: Path) -> None:
    """The overview names every store that hangs; the settings wait for none."""
    client, _ = server(tmp_path)
    text = client.get("/console").text
    for title in ("The job store", "The store of provider calls"):
        assert f"<b>{title}</b> does not answer" in text
    assert "Settings in force" in client.get("/console/settings").text


def test_a_change_whose_outcome_nobody_knows(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A page says so, and not that it should be sent again at once."""
    client, sessions = server(tmp_path)
    send(client, "sign-in", token=sessions.issue_login_link())
    mine = secret(client)
    request.getfixturevalue("hangs")
    answer = send(client, "change", action="requeue", id="d0", secret=mine)
    assert answer.status_code == 503
    assert "may do it all the same" in answer.text
    assert "before you ask again" in answer.text
    assert "<h1>" in answer.text


@pytest.fixture
def role(postgres_url: str) -> Iterator[Callable[[str], str]]:
    """Gives a role of PostgreSQL a right to all tables; the URL with which it comes."""
    name = f"role_{new_id().replace('-', '')}"

    def granted(right: str) -> str:
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute(f"CREATE ROLE {name} LOGIN".encode())
            if right:
                text = f"GRANT {right} ON ALL TABLES IN SCHEMA public TO {name}"
                connection.execute(text.encode())
        return postgres_url.replace("//ergon@", f"//{name}@")

    yield granted
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"DROP OWNED BY {name}; DROP ROLE {name}".encode())


def test_a_role_that_may_only_read(postgres_url: str, role: Callable[[str], str]) -> None:
    """Pages are shown; a change is refused, and nobody is told that asking again helps."""
    fill_jobs(postgres_url, waiting=1, dead=1)
    url = role("SELECT")
    backends = backends_of(Settings(), url)
    client, sessions = over(backends)
    with closing(backends):
        send(client, "sign-in", token=sessions.issue_login_link())
        mine = secret(client)
        answer = send(client, "change", action="requeue", id="d0", secret=mine)
        assert answer.status_code == 503
        assert "The job store refuses that" in answer.text
        assert "which right it lacks" in answer.text
        assert "ask again" not in answer.text
        audit = client.get("/console/audit?format=json").json()["items"]
        assert [each["outcome"] for each in audit] == ["refused"]


def test_a_role_that_may_not_even_read(postgres_url: str, role: Callable[[str], str]) -> None:
    """The overview and other pages say what is missing."""
    fill_jobs(postgres_url, waiting=1)
    backends = backends_of(Settings(), role(""))
    client, _ = over(backends)
    with closing(backends):
        text = client.get("/console").text
        assert "refuses to be read (store_read_only)" in text
        assert "which right it lacks" in text
        assert "which right it lacks" in client.get("/console/jobs").text
