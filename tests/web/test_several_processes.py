"""Several processes that serve one store behind one address: whom they know, what they take."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from ergon_framework.app.settings import load_settings
from ergon_framework.errors import ConfigurationError
from ergon_framework.web.application import create_app
from ergon_framework.web.audit import AuditLog, AuditSearch
from ergon_framework.web.console.settings_page import settings_document
from ergon_framework.web.session_cookies import SessionKey
from ergon_framework.web.sessions import COOKIE, LIFETIME, Sessions
from ergon_framework.web.tokens import FixedTokens
from tests.jobs.real_worker import wait_until
from tests.web.console_client import HTML, ConsoleClient
from tests.web.content import fill_jobs, settings_in

pytestmark = pytest.mark.req("ONE:serve")

ADA, KEY = "correct-horse-battery", "a-key-of-sixteen-and-more"
URL = "sqlite:///work.db"
SHARED = f"""[server]
operators = ["ada"]
session_key = "{KEY}"
token = "ada: {ADA}"
"""


class TwoProcesses(ConsoleClient):
    """A browser whose requests go to two applications in turn, as a balancer hands them out."""

    def __init__(self, *apps: FastAPI) -> None:
        super().__init__(apps[0])
        self._turns = list(apps)

    def request(self, *given: object, **more: object) -> httpx.Response:
        """One request, to the next one."""
        self._turns.append(self._turns.pop(0))
        self._app = self._turns[0]
        return super().request(*given, **more)  # type: ignore[arg-type]


def form_secret(page: httpx.Response) -> str:
    """What the forms of a page carry."""
    found = re.search('name="secret" value="([^"]+)"', page.text)
    assert found is not None, page.text
    return found[1]


def browser(folder: Path, more: str = SHARED) -> TwoProcesses:
    """One over two servers of the same settings, and jobs that gave up."""
    fill_jobs(folder, waiting=1, dead=2)
    settings = settings_in(folder, more)
    return TwoProcesses(create_app(settings=settings), create_app(settings=settings))


def test_who_signed_in_at_one_is_known_to_all(tmp_path: Path) -> None:
    """A form of a page of one is taken by the other, and one file tells of it."""
    client = browser(tmp_path)
    assert "Sign in" in client.get("/console").text
    assert client.request("POST", "/console/sign-in", data={"token": ADA}).status_code == 200
    for _ in range(4):
        assert "Overview" in client.get("/console").text
    for job in ("d0", "d1"):
        secret = form_secret(client.get(f"/console/jobs/{job}"))
        form = {"id": job, "action": "requeue", "sure": "yes", "secret": secret}
        answer = client.request("POST", "/console/change", data=form)
        assert "The job was" in answer.text
    found = AuditLog(tmp_path / "ergon-audit.db").find(AuditSearch(), 10)
    assert [(each.actor, each.target) for each in found] == [("ada", "d1"), ("ada", "d0")]
    client.request("POST", "/console/sign-out")
    assert COOKIE not in client.cookies
    assert "Token" in client.get("/console").text


def test_without_a_key_nobody_signs_in_at_an_application(tmp_path: Path) -> None:
    """It could not know whether other processes share its address."""
    client = browser(tmp_path, SHARED.replace(f'session_key = "{KEY}"', ""))
    assert client.get("/console").status_code == 401
    client.cookies.clear()
    assert client.get("/console/sign-in").status_code == 401


def test_a_session_of_nobody_we_know_is_explained(tmp_path: Path) -> None:
    """Whoever is asked to sign in again and again learns which setting is missing."""
    client = browser(tmp_path)
    client.cookies.set(COOKIE, "of-another-process", domain="localhost.local")
    assert "session_key" in client.get("/console").text


class Clock:
    """One that the test moves."""

    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def shared(tokens: FixedTokens | None, key: str = KEY, clock: Clock | None = None) -> Sessions:
    """The sessions of one process."""
    return Sessions(tokens, ["ada"], key=SessionKey(key, clock or Clock()))


def test_what_a_cookie_is_worth() -> None:
    """It ends with its time, with its token, and means nothing under another key or altered."""
    clock, tokens = Clock(), FixedTokens({"ada": ADA, "bob": "another-horse-battery"})
    cookie = shared(tokens, clock=clock).sign_in(ADA, "here")
    assert cookie is not None
    found = shared(tokens, clock=clock).find(cookie)
    assert found is not None
    assert (found.name, found.is_operator) == ("ada", True)
    assert ADA not in cookie
    assert shared(tokens, "another-key-of-enough-text", clock).find(cookie) is None
    assert shared(FixedTokens({"ada": "a-new-horse-battery"}), clock=clock).find(cookie) is None
    assert shared(FixedTokens({"bob": ADA}), clock=clock).find(cookie) is None
    assert shared(None, clock=clock).find(cookie) is None
    told, _, signature = cookie.partition(".")
    for wrong in (f"{told}x.{signature}", told, f"{told}.", "é.é", "." + signature, "x" * 5000):
        assert shared(tokens, clock=clock).find(wrong) is None
    clock.now += LIFETIME
    assert shared(tokens, clock=clock).find(cookie) is None


def test_a_cookie_of_the_link_is_none_where_there_are_tokens() -> None:
    """Whoever came by the link may do everything: a server with tokens wants one of them."""
    without = shared(None)
    cookie = without.sign_in(without.issue_login_link(), "here")
    assert shared(None).find(cookie) is not None
    assert shared(FixedTokens({"local": ADA})).find(cookie) is None


def test_a_short_key_is_refused(tmp_path: Path) -> None:
    """Somebody could guess it, and make a session of his own."""
    with pytest.raises(ConfigurationError, match="session_key") as caught:
        browser(tmp_path, SHARED.replace(KEY, "short"))
    assert "openssl" in str(caught.value.remedy)


def test_an_audit_log_in_memory_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each process would have its own, and show one part of what was done."""
    browser(tmp_path, SHARED + 'audit = "none"\n')
    assert "the audit log is in the memory" in caplog.text


PROGRAM = """
from ergon_framework.app.settings import load_settings
from ergon_framework.web.application import create_app
app = create_app(settings=load_settings("ergon.toml"))
"""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """``uvicorn --workers 2``; its address."""
    fill_jobs(tmp_path, waiting=1, dead=1)
    settings_in(tmp_path, SHARED)
    (tmp_path / "program.py").write_text(PROGRAM)
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "program:app", "--workers", "2", "--no-access-log"]
    with subprocess.Popen(  # noqa: S603 - our own interpreter
        [*command, "--port", str(port)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(20)


@pytest.fixture
def client(served: str) -> Iterator[httpx.Client]:
    """A browser with a connection of its own for each request."""
    with httpx.Client(
        base_url=served, headers={**HTML, "Connection": "close"}, timeout=30
    ) as found:
        wait_until(lambda: is_live(found))
        yield found


def is_live(client: httpx.Client) -> bool:
    """Whether somebody answers by now."""
    try:
        return client.get("/live").status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.slow
def test_workers_of_uvicorn(client: httpx.Client) -> None:
    """Whichever process takes a request, it is answered."""
    assert client.post("/console/sign-in", data={"token": ADA}).status_code == 303
    pages = [client.get("/console/jobs/d0") for _ in range(12)]
    assert {page.status_code for page in pages} == {200}
    assert len({form_secret(page) for page in pages}) == 1
    form = {"id": "d0", "action": "requeue", "sure": "yes", "secret": form_secret(pages[0])}
    assert client.post("/console/change", data=form).status_code == 303
    with client.stream("GET", "/console/events") as events:
        assert next(line for line in events.iter_lines() if line.startswith("event:"))


def test_no_page_shows_the_key(tmp_path: Path) -> None:
    """It comes from a variable or a file, as every secret, and nothing repeats it."""
    file = tmp_path / "ergon.toml"
    file.write_text(f'[server]\nsession_key = "env:SESSION_KEY"\n[store]\nurl = "{URL}"\n')
    settings = load_settings(file, {"SESSION_KEY": KEY})
    assert settings.server.session_key is not None
    assert settings.server.session_key.get_secret_value() == KEY
    assert KEY not in repr(settings)
    assert KEY not in str(settings_document(settings))
