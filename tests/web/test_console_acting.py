"""Changing jobs in the console: who may, what is asked once more, and what the history tells."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from ergon_framework.app.settings.sections import ServerSettings
from ergon_framework.jobs import JobClient
from ergon_framework.web.audit import AuditEntry, AuditLog, AuditSearch
from ergon_framework.web.backends import JobBackend, backends_of
from ergon_framework.web.routes import build_app, server_plan
from ergon_framework.web.sessions import LIFETIME, MAX_FAILURES, MINUTE, Sessions
from ergon_framework.web.tokens import FixedTokens
from tests.web.console_client import ConsoleClient
from tests.web.content import fill_jobs, settings_in

pytestmark = pytest.mark.req("ONE:serve")

ADA, BOB, WRONG = "correct-horse-battery", "another-horse-battery", "no-horse-battery"


class Place:
    """A server over three jobs that wait and two that gave up, and its sessions."""

    def __init__(self, folder: Path, tokens: FixedTokens | None = None) -> None:
        fill_jobs(folder, waiting=3, dead=2)
        self.url = f"sqlite:///{folder}/work.db"
        self.audit = folder / "ergon-audit.db"
        self.now = 0.0
        self.sessions = Sessions(tokens, ["ada"], lambda: self.now)
        backends = backends_of(settings_in(folder))
        plan = server_plan(ServerSettings(), backends, tokens, sessions=self.sessions)
        self.app = build_app(plan)

    def client(self) -> ConsoleClient:
        """A browser that nobody knows."""
        return ConsoleClient(self.app)

    def signed_in(self, token: str = "") -> ConsoleClient:
        """One that has signed in."""
        client = self.client()
        send(client, "sign-in", token=token or self.sessions.issue_login_link())
        return client

    def entries(self) -> list[AuditEntry]:
        """What the audit log has, the newest first."""
        return AuditLog(self.audit).find(AuditSearch(), 10)

    def statuses(self) -> dict[str, str]:
        """Where each job stands."""
        with JobClient(self.url) as jobs:
            return {job.id: job.status.value for job in jobs.jobs()}

    def why(self, job_id: str) -> str:
        """What the history of a job tells."""
        with JobClient(self.url) as jobs:
            return str(jobs.show(job_id)["history"])


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A server on this machine, without tokens."""
    return Place(tmp_path)


def send(
    client: ConsoleClient, path: str, headers: Mapping[str, str] | None = None, **fields: str
) -> httpx.Response:
    """A form, as a browser sends it."""
    return client.request("POST", f"/console/{path}", headers, data=fields)


def secret(client: ConsoleClient, path: str = "/console/jobs/d0") -> str:
    """What the forms of a page carry."""
    found = re.search(r'name="secret" value="([^"]+)"', client.get(path).text)
    assert found is not None
    return found[1]


def test_a_link_signs_one_browser_in(place: Place) -> None:
    """Looking at it uses nothing up; used, it is worth nothing, and there is word of that."""
    used: list[bool] = []
    place.sessions.when_used = lambda: used.append(True)
    once = place.sessions.issue_login_link()
    client = place.client()
    for _ in range(2):
        page = client.get(f"/console/sign-in?once={once}").text
        assert f'value="{once}"' in page
    assert used == []
    answer = send(client, "sign-in", token=once)
    assert answer.url.path == "/console"
    assert "Sign out" in answer.text
    assert used == [True]
    cookie = answer.history[0].headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    again = send(place.client(), "sign-in", token=once)
    assert again.status_code == 403
    assert "newest link" in again.text


def test_without_a_session_nothing_changes(place: Place) -> None:
    """Pages have no forms, and a form that is sent all the same is refused."""
    client = place.client()
    page = client.get("/console/jobs/d0").text
    assert "Sign in to act" in page
    assert 'action="/console/change"' not in page
    answer = send(client, "change", action="requeue", id="d0", secret="x")  # noqa: S106
    assert answer.status_code == 403
    assert place.statuses()["d0"] == "failed"


def test_requeue(place: Place) -> None:
    """One click; the history tells who did it, and the page says that it is done."""
    client = place.signed_in()
    answer = send(client, "change", action="requeue", id="d0", secret=secret(client))
    assert answer.url.path == "/console/jobs/d0"
    assert "The job was sent back." in answer.text
    assert place.statuses()["d0"] == "pending"
    assert "'event': 'requeued'" in place.why("d0")
    assert "'by': 'local'" in place.why("d0")
    assert "sent it back with fresh counters by local" in answer.text


def test_cancel_asks_once(place: Place) -> None:
    """With the consequence and a field for the reason, which the history keeps."""
    client = place.signed_in()
    mine = secret(client)
    asked = send(client, "change", action="cancel", id="w0", secret=mine)
    assert "Cancel 1 job?" in asked.text
    assert place.statuses()["w0"] == "pending"
    send(client, "change", action="cancel", id="w0", secret=mine, sure="yes", reason="a duplicate")
    assert place.statuses()["w0"] == "cancelled"
    assert "a duplicate" in place.why("w0")


def test_delete_asks_once(place: Place) -> None:
    """It is gone then, and the log says who has done it."""
    client = place.signed_in()
    mine = secret(client)
    send(client, "change", action="delete", id="d0", secret=mine)
    assert "d0" in place.statuses()
    answer = send(client, "change", action="delete", id="d0", secret=mine, sure="yes")
    assert (answer.status_code, answer.url.path) == (200, "/console/jobs")
    assert "The job was deleted." in answer.text
    assert "w0" in answer.text  # the rest of the list, not an error
    assert "d0" not in place.statuses()


def test_many_at_once_with_a_trial_first(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """The list has a form for what it shows; first it says how many, then it is done."""
    client = place.signed_in()
    assert "Requeue all that match" not in client.get("/console/jobs").text
    mine = secret(client, "/console/jobs?status=failed")
    tried = send(client, "change", action="requeue", status="failed", queue="mail", secret=mine)
    assert "Requeue 2 jobs?" in tried.text
    assert "Nothing has been changed yet" in tried.text
    assert place.statuses()["d0"] == "failed"
    with caplog.at_level("INFO", "ergon.web.audit"):
        done = send(client, "change", action="requeue", status="failed", secret=mine, sure="yes")
    assert "2 jobs were sent back" in done.text
    assert (place.statuses()["d0"], place.statuses()["d1"]) == ("pending", "pending")
    assert "local: requeue 2 jobs" in caplog.text


def test_many_only_of_the_states_that_allow_it(place: Place) -> None:
    """Without a state all that an action is for; with one that it is not for, an error."""
    client = place.signed_in()
    mine = secret(client)
    wrong = send(client, "change", action="requeue", status="pending", secret=mine, sure="yes")
    assert wrong.status_code == 422
    assert "choose failed" in wrong.text
    done = send(client, "change", action="cancel", secret=mine, sure="yes")
    assert "3 jobs were cancelled" in done.text
    assert place.statuses()["d0"] == "failed"


def test_an_empty_id_does_not_mean_all_jobs(place: Place) -> None:
    """A form whose id got lost is refused: without an id, the filter would choose every job."""
    client = place.signed_in()
    before = place.statuses()
    mine = secret(client)
    answer = send(client, "change", action="cancel", id="", secret=mine, sure="yes")
    assert (answer.status_code, "send the id of a job" in answer.text) == (422, True)
    assert place.statuses() == before


@pytest.mark.parametrize(
    ("path", "fields", "said"),
    [
        ("change", {"action": "nope"}, "form.action"),
        ("change", {"action": "cancel", "told": "-1", "sure": "yes"}, "form.told"),
        ("change", {"action": "cancel", "id": ""}, "form.id"),
        ("pause", {"action": "nope", "queue": "mail"}, "form.action"),
        ("flow", {"action": "nope", "id": "f"}, "form.action"),
    ],
)
def test_a_field_of_a_form_is_named_as_such(
    place: Place, path: str, fields: dict[str, Any], said: str
) -> None:
    """The address has no such parameter, in which one would look for the mistake."""
    client = place.signed_in()
    answer = send(client, path, None, secret=secret(client), **fields)
    assert answer.status_code == 422
    assert f"<code>{said}</code>" in answer.text


def test_what_the_state_forbids(place: Place) -> None:
    """A job that moved meanwhile: the page says what it is and what can be done."""
    client = place.signed_in()
    answer = send(client, "change", action="requeue", id="w0", secret=secret(client))
    assert answer.status_code == 409
    assert "only a dead-lettered job can" in answer.text


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "null"},
        {"Origin": "http://["},
    ],
)
def test_forms_of_other_sites(place: Place, headers: dict[str, str]) -> None:
    """They are refused, whatever cookie the browser brings along."""
    client = place.signed_in()
    mine = secret(client)
    answer = send(client, "change", headers, action="requeue", id="d0", secret=mine)
    assert answer.status_code == 403
    assert place.statuses()["d0"] == "failed"


def test_forms_of_another_session(place: Place) -> None:
    """Each session has a secret of its own."""
    first, second = place.signed_in(), place.signed_in()
    answer = send(first, "change", action="requeue", id="d0", secret=secret(second))
    assert answer.status_code == 403
    assert place.statuses()["d0"] == "failed"


def test_sessions_end(place: Place) -> None:
    """By signing out, and by themselves."""
    client = place.signed_in()
    assert "Sign out" in client.get("/console").text
    send(client, "sign-out")
    assert "Sign out" not in client.get("/console").text
    client = place.signed_in()
    place.now = LIFETIME
    assert "Sign out" not in client.get("/console").text


def test_nothing_else_takes_a_post(place: Place) -> None:
    """Neither the API, nor a form without its length, nor one that is too large."""
    client = place.signed_in()
    assert client.request("POST", "/api/v1/jobs", data={"a": "b"}).status_code == 405
    assert client.request("POST", "/console/jobs", data={"a": "b"}).status_code in (404, 405)
    assert send(client, "change", action="x" * 70_000).status_code == 413


@pytest.fixture
def guarded(tmp_path: Path) -> Place:
    """A server with two tokens, one of them of an operator."""
    return Place(tmp_path, FixedTokens({"ada": ADA, "bob": BOB}))


def test_a_stranger_is_led_to_the_door(guarded: Place) -> None:
    """The form is there with its looks, no figure is; programs get the status that they expect."""
    client = guarded.client()
    answer = client.get("/console/jobs")
    assert answer.url.path == "/console/sign-in"
    assert 'type="password"' in answer.text
    assert 'class="n' not in answer.text
    assert client.get("/console/static/console.css").status_code == 200
    assert client.get("/console/jobs", {"Accept": "application/json"}).status_code == 401
    assert client.get("/api/v1/jobs").status_code == 401


def test_an_operator_by_token(guarded: Place) -> None:
    """The session reads everything, and acts under the name of the token."""
    client = guarded.signed_in(ADA)
    assert client.get("/api/v1/jobs").status_code == 200
    send(client, "change", action="requeue", id="d0", secret=secret(client))
    assert "'by': 'ada'" in guarded.why("d0")


def test_a_viewer_by_token(guarded: Place) -> None:
    """Who is no operator reads, has no forms, and is told what would make him one."""
    client = guarded.signed_in(BOB)
    page = client.get("/console/jobs/d0").text
    assert "bob" in page
    assert 'action="/console/change"' not in page
    answer = send(client, "change", action="requeue", id="d0", secret="")
    assert answer.status_code == 403
    assert "operators = [&#34;bob&#34;]" in answer.text
    assert guarded.statuses()["d0"] == "failed"


def test_a_revoked_token_ends_its_sessions(tmp_path: Path) -> None:
    """At once, not when the session would have ended."""
    known = {"ada": ADA}

    class Changing:
        def caller(self, token: bytes) -> str | None:
            return FixedTokens(known).caller(token)

        def mark_of(self, name: str) -> bytes | None:
            return FixedTokens(known).mark_of(name)

    sessions = Sessions(Changing(), ["ada"])
    cookie = sessions.sign_in(ADA, "here")
    assert sessions.find(cookie) is not None
    known.clear()
    assert sessions.find(cookie) is None


def test_guessing_is_slow(guarded: Place) -> None:
    """After some wrong tokens nothing from that address is looked at, until a minute has passed."""
    client = guarded.client()
    for _ in range(MAX_FAILURES):
        assert "is no token" in send(client, "sign-in", token=WRONG).text
    assert "in a minute" in send(client, "sign-in", token=ADA).text
    guarded.now = MINUTE
    assert "Sign out" in send(client, "sign-in", token=ADA).text


def test_secrets_are_shown_nowhere(guarded: Place) -> None:
    """Not even to whoever prints a session."""
    cookie = guarded.sessions.sign_in(ADA, "here")
    session = guarded.sessions.find(cookie)
    assert session is not None
    assert ADA not in repr(session)
    assert session.form_secret not in repr(session)


# ---- queues and schedules ------------------------------------------------------------------------


def test_a_queue_is_paused_and_resumed(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """By an operator with a form of the session; the audit log tells of both."""
    client = place.signed_in()
    mine = secret(client, "/console/queues")
    with caplog.at_level("INFO", "ergon.web.audit"):
        answer = send(client, "pause", queue="mail", action="pause-queue", secret=mine)
    assert str(answer.url).endswith("/console/queues?name=mail&did=pause-queue")
    assert "The queue was paused" in answer.text
    assert "local: pause-queue the queue 'mail'" in caplog.text
    with JobClient(place.url) as jobs:
        assert [each.is_paused for each in jobs.store.look_at_queues(["mail", "pics"])] == [
            True,
            False,
        ]
    answer = send(client, "pause", queue="mail", action="resume-queue", secret=mine)
    assert "Resume<" not in answer.text
    entries = place.entries()
    assert [(each.action, each.detail, each.outcome) for each in entries] == [
        ("resume-queue", "the queue 'mail'", "done"),
        ("pause-queue", "the queue 'mail'", "done"),
    ]


def test_who_may_not_act_pauses_and_fires_nothing(place: Place) -> None:
    """A stranger's form, and one of another session, change nothing; pages show them no button."""
    stranger, client = place.client(), place.signed_in()
    assert "pause-queue" not in stranger.get("/console/queues").text
    assert "Enqueue its job now" not in stranger.get("/console/schedules").text
    for who in (stranger, client):
        for path, fields in (
            ("pause", {"queue": "mail", "action": "pause-queue"}),
            ("fire", {"schedule": "nightly"}),
            ("schedule", {"schedule": "nightly", "action": "delete-schedule", "sure": "yes"}),
        ):
            answer = send(who, path, {}, secret="x" * 20, **fields)
            assert answer.status_code == 403
    wrong = send(client, "pause", queue="mail", action="drop", secret=secret(client))
    assert wrong.status_code == 422
    assert "send pause-queue or resume-queue" in wrong.text
    with JobClient(place.url) as jobs:
        assert not jobs.store.look_at_queues(["mail"])[0].is_paused
    assert len(place.statuses()) == 5


def test_a_schedule_is_fired_now(place: Place) -> None:
    """Its job is stored and shown, and the next fire stays; one that is not there is an error."""
    client = place.signed_in()
    mine = secret(client, "/console/schedules")
    with JobClient(place.url) as jobs:
        before = jobs.schedules.put("hourly", "tidy", every=3600.0).next_at
    answer = send(client, "fire", schedule="hourly", secret=mine)
    assert "The schedule enqueued this job" in answer.text
    (job_id,) = place.statuses().keys() - {"w0", "w1", "w2", "d0", "d1"}
    assert answer.url.path == f"/console/jobs/{job_id}"
    with JobClient(place.url) as jobs:
        assert jobs.schedules.get("hourly").next_at == before
    missing = send(client, "fire", schedule="weekly", secret=mine)
    assert missing.status_code == 404
    assert [(each.action, each.outcome) for each in place.entries()] == [
        ("fire-schedule", "refused"),
        ("fire-schedule", "done"),
    ]


def test_nobody_is_asked_about_what_is_not_there(place: Place) -> None:
    """It says so at once; a field of a form that is wrong is named as one."""
    client = place.signed_in()
    mine = secret(client)
    for action in ("cancel", "delete"):
        answer = send(client, "change", action=action, id="nowhere", secret=mine)
        assert answer.status_code == 404
        assert "Nothing has been changed yet" not in answer.text
    gone = send(client, "flow", action="cancel", id="nowhere", secret=mine)
    assert gone.status_code == 404
    wrong = send(client, "change", action="requeue", status="pending", secret=mine)
    assert wrong.status_code == 422
    assert "<code>form.status</code>" in wrong.text
    assert place.entries() == []


def test_a_schedule_is_paused_resumed_and_deleted(place: Place) -> None:
    """A pause and its end undo each other; only to delete it is asked about."""
    client = place.signed_in()
    mine = secret(client, "/console/schedules")
    with JobClient(place.url) as jobs:
        jobs.schedules.put("hourly", "tidy", every=3600.0)
    form = {"schedule": "hourly", "secret": mine}
    paused = send(client, "schedule", None, action="pause-schedule", **form)
    assert paused.url.path == "/console/schedules"
    assert "The schedule was paused" in paused.text
    assert 'value="resume-schedule">Resume<span class="hidden"> hourly' in paused.text
    with JobClient(place.url) as jobs:
        assert jobs.schedules.get("hourly").is_paused
    send(client, "schedule", None, action="resume-schedule", **form)
    asked = send(client, "schedule", None, action="delete-schedule", **form)
    assert "Delete this schedule?" in asked.text
    assert "comes back with the next worker" in asked.text
    with JobClient(place.url) as jobs:
        assert not jobs.schedules.get("hourly").is_paused
    gone = send(client, "schedule", None, action="delete-schedule", sure="yes", **form)
    assert "The schedule was deleted" in gone.text
    with JobClient(place.url) as jobs:
        assert [each.name for each in jobs.schedules.all()] == ["nightly"]
    again = send(client, "schedule", None, action="delete-schedule", **form)
    assert again.status_code == 404  # nobody is asked about one that is not there
    assert send(client, "schedule", None, action="drop", **form).status_code == 422
    actions = [(each.actor, each.action, each.detail) for each in place.entries()]
    which = "the schedule 'hourly'"
    names = ("delete-schedule", "resume-schedule", "pause-schedule")
    assert actions == [("local", name, which) for name in names]


def test_what_may_be_done_all_the_same(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that is late may do it when nobody waits any more: whoever acts is told to look."""
    let_go, done = threading.Event(), threading.Event()
    open_at_once = JobBackend.writing

    @contextmanager
    def late(backend: JobBackend, **how: bool) -> Iterator[JobClient]:
        let_go.wait(60)
        with open_at_once(backend, **how) as client:
            yield client
        done.set()

    settings = settings_in(tmp_path, "[server]\ntimeout = 1\n")
    plan = server_plan(settings.server, backends_of(settings), None, sessions=place.sessions)
    client = ConsoleClient(build_app(plan))
    send(client, "sign-in", token=place.sessions.issue_login_link())
    mine = secret(client)
    monkeypatch.setattr(JobBackend, "writing", late)
    try:
        answer = send(client, "change", action="requeue", id="d0", secret=mine)
        assert answer.status_code == 503
        assert "before you ask again" in answer.text
        assert place.statuses()["d0"] == "failed"
        assert [each.outcome for each in place.entries()] == ["begun"]
    finally:
        let_go.set()
    assert done.wait(60)
    assert place.statuses()["d0"] == "pending"


def confirmed(client: ConsoleClient, page: str) -> httpx.Response:
    """Say yes to what a page asks: its form as a browser sends it."""
    form = page[page.index('<form class="filter below"') :]
    fields = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', form))
    [action] = re.findall(r'name="action" value="(\w+)"', form)
    return send(client, "change", None, action=action, **fields)


def test_what_came_after_the_question_is_left(place: Place) -> None:
    """Who has said yes to two jobs has said nothing about a third; the next form is about that."""
    client = place.signed_in()
    more = {"status": "pending", "queue": "mail", "secret": secret(client)}
    asked = send(client, "change", None, action="cancel", **more)
    assert "Cancel 2 jobs?" in asked.text
    assert 'href="/console/jobs?status=pending&amp;queue=mail">Leave them' in asked.text
    with JobClient(place.url) as jobs:
        jobs.enqueue("handle.mail", id="new", queue="mail")
    answer = confirmed(client, asked.text)
    assert "2 jobs were cancelled" in answer.text
    assert place.statuses() | {"new": "pending", "w0": "cancelled", "w2": "cancelled"} == (
        place.statuses()
    )
    assert place.entries()[0].number == 2
    assert "Cancel the rest" in answer.text
    rest = send(client, "change", None, action="cancel", **more)
    assert "Cancel 1 job?" in rest.text
    assert "1 job was cancelled" in confirmed(client, rest.text).text


def test_no_more_jobs_than_were_asked_about(place: Place) -> None:
    """An older job that comes to match is one too many: as many are left as were not said."""
    client = place.signed_in()
    with JobClient(place.url) as jobs:
        jobs.cancel("w0")
        asked = send(client, "change", None, action="cancel", queue="mail", secret=secret(client))
        assert "Cancel 1 job?" in asked.text
        jobs.retry("w0")
    assert "1 job was cancelled" in confirmed(client, asked.text).text
    for wrong in ("x", "-1", "9" * 30):
        more = {"secret": secret(client), "told": wrong, "sure": "yes"}
        answer = send(client, "change", None, action="cancel", queue="mail", **more)
        assert answer.status_code == 422
