"""Stores that hang behind the console: a person reads a page, in time, and what to do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ergon_framework.app.settings.sections import ServerSettings
from ergon_framework.web.backends import JobBackend, ProviderBackend, backends_of
from ergon_framework.web.routes import build_app, server_plan
from ergon_framework.web.sessions import Sessions
from tests.web.console_client import ConsoleClient
from tests.web.content import fill_calls, fill_jobs, settings_in
from tests.web.test_console_acting import secret, send

pytestmark = pytest.mark.req("ONE:serve")


def server(folder: Path) -> tuple[ConsoleClient, Sessions]:
    """A server that takes two seconds for a request at most, and its sessions."""
    fill_jobs(folder, waiting=1, dead=1)
    fill_calls(f"sqlite:///{folder}/work.db")
    sessions = Sessions(None)
    backends = backends_of(settings_in(folder))
    plan = server_plan(ServerSettings(timeout=2.0), backends, None, sessions=sessions)
    return ConsoleClient(build_app(plan)), sessions


@pytest.fixture
def hangs(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Lets every store hang from when it is asked for until the end of the test."""
    let_go = threading.Event()

    def hang(*_: object) -> None:
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
    send(client, "sign-in", token=sessions.invite())
    mine = secret(client)
    request.getfixturevalue("hangs")
    answer = send(client, "change", action="requeue", id="d0", secret=mine)
    assert answer.status_code == 503
    assert "may do it all the same" in answer.text
    assert "before you ask again" in answer.text
    assert "<h1>" in answer.text
