"""Schedules that a program puts, pauses and deletes while workers run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ergon_framework.core.job import JobStatus
from ergon_framework.core.rfc3339 import parse_rfc3339
from ergon_framework.errors import JobError, JobNotFoundError
from ergon_framework.jobs.async_client import AsyncJobClient
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.scheduler import MAX_LOOK, Scheduler, ScheduleSettings
from ergon_framework.jobs.settings import JobsSettings
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.jobs.stores.sqlite import SqliteJobStore
from ergon_framework.ports.jobstore import Search
from ergon_framework.ports.unique import Unique

pytestmark = pytest.mark.req("JOBS:cron")
NOON = parse_rfc3339("2026-06-01T12:00:00Z")
HOUR = 3600.0


class Clock:
    """Shows what it is set to."""

    at = NOON

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock() -> Clock:
    """Noon."""
    return Clock()


@pytest.fixture(params=["memory", "sqlite"])
def client(request: pytest.FixtureRequest, clock: Clock, tmp_path: Path) -> Iterator[JobClient]:
    """Of an empty store that reads the clock."""
    store: Any
    if request.param == "memory":
        store = MemoryJobStore(clock)
    else:
        store = SqliteJobStore(tmp_path / "work.db", clock=clock)
    with JobClient(store=store) as made:
        yield made


def fire(client: JobClient, clock: Clock, *instants: float) -> None:
    """What a worker without schedules of its own does at these instants."""
    worker = Scheduler(client.store)
    for at in instants:
        clock.at = at
        worker.sync()
        worker.fire_due()


def ids(client: JobClient) -> list[str]:
    """All jobs, the first one first."""
    return [job.id for job in client.store.search(Search())][::-1]


def test_workers_fire_what_a_client_has_put(client: JobClient, clock: Clock) -> None:
    """No worker drops it, for it is in nobody's settings."""
    client.schedules.put("acme.sweep", "sweep", ["acme"], {"days": 3}, every=timedelta(hours=1))
    fire(client, clock, NOON + 1, NOON + HOUR, NOON + HOUR + 1)
    (job,) = client.store.search(Search())
    assert (job.id, job.handler) == ("acme.sweep@2026-06-01T13:00:00Z", "sweep")
    assert (job.args, job.kwargs) == (b'["acme"]', b'{"days":3}')
    (found,) = client.schedules.all()
    assert (found.next_at, found.last_at) == (NOON + 2 * HOUR, NOON + HOUR)


def test_a_fire_passes_while_a_job_of_the_same_key_holds_it(
    client: JobClient, clock: Clock
) -> None:
    """Also for a period after its end, and whoever enqueued it."""
    unique = Unique(fields=["day"], period=2.5 * HOUR)
    client.schedules.put(
        "sweep", "sweep", kwargs={"day": 1}, every=timedelta(hours=1), unique=unique
    )
    assert client.enqueue("sweep", kwargs={"day": 1}, unique=unique, id="mine").is_new
    fire(client, clock, NOON + 1, NOON + HOUR + 1, NOON + 2 * HOUR + 1)
    assert ids(client) == ["mine"]
    client.cancel("mine")
    fire(client, clock, NOON + 3 * HOUR + 1)
    assert ids(client) == ["mine", "sweep@2026-06-01T15:00:00Z"]


def test_putting_it_again_keeps_the_next_fire(client: JobClient, clock: Clock) -> None:
    """Its job changes; only other times plan it anew."""
    client.schedules.put("a", "old", cron="@hourly")
    clock.at = NOON + 1800
    assert client.schedules.put("a", "new", cron="@hourly").next_at == NOON + HOUR
    assert client.schedules.put("a", "new", cron="45 * * * *").next_at == NOON + 2700
    fire(client, clock, NOON + 2700)
    assert [job.handler for job in client.store.search(Search())] == ["new"]


def test_a_paused_one_stays_paused_until_it_is_resumed(client: JobClient, clock: Clock) -> None:
    """Putting it again does not resume it, and what it missed is not made up for."""
    client.schedules.put("a", "sweep", cron="@hourly")
    assert client.schedules.pause("a").is_paused
    assert client.schedules.put("a", "sweep", cron="@hourly", priority=3).is_paused
    fire(client, clock, NOON + HOUR, NOON + 2 * HOUR)
    assert ids(client) == []
    assert client.schedules.resume("a").next_at == NOON + 3 * HOUR
    fire(client, clock, NOON + 3 * HOUR)
    assert ids(client) == ["a@2026-06-01T15:00:00Z"]


def test_a_deleted_one_is_gone_and_its_jobs_stay(client: JobClient, clock: Clock) -> None:
    """Deleting it again says that it was not there."""
    client.schedules.put("a", "sweep", cron="@hourly")
    fire(client, clock, NOON + HOUR)
    assert [client.schedules.delete("a"), client.schedules.delete("a")] == [True, False]
    fire(client, clock, NOON + 2 * HOUR)
    assert ids(client) == ["a@2026-06-01T13:00:00Z"]
    client.schedules.put("abc", "sweep", cron="@hourly")
    with pytest.raises(JobNotFoundError, match="there is no schedule 'abd'") as raised:
        client.schedules.pause("abd")
    assert raised.value.remedy == "did you mean 'abc'?"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("sweep", "'shop.sweep' or 'thumbs.sweep'"),
        ("swep", "'shop.sweep' or 'thumbs.sweep'"),
        ("thumb.sweep", "'thumbs.sweep'"),
        ("other.rotate", "'thumbs.logs.rotate'"),
        ("logs.rotat", "'thumbs.logs.rotate'"),
        ("rotate", "'thumbs.logs.rotate'"),
        ("nigtly", "'nightly'"),
        ("x", ""),
    ],
)
def test_a_name_without_that_of_its_app_is_recognized(
    client: JobClient, typed: str, meant: str
) -> None:
    """People type what stands in the script; the store knows it behind the name of the App."""
    for name in ("thumbs.sweep", "shop.sweep", "thumbs.logs.rotate", "nightly"):
        client.schedules.put(name, "sweep", cron="@hourly")
    with pytest.raises(JobNotFoundError, match="there is no schedule") as raised:
        client.schedules.run(typed)
    told = f"did you mean {meant}?" if meant else "a worker stores those of its settings"
    assert raised.value.remedy == told


def test_nothing_fires_after_the_end(client: JobClient, clock: Clock) -> None:
    """A fire at the very end still counts; one that was missed before it is made up for."""
    end = datetime.fromtimestamp(NOON + 2 * HOUR, UTC)
    client.schedules.put("a", "sweep", cron="@hourly", ends_at=end)
    client.schedules.put("late", "sweep", cron="@hourly", ends_at="2026-06-01T13:30:00Z")
    fire(client, clock, NOON + HOUR, NOON + 2 * HOUR, NOON + 3 * HOUR)
    assert [each.rpartition("@")[2][11:13] for each in ids(client) if each[0] == "a"] == [
        "13",
        "14",
    ]
    problems = {each.schedule.name: each.problem for each in Scheduler(client.store).preview()}
    assert problems == {
        "a": "it ended at 2026-06-01T14:00:00Z",
        "late": "it ended at 2026-06-01T13:30:00Z",
    }
    later = client.schedules.put("a", "sweep", cron="@hourly", ends_at=NOON + 9 * HOUR)
    assert later.next_at == NOON + 4 * HOUR
    assert client.schedules.put("a", "sweep", cron="@hourly", ends_at=NOON).next_at is None


def test_a_fire_before_the_end_is_made_up_for_after_it(client: JobClient, clock: Clock) -> None:
    """No worker ran from before the last fire until after the end."""
    client.schedules.put("a", "sweep", cron="@hourly", ends_at=NOON + 1.5 * HOUR)
    fire(client, clock, NOON + 50 * HOUR)
    assert ids(client) == ["a@2026-06-01T13:00:00Z"]


def test_jitter_spreads_the_jobs_of_one_instant(client: JobClient, clock: Clock) -> None:
    """Each job is due within the jitter, at an instant that every worker computes alike."""
    for n in range(50):
        client.schedules.put(f"tenant-{n}", "sweep", cron="@hourly", jitter=60)
    fire(client, clock, NOON + HOUR)
    due = {job.id: job.run_at - clock.at for job in client.store.search(Search(), 50)}
    assert len(due) == 50
    assert all(0 <= seconds <= 60 for seconds in due.values())
    assert len({round(seconds) for seconds in due.values()}) > 20
    assert {each.next_at for each in client.schedules.all()} == {NOON + 2 * HOUR}


def test_more_schedules_than_one_look_takes_are_due(client: JobClient, clock: Clock) -> None:
    """A worker looks again at once until all have fired, and a broken one is in nobody's way."""
    count = 2 * MAX_LOOK + 5
    first = client.schedules.put("first", "sweep", cron="@hourly")
    for n in range(count - 1):
        client.store.put_schedule(msgspec.structs.replace(first, name=f"s{n}"))
    worker = Scheduler(client.store)
    worker.fire_due()
    clock.at = NOON + HOUR
    answers = [worker.fire_due() for _ in range(3)]
    assert answers == [clock.at, clock.at, NOON + 2 * HOUR]
    assert client.store.count(Search()) == count
    for n in range(MAX_LOOK):
        broken = msgspec.structs.replace(first, name=f"broken{n}", cron="?", next_at=NOON)
        client.store.put_schedule(broken)
    clock.at = NOON + 2 * HOUR
    for _ in range(2):
        worker.fire_due()
    assert client.store.count(Search()) == 2 * count


def test_each_fire_shows_its_job(client: JobClient, clock: Clock) -> None:
    """The newest first; a job that is gone leaves its fire."""
    client.schedules.put("a", "sweep", cron="@hourly")
    assert client.schedules.fires("a") == []
    fire(client, clock, NOON + HOUR, NOON + 2 * HOUR, NOON + 3 * HOUR)
    client.cancel("a@2026-06-01T14:00:00Z")
    found = client.schedules.fires("a", 3)
    assert [(each.at - NOON) / HOUR for each in found] == [3, 2, 1]
    assert [each.job and each.job.status for each in found] == [
        JobStatus.PENDING,
        JobStatus.CANCELLED,
        JobStatus.PENDING,
    ]
    assert client.schedules.fires("a", 4) == found  # there are no more
    client.store.purge([client.find("a@2026-06-01T14:00:00Z")])
    assert [each.job is None for each in client.schedules.fires("a")] == [False, True, False]
    assert len(client.schedules.fires("a", 1)) == 1


def test_running_one_now_leaves_its_fires_alone(client: JobClient, clock: Clock) -> None:
    """Its job is due at once, whatever the jitter."""
    client.schedules.put("a", "sweep", cron="@hourly", jitter=600)
    job = client.schedules.run("a")
    assert client.find(job).run_at == NOON
    assert client.schedules.get("a").next_at == NOON + HOUR


def test_what_workers_would_change_back_is_refused(client: JobClient, clock: Clock) -> None:
    """A schedule of the settings is changed in the settings, but anybody may pause it."""
    settings = {"report": ScheduleSettings(cron="@hourly", handler="report")}
    worker = Scheduler(client.store, settings, source="shop")
    worker.sync()
    with pytest.raises(JobError, match="'report' belongs to 'shop'"):
        client.schedules.put("report", "other", cron="@daily")
    assert client.schedules.get("report").cron == "@hourly"
    assert client.schedules.pause("report").is_paused


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"name": "a b"}, "name"),
        ({"name": ""}, "name"),
        ({"name": 7}, "name"),
        ({"cron": None}, "cron"),
        ({"every": 60}, "cron"),
        ({"cron": "0 25 * * *"}, "cron"),
        ({"timezone": "Europe/Atlantis"}, "zone"),
        ({"misfire": "maybe"}, "misfire"),
        ({"jitter": -1}, "jitter"),
        ({"jitter": float("nan")}, "jitter"),
        ({"ends_at": "tomorrow"}, "ends_at"),
        ({"ends_at": datetime(2030, 1, 1)}, "ends_at"),  # noqa: DTZ001 - that is what is wrong
        ({"priority": "high"}, "priority"),
        ({"delay": 5}, "delay"),
        ({"handler": b"sweep"}, "handler"),
        ({"args": [object()]}, "args"),
        ({"args": "abc"}, "args must be a list"),
        ({"args": None}, "args must be a list"),
        ({"args": {1: 2}}, "args must be a list"),
        ({"kwargs": [("a", 1)]}, "kwargs must be a dict"),
        ({"kwargs": "ab"}, "kwargs must be a dict"),
        ({"args": ["x" * 2_000_000]}, "args"),
    ],
)
def test_a_mistake_is_named_and_nothing_is_stored(
    fields: dict[str, Any], named: str, client: JobClient
) -> None:
    """The error says which field, and what to do."""
    wanted: dict[str, Any] = {"name": "a", "handler": "sweep", "cron": "@hourly"} | fields
    with pytest.raises(JobError, match=named) as raised:
        client.schedules.put(**wanted)
    assert raised.value.remedy
    assert client.schedules.all() == []


def test_an_event_loop_does_the_same(tmp_path: Path) -> None:
    """All of it, in another thread."""

    async def use() -> list[Any]:
        async with AsyncJobClient(f"sqlite:///{tmp_path}/work.db", settings=JobsSettings()) as own:
            await own.schedules.put("a", "sweep", cron="@hourly", jitter=5)
            assert (await own.schedules.get("a")).jitter == 5
            assert (await own.schedules.pause("a")).is_paused
            assert not (await own.schedules.resume("a")).is_paused
            job = await own.schedules.run("a")
            assert (await own.find(job)).handler == "sweep"
            assert await own.schedules.fires("a") == []
            assert [each.name for each in await own.schedules.all()] == ["a"]
            assert await own.schedules.delete("a")
            return await own.schedules.all()

    assert asyncio.run(use()) == []


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"ends_at": 1e300}, "ends_at.* lies outside of the years 1 to 9999"),
        ({"ends_at": 253_402_300_800.0}, "ends_at.* lies outside of the years 1 to 9999"),
        ({"jitter": 1e300}, "jitter.* must be at most 315619200"),
        ({"jitter": 1e9}, "jitter.* must be at most 315619200"),
    ],
)
def test_times_that_nobody_could_read_are_refused(
    client: JobClient, options: dict[str, Any], wrong: str
) -> None:
    """A date beyond the year 9999 would spoil the list of schedules, and the jobs of each fire."""
    with pytest.raises(JobError, match=wrong):
        client.schedules.put("odd", "h", every=60, **options)
    assert client.schedules.all() == []


@pytest.mark.parametrize("job", [b"{", b'{"handler":"tidy","args":["a"]}', b"[]"])
def test_a_schedule_whose_job_cannot_be_read(client: JobClient, job: bytes) -> None:
    """Firing it by hand is refused with a remedy, and nothing is enqueued."""
    schedule = client.schedules.put("nightly", "tidy", cron="0 3 * * *")
    client.store.put_schedule(msgspec.structs.replace(schedule, job=job))
    with pytest.raises(JobError, match="cannot be read") as refused:
        client.schedules.run("nightly")
    assert "put it again" in str(refused.value)
    assert client.count() == 0
