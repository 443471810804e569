"""Queues that are pinned to a version that no worker runs: their jobs wait, and it is told."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import pytest

from ergon_framework.core.job import JobStatus
from ergon_framework.core.retention import DAY
from ergon_framework.jobs.maintenance import Maintenance
from ergon_framework.jobs.missing_versions import MissingVersions
from ergon_framework.jobs.settings import JobsSettings
from ergon_framework.jobs.settlement import Settler
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.testing.suites.jobstore.claim import worker_with
from ergon_framework.testing.suites.jobstore.under_test import new

pytestmark = pytest.mark.req("JOBS:orchestrator")


class Bench:
    """A store, one worker's look at missing versions, and time."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.store = MemoryJobStore(lambda: self.now)
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.looking = MissingVersions(
            self.store, lambda: self.now, lambda name, fields: self.told.append((name, fields))
        )
        self.looking.known = frozenset({"1", ""})

    def pass_time(self, seconds: float) -> None:
        """Time passes, and the worker looks, as its chores let it."""
        until = self.now + seconds
        while self.now < until:
            self.now += min(self.looking.look(), until - self.now)
        self.looking.look()


def test_a_missing_version_is_told_once_and_when_it_is_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Not in the first minute, which a deployment takes; with all queues that are pinned to it."""
    bench = Bench()
    bench.store.set_queue("mail", pinned_version="2")
    bench.store.set_queue("bills", pinned_version="2")
    bench.store.set_queue("old", pinned_version="1")
    with caplog.at_level(logging.WARNING):
        bench.pass_time(50.0)
        assert bench.told == []
        bench.pass_time(3600.0)
    [(name, fields)] = bench.told
    assert (name, fields["version"], fields["queues"]) == (
        "version.missing",
        "2",
        ["bills", "mail"],
    )
    assert fields["seconds"] >= 60.0
    assert "no worker has run version '2' for" in caplog.text
    assert "ergon queues unpin QUEUE" in caplog.text
    bench.looking.known |= {"2"}
    bench.looking.look()
    assert bench.told[1:] == [("version.found", {"version": "2"})]
    bench.looking.known -= {"2"}
    bench.pass_time(120.0)
    assert [each for each, _ in bench.told[2:]] == ["version.missing"]


def test_an_unpinned_queue_is_no_longer_told_of() -> None:
    """Also when nobody ever ran the version."""
    bench = Bench()
    bench.store.set_queue("mail", pinned_version="2")
    bench.pass_time(120.0)
    bench.store.set_queue("mail", pinned_version=None)
    bench.pass_time(60.0)
    assert [name for name, _ in bench.told] == ["version.missing", "version.found"]


def test_no_job_is_given_up_for_a_version() -> None:
    """A pin is an operator's decision, as a pause is: the jobs wait however long it takes."""
    bench = Bench()
    bench.store.set_queue("mail", pinned_version="2")
    bench.store.add([new("a", queue="mail")])
    bench.pass_time(3 * DAY)
    found = bench.store.find("a")
    assert found is not None
    assert (found.status, found.deliveries) == (JobStatus.PENDING, 0)


def test_versions_of_living_workers_are_those_of_their_heartbeats() -> None:
    """One that has been silent for three leases counts no more."""
    now, told, settings = [1_000_000.0], list[str](), JobsSettings(lease=15.0)
    store = MemoryJobStore(lambda: now[0])
    store.set_queue("mail", pinned_version="2")
    other = msgspec.structs.replace(worker_with("w2", "python"), app_version="2")
    maintenance = Maintenance(
        store,
        settings,
        Settler(settings, "w1"),
        lambda: worker_with("w1", "python"),
        lambda *_: False,
        lambda name, _: told.append(name),
        now=lambda: now[0],
    )

    def pass_time(seconds: float, *, is_there: bool) -> None:
        for _ in range(int(seconds)):
            now[0] += 1.0
            if is_there:
                store.heartbeat(other)
            maintenance.run(now[0])

    pass_time(120, is_there=True)
    assert told == []
    pass_time(60, is_there=False)
    assert told == []
    pass_time(120, is_there=False)
    assert told == ["version.missing"]
    pass_time(60, is_there=True)
    assert told == ["version.missing", "version.found"]
