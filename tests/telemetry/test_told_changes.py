"""Changes of state that people make or that happen seldom: each is told, once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pytest

from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.scheduler import Scheduler, ScheduleSettings
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.ports.jobstore import Search
from ergon_framework.ports.notice import CATALOGUE, Notice
from ergon_framework.ports.providerstore import AttemptRow, LaneKey
from ergon_framework.providers.quota import QuotaLimiter, QuotaPolicy
from ergon_framework.providers.recorder import Recorder
from ergon_framework.providers.stores.memory import MemoryProviderStore
from ergon_framework.telemetry import add_listener, remove_listener
from tests.jobs.manual_worker import BROKEN, Clock, Hand

pytestmark = pytest.mark.req("ONE:notices")

LANE = LaneKey("t", "rank", "snapshot")
ROW = AttemptRow(
    *("r1", "t", None, "rank", "snapshot", "fetch", None, "order-9", 1, 3, 10, None),
    *("failed", "timeout", True, 504, 1.0),
)


@pytest.fixture
def heard() -> Iterator[list[Notice]]:
    """Every notice of the test, checked against the catalogue."""
    notices: list[Notice] = []
    add_listener(notices.append)
    try:
        yield notices
    finally:
        remove_listener(notices.append)
    for notice in notices:
        assert set(notice.fields) == set(CATALOGUE[notice.name].fields), notice


def names(heard: list[Notice]) -> list[str]:
    """What was told."""
    return [notice.name for notice in heard]


def test_jobs_that_people_move(heard: list[Notice]) -> None:
    """Enqueued, cancelled, requeued one by one or many at once, and purged."""
    with JobClient(store=MemoryJobStore(Clock())) as client:
        client.enqueue("h", id="a")
        client.cancel("a")
        assert not client.cancel("a")
        client.retry("a")
        client.cancel("a")
        for each in ("b", "c"):
            client.enqueue("h", id=each, max_attempts=1)
            Hand(client.store).run(BROKEN)
        client.requeue_many(Search(ids=("b",)))
        client.purge_many(Search())
        client.reschedule("b", delay=5)
        client.reschedule_many(ids=["b"], delay=9)
        client.cancel_many(ids=["b"])
        client.delete_many(ids=["b"])
    assert [(notice.name, notice.fields.get("job_id")) for notice in heard] == [
        ("job.enqueued", "a"),
        ("job.cancelled", "a"),
        ("job.requeued", "a"),
        ("job.cancelled", "a"),
        ("job.enqueued", "b"),
        ("job.enqueued", "c"),
        ("job.requeued", "b"),
        ("dead_letters.purged", None),
        ("job.rescheduled", "b"),
        ("job.rescheduled", "b"),
        ("job.cancelled", "b"),
        ("jobs.deleted", None),
    ]
    assert heard[-5].fields == {"kind": "job", "count": 1}
    assert heard[-1].fields == {"count": 1}


def test_a_job_that_is_there_already_is_not_enqueued(heard: list[Notice]) -> None:
    """Only what is new is told."""
    with JobClient(store=MemoryJobStore(Clock())) as client:
        for _ in range(2):
            client.enqueue("h", unique="same", on_duplicate="existing")
    assert names(heard) == ["job.enqueued"]


def test_enqueued_jobs_that_nobody_wants_to_hear_of() -> None:
    """No notice is made for a listener that passes over them, as the journal does."""
    listener = Mock(passes_over={"job.enqueued"})
    add_listener(listener)
    try:
        with JobClient(store=MemoryJobStore(Clock())) as client:
            client.enqueue("h")
    finally:
        remove_listener(listener)
    assert listener.call_count == 0


def test_a_schedule_that_fires(heard: list[Notice]) -> None:
    """Who moved it on tells it, with how many jobs and how late."""
    clock = Clock()
    store = MemoryJobStore(clock)
    scheduler = Scheduler(store, {"nightly": ScheduleSettings(every=60, handler="h")})
    scheduler.sync()
    scheduler.fire_due()
    assert names(heard) == []
    clock.now += 65
    scheduler.fire_due()
    (fired,) = heard
    assert (fired.name, fired["schedule"], fired["jobs"]) == ("schedule.fired", "nightly", 1)
    assert 0 <= fired["late"] <= 60


def test_a_quota_that_is_used_up(heard: list[Notice]) -> None:
    """It is told once in a window, however many are refused."""
    with closing(MemoryProviderStore()) as store:
        limiter = QuotaLimiter(store, LANE, QuotaPolicy(limit=1, window_seconds=3600))
        assert limiter.reserve() is not None
        for _ in range(3):
            assert limiter.reserve() is None
    (exhausted,) = heard
    assert (exhausted.name, exhausted["limit"]) == ("quota.exhausted", 1)
    assert 0 < exhausted["seconds"] <= 3600


def test_calls_that_end_badly(heard: list[Notice], tmp_path: Path) -> None:
    """A failure and a refusal are told when their rows are written; a retry and a success not."""
    with closing(MemoryProviderStore()) as store:
        recorder = Recorder(store, spill=tmp_path, is_threaded=False)
        recorder.add([ROW._replace(id="r0", outcome="retry"), ROW])
        recorder.add([ROW._replace(id="r2", outcome="success", reason_code=None)])
        recorder.add([ROW._replace(id="r3", attempt_number=0, reason_code="circuit_open")])
        assert recorder.drain()
        recorder.close()
    assert [(each.name, each["call_id"], each["reason_code"]) for each in heard] == [
        ("provider.failed", "order-9", "timeout"),
        ("provider.refused", "order-9", "circuit_open"),
    ]
