"""Changing flows in the console and through the API: what is offered, done, asked and told."""

from __future__ import annotations

import asyncio
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from ergon_framework.core.flow import CancelFlow, FlowStatus
from ergon_framework.core.job import JobStatus
from ergon_framework.jobs import JobClient
from ergon_framework.jobs.flow_client import decide, flows_of
from ergon_framework.jobs.store_urls import open_store
from ergon_framework.ports.jobstore import Search
from ergon_framework.web.audit import AUDITED, OF_FLOWS, AuditLog, AuditSearch
from ergon_framework.web.backend_pool import BackendPool
from ergon_framework.web.backends import backends_of
from ergon_framework.web.flow_actions import FLOW_ACTIONS, FlowActions
from ergon_framework.web.job_actions import JobActions
from ergon_framework.web.tokens import FixedTokens
from tests.web.console_client import ConsoleClient
from tests.web.content import fill_jobs, settings_in
from tests.web.test_action_routes import Api
from tests.web.test_console_acting import Place, secret, send

pytestmark = pytest.mark.req("ONE:serve")

ADA, BOB = "correct-horse-battery", "another-horse-battery"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A server on this machine, without tokens."""
    return Place(tmp_path)


def held(url: str) -> str:
    """A flow of two steps, of which the first one was cancelled: somebody has to decide."""
    with JobClient(url) as jobs:
        flow = jobs.chain("pack", "ship", name="order", on_failure="hold").enqueue()
        jobs.cancel(f"{flow}.1")
        assert flow.status() is FlowStatus.HELD
        return str(flow)


def approval(url: str) -> str:
    """A flow that waits for a signal."""
    with JobClient(url) as jobs:
        signal = jobs.wait_for_signal("approved")
        return str(jobs.chain(signal, "ship", name="order").enqueue())


def status(url: str, flow: str) -> str:
    """Where a flow stands; ``gone`` for one that is not there."""
    with JobClient(url) as jobs:
        found = jobs.store.flows.find(flow)  # type: ignore[attr-defined]  # ours have them
        return "gone" if found is None else str(found.status)


def form(client: ConsoleClient, flow: str, action: str, **fields: str) -> httpx.Response:
    """The form of a flow's page, sent as a browser does."""
    found = re.search(r'name="secret" value="([^"]+)"', client.get("/console/jobs/d0").text)
    assert found is not None
    return send(client, "flow", None, secret=found[1], id=flow, action=action, **fields)


def test_a_held_flow_has_its_buttons(place: Place) -> None:
    """For who has signed in: retry, go on without, and cancel; nobody deletes one that is open."""
    flow = held(place.url)
    path = f"/console/flows/{flow}"
    assert 'action="/console/flow"' not in place.client().get(path).text
    client = place.signed_in()
    offered = re.findall(r'name="action" value="(\w+)"', client.get(path).text)
    assert offered == ["cancel", "skip", "retry"]
    answer = form(client, flow, "retry")
    assert answer.url.path == path
    assert "are tried again" in answer.text
    assert status(place.url, flow) == "running"
    assert "What was done to it here" in answer.text
    assert "retry-flow" in answer.text
    changes = client.get(f"{path}?format=json").json()["changes"]
    assert [(each["by"], each["action"], each["outcome"]) for each in changes] == [
        ("local", "retry-flow", "done")
    ]


@pytest.mark.parametrize(
    ("action", "after"), [("skip", "running"), ("cancel", "cancelled"), ("purge", "gone")]
)
def test_what_cannot_be_undone_asks_once(place: Place, action: str, after: str) -> None:
    """With the consequence; the reason stands in the audit log, which leads to the flow."""
    flow, client = held(place.url), place.signed_in()
    if action == "purge":
        form(client, flow, "cancel", sure="yes")
    before = status(place.url, flow)
    asked = form(client, flow, action)
    assert FLOW_ACTIONS[action].consequence in asked.text
    assert status(place.url, flow) == before
    answer = form(client, flow, action, sure="yes", reason="a duplicate")
    assert FLOW_ACTIONS[action].done in answer.text
    assert status(place.url, flow) == after
    entry = place.entries()[0]
    assert (entry.action, entry.target, entry.detail) == (f"{action}-flow", flow, "a duplicate")
    assert f'href="/console/flows/{flow}"' in client.get("/console/audit").text


def test_a_signal(place: Place) -> None:
    """Its name is offered; the value is a result, and stands in no log."""
    flow, client = approval(place.url), place.signed_in()
    assert "<option>approved</option>" in client.get(f"/console/flows/{flow}").text
    answer = form(client, flow, "signal", signal="approved", value='{"by": "Ada"}')
    assert "The signal was sent" in answer.text
    assert "<option>approved</option>" not in answer.text
    with JobClient(place.url) as jobs:
        assert jobs.show(f"{flow}.1")["result"] == {"by": "Ada"}
    [entry] = place.entries()
    assert (entry.action, entry.detail) == ("signal-flow", "the signal 'approved'")
    wrong = form(client, flow, "signal", signal="denied")
    assert wrong.status_code == 409
    assert "No step of the flow" in wrong.text
    assert place.entries()[0].outcome == "refused"


def test_a_page_that_is_stale(place: Place) -> None:
    """Who presses a button that another has pressed is led back to the flow, or to the job."""
    flow, client = held(place.url), place.signed_in()
    form(client, flow, "retry")
    again = form(client, flow, "retry")
    assert again.status_code == 409
    assert f'href="/console/flows/{flow}">The flow' in again.text
    assert "This page is also" not in again.text
    mine = {"secret": secret(client), "id": "d0"}
    send(client, "change", None, action="requeue", **mine)
    again = send(client, "change", None, action="requeue", **mine)
    assert again.status_code == 409
    assert 'href="/console/jobs/d0">The job' in again.text
    assert "This page is also" in client.get("/console/jobs/nowhere").text


def test_what_is_refused(place: Place) -> None:
    """A flow that is not there, one whose state does not allow it, and a word of nobody's."""
    flow, client = held(place.url), place.signed_in()
    assert form(client, "nowhere", "retry").status_code == 404
    assert form(client, flow, "purge", sure="yes").status_code == 409
    assert form(client, flow, "steal").status_code == 422
    foreign = {"Origin": "https://evil.example"}
    assert send(client, "flow", foreign, id=flow, action="retry").status_code == 403
    assert send(client, "flow", id=flow, action="retry", secret="x").status_code == 403  # noqa: S106
    assert send(place.client(), "flow", id=flow, action="retry").status_code == 403
    assert status(place.url, flow) == "held"


def test_a_viewer_changes_no_flow(tmp_path: Path) -> None:
    """He sees how it stands, and no button; a form that is sent all the same is refused."""
    place = Place(tmp_path, FixedTokens({"ada": ADA, "bob": BOB}))
    flow = held(place.url)
    viewer = place.signed_in(BOB)
    page = viewer.get(f"/console/flows/{flow}").text
    assert "It is held until somebody decides." in page
    assert 'action="/console/flow"' not in page
    assert send(viewer, "flow", id=flow, action="retry").status_code == 403
    assert 'value="retry"' in place.signed_in(ADA).get(f"/console/flows/{flow}").text


def test_the_audit_log_that_is_away_hides_no_flow(place: Place) -> None:
    """What was done is left out, and nothing is done."""
    flow, client = held(place.url), place.signed_in()
    place.audit.mkdir()
    assert client.get(f"/console/flows/{flow}?format=json").json()["changes"] is None
    assert client.get(f"/console/flows/{flow}").status_code == 200
    assert form(client, flow, "retry").status_code == 503
    assert status(place.url, flow) == "held"


# ---- the API -------------------------------------------------------------------------------------


@pytest.fixture
def api(tmp_path: Path) -> Api:
    """A server with the tokens of an operator and of a viewer."""
    return Api(tmp_path, FixedTokens({"ada": ADA, "bob": BOB}))


def test_flows_through_the_api(api: Api) -> None:
    """The same words as in the terminal, for who has a token; a list, and one of them."""
    flow = held(api.url)
    asked = api.get("/api/v1/flows?status=held").json()
    assert ([each["id"] for each in asked["items"]], asked["is_all"]) == ([flow], True)
    found = api.get(f"/api/v1/flows/{flow}").json()
    assert (found["status"], found["signals"]) == ("held", [])
    assert found["actions"] == ["retry", "skip", "cancel"]
    assert any("held until somebody decides" in each for each in found["why"])
    path = f"/api/v1/flows/{flow}"
    assert api.post("/retry", at=path).json() == {
        "id": flow,
        "action": "retry",
        "status": "running",
    }
    assert api.post("/purge", at=path).status_code == 409
    assert api.post("/cancel", {"reason": "old"}, at=path).json()["status"] == "cancelled"
    assert api.post("/purge", b"", at=path).json()["status"] == "purged"
    assert api.post("/purge", at=path).status_code == 404
    assert api.get(path).status_code == 404
    assert api.get("/api/v1/flows?status=asleep").status_code == 422
    assert api.get("/api/v1/flows?cursor=bm8").status_code == 422


def test_a_signal_through_the_api(api: Api) -> None:
    """Any JSON is its value; one that is larger than a job's arguments may be is refused."""
    flow = approval(api.url)
    path = f"/api/v1/flows/{flow}"
    assert api.get(path).json()["signals"] == ["approved"]
    body: Any = {"name": "approved", "value": ["x" * 1_100_000]}
    assert api.post("/signal", body, at=path).status_code == 422
    assert api.post("/signal", {"name": "denied"}, at=path).status_code == 409
    body = {"name": "approved", "value": ["x" * 100_000]}
    assert api.post("/signal", body, at=path).json()["status"] == "running"
    assert api.get(path).json()["signals"] == []


def test_who_may_change_flows(api: Api) -> None:
    """Nobody without a token of an operator in a header."""
    path = f"/api/v1/flows/{held(api.url)}"
    assert api.post("/retry", token=None, at=path).status_code == 401
    assert api.post("/retry", token=BOB, at=path).status_code == 403
    assert api.get(path).json()["status"] == "held"


def test_every_action_is_among_the_words_of_the_audit_log() -> None:
    """So that one can look for it."""
    assert {each.audited_as for each in FLOW_ACTIONS.values()} < set(OF_FLOWS) < set(AUDITED)


LEFT = {"cancel": (JobStatus.PENDING,), "purge": (JobStatus.CANCELLED,)}


class Ticks:
    """A clock that goes on by two seconds whenever somebody looks at it."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 2.0
        return self.now


STEPS = 2500
"""Of a flow that takes more slices than there is time for."""


@pytest.mark.parametrize("name", ["cancel", "purge"])
def test_a_request_ends_where_a_flow_is_large(tmp_path: Path, name: str) -> None:
    """After its three seconds it is answered, the rest is left, and workers end it."""
    fill_jobs(tmp_path, waiting=0)
    settings = settings_in(tmp_path)
    log = AuditLog()
    actions = JobActions(BackendPool(backends_of(settings), 10.0, audit=log))
    url = f"sqlite:///{tmp_path}/work.db"
    with JobClient(url) as jobs:
        flow = str(jobs.group([("thumb", [n]) for n in range(STEPS)]).enqueue())
        if name == "purge":
            decide(jobs.store, flow, CancelFlow())
    told = asyncio.run(FlowActions(actions, Ticks()).change(FLOW_ACTIONS[name], flow, "ada"))
    assert told == {"cancel": "cancelling", "purge": "purged"}[name]
    assert [each.outcome for each in log.find(AuditSearch(), 9)] == ["done"]
    with closing(open_store(url)) as store:
        left = store.count(Search(flow=flow, statuses=LEFT[name]))
        assert 0 < left < STEPS
        while store.count(Search(flow=flow, statuses=LEFT[name])):
            store.prune(1000)
            if name == "cancel":
                flows_of(store).sweep(flow)
        found = flows_of(store).find(flow)
    assert (None if found is None else found.status.value) == {"cancel": "cancelled"}.get(name)
