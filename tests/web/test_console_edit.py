"""Sending a dead letter back with other arguments in the console, and what the audit log tells."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from ergon_framework.app.settings.sections import ServerSettings
from ergon_framework.jobs import JobClient
from ergon_framework.web.audit import MOST, AuditLog, AuditSearch
from ergon_framework.web.backends import backends_of
from ergon_framework.web.routes import build_app, server_plan
from ergon_framework.web.sessions import Sessions
from ergon_framework.web.tokens import FixedTokens
from tests.web.console_client import ConsoleClient
from tests.web.content import fill_jobs, settings_in

pytestmark = pytest.mark.req("ONE:serve")

EVE, ADA, BOB = "admin-horse-battery", "correct-horse-battery", "another-horse-battery"


class Place:
    """A server over one job that waits and two that gave up, and browsers that have signed in."""

    def __init__(
        self, folder: Path, tokens: FixedTokens | None = None, *, payloads: bool = True
    ) -> None:
        self.folder = folder
        fill_jobs(folder, waiting=1, dead=2)
        server = ServerSettings(payloads=payloads, operators=("ada",), admins=("eve",))
        self.sessions = Sessions(tokens, server.operators, admins=server.admins)
        plan = server_plan(server, backends_of(settings_in(folder)), tokens, sessions=self.sessions)
        self.app = build_app(plan)

    def signed_in(self, token: str = "") -> ConsoleClient:
        """A browser whose owner has signed in."""
        client = ConsoleClient(self.app)
        secret = token or self.sessions.issue_login_link()
        client.request("POST", "/console/sign-in", data={"token": secret})
        return client

    def jobs(self) -> JobClient:
        """A client of the store."""
        return JobClient(f"sqlite:///{self.folder}/work.db")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A server on this machine, without tokens, that shows arguments."""
    return Place(tmp_path)


def hidden(page: str, name: str) -> str:
    """A hidden field of a form."""
    found = re.search(rf'name="{name}" value="([^"]+)"', page)
    assert found is not None
    return found[1]


def edit(client: ConsoleClient, job: str = "d0", **fields: str) -> httpx.Response:
    """The form of the page, filled in and sent."""
    page = client.get(f"/console/edit/{job}").text
    known = {"secret": hidden(page, "secret"), "new_id": hidden(page, "new_id")}
    return client.request("POST", f"/console/edit/{job}", data={**known, **fields})


def test_a_dead_letter_goes_back_with_other_arguments(place: Place) -> None:
    """From the button of its page to that of the new job; each of the two leads to the other."""
    client = place.signed_in()
    assert 'href="/console/edit/d0"' in client.get("/console/jobs/d0").text
    answer = edit(client, args='["seen"]', reason="a wrong name")
    assert answer.status_code == 200
    assert "was stored in the place of the other one" in answer.text
    assert 'href="/console/jobs/d0"' in answer.text
    new = urlsplit(str(answer.url)).path.rpartition("/")[2]
    with place.jobs() as jobs:
        assert (jobs.show(new)["args"], jobs.status(new)) == (["seen"], "pending")
    old = client.get("/console/jobs/d0").text
    assert f'href="/console/jobs/{new}"' in old
    assert f"by local as the job {new}: a wrong name" in old
    assert "already" in client.get("/console/edit/d0").text


def test_a_form_that_is_sent_twice(place: Place) -> None:
    """The second time it leads to the same job, and stores none."""
    client = place.signed_in()
    page = client.get("/console/edit/d0").text
    fields = {"secret": hidden(page, "secret"), "new_id": hidden(page, "new_id"), "args": "[1]"}
    answers = [client.request("POST", "/console/edit/d0", data=fields) for _ in range(2)]
    assert answers[0].url == answers[1].url
    with place.jobs() as jobs:
        assert jobs.count(metadata={"edited_from": "d0"}) == 1


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"args": "[1,"}, "args is no JSON at line 1, column 4"),
        ({"args": '{"a": 1}'}, "args is not a JSON array"),
        ({"kwargs": "[]"}, "kwargs is not a JSON object"),
        ({"args": "[" * 50_000}, "args is nested too deeply"),
        ({"args": f"[{'9' * 5000}]"}, "args has a number too long"),
        ({"args": f'["{"x" * 1_100_000}"]'}, "the limit is 1,048,576"),
    ],
)
def test_what_is_no_argument(place: Place, fields: dict[str, str], told: str) -> None:
    """The form comes again with what was typed and what is wrong; nothing has been stored."""
    answer = edit(place.signed_in(), **fields, reason="a typo")
    assert answer.status_code == 422
    assert told in answer.text
    assert 'value="a typo"' in answer.text
    with place.jobs() as jobs:
        assert (jobs.count(), jobs.status("d0")) == (3, "failed")


def test_who_may_not_edit(tmp_path: Path) -> None:
    """Neither a stranger, nor a viewer, nor a form of another session or of another site."""
    place = Place(tmp_path, FixedTokens({"eve": EVE, "ada": ADA, "bob": BOB}))
    viewer, operator = place.signed_in(BOB), place.signed_in(ADA)
    assert viewer.get("/console/edit/d0").status_code == 403
    assert "/console/edit/" not in viewer.get("/console/jobs/d0").text
    page = operator.get("/console/edit/d0").text
    fields = {"secret": hidden(page, "secret"), "new_id": "n", "args": "[1]"}
    send = "POST", "/console/edit/d0"
    assert viewer.request(*send, data=fields).status_code == 403
    assert operator.request(*send, data={**fields, "secret": "x"}).status_code == 403
    foreign = {"Origin": "https://evil.example"}
    assert operator.request(*send, foreign, data=fields).status_code == 403
    assert ConsoleClient(place.app).request(*send, data=fields).url.path == "/console/sign-in"
    with place.jobs() as jobs:
        assert jobs.status("d0") == "failed"


def test_arguments_are_shown_on_request_and_told_of(place: Place) -> None:
    """The form is empty until somebody asks, and the audit log tells who did."""
    client = place.signed_in()
    page = client.get("/console/edit/d0").text
    assert "hidden&#34;" not in page
    assert "Show them" in page
    assert "[\n  &#34;hidden&#34;\n]" in client.get("/console/edit/d0?payloads=true").text
    client.get("/console/jobs/d0?payloads=true")
    told = client.get("/console/audit?format=json").json()["items"]
    assert [(each["actor"], each["action"], each["target"]) for each in told] == [
        ("local", "look", "d0")
    ] * 2


def test_arguments_that_the_server_does_not_show(tmp_path: Path) -> None:
    """Without payloads = true nobody sees them, and they can be replaced all the same."""
    place = Place(tmp_path, payloads=False)
    client = place.signed_in()
    assert "hidden&#34;" not in client.get("/console/edit/d0?payloads=true").text
    edit(client, kwargs='{"width": 3}')
    with place.jobs() as jobs:
        [new] = jobs.jobs(metadata={"edited_from": "d0"})
        shown = jobs.show(new.id)
    assert (shown["args"], shown["kwargs"]) == (["hidden"], {"width": 3})


def test_the_audit_log(place: Place) -> None:
    """Each action with actor, job and outcome: as a page, as JSON and as CSV, by filter."""
    client = place.signed_in()
    secret = hidden(client.get("/console/jobs/d0").text, "secret")
    for job in ("d0", "nowhere"):
        data = {"secret": secret, "action": "requeue", "id": job}
        client.request("POST", "/console/change", data=data)
    data = {"secret": secret, "action": "cancel", "sure": "yes", "queue": "mail", "reason": "old"}
    client.request("POST", "/console/change", data=data)
    found = client.get("/console/audit?format=json").json()["items"]
    told = [(e["action"], e["target"], e["outcome"], e["number"], e["detail"]) for e in found]
    assert told == [
        ("cancel", "", "done", 2, "queue=mail: old"),
        ("requeue", "nowhere", "refused", None, "not_found"),
        ("requeue", "d0", "done", None, ""),
    ]
    page = client.get("/console/audit?action=requeue&target=d0").text
    assert page.count("<tr>") == 2
    rows = client.get("/console/audit?format=csv&actor=local").text.splitlines()
    assert rows[0] == "id,at,actor,action,target,outcome,number,detail"
    assert len(rows) == 4
    assert client.get("/console/audit?actor=nobody&format=json").json()["items"] == []
    assert client.get("/console/audit?cursor=x").status_code == 422
    later = client.get("/console/audit?since=2100-01-01T00:00:00Z")
    assert "No entry matches" in later.text
    assert 'value="2100-01-01T00:00:00Z"' in later.text
    assert "write it like 2026" in client.get("/console/audit?since=soon").text
    assert 'href="/console/audit"' in page


def test_only_an_admin_reads_the_audit_log(tmp_path: Path) -> None:
    """It tells of people; an operator is told what would make him an admin."""
    place = Place(tmp_path, FixedTokens({"eve": EVE, "ada": ADA}))
    answer = place.signed_in(ADA).get("/console/audit")
    assert answer.status_code == 403
    assert "admins = [&#34;ada&#34;]" in answer.text
    admin = place.signed_in(EVE)
    assert admin.get("/console/audit").status_code == 200
    edit(admin, args="[1]")
    with place.jobs() as jobs:
        assert jobs.show("d0")["history"][-1]["by"] == "eve"


def test_what_cannot_be_told_is_not_done(place: Place) -> None:
    """Without a place for the audit log, no job is changed and no argument is shown."""
    client = place.signed_in()
    (place.folder / "ergon-audit.db").mkdir()
    answer = edit(client, args="[1]")
    assert answer.status_code == 503
    assert "nothing was done" in answer.text
    assert client.get("/console/jobs/d0?payloads=true").status_code == 503
    assert "audit log cannot be read" in client.get("/console/audit").text
    with place.jobs() as jobs:
        assert jobs.status("d0") == "failed"


def test_a_process_that_dies_in_between(tmp_path: Path) -> None:
    """The entry is there before the action and stays without an outcome, for others to read."""
    file = tmp_path / "audit.db"
    log = AuditLog(file, lambda: 1.0)

    def die() -> None:
        """At this moment the entry is on disk."""
        [entry] = AuditLog(file).find(AuditSearch(), 10)
        assert (entry.actor, entry.target, entry.outcome) == ("ada", "d0", "begun")
        raise SystemExit

    with pytest.raises(SystemExit):
        log.record("ada", "requeue", "d0", "", die)
    assert [each.outcome for each in log.find(AuditSearch(), 10)] == ["begun"]
    assert file.stat().st_mode & 0o077 == 0


def test_old_entries_go(tmp_path: Path) -> None:
    """The file does not grow without end."""
    log = AuditLog(tmp_path / "audit.db")
    log.seen("ada", "look", "first")
    with closing(sqlite3.connect(tmp_path / "audit.db")) as connection, connection:
        connection.execute("UPDATE sqlite_sequence SET seq = ?", (MOST,))
    log.seen("ada", "look", "last")
    assert [each.target for each in log.find(AuditSearch(), 10)] == ["last"]
