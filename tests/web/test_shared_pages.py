"""Pages that many watch: rendered once for all with one role, and each with its reader's name."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from ergon_framework.web.application import create_app
from ergon_framework.web.console.routes import MANY_WATCHERS
from ergon_framework.web.console.sharing import FRESH, SharedAnswers
from ergon_framework.web.sessions import COOKIE
from tests.providers.asgi_client import HERE
from tests.web.console_client import HTML
from tests.web.content import fill_jobs, settings_in

pytestmark = pytest.mark.req("ONE:serve")

PEOPLE = {"ada": "correct-horse-battery", "bob": "another-horse-battery", "eve": "eves-own-token-1"}
SETTINGS = """[server]
operators = ["ada", "bob"]
session_key = "a-key-of-sixteen-and-more"
token = \"\"\"
ada: correct-horse-battery
bob: another-horse-battery
eve: eves-own-token-1
\"\"\"
"""
SECRET = re.compile('name="secret" value="([^"]+)"')


@asynccontextmanager
async def watched(app: FastAPI, cookie: str) -> AsyncIterator[None]:
    """So many streams of events that pages are shared."""
    closing, all_begun = asyncio.Event(), asyncio.Event()
    begun: list[int] = []

    async def receive() -> Any:
        await closing.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            begun.append(message["status"])
            if len(begun) == MANY_WATCHERS:
                all_begun.set()

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "/console/events",
        "raw_path": b"/console/events",
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"localhost"), (b"cookie", f"{COOKIE}={cookie}".encode())],
        "client": HERE,
        "server": ("localhost", 80),
    }
    streams = [asyncio.ensure_future(app(scope, receive, send)) for _ in range(MANY_WATCHERS)]
    await all_begun.wait()
    assert set(begun) == {200}
    try:
        yield
    finally:
        closing.set()
        await asyncio.gather(*streams, return_exceptions=True)


def test_each_reads_his_own_name_and_sends_his_own_secret(tmp_path: Path) -> None:
    """Who reads only is shown no forms; nobody is shown another's name or a mark for one."""
    fill_jobs(tmp_path, waiting=1, dead=1)
    app = create_app(settings=settings_in(tmp_path, SETTINGS))

    async def go() -> dict[str, list[httpx.Response]]:
        transport = httpx.ASGITransport(app, client=HERE)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://localhost", headers=HTML
        ) as client:
            cookies = {}
            for name, token in PEOPLE.items():
                signed = await client.post("/console/sign-in", data={"token": token})
                cookies[name] = signed.cookies[COOKIE]
            client.cookies.clear()
            async with watched(app, cookies["eve"]):
                asked = [
                    (name, client.get("/console/queues", headers={"Cookie": f"{COOKIE}={cookie}"}))
                    for name, cookie in [*cookies.items(), *cookies.items()]
                ]
                pages = await asyncio.gather(*(page for _, page in asked))
        found: dict[str, list[httpx.Response]] = {name: [] for name in PEOPLE}
        for (name, _), page in zip(asked, pages, strict=True):
            found[name].append(page)
        return found

    found = asyncio.run(go())
    secrets = {}
    for name, pages in found.items():
        for page in pages:
            assert page.status_code == 200
            assert int(page.headers["content-length"]) == len(page.content)
            assert "content-security-policy" in page.headers
            assert [each for each in PEOPLE if f"<span>{each}" in page.text] == [name]
            assert "mark-" not in page.text
        secrets[name] = {each for page in pages for each in SECRET.findall(page.text)}
    assert secrets["eve"] == set()
    assert len(secrets["ada"]) == len(secrets["bob"]) == 1
    assert secrets["ada"] != secrets["bob"]


def test_one_answer_a_second_for_each_question() -> None:
    """However many ask, and however long the answer took."""
    now, asked = 0.0, []

    def clock() -> float:
        return now

    async def go() -> list[str]:
        nonlocal now
        shared: SharedAnswers[str] = SharedAnswers(clock)

        async def look() -> str:
            nonlocal now
            asked.append(now)
            now += 5.0
            return f"answer {len(asked)}"

        found = [*await asyncio.gather(*(shared.get("jobs", look) for _ in range(50)))]
        found += [await shared.get("jobs", look), await shared.get("queues", look)]
        now += FRESH
        return [*found, await shared.get("jobs", look)]

    found = asyncio.run(go())
    assert set(found[:51]) == {"answer 1"}
    assert found[51:] == ["answer 2", "answer 3"]
