"""Two operators at once: one changes what another has deleted before the first is answered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.core.flow import CancelFlow
from ergon_framework.jobs import JobClient
from ergon_framework.jobs.flow_client import decide, purge_flow, send_signal
from ergon_framework.web.tokens import FixedTokens
from tests.web.test_action_routes import ADA, Api
from tests.web.test_console_acting import Place, secret, send
from tests.web.test_flow_actions import approval, form

pytestmark = pytest.mark.req("ONE:serve")


def then(do: Callable[..., Any], after: Callable[..., object]) -> Callable[..., Any]:
    """A function, behind which somebody else does something at once."""

    def both(*args: Any, **more: Any) -> Any:
        done = do(*args, **more)
        after(*args)
        return done

    return both


@pytest.fixture
def deleted_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each job that is cancelled is deleted by somebody else at once."""
    monkeypatch.setattr(JobClient, "cancel", then(JobClient.cancel, JobClient.delete))


@pytest.fixture
def deleted_flows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each flow that gets a signal is cancelled and deleted by somebody else at once."""

    def delete(store: Any, flow_id: str, *_: Any) -> None:
        decide(store, flow_id, CancelFlow())
        purge_flow(store, flow_id)

    sent = then(send_signal, delete)
    monkeypatch.setattr("ergon_framework.web.flow_actions.send_signal", sent)


@pytest.mark.usefixtures("deleted_jobs")
def test_a_job_that_was_cancelled_and_is_gone(tmp_path: Path) -> None:
    """It was cancelled: the log says so, the list of jobs says so, and the API calls it deleted."""
    place = Place(tmp_path)
    client = place.signed_in()
    mine = secret(client)
    answer = send(client, "change", action="cancel", id="w0", secret=mine, sure="yes")
    assert answer.status_code == 200, answer.text
    assert answer.url.path == "/console/jobs"
    assert "The job was cancelled." in answer.text
    assert [(each.target, each.outcome) for each in place.entries()] == [("w0", "done")]


@pytest.mark.usefixtures("deleted_jobs")
def test_the_api_says_that_it_is_deleted(tmp_path: Path) -> None:
    """As of one that it has deleted itself."""
    api = Api(tmp_path, FixedTokens({"ada": ADA}))
    answer = api.post("/w0/cancel")
    assert (answer.status_code, answer.json()["status"]) == (200, "deleted")


@pytest.mark.usefixtures("deleted_flows")
def test_a_flow_that_got_its_signal_and_is_gone(tmp_path: Path) -> None:
    """The signal was sent: the log says so, and the list of flows says so."""
    place = Place(tmp_path)
    client, flow = place.signed_in(), approval(place.url)
    answer = form(client, flow, "signal", signal="approved", value="true")
    assert answer.status_code == 200, answer.text
    assert answer.url.path == "/console/flows"
    assert "The signal was sent" in answer.text
    assert [each.outcome for each in place.entries()] == ["done"]
