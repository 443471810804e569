"""Signing in at a proxy in front: whose headers are taken, and what they allow."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest

from ergon_framework.app.settings import load_settings
from ergon_framework.errors import ConfigurationError, SettingsError
from ergon_framework.jobs import JobClient
from ergon_framework.web.application import check_place
from ergon_framework.web.backends import backends_of
from ergon_framework.web.routes import build_app, server_plan
from ergon_framework.web.sessions import Sessions
from ergon_framework.web.tokens import FixedTokens
from tests.web.content import fill_jobs, settings_in

pytestmark = pytest.mark.req("ONE:serve")

ADA = "correct-horse-battery"
PROXY, ELSEWHERE = "10.1.0.7", "10.2.0.7"
SETTINGS = """[server]
operators = ["ada"]
[server.proxy]
trusted = ["10.1.0.0/24", "127.0.0.1"]
operators = ["ops"]
admins = ["root"]
"""
Header = tuple[str, str]


class Place:
    """A server behind a proxy, over a job that gave up."""

    def __init__(self, folder: Path, *, has_tokens: bool = False) -> None:
        fill_jobs(folder, waiting=0, dead=1)
        self.url = f"sqlite:///{folder}/work.db"
        settings = settings_in(folder, SETTINGS)
        tokens = FixedTokens({"ada": ADA}) if has_tokens else None
        sessions = Sessions(tokens, settings.server.operators)
        plan = server_plan(settings.server, backends_of(settings), tokens, sessions=sessions)
        self.app = build_app(plan)

    def ask(
        self,
        path: str,
        *headers: Header,
        peer: str = PROXY,
        data: dict[str, str] | None = None,
    ) -> httpx.Response:
        """A request from an address; with data it is a form."""

        async def go() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, client=(peer, 40_000))
            async with httpx.AsyncClient(transport=transport, base_url="http://erg.example") as one:
                method = "GET" if data is None else "POST"
                return await one.request(method, path, headers=list(headers), data=data)

        return asyncio.run(go())

    def status(self) -> str:
        """Where the job stands."""
        with JobClient(self.url) as jobs:
            return jobs.status("d0").value


def user(name: str, *groups: str) -> Sequence[Header]:
    """What the proxy says."""
    return ("X-Forwarded-User", name), ("X-Forwarded-Groups", ",".join(groups))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A server without tokens."""
    return Place(tmp_path)


def test_somebody_whom_the_proxy_has_signed_in(place: Place) -> None:
    """He reads; with a group of operators he acts, under his name; admins read the audit log."""
    page = place.ask("/console/jobs/d0", *user("eve@example.org", "staff", "ops"))
    assert "eve@example.org" in page.text
    assert "Sign out" not in page.text  # the proxy does that
    found = re.search(r'name="secret" value="([^"]+)"', page.text)
    assert found is not None
    form = {"secret": found[1], "action": "requeue", "id": "d0"}
    stolen = place.ask("/console/change", *user("mal@example.org", "ops"), data=form)
    assert stolen.status_code == 403  # a form of another person
    viewer = user("eve@example.org", "staff")
    assert place.ask("/console/change", *viewer, data=form).status_code == 403
    assert place.status() == "failed"
    operator = user("eve@example.org", "ops")
    foreign = ("Origin", "https://evil.example")
    assert place.ask("/console/change", *operator, foreign, data=form).status_code == 403
    assert place.ask("/console/change", *operator, data=form).status_code == 303
    with JobClient(place.url) as jobs:
        assert jobs.show("d0")["history"][-1]["by"] == "eve@example.org"
    assert place.ask("/console/audit", *operator).status_code == 403
    admin = user("kim", "root")
    told = place.ask("/console/audit?format=json", *admin).json()["items"]
    assert [each["actor"] for each in told] == ["eve@example.org"]


@pytest.mark.parametrize("peer", [ELSEWHERE, "::1", "::ffff:10.2.0.7"])
@pytest.mark.parametrize(
    "header", [("X-Forwarded-User", "root"), ("x-forwarded-groups", "root"), user("kim", "root")[0]]
)
def test_headers_from_elsewhere(place: Place, peer: str, header: Header) -> None:
    """Whoever is no proxy is refused for them, even where he might read without."""
    answer = place.ask("/api/v1/jobs", header, peer=peer)
    assert answer.status_code == 403
    assert "[server.proxy]" in answer.json()["details"]["remedy"]
    assert place.ask("/live", header, peer=peer).status_code == 403


@pytest.mark.parametrize(
    "headers",
    [
        (("X-Forwarded-User", "eve"), ("X-Forwarded-User", "root")),
        (*user("eve", "staff"), ("X-Forwarded-Groups", "root")),
        (("X-Forwarded-User", "x" * 201),),
    ],
)
def test_what_a_proxy_must_not_say(place: Place, headers: Sequence[Header]) -> None:
    """A proxy that adds to what callers send, or names nobody, is not believed."""
    assert place.ask("/api/v1/jobs", *headers).status_code == 403


def test_nobody_is_known_by_the_machine(place: Place) -> None:
    """A proxy on the same machine that signed nobody in does not make callers local."""
    for peer in ("127.0.0.1", PROXY):
        answer = place.ask("/api/v1/jobs", ("Host", "localhost"), peer=peer)
        assert answer.status_code == 401
        assert "through the proxy" in answer.json()["details"]["remedy"]
    assert place.ask("/api/v1/jobs", ("X-Forwarded-User", ""), peer=PROXY).status_code == 401
    assert place.ask("/live", peer=PROXY).status_code == 200
    mapped = place.ask("/api/v1/jobs", *user("eve"), peer="::ffff:10.1.0.9")
    assert mapped.status_code == 200


def test_the_api_takes_a_token_all_the_same(tmp_path: Path) -> None:
    """What the proxy says goes along with every request of a browser, also of a foreign page."""
    place = Place(tmp_path, has_tokens=True)
    path, root = "/api/v1/jobs/d0/requeue", user("kim", "root")
    assert place.ask(path, *root, data={}).status_code == 403
    jwt = ("Authorization", "Bearer some.jwt.of-the-proxy")
    assert place.ask(path, *root, jwt, data={}).status_code == 403
    assert place.status() == "failed"
    bearer = ("Authorization", f"Bearer {ADA}")
    assert place.ask("/api/v1/jobs", bearer, peer=ELSEWHERE).status_code == 200
    forged = place.ask("/api/v1/jobs", *root, bearer, peer=ELSEWHERE)
    assert forged.status_code == 403


@pytest.mark.parametrize(
    "trusted", ['["0.0.0.0/0"]', '["::/0"]', '["proxy"]', "[]", '["10.1.0.7/24"]']
)
def test_addresses_that_are_none(tmp_path: Path, trusted: str) -> None:
    """Everybody cannot be a proxy, and a name is no address."""
    file = tmp_path / "ergon.toml"
    file.write_text(f'[store]\nurl = "sqlite:///w.db"\n[server.proxy]\ntrusted = {trusted}\n')
    with pytest.raises(SettingsError, match=r"server\.proxy\.trusted"):
        load_settings(file, {})


def test_where_a_server_may_listen(tmp_path: Path) -> None:
    """With a proxy, other machines may reach a server without tokens: it answers nobody else."""
    with pytest.raises(ConfigurationError):
        check_place("0.0.0.0", None)  # noqa: S104
    check_place("0.0.0.0", None, settings_in(tmp_path, SETTINGS).server.proxy)  # noqa: S104
