"""Refusals from outside of the pages: a page for a person, JSON for a program."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from ergon_framework.web.application import create_app
from ergon_framework.web.backends import backends_of
from ergon_framework.web.middleware import MAX_BODY, MAX_HEAD, AuthRules, RequestLimits
from ergon_framework.web.routes import ServerPlan, build_app
from ergon_framework.web.tokens import FixedTokens
from tests.providers.asgi_client import HERE
from tests.web.console_client import HTML
from tests.web.content import fill_jobs, settings_in

pytestmark = pytest.mark.req("ONE:serve")
AWAY = ("203.0.113.9", 40_000)


@pytest.fixture
def app(tmp_path: Path) -> FastAPI:
    """A server over a store with jobs."""
    fill_jobs(tmp_path)
    return create_app(settings=settings_in(tmp_path))


def ask(
    app: Any, method: str, path: str, headers: Mapping[str, str] = HTML, peer: Any = HERE
) -> httpx.Response:
    """One request, as a browser makes it unless the headers say otherwise."""

    async def go() -> httpx.Response:
        transport = httpx.ASGITransport(app, client=peer, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, path, headers=headers)

    return asyncio.run(go())


def check_page(answer: httpx.Response, status: int, *words: str) -> None:
    """A page that says what was wrong and what helps, and that loads and runs nothing."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"].startswith("text/html")
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert answer.headers["cache-control"] == "no-store"
    for word in ("<h1>", "What to do", 'href="/console"', *words):
        assert word in answer.text
    policy = answer.headers["content-security-policy"]
    [style] = re.findall("<style>(.*?)</style>", answer.text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in policy
    assert "script" not in policy
    assert "src=" not in answer.text


def code_in(page: httpx.Response) -> str:
    """The code that a page tells beside its status."""
    found = re.search(r"<code>\d+ (\w+)</code>", page.text)
    assert found is not None
    return found[1]


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "words"),
    [
        ("PUT", "/console", {}, 405, ("405 method_not_allowed", "GET or HEAD")),
        ("POST", "/nowhere", {}, 405, ("Method not allowed",)),
        ("GET", "/nowhere", {}, 404, ("There is no such page",)),
        ("GET", "/console/static/none.css", {}, 404, ("There is no such page",)),
        ("POST", "/console/change", {"Content-Length": str(MAX_BODY + 1)}, 413, ("too large",)),
        ("GET", "/console?q=" + "a" * MAX_HEAD, {}, 431, ("too large",)),
        ("GET", "/console", {"Host": "evil.example"}, 403, ("only callers on this machine",)),
    ],
)
def test_refusals_are_pages_for_browsers_and_json_for_others(
    app: FastAPI, method: str, path: str, headers: dict[str, str], status: int, words: Any
) -> None:
    """With the same status and the same headers that tell what may be asked."""
    check_page(page := ask(app, method, path, {**HTML, **headers}), status, *words)
    for accept in ("application/json", "*/*"):
        told = ask(app, method, path, {"Accept": accept, **headers})
        assert (told.status_code, told.json()["code"]) == (status, code_in(page))
        assert told.headers.get("allow") == page.headers.get("allow")


@pytest.mark.parametrize("path", ["/api/v1/nothing", "/api/v1/jobs/none", "/ready", "/metrics"])
def test_what_programs_read_stays_json(app: FastAPI, path: str) -> None:
    """Also for a browser that looks at it."""
    answer = ask(app, "DELETE", path)
    assert answer.json()["code"] == "method_not_allowed"
    if path.startswith("/api"):
        assert ask(app, "GET", path).json()["code"].endswith("not_found")


def test_a_busy_server(tmp_path: Path) -> None:
    """It says when to ask again, and links what was asked for; nothing of it is loaded from it."""
    fill_jobs(tmp_path)
    plan = ServerPlan(backends_of(settings_in(tmp_path)), limits=RequestLimits(requests=0))
    answer = ask(build_app(plan), "GET", "/console/jobs")
    check_page(answer, 503, "503 too_busy", 'href="/console/jobs"', "Try again", "in a second")
    assert answer.headers["retry-after"] == "1"


def test_a_stranger(tmp_path: Path) -> None:
    """Where nobody can sign in, the page says what a token is for."""
    plan = ServerPlan(backends_of(settings_in(tmp_path)), AuthRules(FixedTokens({"ada": "secret"})))
    check_page(ask(build_app(plan), "GET", "/console", peer=AWAY), 401, "wants a token")


def test_a_failure_that_nobody_has_foreseen(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    """It tells a person where to look, and none of its text."""

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("<b>a secret</b>")

    monkeypatch.setattr("ergon_framework.web.middleware.RequestLimiter.__call__", broken)
    answer = ask(app, "GET", "/console")
    check_page(answer, 500, "The server failed", "Try again")
    assert "secret" not in answer.text
    assert ask(app, "GET", "/console", {}).json()["code"] == "internal"


def test_a_path_is_no_markup(app: FastAPI) -> None:
    """What was asked for is shown, and is text."""
    answer = ask(app, "GET", "/%3Cscript%3Ealert(1)%3C/script%3E")
    assert "<script" not in answer.text
    assert "%3Cscript%3E" in answer.text or "&lt;script&gt;" in answer.text


def test_pages_of_the_console_are_left_alone(app: FastAPI) -> None:
    """They have the frame of the console around their errors, and link its stylesheet."""
    answer = ask(app, "GET", "/console/jobs/none")
    assert answer.status_code == 404
    assert "console.css" in answer.text
