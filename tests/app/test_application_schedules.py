"""Schedules that an App declares: what is stored, whose they are, and what is refused."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ergon_framework import App
from ergon_framework.errors import ConfigurationError, JobError, WiringError
from ergon_framework.executor import InvalidArgumentsError
from ergon_framework.jobs import Unique
from ergon_framework.jobs.scheduler import Scheduler, ScheduleSettings, job_of
from ergon_framework.jobs.store_urls import open_store

pytestmark = pytest.mark.req("JOBS:cron")


def written(app: App) -> dict[str, str]:
    """The schedules that a worker of this App brings into its store, and their lines."""
    setup, store = app.worker_setup({}), app.client.store
    Scheduler(store, setup.schedules, source=setup.source, more=setup.declared).sync()
    return {each.name: each.cron for each in store.schedules()}


app = App("memory://", name="shop")


@app.schedule("*/15 * * * *", timezone="Europe/Berlin", overlap=False, kwargs={"days": 3})
@app.job(max_attempts=2, queue="slow")
def sweep(*, days: int = 1) -> None:
    """Scheduled, and a job like any other."""


def test_a_schedule_has_the_options_of_its_handler() -> None:
    """The job of a fire is the one that enqueue would make."""
    assert written(app) == {"shop.sweep": "*/15 * * * *"}
    (schedule,) = app.client.store.schedules()
    job = job_of(schedule, 0.0)
    assert (job.handler, job.executor) == ("shop#sweep", "shop")
    assert (job.queue, job.max_attempts) == ("slow", 2)
    assert (job.kwargs, job.unique_key) == (b'{"days":3}', "schedule:shop.sweep")
    assert schedule.zone == "Europe/Berlin"
    sweep(days=1)  # still the function


greeter = App("memory://", name="greeter")


@greeter.schedule("*/15 * * * *", args=[7])
@greeter.job(unique=Unique(fields=["customer"], period=60), on_duplicate="extend")
def greet(customer: int) -> None:
    """Scheduled, and enqueued by others."""


def test_a_schedule_has_the_unique_key_of_its_handler() -> None:
    """That of a call with the same arguments, and what becomes of a duplicate."""
    written(greeter)
    (schedule,) = greeter.client.store.schedules()
    job = job_of(schedule, 0.0)
    called = greeter.client.find(greet.enqueue(customer=7))
    assert (job.unique_key, job.unique) == (called.unique_key, called.unique)
    assert job.on_duplicate == "extend"


def test_a_schedule_that_is_no_longer_declared_is_dropped(tmp_path: Path) -> None:
    """But not those of settings or of another App on the same store."""
    store = open_store(f"sqlite:///{tmp_path / 'work.db'}")
    line = ScheduleSettings(cron="0 0 * * *", handler="x")
    own, other = {"app:shop": {"shop.sweep": line}}, {"app:mail": {"mail.sweep": line}}
    for more in (own, other):
        Scheduler(store, {"nightly": line}, source="ergon.toml", more=more).sync()
    names = {each.name for each in store.schedules()}
    assert names == {"nightly", "shop.sweep", "mail.sweep"}
    gone = Scheduler(store, {"nightly": line}, source="ergon.toml", more={"app:shop": {}}).sync()
    assert gone.dropped == ("shop.sweep",)
    store.close()


def test_apps_that_drop_each_others_schedules_hear_what_helps(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two scripts of one name on one store; a table of settings would change nothing."""
    url = f"sqlite:///{tmp_path / 'work.db'}"
    with App(url, name="shop") as first, App(url, name="shop") as second:
        first.schedule("@daily")(tidy)
        second.schedule("@daily", name="nightly")(tidy)
        Scheduler(first.client.store, more=first.declared_schedules()).sync()
        synced = Scheduler(second.client.store, more=second.declared_schedules()).sync()
    assert (synced.added, synced.dropped) == (("shop.nightly",), ("shop.tidy",))
    assert "'shop.tidy' is gone from the App 'shop', and is dropped" in caplog.text
    assert "give one of them another: App(name=...)" in caplog.text
    assert "[jobs] application" not in caplog.text


@pytest.mark.parametrize(
    ("line", "told"),
    [("61 * * * *", "minute"), ("soon", "cron"), (None, "needs either cron or every")],
)
def test_a_line_that_is_wrong_is_refused_where_it_stands(line: str | None, told: str) -> None:
    """At the import of the script, not by a worker later."""
    with pytest.raises(ConfigurationError, match=told):
        App("memory://").schedule(line)(lambda: None)


def test_what_a_schedule_cannot_have_is_refused() -> None:
    """A schedule says when; arguments are checked against the handler."""
    with pytest.raises(JobError, match=r"cannot have the option 'delay'"):
        App("memory://").schedule("@daily", delay=5)(tidy)
    with pytest.raises(InvalidArgumentsError, match="there is no argument 'days'"):
        App("memory://").schedule("@daily", kwargs={"days": 1})(tidy)
    twice = App("memory://")
    handler = twice.schedule(every=60)(tidy)
    with pytest.raises(WiringError, match="two schedules named 'tidy'"):
        twice.schedule("@daily")(handler)
    twice.schedule("@daily", name="nightly")(handler)
    with pytest.raises(ConfigurationError, match="a b"):
        twice.schedule("@daily", name="a b")(handler)


@pytest.mark.parametrize("every", [90, 90.0, "90", "1m30s", timedelta(seconds=90)])
def test_an_interval_is_whole_seconds_in_any_form(every: Any) -> None:
    """As Celery and APScheduler take it."""
    made = App("memory://", name="shop")
    made.schedule(every=every)(tidy)
    [(_, found)] = made.declared_schedules()["app:shop"].items()
    assert found.line == "@every 90s"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        *(({"every": each}, "is no interval") for each in (0, -1, 0.5, "", True, b"5", 10**400)),
        *(({"every": float(each)}, "is no interval") for each in ("nan", "inf")),
        (
            {"every": 5, "timezone": None},
            "timezone is None .*timezone=.Europe/Berlin",
        ),
        ({"every": 5, "timezone": "Mars"}, "there is no time zone 'Mars'"),
        ({"every": 5, "args": 5}, r"args is 5 .write for example args=\[3\]"),
        ({"every": 5, "args": "abc"}, "args is 'abc'"),
        ({"every": 5, "kwargs": []}, r"kwargs is \[\] "),
        ({"every": 5, "misfire": "twice"}, "misfire must be 'once' or 'skip' or 'all'"),
        ({"every": 5, "overlap": "no"}, "overlap must be True or False, not 'no'"),
    ],
)
def test_wrong_values_of_a_schedule_are_refused_where_they_stand(
    options: dict[str, Any], told: str
) -> None:
    """With the handler, the option and its value."""
    with pytest.raises(ConfigurationError, match=rf"the schedule of 'tidy': .*{told}"):
        App("memory://").schedule(**options)(tidy)
    wrong: Any = 5
    with pytest.raises(ConfigurationError, match=r"cron is 5 .write for example .\*/15"):
        App("memory://").schedule(wrong)(tidy)


def test_a_schedule_without_its_parentheses_is_refused() -> None:
    """It would be accepted otherwise, and never fire."""
    app = App("memory://")
    with pytest.raises(WiringError, match=r"says when.*above def tidy"):
        app.schedule(tidy)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["every night", " nightly", "-x", "a/b", "", "x" * 101, 5])
def test_the_name_of_a_schedule_is_part_of_ids(name: Any) -> None:
    """So it has no blanks, and nothing else that settings refuse."""
    handler = App("memory://").job(tidy)
    with pytest.raises(ConfigurationError, match=r"letters, digits, '_', '-' and '.'"):
        handler.schedule_name(name)
    assert handler.schedule_name("nightly-2.a_b") == "nightly-2.a_b"
    assert handler.schedule_name(None) == "tidy"


def tidy() -> None:
    """Something to be scheduled."""


def test_what_an_app_is_given_may_be_a_settings_file(tmp_path: Path) -> None:
    """The path of a file, or the URL of a store; not both."""
    file = tmp_path / "ergon.toml"
    file.write_text('[store]\nurl = "sqlite:///work.db"\n')
    for given in (str(file), file):
        with App(given) as made:
            assert made.setup.url == f"sqlite:///{tmp_path / 'work.db'}"
    names: dict[str, Any] = {"__file__": str(tmp_path / "shop.py"), "App": App}
    exec('made = App("ergon.toml")', names)  # noqa: S102 - a script that is started elsewhere
    with names["made"] as made:
        assert made.setup.url == f"sqlite:///{tmp_path / 'work.db'}"
    with App(file, url="memory://") as made:
        assert made.setup.url == "memory://"
    with pytest.raises(ConfigurationError, match="was given memory:// and another URL"):
        App("memory://", url="memory://")
    with pytest.raises(ConfigurationError, match="and another URL") as refused:
        App("postgresql://me:hunter2@h/d", url="memory://")
    assert "hunter2" not in str(refused.value)
