"""Many jobs are cancelled, rescheduled, deleted and sent back by a filter, slice by slice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.core.job import Succeeded
from ergon_framework.errors import JobError, JobStateError
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.store_urls import open_store
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.ports.jobstore import Search
from tests.jobs.manual_worker import BROKEN, SETTINGS, Clock, Hand

pytestmark = pytest.mark.req("JOBS:operator")


@pytest.fixture(params=["memory", "sqlite"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[JobClient]:
    """A client of a store."""
    is_file = request.param == "sqlite"
    store = open_store(f"sqlite:///{tmp_path}/w.db") if is_file else MemoryJobStore()
    with JobClient(store=store, settings=SETTINGS) as made:
        yield made


def test_what_waits_is_cancelled_in_slices(client: JobClient) -> None:
    """With who and why in each history; what runs or has another tag is left, and so is the end."""
    hand = Hand(client.store)
    runs = client.enqueue("h", tags=["x"])
    hand.claim()
    jobs = client.enqueue_many(["h"] * 450, tags=["x"])
    other = client.enqueue("h", tags=["y"])
    heard: list[int] = []
    done = client.cancel_many(tags=["x"], by="ann", reason="closed", progress=heard.append)
    assert (done, heard) == (450, [100, 200, 300, 400, 450])
    assert (runs.status(), other.status()) == ("active", "pending")
    assert client.count(tags=["x"], status="cancelled") == 450
    entry = client.show(jobs[7])["history"][-1]
    assert (entry["event"], entry["by"], entry["reason"]) == ("cancelled", "ann", "closed")
    assert client.cancel_many(tags=["x"]) == 0
    assert client.cancel_many(tags=["x"], running=True, by="bob") == 1
    asked = client.find(runs).cancel_request
    assert asked is not None
    assert asked.by == "bob"


def test_whoever_is_stopped_goes_on_later(client: JobClient) -> None:
    """Whole slices were changed, and the same call changes the rest."""
    client.enqueue_many(["h"] * 450, tags=["x"])

    def stop(_done: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        client.cancel_many(tags=["x"], progress=stop)
    assert client.count(status="cancelled") == 100
    assert client.cancel_many(tags=["x"], limit=150) == 150
    assert client.cancel_many(tags=["x"]) == 200
    assert client.count(status="cancelled") == 450


def test_what_waits_is_rescheduled() -> None:
    """To an instant, or in so many seconds; one that is tried again keeps its attempts."""
    clock = Clock()
    with JobClient(store=MemoryJobStore(clock), settings=SETTINGS) as client:
        hand = Hand(client.store)
        again = client.enqueue("h", queue="q", max_attempts=5)
        hand.run(BROKEN)
        fresh = client.enqueue("h", queue="q", delay=60)
        now = client.store.now()
        assert client.reschedule_many(queue="q", run_at=now + 500.0) == 2
        assert [client.find(job).run_at for job in (again, fresh)] == [now + 500.0] * 2
        found = client.find(again)
        assert (found.status, found.attempts) == ("retrying", 1)
        assert client.show(again)["history"][-1]["event"] == "rescheduled"
        client.reschedule(fresh, delay=5)
        assert client.find(fresh).run_at == now + 5.0
        assert client.reschedule_many(status="pending", run_at=now - 99.0) == 1
        assert hand.claim().id == fresh
        with pytest.raises(JobStateError, match="active and cannot be rescheduled"):
            client.reschedule(fresh, delay=1)


def test_steps_keep_their_rules(client: JobClient) -> None:
    """One that waits for others is not rescheduled, and none is deleted under its flow."""
    flow = client.chain({"handler": "a", "tags": ["x"]}, {"handler": "b", "tags": ["x"]}).enqueue()
    assert client.reschedule_many(tags=["x"], delay=0) == 1
    Hand(client.store).run(Succeeded(), 1)
    [done] = client.jobs(tags=["x"], status="completed")
    assert client.delete_many(tags=["x"]) == 0
    with pytest.raises(JobStateError, match="kept as long as its flow"):
        client.delete(done.id)
    assert client.cancel_many(tags=["x"]) == 1
    assert client.flow(flow).status() == "failed"


def test_what_has_ended_is_deleted(client: JobClient) -> None:
    """Of any end, and only that."""
    jobs = client.enqueue_many(["h"] * 3, tags=["x"])
    client.cancel(jobs[0])
    with pytest.raises(JobStateError, match="is pending and cannot be deleted"):
        client.delete(jobs[1])
    assert client.delete_many(tags=["x"], status=["cancelled", "pending"]) == 1
    assert [job.id for job in client.jobs()] == [jobs[2], jobs[1]]
    client.cancel(jobs[1])
    client.delete(jobs[1])
    assert client.count() == 1


def test_dead_letters_are_sent_back_by_a_filter(client: JobClient) -> None:
    """By the family of their error, for example."""
    for tag in ("x", "y"):
        client.enqueue("h", max_attempts=1, tags=[tag])
        Hand(client.store).run(BROKEN)
    assert client.requeue_many(error="timeout") == 0
    assert client.requeue_many(tags=["x"], error="defect") == 1
    assert client.requeue_many(Search(), tags=["y"]) == 1


@pytest.mark.parametrize(
    ("method", "words", "told"),
    [
        ("cancel_many", {}, "which jobs are meant"),
        ("delete_many", {"tags": None}, "which jobs are meant"),
        ("cancel_many", {"status": "failed"}, "a job that is failed cannot be cancelled"),
        ("delete_many", {"status": "active"}, "a job that is active cannot be deleted"),
        ("cancel_many", {"tag": "x"}, "no word 'tag'"),
        ("cancel_many", {"status": "happy"}, "status is not one of"),
        ("reschedule_many", {"tags": ["x"]}, "run_at or delay is wanted"),
        ("reschedule_many", {"tags": ["x"], "run_at": 9e12}, "more than ten years ahead"),
        ("reschedule_many", {"tags": ["x"], "delay": -1}, "delay is -1 seconds"),
    ],
)
def test_what_is_refused(method: str, words: dict[str, Any], told: str) -> None:
    """Nothing is changed by a mistake."""
    with JobClient(store=MemoryJobStore()) as client:
        client.enqueue("h", tags=["x"])
        with pytest.raises(JobError, match=told):
            getattr(client, method)(**words)
        assert client.count(status="pending") == 1


@pytest.mark.parametrize("word", ["ids", "tags", "status", "metadata"])
@pytest.mark.parametrize("method", ["cancel_many", "delete_many", "requeue_many"])
def test_a_list_of_nothing_does_not_mean_all(client: JobClient, method: str, word: str) -> None:
    """Whoever computes the jobs to change, and finds none, changes none."""
    client.enqueue_many(["h"] * 3)
    nothing: Any = {} if word == "metadata" else iter(()) if word == "ids" else []
    with pytest.raises(JobError, match=f"{word} is empty, which would match every job"):
        getattr(client, method)(**{word: nothing})
    assert client.count(status="pending") == 3


@pytest.mark.parametrize("limit", [1.5, -1, True, "2"])
def test_a_limit_is_a_whole_number(client: JobClient, limit: Any) -> None:
    """And nothing is changed otherwise."""
    client.enqueue("h")
    with pytest.raises(JobError, match="limit is no whole number"):
        client.cancel_many(handler="h", limit=limit)
    assert client.count(status="pending") == 1
