"""Releasing and discarding facts that were set aside: in the console and through the API."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest

from ergon_framework.app.settings import load_settings
from ergon_framework.app.settings.sections import ServerSettings
from ergon_framework.boundary.data_folder import FILE, DataFolder
from ergon_framework.boundary.factstore.sqlite import SqliteFactStore
from ergon_framework.boundary.settings import ZoneSettings
from ergon_framework.web.audit import AUDITED, OF_FACTS, AuditEntry, AuditLog, AuditSearch
from ergon_framework.web.backends import backends_of
from ergon_framework.web.fact_actions import FACT_ACTIONS
from ergon_framework.web.routes import build_app, server_plan
from ergon_framework.web.sessions import Sessions
from ergon_framework.web.tokens import FixedTokens
from tests.cli.boundary_node import running
from tests.web.console_client import ConsoleClient
from tests.web.content import FREE, fill_jobs, fill_zone, settings_in
from tests.web.test_action_routes import ADA, BOB, Api
from tests.web.test_console_acting import secret, send

pytestmark = pytest.mark.req("ONE:serve")

ITEM = "/console/zones/plant-a/quarantine/1"
IN_API = "/api/v1/boundary/plant-a/quarantine/1"


class ZonePlace:
    """A server beside a zone that has set one fact aside; nobody serves the zone."""

    def __init__(self, folder: Path, listen: str = FREE, zone: str = "plant-a") -> None:
        self.folder = folder
        self.sessions = Sessions(None, [])
        fill_jobs(folder, waiting=0)  # with a schedule, on whose page every operator has a form
        settings_in(folder)
        file = folder / "ergon.toml"
        written = file.read_text().replace(FREE, listen)
        file.write_text(written.replace("[zones.plant-a]", f'[zones."{zone}"]'))
        backends = backends_of(load_settings(file, {}))
        plan = server_plan(ServerSettings(), backends, None, sessions=self.sessions)
        self.app = build_app(plan)

    def client(self) -> ConsoleClient:
        """A browser that nobody knows."""
        return ConsoleClient(self.app)

    def signed_in(self) -> ConsoleClient:
        """One that has signed in."""
        client = self.client()
        send(client, "sign-in", token=self.sessions.issue_login_link())
        return client

    def entries(self) -> list[AuditEntry]:
        """What the audit log has, the newest first."""
        return AuditLog(self.folder / "ergon-audit.db").find(AuditSearch(), 10)


@pytest.fixture
def place(tmp_path: Path) -> ZonePlace:
    """A server beside the folder of a zone."""
    fill_zone(tmp_path)
    return ZonePlace(tmp_path)


def states(folder: Path) -> list[str]:
    """How each fact of the quarantine stands."""
    with closing(SqliteFactStore(folder / "a" / FILE, zone="plant-a", clock=time.time)) as store:
        return [each.state for each in store.quarantine(None, None)]


def journal(folder: Path) -> list[str]:
    """What the journal of the zone tells."""
    with closing(SqliteFactStore(folder / "a" / FILE, zone="plant-a", clock=time.time)) as store:
        return [detail for _, _, detail in store.journal(10)]


def form(client: ConsoleClient, action: str, item: str = "1", **fields: str) -> httpx.Response:
    """The form of a fact's page, sent as a browser does."""
    known = {"secret": secret(client, "/console/schedules"), "zone": "plant-a", "id": item}
    return send(client, "fact", None, **{**known, **fields}, action=action)


@pytest.mark.parametrize(("action", "after"), [("release", "released"), ("discard", "discarded")])
def test_each_asks_once(place: ZonePlace, action: str, after: str) -> None:
    """With the consequence; the journal of the zone and the audit log tell who did it and why."""
    client = place.signed_in()
    asked = form(client, action)
    assert FACT_ACTIONS[action].consequence in asked.text
    assert states(place.folder) == ["quarantined"]
    assert place.entries() == []
    answer = form(client, action, sure="yes", reason="the handler was corrected")
    assert answer.url.path == ITEM
    assert FACT_ACTIONS[action].done in answer.text
    assert states(place.folder) == [after]
    [said] = [each for each in journal(place.folder) if "corrected" in each]
    assert said.endswith("by local: the handler was corrected")
    [entry] = place.entries()
    told = (entry.actor, entry.action, entry.target, entry.outcome, entry.detail)
    corrected = "the handler was corrected"
    assert told == ("local", f"{action}-fact", "plant-a/1", "done", corrected)
    assert f'href="{ITEM}">plant-a/1' in client.get("/console/audit").text
    assert "What was done to it here" in answer.text
    [change] = client.get(f"{ITEM}?format=json").json()["changes"]
    assert (change["by"], change["action"]) == ("local", f"{action}-fact")


def test_what_is_offered(place: ZonePlace) -> None:
    """Buttons for who has signed in, in the list and on the page, as the state allows."""
    buttons = re.compile(r'name="action" value="(\w+)"')
    zone = "/console/zones/plant-a"
    assert 'action="/console/fact"' not in place.client().get(zone).text
    assert 'action="/console/fact"' not in place.client().get(ITEM).text
    client = place.signed_in()
    assert buttons.findall(client.get(zone).text) == ["release", "discard"]
    assert buttons.findall(client.get(ITEM).text) == ["discard", "release"]
    assert "What helps" in client.get(ITEM).text
    released = form(client, "release", sure="yes").text
    assert buttons.findall(released) == ["discard"]
    assert "What helps" not in released
    discarded = form(client, "discard", sure="yes").text
    assert buttons.findall(discarded) == []
    assert "Nothing is left to do: it is discarded." in discarded


def test_what_is_refused(place: ZonePlace) -> None:
    """A fact that is not there, one that was dealt with, a stranger, and a word of nobody's."""
    client = place.signed_in()
    assert form(client, "steal").status_code == 422
    assert form(client, "release", item="9", sure="yes").status_code == 404
    assert form(client, "release", item="x").status_code == 404
    assert form(client, "release", item="0", sure="yes").status_code == 404
    assert form(client, "discard", sure="yes", reason="x" * 251).status_code == 422
    assert form(client, "discard", sure="yes").status_code == 200
    late = form(client, "release", sure="yes")
    assert late.status_code == 409
    assert "somebody has dealt with it" in late.text
    assert place.entries()[0].outcome == "refused"
    fields = {"zone": "plant-a", "id": "1", "action": "discard", "sure": "yes", "secret": "x"}
    assert send(place.client(), "fact", None, **fields).status_code == 403
    elsewhere = {"origin": "http://elsewhere.example"}
    assert send(client, "fact", elsewhere, **fields).status_code == 403


def test_a_node_that_is_away(tmp_path: Path) -> None:
    """Its folder is told, and not changed: only a node changes its zone."""
    fill_zone(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    place = ZonePlace(tmp_path, f'listen = "127.0.0.1:{port}"')
    answer = form(place.signed_in(), "release", sure="yes")
    assert answer.status_code == 503
    assert "ergon boundary serve --zone plant-a" in answer.text
    assert states(tmp_path) == ["quarantined"]
    assert place.entries()[0].outcome == "refused"


def test_a_folder_that_another_process_has(place: ZonePlace) -> None:
    """Nothing was sent, so the outcome is known: nothing was done."""
    with closing(DataFolder.lock(place.folder / "a")):
        answer = form(place.signed_in(), "release", sure="yes")
    assert answer.status_code == 503
    assert "nothing was changed" in answer.text
    assert states(place.folder) == ["quarantined"]
    assert place.entries()[0].outcome == "refused"


def test_certificates_that_are_missing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Starting the node would not help: the log names the file, and the page no file."""
    fill_zone(tmp_path)
    files = "".join(f'\n{each} = "gone.pem"' for each in ("cert", "key", "ca"))
    place = ZonePlace(tmp_path, f'listen = "127.0.0.1:1"{files}')
    answer = form(place.signed_in(), "release", sure="yes")
    assert answer.status_code == 503
    assert "cannot call the node of the zone" in answer.text
    assert "ergon boundary serve" not in answer.text
    assert "gone.pem" not in answer.text
    assert "gone.pem" in caplog.text
    assert states(tmp_path) == ["quarantined"]
    assert place.entries()[0].outcome == "refused"


class RefusingNode(BaseHTTPRequestHandler):
    """Answers every call as a node does that has been moved away, or that is of another version."""

    refusal: ClassVar[dict[str, Any]] = {}

    def do_POST(self) -> None:
        """Refuse a call."""
        self.rfile.read(int(self.headers["content-length"]))
        body = json.dumps({**self.refusal, "message": "ask at secret.example"}).encode()
        self.send_response(503)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@pytest.mark.parametrize(
    ("code", "details", "status", "told"),
    [
        ("unavailable", {"reason": "moved"}, 409, "was moved to another store"),
        ("invalid_argument", {"field": "reason"}, 422, "is refused by the node"),
        ("unavailable", {"reason": "stopping"}, 503, "nothing was changed"),
        ("deadline_exceeded", {}, 503, "before you ask again"),
    ],
)
def test_what_a_node_refuses(
    tmp_path: Path, code: str, details: dict[str, str], status: int, told: str
) -> None:
    """Whoever acts is told to ask again only where that may help."""
    fill_zone(tmp_path)
    node = type("Node", (RefusingNode,), {"refusal": {"code": code, "details": details}})
    with ThreadingHTTPServer(("127.0.0.1", 0), node) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            place = ZonePlace(tmp_path, f'listen = "127.0.0.1:{server.server_port}"')
            answer = form(place.signed_in(), "release", sure="yes")
        finally:
            server.shutdown()
    assert answer.status_code == status
    assert told in answer.text
    assert "secret.example" not in answer.text
    assert place.entries()[0].outcome == ("unknown" if code == "deadline_exceeded" else "refused")


def test_a_zone_whose_name_has_a_slash_and_a_space(tmp_path: Path) -> None:
    """Its pages and its form are found, and the commands can be pasted."""
    name = "site 1/a"
    fill_zone(tmp_path, name)
    place = ZonePlace(tmp_path, zone=name)
    client = place.signed_in()
    item = "/console/zones/site%201/a/quarantine/1"
    assert f'href="{item}"' in client.get("/console/zones/site%201/a").text
    assert client.get("/console/zones/site%201/a/").url.path == "/console/zones/site 1/a"
    assert "release 1 --zone &#39;site 1/a&#39;" in client.get(item).text
    assert "gets it once more" in form(client, "release", zone=name, sure="yes").text
    listed = client.get("/api/v1/boundary/site%201%2Fa/quarantine?state=released").json()
    assert [each["id"] for each in listed["items"]] == [1]


def test_by_its_node(tmp_path: Path) -> None:
    """A node that serves the zone does it."""
    fill_zone(tmp_path)
    node = ZoneSettings(data=str(tmp_path / "a"), listen="127.0.0.1:0", insecure=True)
    with running(node) as address:
        place = ZonePlace(tmp_path, f'listen = "{address}"')
        answer = form(place.signed_in(), "release", sure="yes")
        assert "gets it once more" in answer.text
    assert states(tmp_path) == ["released"]


def test_a_node_that_does_not_let_this_server(tmp_path: Path) -> None:
    """The policy of the zone decides; the page says what to change in it."""
    fill_zone(tmp_path)
    policy = tmp_path / "policy.toml"
    policy.write_text('[anonymous]\noperations = ["observe"]\nconsumers = ["*"]\n')
    folder = str(tmp_path / "a")
    node = ZoneSettings(data=folder, listen="127.0.0.1:0", insecure=True, policy=str(policy))
    with running(node) as address:
        place = ZonePlace(tmp_path, f'listen = "{address}"')
        answer = form(place.signed_in(), "discard", sure="yes")
    assert answer.status_code == 403
    assert "allow DiscardQuarantine" in answer.text
    assert states(tmp_path) == ["quarantined"]
    assert place.entries()[0].outcome == "refused"


def test_a_zone_whose_folder_is_elsewhere(tmp_path: Path) -> None:
    """Its fact is shown as the node lists it, without content, and can be released."""
    there = tmp_path / "there"
    there.mkdir()
    fill_zone(there)
    node = ZoneSettings(data=str(there / "a"), listen="127.0.0.1:0", insecure=True)
    with running(node) as address:
        client = ZonePlace(tmp_path, f'listen = "{address}"').signed_in()
        text = client.get(ITEM).text
        assert "cannot be read from here" in text
        assert client.get(ITEM.replace("/1", "/9")).status_code == 404
        assert "gets it once more" in form(client, "release", sure="yes").text


@pytest.fixture
def api(tmp_path: Path) -> Api:
    """A server with tokens beside the zone."""
    fill_zone(tmp_path)
    return Api(tmp_path, FixedTokens({"ada": ADA, "bob": BOB}))


def test_through_the_api(api: Api) -> None:
    """Done, done again, and refused; the audit log has the name of the token."""
    assert api.post("/release", {"reason": "read again"}, at=IN_API).json() == {
        "zone": "plant-a",
        "id": 1,
        "action": "release",
        "state": "released",
    }
    assert api.post("/release", at=IN_API).json()["state"] == "released"
    assert api.post("/discard", at=IN_API).json()["state"] == "discarded"
    late = api.post("/release", at=IN_API)
    assert (late.status_code, late.json()["code"]) == (409, "wrong_state")
    assert api.post("/release", at=IN_API.replace("/1", "/9")).status_code == 404
    assert api.post("/release", at=IN_API.replace("/1", "/0")).status_code == 422
    assert api.post("/release", at=IN_API.replace("plant-a", "x")).status_code == 404
    found = AuditLog(api.folder / "ergon-audit.db").find(AuditSearch(target="plant-a/1"), 10)
    assert {each.actor for each in found} == {"ada"}
    assert found[-1].detail == "read again"


def test_without_a_body(api: Api) -> None:
    """A reason is not needed, so no body is."""
    assert api.post("/release", b"", at=IN_API).json()["state"] == "released"


def test_a_reason_that_the_journal_keeps_whole(api: Api) -> None:
    """A longer one is refused, and not cut off in the journal of the zone."""
    assert api.post("/release", {"reason": "x" * 251}, at=IN_API).status_code == 422
    assert states(api.folder) == ["quarantined"]
    assert api.post("/release", {"reason": "x" * 250}, at=IN_API).status_code == 200
    assert journal(api.folder)[0].endswith("by ada: " + "x" * 250)


def test_who_may_change_facts(api: Api) -> None:
    """Nobody without a token of an operator in a header."""
    assert api.post("/release", token=None, at=IN_API).status_code == 401
    assert api.post("/release", token=BOB, at=IN_API).status_code == 403
    assert states(api.folder) == ["quarantined"]


def test_every_action_is_among_the_words_of_the_audit_log() -> None:
    """So that one can look for it."""
    assert {each.audited_as for each in FACT_ACTIONS.values()} == set(OF_FACTS) < set(AUDITED)
