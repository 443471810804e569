"""``POST /api/v1/jobs/…``: who may act, what it does, and what is refused."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from ergon_framework.app.settings.sections import ServerSettings
from ergon_framework.core.claim import ClaimRequest
from ergon_framework.jobs import JobClient
from ergon_framework.web.audit import AuditLog, AuditSearch
from ergon_framework.web.backends import backends_of
from ergon_framework.web.middleware import MAX_EDIT_BODY
from ergon_framework.web.routes import build_app, server_plan
from ergon_framework.web.sessions import COOKIE, Sessions
from ergon_framework.web.tokens import FixedTokens
from tests.providers.asgi_client import HERE, ask
from tests.web.content import fill_jobs, settings_in

pytestmark = pytest.mark.req("ONE:serve")

ADA, BOB = "correct-horse-battery", "another-horse-battery"


class Api:
    """A server over three jobs that wait and two that gave up."""

    def __init__(self, folder: Path, tokens: FixedTokens | None) -> None:
        fill_jobs(folder, waiting=3, dead=2)
        self.folder = folder
        self.url = f"sqlite:///{folder}/work.db"
        server = ServerSettings(operators=("ada",))
        self.sessions = Sessions(tokens, server.operators)
        plan = server_plan(server, backends_of(settings_in(folder)), tokens, sessions=self.sessions)
        self.app = build_app(plan)

    def get(self, path: str, token: str = ADA) -> httpx.Response:
        """What is at a path of the server."""

        async def go() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, client=HERE)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as one:
                return await one.get(path, headers={"authorization": f"Bearer {token}"})

        return asyncio.run(go())

    def post(
        self,
        path: str,
        body: Any = None,
        token: str | None = ADA,
        at: str = "/api/v1/jobs",
        **headers: str,
    ) -> httpx.Response:
        """One request with a body of JSON."""
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        content = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        headers = {"content-type": "application/json", **headers}

        async def go() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, client=HERE)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as one:
                return await one.post(f"{at}{path}", content=content, headers=headers)

        return asyncio.run(go())

    def jobs(self) -> JobClient:
        """A client of the store."""
        return JobClient(self.url)

    def status(self, job_id: str) -> str:
        """Where a job stands."""
        with self.jobs() as jobs:
            return jobs.status(job_id).value


@pytest.fixture
def api(tmp_path: Path) -> Api:
    """A server with the tokens of an operator and of a viewer."""
    return Api(tmp_path, FixedTokens({"ada": ADA, "bob": BOB}))


def test_one_job_is_changed(api: Api) -> None:
    """Requeue, cancel, run now and delete; the history has who did it, and why."""
    assert api.post("/d0/requeue").json() == {"id": "d0", "action": "requeue", "status": "pending"}
    assert api.post("/d0/cancel", {"reason": "old"}).json()["status"] == "cancelled"
    assert api.post("/d0/retry").json()["status"] == "pending"
    with api.jobs() as jobs:
        told = [(each["event"], each["by"]) for each in jobs.show("d0")["history"][-3:]]
        assert jobs.show("d0")["history"][-2]["reason"] == "old"
    assert told == [("requeued", "ada"), ("cancelled", "ada"), ("requeued", "ada")]
    assert api.post("/d1/delete").json()["status"] == "deleted"
    assert api.post("/d1/delete").status_code == 404


def test_without_a_body(api: Api) -> None:
    """A reason is not needed, so no body is."""
    assert api.post("/d0/requeue", b"").json()["status"] == "pending"


def test_a_running_job_is_asked_to_end(api: Api) -> None:
    """It is active until its worker has ended it."""
    with api.jobs() as jobs:
        ask = ClaimRequest(worker="w", lease=60, slots={"python": 1}, default="python")
        [claimed] = jobs.store.settle_and_claim([], ask)[1].jobs
        assert api.post(f"/{claimed.id}/cancel").json()["status"] == "active"
        assert jobs.show(claimed.id)["cancel_requested"]["by"] == "ada"


def test_a_job_is_sent_back_with_other_arguments(api: Api) -> None:
    """The same request again makes no second job; another one is told what it became."""
    body = {"args": ["seen"], "reason": "a typo", "new_id": "new"}
    first, again = (api.post("/d0/edit-and-requeue", body).json() for _ in range(2))
    assert first == {"id": "new", "edited_from": "d0", "is_new": True}
    assert again == {**first, "is_new": False}
    other = api.post("/d0/edit-and-requeue", {"args": [1]})
    assert other.status_code == 409
    assert other.json()["details"]["became"] == "new"
    with api.jobs() as jobs:
        assert (jobs.count(), jobs.show("new")["args"]) == (6, ["seen"])


def test_many_are_counted_and_then_changed(api: Api) -> None:
    """With a filter as the list has it; nobody means all of them without saying so."""
    wanted = {"action": "requeue", "filter": {"queue": "mail"}}
    tried = api.post("/bulk", {**wanted, "dry_run": True}).json()
    assert tried == {"action": "requeue", "matched": 2, "changed": 0, "dry_run": True}
    assert api.status("d0") == "failed"
    assert api.post("/bulk", {**wanted, "limit": 1}).json()["changed"] == 1
    nothing = api.post("/bulk", {"action": "cancel", "filter": {}})
    assert nothing.status_code == 422
    assert nothing.json()["details"]["errors"][0]["field"] == "body.filter"
    both = api.post("/bulk", {**wanted, "all": True})
    assert "contradicts all" in both.json()["message"]
    wrong = api.post("/bulk", {"action": "requeue", "filter": {"status": ["pending"]}})
    assert wrong.status_code == 422
    done = api.post("/bulk", {"action": "cancel", "filter": {}, "all": True}).json()
    assert (done["matched"], done["changed"]) == (4, 4)


@pytest.mark.parametrize(
    ("path", "body", "status", "told"),
    [
        ("/w0/requeue", {}, 409, "only a dead-lettered job can"),
        ("/nowhere/requeue", {}, 404, "not_found"),
        ("/w0/cancel", {"reason": "x" * 1001}, 422, "body.reason"),
        ("/w0/cancel", {"why": "x"}, 422, "body.why"),
        ("/w0/cancel", b"{", 422, "invalid_request"),
        ("/w0/cancel", b'{"reason": "\xff"}', 422, "invalid_request"),
        ("/bulk", b"[" * 60_000, 422, "invalid_request"),
        ("/d0/edit-and-requeue", b'{"args": [' + b"9" * 5000 + b"]}", 422, "invalid_request"),
        ("/d0/edit-and-requeue", {"args": {}}, 422, "body.args"),
        ("/d0/edit-and-requeue", {"args": ["x" * 1_100_000]}, 422, "the limit is 1,048,576"),
        ("/d0/edit-and-requeue", b" " * (MAX_EDIT_BODY + 1), 413, "too_large"),
        ("/d0/edit-and-requeue", {"new_id": "w0"}, 409, "duplicate_job"),
        ("/w0/cancel", b" " * 70_000, 413, "too_large"),
        ("/bulk", {"action": "retry", "filter": {"queue": "mail"}}, 422, "body.action"),
        ("", {}, 405, "method_not_allowed"),
        ("/w0", {}, 405, "method_not_allowed"),
    ],
)
def test_what_is_refused(api: Api, path: str, body: Any, status: int, told: str) -> None:
    """With a status for each kind, what was wrong, and where; nothing has changed."""
    answer = api.post(path, body)
    assert answer.status_code == status, answer.text
    assert told in answer.text
    assert (api.status("w0"), api.status("d0")) == ("pending", "failed")


def test_who_may_act(tmp_path: Path, api: Api) -> None:
    """An operator with a token in a header: no viewer, no stranger, and no cookie by itself."""
    assert api.post("/d0/requeue", token=None).status_code == 401
    assert api.post("/d0/requeue", token="no-horse-battery-").status_code == 401  # noqa: S106
    viewer = api.post("/d0/requeue", token=BOB)
    assert viewer.status_code == 403
    assert 'operators = ["bob"]' in viewer.json()["details"]["remedy"]
    cookie = api.sessions.sign_in(ADA, "here")
    with_cookie = api.post("/d0/requeue", token=None, cookie=f"{COOKIE}={cookie}")
    assert with_cookie.status_code == 403
    assert "Bearer" in with_cookie.json()["details"]["remedy"]
    assert api.status("d0") == "failed"
    (tmp_path / "open").mkdir()
    free = Api(tmp_path / "open", None)  # on this machine, without tokens: only the console acts
    assert free.post("/d0/requeue", token=None).status_code == 403
    assert free.post("/d0/requeue", token=ADA).status_code == 403
    assert free.status("d0") == "failed"


def test_queues_and_schedules_through_the_api(api: Api) -> None:
    """Paused, resumed and fired as in the console, and told by the audit log."""
    paused = api.post("/pause", at="/api/v1/queues/mail").json()
    assert paused == {"queue": "mail", "paused": True}
    queues = api.get("/api/v1/queues").json()["items"]
    assert [each["name"] for each in queues if each["paused"]] == ["mail"]
    assert api.post("/resume", at="/api/v1/queues/mail").json()["paused"] is False
    with api.jobs() as jobs:
        jobs.schedules.put("hourly", "tidy", every=3600.0)
    fired = api.post("/fire", at="/api/v1/schedules/hourly").json()
    assert api.status(fired["id"]) == "pending"
    assert api.post("/fire", at="/api/v1/schedules/never").status_code == 404
    hourly = "/api/v1/schedules/hourly"
    assert api.post("/pause", at=hourly).json() == {"schedule": "hourly", "paused": True}
    with api.jobs() as jobs:
        assert jobs.schedules.get("hourly").is_paused
    assert api.post("/resume", at=hourly).json() == {"schedule": "hourly", "paused": False}
    assert api.post("/delete", at=hourly).json() == {"schedule": "hourly", "deleted": True}
    for name in ("pause", "resume", "delete"):
        assert api.post(f"/{name}", at=hourly).status_code == 404
        assert api.post(f"/{name}", token=BOB, at=hourly).status_code == 403
    assert api.post("/pause", token=BOB, at="/api/v1/queues/mail").status_code == 403
    assert api.post("/pause", token=None, at="/api/v1/queues/mail").status_code == 401
    found = AuditLog(api.folder / "ergon-audit.db").find(AuditSearch(actor="ada"), 10)
    done = [each.action for each in found if each.outcome == "done"]
    assert done == [
        *("delete-schedule", "resume-schedule", "pause-schedule", "fire-schedule"),
        *("resume-queue", "pause-queue"),
    ]


def test_a_queue_is_paused_before_its_first_job(tmp_path: Path) -> None:
    """What is answered is true: the tables are made for it, in a file that has none."""
    (tmp_path / "work.db").touch()
    server = ServerSettings(operators=("ada",))
    tokens = FixedTokens({"ada": ADA})
    plan = server_plan(server, backends_of(settings_in(tmp_path)), tokens)
    headers = {"authorization": f"Bearer {ADA}"}
    path = "/api/v1/queues/mail/pause"
    answer = ask(build_app(plan), path=path, method="POST", headers=headers)
    assert answer.json() == {"queue": "mail", "paused": True}
    with JobClient(f"sqlite:///{tmp_path}/work.db") as jobs:
        assert [each.name for each in jobs.store.queues() if each.is_paused] == ["mail"]


def test_the_audit_log_has_what_came_through_the_api(api: Api) -> None:
    """Under the name of the token, with what was refused as well."""
    api.post("/d0/requeue")
    api.post("/w0/requeue")
    api.post("/bulk", {"action": "delete", "filter": {"queue": "mail"}, "reason": "old"})
    found = AuditLog(api.folder / "ergon-audit.db").find(AuditSearch(actor="ada"), 10)
    assert [(each.action, each.target, each.outcome, each.detail) for each in found] == [
        ("delete", "", "done", "queue=mail: old"),
        ("requeue", "w0", "refused", "job_state"),
        ("requeue", "d0", "done", ""),
    ]


@pytest.mark.parametrize("field", ["queue", "handler"])
@pytest.mark.parametrize("text", [r"\ud800", r"a\u0000b"])
def test_a_filter_that_no_store_can_take(api: Api, field: str, text: str) -> None:
    """Half a character, or one that PostgreSQL has not, is a mistake of who asks."""
    body = f'{{"action": "cancel", "filter": {{"{field}": "{text}"}}}}'
    answer = api.post("/bulk", body.encode())
    assert answer.status_code == 422
    assert f"body.filter.{field}" in answer.text
    assert api.status("w0") == "pending"


def test_a_bulk_request_names_the_field_of_its_body(api: Api) -> None:
    """Not one of the query, which it has not."""
    answer = api.post("/bulk", {"action": "requeue", "filter": {"status": ["pending"]}})
    assert answer.status_code == 422
    [error] = answer.json()["details"]["errors"]
    assert error["field"] == "body.filter.status"
    answer = api.post("/bulk", {"action": "cancel", "filter": {"metadata": ["plan"]}})
    [error] = answer.json()["details"]["errors"]
    assert error["field"] == "body.filter.metadata"
