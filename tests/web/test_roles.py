"""What each role may do, however somebody is known: the table of watch-in-the-console.md."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from ergon_framework.jobs import JobClient
from ergon_framework.web.audit import LOOK_AGAIN, AuditEntry, AuditLog, AuditSearch
from ergon_framework.web.backends import backends_of
from ergon_framework.web.routes import build_app, server_plan
from ergon_framework.web.sessions import Sessions
from ergon_framework.web.tokens import FixedTokens
from tests.web.content import fill_calls, fill_jobs, fill_zone, settings_in

pytestmark = pytest.mark.req("ONE:serve")

TOKENS = {name: f"{name}-0123456789abcdef" for name in ("bob", "ada", "eve")}
SETTINGS = """[server]
payloads = true
operators = ["ada"]
admins = ["eve"]
"""
PROXY = """[server.proxy]
trusted = ["127.0.0.1"]
operators = ["oncall"]
admins = ["platform"]
"""
GROUPS = {"bob": "staff", "ada": "staff,oncall", "eve": "platform"}
WAYS = ("header", "session", "proxy")
ROLES = {"bob": "viewer", "ada": "operator", "eve": "admin"}
MAY = {"viewer": {"read", "payloads"}, "operator": {"read", "payloads", "act"}}
MAY["admin"] = MAY["operator"] | {"audit"}


class Visitor:
    """Somebody who asks one server, in one way."""

    def __init__(self, folder: Path, way: str, name: str) -> None:
        has_tokens = way in ("header", "session")
        fill_jobs(folder, waiting=0, dead=1)
        self.folder = folder
        self.name = name if has_tokens or way == "proxy" else "local"
        self.way = way
        settings = settings_in(folder, SETTINGS + (PROXY if way == "proxy" else ""))
        tokens = FixedTokens(TOKENS) if has_tokens else None
        server = settings.server
        self.sessions = Sessions(tokens, server.operators, admins=server.admins)
        plan = server_plan(server, backends_of(settings), tokens, sessions=self.sessions)
        self._app = build_app(plan)
        self._cookies = httpx.Cookies()
        self._headers: dict[str, str] = {}
        if way == "header":
            self._headers["authorization"] = f"Bearer {TOKENS[name]}"
        elif way == "proxy":
            self._headers = {"x-forwarded-user": name, "x-forwarded-groups": GROUPS[name]}
        elif way != "machine":
            secret = TOKENS[name] if way == "session" else self.sessions.issue_login_link()
            assert self.ask("/console/sign-in", {"token": secret}).status_code == 303

    def ask(
        self, path: str, form: dict[str, str] | None = None, json: object = None
    ) -> httpx.Response:
        """One request; with fields it is a form, with a document a post to the API."""

        async def go() -> httpx.Response:
            transport = httpx.ASGITransport(self._app, client=("127.0.0.1", 40_000))
            async with httpx.AsyncClient(
                transport=transport, base_url="http://localhost", cookies=self._cookies
            ) as client:
                method = "GET" if form is None and json is None else "POST"
                answer = await client.request(
                    method, path, headers=self._headers, data=form, json=json
                )
                self._cookies = client.cookies
                return answer

        return asyncio.run(go())

    def act(self) -> httpx.Response:
        """Send the job back: by the form of its page, or with a token by the API."""
        if self.way == "header":
            return self.ask("/api/v1/jobs/d0/requeue", json={})
        page = self.ask("/console/jobs/d0").text
        found = re.search(r'name="secret" value="([^"]+)"', page)
        secret = "none" if found is None else found[1]
        fields = {"action": "requeue", "id": "d0", "secret": secret}
        return self.ask("/console/change", fields)

    def status(self) -> str:
        """Where the job stands."""
        with JobClient(f"sqlite:///{self.folder}/work.db") as jobs:
            return jobs.status("d0").value

    def looks(self) -> list[AuditEntry]:
        """Whose looks at arguments were written down, the newest first."""
        return AuditLog(self.folder / "ergon-audit.db").find(AuditSearch(action="look"), 20)


CELLS = [
    *((way, name, MAY[role]) for way in WAYS for name, role in ROLES.items()),
    ("link", "whoever", MAY["admin"]),
    ("machine", "whoever", MAY["admin"] - {"act"}),
]


@pytest.fixture(scope="module", params=CELLS, ids=lambda cell: f"{cell[0]}-{cell[1]}")
def cell(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Visitor, set[str]]:
    """A visitor, and what he may do."""
    way, name, may = request.param
    return Visitor(tmp_path_factory.mktemp("place"), way, name), may


def shows_payloads(answer: httpx.Response) -> bool:
    """Whether arguments, a payload or the content of a fact are in an answer."""
    text = answer.text.replace('="hidden"', "")
    return any(f"{quote}hidden{quote}" in text for quote in ('"', '\\"', "&#34;"))


def test_read(cell: tuple[Visitor, set[str]]) -> None:
    """Everybody who is known reads the pages and the API."""
    visitor, may = cell
    assert "read" in may
    for path in ("/console", "/console/jobs/d0", "/api/v1/jobs", "/api/v1/jobs/d0/why"):
        answer = visitor.ask(path)
        assert answer.status_code == 200
        assert not shows_payloads(answer)


def test_payloads(cell: tuple[Visitor, set[str]]) -> None:
    """Everybody who reads, where the settings show them; the audit log tells of each."""
    visitor, may = cell
    assert "payloads" in may
    for path in ("/console/jobs/d0?payloads=1&format=json", "/api/v1/jobs/d0?payloads=true"):
        assert visitor.ask(path).json()["args"] == ["hidden"]
        assert {(each.actor, each.target) for each in visitor.looks()} == {(visitor.name, "d0")}


def test_act(cell: tuple[Visitor, set[str]]) -> None:
    """Operators and admins, once they have signed in; what is refused changes nothing."""
    visitor, may = cell
    answer = visitor.act()
    if "act" in may:
        assert answer.status_code in (200, 303)
    else:
        assert answer.status_code == 403
    assert visitor.status() == ("pending" if "act" in may else "failed")


def test_audit(cell: tuple[Visitor, set[str]]) -> None:
    """Admins, and who is on a machine without tokens; others read what would make them one."""
    visitor, may = cell
    answer = visitor.ask("/console/audit?format=json")
    assert answer.status_code == (200 if "audit" in may else 403)
    if "audit" not in may:
        where = "[server.proxy]" if visitor.way == "proxy" else f'admins = ["{visitor.name}"]'
        assert where in answer.json()["details"]["remedy"]


@contextmanager
def blocked(visitor: Visitor) -> Iterator[None]:
    """While this lasts, the audit log cannot be written."""
    file = visitor.folder / "ergon-audit.db"
    file.mkdir()
    yield
    file.rmdir()


@pytest.mark.parametrize(
    ("path", "target", "detail"),
    [
        ("/api/v1/jobs?queue=mail&payloads=true", "", "the arguments of jobs: queue=mail"),
        ("/api/v1/jobs?payloads=true&limit=1", "", "the arguments of jobs: all"),
        ("/api/v1/jobs/d0?payloads=true", "d0", ""),
        ("/api/v1/dead-letters?payloads=true", "", "payloads of dead letters"),
        ("/api/v1/dead-letters/d0?payloads=true", "d0", ""),
        ("/api/v1/dead-letters/c0?payloads=true", "", "the payload of the provider call 'c0'"),
        (
            "/console/zones/plant-a/quarantine/1?payloads=true",
            "",
            "the fact that the zone 'plant-a' had set aside under the id 1",
        ),
    ],
)
def test_each_way_to_look_is_written_down(
    tmp_path: Path, path: str, target: str, detail: str
) -> None:
    """Before anything is shown, and nothing is shown where that cannot be done."""
    visitor = Visitor(tmp_path, "header", "bob")
    fill_calls(f"sqlite:///{tmp_path}/work.db", ["c0"])
    fill_zone(tmp_path)
    with blocked(visitor):
        refused = visitor.ask(path)
        assert refused.status_code == 503
        assert not shows_payloads(refused)
    assert shows_payloads(visitor.ask(path))
    [entry] = visitor.looks()
    assert (entry.actor, entry.target, entry.detail) == ("bob", target, detail)
    assert visitor.ask(path.replace("payloads=true", "payloads=false")).status_code == 200
    assert len(visitor.looks()) == 1


def test_the_same_look_is_written_down_once_for_a_while(tmp_path: Path) -> None:
    """A page that follows a job asks every second: what was changed must not go for that."""
    now = 1000.0
    log = AuditLog(tmp_path / "audit.db", lambda: now)
    for actor, job in (("ada", "a"), ("ada", "a"), ("bob", "a"), ("ada", "b"), ("ada", "a")):
        log.seen(actor, "look", job)
    assert len(log.find(AuditSearch(), 10)) == 3
    now += LOOK_AGAIN
    log.seen("ada", "look", "a")
    now -= 2 * LOOK_AGAIN  # the clock was set back: better twice than never
    log.seen("ada", "look", "a")
    assert [each.target for each in log.find(AuditSearch(actor="ada"), 10)] == ["a", "a", "b", "a"]
