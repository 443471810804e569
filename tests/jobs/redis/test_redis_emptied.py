"""A store that was emptied, or put back to an earlier day, under the workers that use it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import redis

from ergon_framework.app.jobs import JobSetup
from ergon_framework.jobs.maintenance import Maintenance
from ergon_framework.jobs.scheduler import Scheduler, ScheduleSettings
from ergon_framework.jobs.settings import JobsSettings
from ergon_framework.jobs.settlement import Settler
from ergon_framework.ports.jobstore import WorkerRecord
from ergon_framework.testing.suites.drivers import HandClock
from tests.jobs.redis.conftest import Open
from tests.servers.redis import RedisServer

LEASE = 30.0
NIGHTLY = ScheduleSettings(cron="0 3 * * *", handler="nightly")
pytestmark = pytest.mark.req("SCALE:jobs-redis", "SCALE:fleet-outage")


class Clock(HandClock):
    """One that is asked as the worker asks its own."""

    def now(self) -> float:
        """What it says."""
        return self()


class EmptiedStoreCase:
    """The chores of a worker with a limit and a schedule in its settings."""

    def __init__(self, store: Any, clock: Clock) -> None:
        self.store, self.clock = store, clock
        given = {"lease": LEASE, "queues": {"images": {"max_active": 1}}}
        jobs = JobsSettings.model_validate(given)
        setup = JobSetup("", jobs, schedules={"nightly": NIGHTLY})
        setup.limit_queues(store)
        self.told: list[str] = []
        self.maintenance = Maintenance(
            store,
            jobs,
            Settler(jobs, "me"),
            lambda: WorkerRecord(id="me", host="here", pid=1, version="1", started_at=1.0),
            lambda _id, _fence: False,
            lambda name, _fields: self.told.append(name),
            Scheduler(store, setup.schedules),
            lambda: setup.limit_again(store),
            now=clock.now,
        )
        self.pass_time(0.0)

    def pass_time(self, seconds: float) -> None:
        """Let the worker do its chores after a while."""
        self.clock.forward(seconds)
        self.maintenance.run(self.clock.now())

    def kept(self) -> tuple[list[str], list[tuple[str, int | None]]]:
        """The schedules and the limits that the store knows."""
        schedules = [each.name for each in self.store.schedules()]
        return schedules, [(each.name, each.max_active) for each in self.store.queues()]


@pytest.fixture
def case(own_server: RedisServer, open_store: Open) -> tuple[EmptiedStoreCase, Any]:
    """With a clock that only the test moves, and a way to empty the store."""
    return EmptiedStoreCase(open_store(own_server.url), Clock()), own_server


def test_limits_and_schedules_are_written_again(
    case: tuple[EmptiedStoreCase, RedisServer], caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody has to start a worker anew for cron to go on and for limits to hold; it is told."""
    worker, server = case
    before = worker.kept()
    assert before == (["nightly"], [("images", 1)])
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
    assert worker.kept() == ([], [])
    worker.pass_time(LEASE / 3)
    worker.pass_time(1.0)
    assert worker.kept() == before
    assert worker.told == ["store.emptied"]
    assert "were written again: images, nightly" in caplog.text
    worker.pass_time(LEASE)
    assert worker.told == ["store.emptied"]


def test_what_an_operator_changed_stays(case: tuple[EmptiedStoreCase, RedisServer]) -> None:
    """Only a store that has forgotten the worker is given what the settings say."""
    worker, _ = case
    worker.store.set_queue("images", max_active=7)
    worker.maintenance.restart_all()
    worker.pass_time(LEASE)
    assert worker.kept()[1] == [("images", 7)]
    assert worker.told == []


def test_two_workers_with_one_name_are_told_of_and_alarm_nobody(
    case: tuple[EmptiedStoreCase, RedisServer], caplog: pytest.LogCaptureFixture
) -> None:
    """When one of them leaves, the record of both is gone, and the store has lost nothing."""
    worker, _ = case
    twin = WorkerRecord(id="me", host="there", pid=7, version="1", started_at=2.0)
    worker.store.heartbeat(twin)
    worker.pass_time(LEASE)
    worker.store.heartbeat(twin)
    worker.pass_time(LEASE)
    worker.store.heartbeat(msgspec.structs.replace(twin, state="gone"))
    assert worker.store.workers() == []
    worker.pass_time(LEASE)
    assert worker.told == []
    assert [each.id for each in worker.store.workers()] == ["me"]
    assert [record.getMessage() for record in caplog.records] == [
        "another worker on there, process 7, has the name 'me' as well: they are listed as one"
    ]
