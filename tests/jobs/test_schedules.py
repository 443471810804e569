from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pytest
from pydantic import TypeAdapter, ValidationError

from ergon_framework.app.jobs import JobSetup
from ergon_framework.core.job import JobStatus, Transition
from ergon_framework.core.rfc3339 import format_rfc3339, parse_rfc3339
from ergon_framework.errors import StoreUnavailableError
from ergon_framework.jobs.scheduler import (
    ClockedScheduleStore,
    Scheduler,
    Schedules,
    ScheduleSettings,
    Synced,
    job_of,
    schedule_of,
)
from ergon_framework.jobs.settings import JobsSettings
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.jobs.stores.sqlite import SqliteJobStore
from ergon_framework.ports.jobstore import (
    JobAdmin,
    JobStore,
    OnDuplicate,
    Schedule,
    ScheduleStore,
    Search,
    Settlement,
)

NOON = parse_rfc3339("2026-06-01T12:00:00Z")
HOURLY = {"cron": "@hourly", "handler": "report"}


class Clock:
    """Shows what it is set to."""

    def __init__(self) -> None:
        self.at = NOON

    def __call__(self) -> float:
        return self.at


class Store(JobStore, JobAdmin, ScheduleStore, Protocol):
    """Everything."""


@pytest.fixture
def clock() -> Clock:
    """Noon."""
    return Clock()


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, clock: Clock, tmp_path: Path) -> Iterator[Store]:
    """An empty store that reads the clock."""
    opened: Store
    if request.param == "memory":
        opened = MemoryJobStore(clock)
    else:
        opened = SqliteJobStore(tmp_path / "work.db", clock=clock)
    yield opened
    opened.close()


def read(**table: Any) -> ScheduleSettings:
    """A table of ``[schedules]``."""
    return ScheduleSettings.model_validate(table)


def scheduler(
    store: ClockedScheduleStore, source: str = "settings", /, **tables: dict[str, Any]
) -> Scheduler:
    """A scheduler with these tables of ``[schedules]``."""
    settings = {name: read(**table) for name, table in tables.items()}
    return Scheduler(store, settings, source=source)


def ids(store: JobAdmin) -> list[str]:
    """All jobs, the first one first."""
    return [job.id for job in store.search(Search())][::-1]


def only(store: ScheduleStore) -> Schedule:
    """The one schedule there is."""
    (found,) = store.schedules()
    return found


def planned(store: ScheduleStore) -> str | None:
    """When the one schedule fires next, as time of the day."""
    at = only(store).next_at
    return None if at is None else format_rfc3339(at)[11:]


def refusal(**table: Any) -> str:
    """What is said about a table."""
    with pytest.raises(ValidationError) as caught:
        read(**table)
    return str(caught.value)


# ---- settings -----------------------------------------------------------------------------------


def test_a_table_with_everything() -> None:
    """Every key has its place in the record or in the job."""
    table = {
        "cron": " 30 4 * *  MON-FRI",
        "zone": "Europe/Berlin",
        "handler": "python#report",
        "args": ["weekly", 3],
        "kwargs": {"deep": {"width": 1.5}},
        "queue": "slow",
        "priority": -5,
        "timeout": 90,
        "max_attempts": 2,
        "misfire": "all",
        "unique": True,
    }
    record = schedule_of("weekdays", read(**table), "settings")
    assert (record.cron, record.zone) == ("30 4 * * MON-FRI", "Europe/Berlin")
    assert (record.misfire, record.source, record.next_at) == ("all", "settings", None)
    job = job_of(record, NOON)
    assert job.id == "weekdays@2026-06-01T12:00:00Z"
    assert (job.handler, job.executor, job.queue) == ("python#report", "python", "slow")
    assert (job.args, job.kwargs) == (b'["weekly",3]', b'{"deep":{"width":1.5}}')
    assert (job.priority, job.timeout, job.max_attempts) == (-5, 90.0, 2)
    assert (job.unique_key, job.on_duplicate) == ("schedule:weekdays", OnDuplicate.EXISTING)


def test_a_table_may_come_from_variables() -> None:
    """There everything is text, and lists and tables are JSON."""
    table = {"every": "1h30m", "args": "[1]", "kwargs": '{"a": null}', "paused": "TRUE"}
    settings = read(handler="report", timeout="none", **table)
    assert (settings.line, settings.args, settings.paused) == ("@every 5400s", [1], True)
    assert (settings.kwargs, settings.timeout) == ({"a": None}, None)


@pytest.mark.parametrize("every", [90, 90.0, "90", "90s", "1m30s"])
def test_an_interval_has_many_spellings(every: object) -> None:
    """Seconds as a number, or text with units."""
    assert read(every=every, handler="report").line == "@every 90s"


def test_arguments_stay_out_of_sight_and_cannot_be_changed() -> None:
    """What is in them may be nobody's business."""
    settings = read(**HOURLY, args=["s3cret"], kwargs={"key": "s3cret"})
    assert "s3cret" not in repr(settings)
    with pytest.raises(TypeError):
        settings.args.append(1)
    assert "s3cret" not in refusal(**HOURLY, args=["s3cret", date(2026, 1, 1)])


@pytest.mark.req("JOBS:cron", "JOBS:badinput")
@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({"handler": "x"}, "needs either cron or every"),
        ({"handler": "x", "cron": "@daily", "every": 5}, "needs either cron or every"),
        ({"cron": "@daily"}, "handler is missing"),
        ({"cron": "0 0 30 2 *", "handler": "x"}, "the cron line '0 0 30 2 *' never fires"),
        ({"cron": "0 25 * * *", "handler": "x"}, "the hour field '25'"),
        ({"every": 0, "handler": "x"}, "'0' is no interval"),
        ({"every": 0.5, "handler": "x"}, "'0.5' is no interval"),
        ({"every": True, "handler": "x"}, "'True' is no interval"),
        ({**HOURLY, "zone": "europe/berlin"}, "did you mean 'Europe/Berlin'?"),
        ({**HOURLY, "handler": ""}, "handler is empty"),
        ({**HOURLY, "handler": "a\nb"}, "handler holds the control character"),
        ({**HOURLY, "queue": "a\x00b"}, "queue holds the control character"),
        ({**HOURLY, "priority": 10**9}, "priority is 1000000000"),
        ({**HOURLY, "timeout": 0}, "timeout must be greater than 0"),
        ({**HOURLY, "max_attempts": 0}, "max_attempts must be at least 1"),
        ({**HOURLY, "misfire": "never"}, "misfire must be 'once', 'skip' or 'all'"),
        ({**HOURLY, "args": "no JSON"}, "args must be JSON"),
        ({**HOURLY, "args": [float("nan")]}, "finite numbers"),
        ({**HOURLY, "cronn": "x"}, "did you mean 'cron'?"),
    ],
)
def test_a_wrong_table_is_refused(table: dict[str, Any], problem: str) -> None:
    """At the edge, by the name of what is wrong."""
    assert problem in refusal(**table)


def test_the_section_checks_names() -> None:
    """A name becomes part of ids, so it is a plain word."""
    section: TypeAdapter[Any] = TypeAdapter(Schedules)
    assert section.validate_python({"nightly-1": HOURLY})["nightly-1"].line == "@hourly"
    for name in ("", "a b", "a@b", "x" * 101):
        with pytest.raises(ValidationError):
            section.validate_python({name: HOURLY})


# ---- settings and store -------------------------------------------------------------------------


@pytest.mark.req("JOBS:cron")
def test_the_store_follows_the_settings(store: Store) -> None:
    """What is new is put, what differs replaced, what is gone dropped."""
    first = scheduler(store, a=HOURLY, b=HOURLY, c=HOURLY)
    assert first.sync() == Synced(added=("a", "b", "c"))
    assert {schedule.next_at for schedule in store.schedules()} == {NOON + 3600}
    second = scheduler(store, a=HOURLY, b={**HOURLY, "queue": "slow"}, d=HOURLY)
    assert second.sync() == Synced(added=("d",), changed=("b",), dropped=("c",))
    assert [schedule.name for schedule in store.schedules()] == ["a", "b", "d"]


@pytest.mark.req("JOBS:cron")
def test_workers_with_the_same_settings_change_nothing(store: Store, clock: Clock) -> None:
    """The second to start, and the first after a fire, find everything in place."""
    scheduler(store, a=HOURLY, b={**HOURLY, "paused": True}).sync()
    assert scheduler(store, a=HOURLY, b={**HOURLY, "paused": True}).sync() == Synced()
    clock.at += 3600
    scheduler(store).fire_due()
    assert scheduler(store, a=HOURLY, b={**HOURLY, "paused": True}).sync() == Synced()


@pytest.mark.req("JOBS:cron")
def test_schedules_of_other_settings_are_left_alone(store: Store) -> None:
    """Two applications may share a store."""
    scheduler(store, "shop", a=HOURLY).sync()
    assert scheduler(store, "bank", b=HOURLY).sync() == Synced(added=("b",))
    assert scheduler(store, "bank").sync() == Synced(dropped=("b",))
    assert only(store).name == "a"


@pytest.mark.req("JOBS:cron")
def test_whoever_drops_a_schedule_says_so(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """It may be that of somebody whose settings have the same path."""
    scheduler(store, "/app/ergon.toml", invoices=HOURLY).sync()
    scheduler(store, "/app/ergon.toml", stock=HOURLY).sync()
    assert only(store).name == "stock"
    assert "'invoices' is gone from '/app/ergon.toml', and is dropped" in caplog.text
    assert "[jobs] application" in caplog.text


@pytest.mark.req("JOBS:cron")
def test_schedules_belong_to_an_application_that_has_a_name(store: Store, tmp_path: Path) -> None:
    """Two of them may have their settings at one path, and one of them at many."""
    file = tmp_path / "ergon.toml"

    def begin(application: str, file: Path, *names: str) -> Synced:
        jobs = JobsSettings(application=application)
        setup = JobSetup("", jobs, file=file)
        return scheduler(store, setup.source, **dict.fromkeys(names, HOURLY)).sync()

    assert begin("shop", file, "invoices", "mail") == Synced(added=("invoices", "mail"))
    assert begin("stock", file, "count") == Synced(added=("count",))
    assert begin("shop", tmp_path / "v2" / "ergon.toml", "mail") == Synced(dropped=("invoices",))
    assert [schedule.name for schedule in store.schedules()] == ["count", "mail"]
    assert JobSetup("", file=file).source == str(file.resolve())
    with pytest.raises(ValidationError):
        JobsSettings(application="/app")


@pytest.mark.req("JOBS:cron")
def test_settings_that_have_moved_take_their_schedules_over(store: Store) -> None:
    """A name another source has is taken over with its next fire; the rest of it stays."""
    scheduler(store, "old.toml", report=HOURLY, other=HOURLY).sync()
    before = {each.name: each for each in store.schedules()}
    scheduler(store, "new.toml", report=HOURLY).sync()
    after = {each.name: each for each in store.schedules()}
    assert after["report"] == msgspec.structs.replace(before["report"], source="new.toml")
    assert after["other"] == before["other"]


@pytest.mark.req("JOBS:cron")
@pytest.mark.parametrize(
    ("change", "next_fire"),
    [
        ({"cron": "30 * * * *"}, "12:30:00Z"),
        ({"cron": "0 18 * * *"}, "18:00:00Z"),
        ({"cron": "0 18 * * *", "zone": "Europe/Berlin"}, "16:00:00Z"),
    ],
)
def test_new_times_make_a_new_plan(store: Store, change: dict[str, str], next_fire: str) -> None:
    """The next fire is that of the new line, and of the new zone."""
    scheduler(store, a=HOURLY).sync()
    assert scheduler(store, a={**HOURLY, **change}).sync() == Synced(changed=("a",))
    assert planned(store) == next_fire


@pytest.mark.req("JOBS:cron")
def test_another_job_keeps_the_plan(store: Store, clock: Clock) -> None:
    """A release that comes after a stop makes up for missed fires with the new job."""
    scheduler(store, a=HOURLY).sync()
    clock.at += 5400
    worker = scheduler(store, a={**HOURLY, "handler": "report2", "misfire": "all"})
    worker.sync()
    assert planned(store) == "13:00:00Z"
    worker.fire_due()
    (job,) = store.search(Search())
    assert (job.id, job.handler) == ("a@2026-06-01T13:00:00Z", "report2")


@pytest.mark.req("JOBS:cron")
def test_what_passes_in_a_pause_is_not_made_up_for(store: Store, clock: Clock) -> None:
    """A paused schedule does not fire, and goes on with the next fire afterwards."""
    scheduler(store, a=HOURLY).sync()
    paused = scheduler(store, a={**HOURLY, "paused": True})
    assert paused.sync() == Synced(changed=("a",))
    clock.at += 3 * 3600 + 60
    assert paused.fire_due() is None
    resumed = scheduler(store, a=HOURLY)
    resumed.sync()
    assert resumed.fire_due() == NOON + 4 * 3600
    assert ids(store) == []


def test_a_pause_by_hand_holds_too(store: Store, clock: Clock) -> None:
    """Whoever paused the record: it does not fire."""
    worker = scheduler(store, a=HOURLY)
    worker.sync()
    store.put_schedule(msgspec.structs.replace(only(store), is_paused=True))
    clock.at += 7200
    worker.sync()  # a worker that starts meanwhile does not undo it
    assert worker.fire_due() is None
    assert ids(store) == []


# ---- firing -------------------------------------------------------------------------------------


@pytest.mark.req("JOBS:cron")
def test_a_fire_becomes_a_job(store: Store, clock: Clock) -> None:
    """Not before its time, once, what was due first before the rest, and the next one is known."""
    worker = scheduler(store, a={**HOURLY, "args": [1]}, b={"every": "45m", "handler": "tick"})
    worker.sync()
    assert worker.fire_due() == NOON + 45 * 60
    assert ids(store) == []
    clock.at = NOON + 3600
    assert worker.fire_due() == NOON + 90 * 60
    assert worker.fire_due() == NOON + 90 * 60
    assert ids(store) == ["b@2026-06-01T12:45:00Z", "a@2026-06-01T13:00:00Z"]
    job = store.find("a@2026-06-01T13:00:00Z")
    assert job is not None
    assert (job.status, job.args, job.run_at) == (JobStatus.PENDING, b"[1]", clock.at)


def test_without_schedules_nobody_needs_to_come_back(store: Store) -> None:
    """An empty store is not worth waking up for."""
    assert scheduler(store).fire_due() is None


@pytest.mark.req("JOBS:cron")
def test_one_fire_is_one_job_however_many_workers_there_are(store: Store, clock: Clock) -> None:
    """Threads that all see the same fires due: each fire wins once."""
    tables = {f"s{n}": {"every": 60, "handler": "tick"} for n in range(5)}
    workers = [scheduler(store, **tables) for _ in range(8)]
    rounds, failures = 10, list[BaseException]()
    start = threading.Barrier(len(workers) + 1, timeout=30)
    end = threading.Barrier(len(workers) + 1, timeout=30)

    def work(worker: Scheduler) -> None:
        try:
            worker.sync()
            for _ in range(rounds):
                start.wait()
                while (at := worker.fire_due()) is not None and at <= clock():
                    pass
                end.wait()
        except BaseException as error:
            failures.append(error)
            start.abort()
            raise

    threads = [threading.Thread(target=work, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    for n in range(rounds):
        start.wait()
        end.wait()
        clock.at = NOON + 60 * (n + 1)
    for thread in threads:
        thread.join(30)
    assert not failures
    fired = [format_rfc3339(NOON + 60 * n) for n in range(1, rounds)]
    assert sorted(ids(store)) == sorted(f"{name}@{at}" for name in tables for at in fired)


class Overtaken(MemoryJobStore):
    """While one worker looks at the schedules, another fires them."""

    def schedules(self) -> list[Schedule]:
        found = super().schedules()
        for schedule in found:
            if schedule.next_at is not None and schedule.next_at <= self.now():
                self.fire(schedule.name, schedule.next_at, schedule.next_at + 3600, [])
        return found


@pytest.mark.req("JOBS:cron")
def test_a_worker_that_was_overtaken_looks_again(clock: Clock) -> None:
    """It adds nothing, and comes back at once: the other may have seen another clock."""
    store = Overtaken(clock)
    worker = scheduler(store, a=HOURLY)
    worker.sync()
    clock.at += 3600
    assert worker.fire_due() == clock.at
    assert worker.fire_due() == NOON + 7200
    assert ids(store) == []


@pytest.mark.req("JOBS:cron")
@pytest.mark.parametrize(
    ("misfire", "hours"),
    [("once", [11]), ("skip", []), ("all", list(range(13, 24)) + list(range(12)))],
)
def test_after_a_long_stop(
    store: Store,
    clock: Clock,
    misfire: str,
    hours: list[int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The policy decides about what was missed; the log tells of it; the next fire is on time."""
    worker = scheduler(store, a={**HOURLY, "misfire": misfire})
    worker.sync()
    clock.at = NOON + 23 * 3600 + 600
    assert worker.fire_due() == NOON + 24 * 3600
    assert [int(name[13:15]) for name in ids(store)] == hours
    assert (
        f"'a' was due at 2026-06-01T13:00:00Z, 79800 s ago; misfire is {misfire!r}" in caplog.text
    )
    clock.at = NOON + 24 * 3600
    worker.fire_due()
    assert ids(store)[len(hours) :] == ["a@2026-06-02T12:00:00Z"]


@pytest.mark.req("JOBS:cron")
def test_all_has_an_end(store: Store, clock: Clock) -> None:
    """A year of seconds does not flood the queue."""
    worker = scheduler(store, a={"every": 1, "handler": "tick", "misfire": "all"})
    worker.sync()
    clock.at += 365 * 86_400
    assert worker.fire_due() == clock.at + 1
    assert len(ids(store)) == 100
    assert ids(store)[-1] == "a@2027-06-01T12:00:00Z"


@pytest.mark.req("JOBS:cron")
def test_a_clock_that_is_set_back_repeats_nothing(store: Store, clock: Clock) -> None:
    """Until it has caught up, nothing is due; a new line is planned from what has fired."""
    worker = scheduler(store, a=HOURLY)
    worker.sync()
    clock.at = NOON + 3600
    worker.fire_due()
    clock.at = NOON + 3600 - 1800
    assert worker.fire_due() == NOON + 7200
    clock.at = NOON + 3600
    assert worker.fire_due() == NOON + 7200
    assert ids(store) == ["a@2026-06-01T13:00:00Z"]
    clock.at = NOON + 1800
    scheduler(store, a={**HOURLY, "cron": "*/30 * * * *"}).sync()
    assert planned(store) == "13:30:00Z"


@pytest.mark.req("JOBS:cron")
@pytest.mark.parametrize("ahead", [2 * 86_400, 10 * 365 * 86_400])
def test_a_clock_that_was_far_ahead_stops_no_schedule(
    ahead: int, store: Store, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """It fired by the wrong clock, and would wait until that is right; it begins anew instead."""
    worker = scheduler(store, a=HOURLY)
    worker.sync()
    clock.at = NOON + ahead + 60
    worker.fire_due()
    [wrong] = ids(store)
    clock.at = NOON + 120
    assert worker.fire_due() == NOON + 3600
    assert worker.fire_due() == NOON + 3600
    assert caplog.text.count("the clock was set back") == 1
    clock.at = NOON + 3600
    assert worker.fire_due() == NOON + 7200
    assert sorted(ids(store)) == sorted([wrong, "a@2026-06-01T13:00:00Z"])
    clock.at = NOON + 1800
    assert worker.fire_due() == NOON + 7200  # by less than a day: nothing happens twice


@pytest.mark.req("JOBS:cron")
def test_a_plan_that_was_put_back_adds_no_job_again(store: Store, clock: Clock) -> None:
    """A worker that starts while another fires may write the old plan: ids catch that."""
    worker = scheduler(store, a=HOURLY)
    worker.sync()
    old = only(store)
    clock.at += 3600
    worker.fire_due()
    store.put_schedule(old)
    assert worker.fire_due() == NOON + 7200
    assert ids(store) == ["a@2026-06-01T13:00:00Z"]


@pytest.mark.req("JOBS:cron")
def test_a_unique_schedule_waits_for_its_former_job(store: Store, clock: Clock) -> None:
    """While that has not ended, fires pass by; afterwards they are jobs again."""
    worker = scheduler(store, a={**HOURLY, "unique": True}, b=HOURLY)
    worker.sync()
    for _ in range(2):
        clock.at += 3600
        worker.fire_due()
    assert [name for name in ids(store) if name[0] == "a"] == ["a@2026-06-01T13:00:00Z"]
    assert len(ids(store)) == 3
    end(store, "a@2026-06-01T13:00:00Z")
    clock.at += 3600
    worker.fire_due()
    assert "a@2026-06-01T15:00:00Z" in ids(store)


def end(store: Store, job_id: str) -> None:
    """Cancel a job."""
    job = store.find(job_id)
    assert job is not None
    move = Transition(JobStatus.CANCELLED, "cancelled", 0, 0, 0.0, None, "")
    settlement = Settlement(
        key=job.key, id=job.id, fence=job.fence, expected=job.status, transition=move, entry=b"{}"
    )
    assert store.settle_and_claim([settlement], None)[0] == [True]


@pytest.mark.req("JOBS:cron")
@pytest.mark.parametrize(
    ("night", "fired"),
    [
        ("2026-03-29", ["daily@2026-03-29T01:00:00Z"]),
        ("2026-10-25", ["daily@2026-10-25T00:30:00Z"]),
    ],
)
def test_the_nights_in_which_the_clock_is_set(
    store: Store, clock: Clock, night: str, fired: list[str]
) -> None:
    """Half past two in Berlin is once in each of these nights."""
    clock.at = parse_rfc3339(f"{night}T00:00:00Z") - 7200
    table = {"cron": "30 2 * * *", "zone": "Europe/Berlin", "handler": "report"}
    worker = scheduler(store, daily=table)
    worker.sync()
    for _ in range(6 * 60):
        clock.at += 60
        worker.fire_due()
    assert ids(store) == fired


# ---- what can go wrong --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flaw",
    [
        {"cron": "1 2 3"},
        {"zone": "Mars/Base"},
        {"misfire": "perhaps"},
        {"job": b"{"},
        {"job": b"[]"},
        {"job": b'{"handler": 5}'},
    ],
)
def test_a_record_that_cannot_be_read_stops_no_other(
    store: Store, clock: Clock, flaw: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """A newer version, or a machine with more zones, may have put it; it is told of once."""
    worker = scheduler(store, z=HOURLY)
    worker.sync()
    store.put_schedule(msgspec.structs.replace(only(store), name="a", source="other", **flaw))
    clock.at += 3600
    assert worker.fire_due() == NOON + 7200
    assert worker.fire_due() == NOON + 7200
    assert ids(store) == ["z@2026-06-01T13:00:00Z"]
    assert caplog.text.count("the schedule 'a' cannot fire here") == 1


def test_a_store_that_is_away_is_not_hidden(store: Store) -> None:
    """The worker decides how to wait for it."""
    store.close()
    with pytest.raises(StoreUnavailableError):
        scheduler(store, a=HOURLY).sync()
    with pytest.raises(StoreUnavailableError):
        scheduler(store).fire_due()


# ---- looking ahead ------------------------------------------------------------------------------


def test_a_preview_shows_the_next_fires(store: Store) -> None:
    """Of every stored schedule; what keeps one from firing stands in their place."""
    worker = scheduler(store, a=HOURLY, b={**HOURLY, "paused": True}, c=HOURLY, d=HOURLY)
    worker.sync()
    records = {schedule.name: schedule for schedule in store.schedules()}
    store.put_schedule(msgspec.structs.replace(records["c"], cron="1 2 3"))
    store.put_schedule(msgspec.structs.replace(records["d"], next_at=None))
    a, b, c, d = worker.preview(2)
    assert (a.schedule.name, a.fires, a.problem) == ("a", (NOON + 3600, NOON + 7200), "")
    assert (b.fires, b.problem) == ((), "it is paused")
    assert c.fires == ()
    assert "has 3 fields" in c.problem
    assert (d.fires, d.problem) == ((), "it has no further fire")
