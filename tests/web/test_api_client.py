"""The Python client of the API, over a socket."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from ergon_framework.errors import ConfigurationError
from ergon_framework.jobs import JobClient
from ergon_framework.web.client import ApiClient, ApiError
from tests.web.content import fill_jobs, fill_zone, settings_in
from tests.web.serving import started

pytestmark = [pytest.mark.slow, pytest.mark.req("ONE:serve")]

ADA, BOB = "correct-horse-battery", "another-horse-battery"
SERVER = f"""[server]
port = 0
payloads = true
operators = ["ada"]
token = \"\"\"
ada: {ADA}
bob: {BOB}
\"\"\"
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with jobs, of which one has a slash in its id."""
    folder = tmp_path_factory.mktemp("api")
    settings_in(folder, SERVER)
    fill_jobs(folder, waiting=2, dead=2)
    fill_zone(folder)
    with JobClient(f"sqlite:///{folder}/work.db") as jobs:
        jobs.enqueue("h", id="a/b c", tags=["x"], metadata={"plan": "pro"})
    return folder


@pytest.fixture(scope="module")
def url(place: Path) -> Iterator[str]:
    """A server over it."""
    with started(place) as (_, line):
        yield line.split()[-1]


def test_everything_that_it_can(url: str) -> None:
    """Looking and changing, with typed answers; each failure says what and what to do."""
    client = ApiClient(url + "/", ADA)
    assert [each.id for each in client.jobs(status=["failed"], queue="mail")] == ["d1", "d0"]
    [found] = client.jobs(tag=["x"], metadata={"plan": "pro"})
    assert (found.id, found.tags, found.args) == ("a/b c", ["x"], None)
    assert client.job("a/b c", payloads=True).args == []
    assert client.why("d0")[0].startswith("It is dead-lettered")
    assert {each.name: each.counts["failed"] for each in client.queues()}["mail"] == 2
    assert client.cancel("a/b c", reason="old").status == "cancelled"
    assert client.retry("a/b c").status == "pending"
    assert client.requeue("d0").status == "pending"
    made = client.edit_and_requeue("d1", ["b.png"], new_id="n/1")
    assert (made.id, made.is_new) == ("n/1", True)
    assert not client.edit_and_requeue("d1", ["b.png"], new_id="n/1").is_new
    assert client.bulk("cancel", {"queue": "mail"}, dry_run=True).changed == 0
    assert client.bulk("cancel", {"metadata": ["edited_from=d1"]}, limit=5).changed == 1
    assert client.delete("n/1").status == "deleted"
    with pytest.raises(ApiError) as caught:
        client.requeue("n/1")
    assert (caught.value.status, caught.value.code) == (404, "not_found")
    with pytest.raises(ApiError) as caught:
        ApiClient(url, BOB).requeue("d0")
    assert caught.value.status == 403
    assert 'operators = ["bob"]' in (caught.value.remedy or "")
    assert ADA not in repr(client)


def test_flows(place: Path, url: str) -> None:
    """Looking at flows, and deciding about one."""
    with JobClient(f"sqlite:///{place}/work.db") as jobs:
        parts = (jobs.wait_for_signal("approved"), "ship")
        made = jobs.chain(*parts, name="order").enqueue()
    client = ApiClient(url, ADA)
    [found] = client.flows(status=["running"])
    assert (found.id, found.name, found.steps, found.why) == (made, "order", 2, [])
    assert client.flow(made).signals == ["approved"]
    sent = client.signal_flow(made, "approved", {"by": "Ada"}, reason="by phone")
    assert (sent.id, sent.action, sent.status) == (made, "signal", "running")
    assert client.cancel_flow(made).status == "cancelled"
    assert client.flow(made).actions == ["retry", "purge"]
    assert client.retry_flow(made).status == "running"
    with pytest.raises(ApiError, match="has nothing to skip") as caught:
        client.skip_flow(made)
    assert caught.value.status == 409
    client.cancel_flow(made)
    assert client.purge_flow(made).status == "purged"
    assert client.flows() == []
    with JobClient(f"sqlite:///{place}/work.db") as jobs:
        named = [jobs.chain("one", "two").enqueue() for _ in range(5)]
    assert [each.id for each in client.all_flows(page=2)] == named[::-1]
    assert [each.id for each in client.flows(limit=3)] == named[:1:-1]


def test_facts_that_were_set_aside(url: str) -> None:
    """One is released, then discarded, which cannot be taken back."""
    client = ApiClient(url, ADA)
    [found] = client.quarantine("plant-a", consumer="reader")
    told = (found.id, found.consumer_name, found.reason, found.message)
    assert told == (1, "reader", "bad", "cannot be read")
    assert client.release_fact("plant-a", found.id, reason="read again").state == "released"
    assert [each.id for each in client.quarantine("plant-a", state="released")] == [1]
    assert client.discard_fact("plant-a", found.id).state == "discarded"
    assert list(client.quarantine("plant-a")) == []
    with pytest.raises(ApiError, match="cannot become released") as caught:
        client.release_fact("plant-a", found.id)
    assert (caught.value.status, caught.value.code) == (409, "wrong_state")
    with pytest.raises(ApiError) as caught:
        ApiClient(url, BOB).discard_fact("plant-a", found.id)
    assert caught.value.status == 403


def test_queues_and_schedules(place: Path, url: str) -> None:
    """A queue is paused, whatever its name; a schedule is fired, paused and deleted."""
    client = ApiClient(url, ADA)
    assert client.pause_queue("a/../b").paused
    assert {each.name: each.paused for each in client.queues()}["a/../b"]
    assert not client.resume_queue("a/../b").paused
    with JobClient(f"sqlite:///{place}/work.db") as jobs:
        jobs.schedules.put("hourly", "tidy", every=3600.0)
    made = client.fire_schedule("hourly")
    assert (made.schedule, client.job(made.id).handler) == ("hourly", "tidy")
    assert client.pause_schedule("hourly").paused
    found = {each.name: each for each in client.schedules()}
    assert (found["hourly"].paused, found["hourly"].next_at) == (True, None)
    assert not client.resume_schedule("hourly").paused
    assert client.delete_schedule("hourly").deleted
    assert "hourly" not in {each.name for each in client.schedules()}
    with pytest.raises(ApiError) as caught:
        client.fire_schedule("never")
    assert caught.value.status == 404
    with pytest.raises(ApiError) as caught:
        ApiClient(url, BOB).pause_queue("mail")
    assert caught.value.status == 403


def test_what_does_not_answer() -> None:
    """A port where nobody listens, and an address that is none."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(ApiError, match="does not answer") as caught:
            ApiClient(f"http://127.0.0.1:{port}").queues()
    assert (caught.value.status, caught.value.code) == (0, "unreachable")
    for wrong in ("127.0.0.1:8400", "ftp://here", "http://"):
        with pytest.raises(ConfigurationError, match="not the address"):
            ApiClient(wrong)
