"""Counters and histograms of ``/metrics``: they add up over processes, and never go down."""

from __future__ import annotations

import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from ergon_framework import App, Business
from ergon_framework.core.rollup import DurationHistogram
from ergon_framework.jobs.store_urls import open_store as open_job_store
from ergon_framework.jobs.totals import BOUNDS, MAX_QUEUES, OTHERS, WorkerTotals, numbers_of
from ergon_framework.ports.jobstore import WorkerRecord
from ergon_framework.telemetry.prometheus_text import Family
from ergon_framework.web.application import create_app
from ergon_framework.web.metrics import SCRAPE_TIMEOUT
from ergon_framework.web.totals import JobCounters
from tests import fork_server
from tests.jobs.real_worker import job, worker
from tests.web.content import fill_calls, fill_jobs, settings_in
from tests.web.test_metric_routes import scraped

pytestmark = pytest.mark.req("ONE:serve")

ATTEMPTS = 'ergon_job_attempts_total{{queue="mail",outcome="{}"}}'
LANE = 'provider="scripted",capability="test"'
SUCCEEDED = f'ergon_provider_calls_total{{{LANE},outcome="succeeded"}}'
FAILED = f'ergon_provider_calls_total{{{LANE},outcome="failed"}}'
MADE = 'ergon_provider_calls_total{provider="rank",capability="snapshot",outcome="succeeded"}'
CALLER = """
import sys
from ergon_framework.providers.retry import RetryPolicy
from tests.providers.scripted import Scripted

steps = [{}, {}, ConnectionError()]
once = RetryPolicy(max_attempts=1)
with Scripted(*steps, store=sys.argv[1], retry_policy=once, circuit_breaker=False) as provider:
    for _ in steps:
        provider.execute(tenant_id=sys.argv[2], operation="quote", payload={})
"""


def beat(
    place: Path, name: str, totals: WorkerTotals, *, age: float = 0.0, recycled: int = 0
) -> None:
    """Let a worker tell of itself."""
    with closing(open_job_store(f"sqlite:///{place}/work.db")) as store:
        started_at = 1_000.0 if age else 1e12  # before and after the server's start
        store.heartbeat(
            WorkerRecord(
                id=name,
                host="here",
                pid=1,
                version="1",
                started_at=started_at,
                totals=totals.document(),
                executors={"python": {"recycled": {"max_age": recycled}}} if recycled else {},
            )
        )


def some(completed: int, failed: int = 0, seconds: float = 0.2) -> WorkerTotals:
    """What a worker has done."""
    totals = WorkerTotals()
    for outcome, number in (("completed", completed), ("failed", failed)):
        for _ in range(number):
            totals.count("mail", outcome, seconds)
    return totals


@pytest.fixture
def app(tmp_path: Path) -> FastAPI:
    """A server of a place with jobs, which has been asked once."""
    fill_jobs(tmp_path)
    app = create_app(settings=settings_in(tmp_path))
    scraped(app)
    return app


def test_two_workers_add_up(app: FastAPI, tmp_path: Path) -> None:
    """Also when one of them is gone: a counter never goes down."""
    beat(tmp_path, "a", some(3, 1), recycled=2)
    beat(tmp_path, "b", some(2, seconds=7.0), recycled=1)
    found = scraped(app)
    recycled = 'ergon_executor_recycled_total{executor="python",reason="max_age"}'
    assert found[recycled] == 3
    assert found[ATTEMPTS.format("completed")] == 5
    assert found[ATTEMPTS.format("failed")] == 1
    assert found['ergon_job_duration_seconds_bucket{queue="mail",le="0.25"}'] == 4
    assert found['ergon_job_duration_seconds_bucket{queue="mail",le="10.0"}'] == 6
    assert found['ergon_job_duration_seconds_count{queue="mail"}'] == 6
    assert found['ergon_job_duration_seconds_sum{queue="mail"}'] == pytest.approx(14.8)
    beat(tmp_path, "a", some(4, 1), recycled=4)
    with closing(open_job_store(f"sqlite:///{tmp_path}/work.db")) as store:
        gone = WorkerRecord(id="b", host="here", pid=1, version="1", started_at=0, state="gone")
        store.heartbeat(gone)
    assert scraped(app)[ATTEMPTS.format("completed")] == 6
    assert scraped(app)[recycled] == 5


def test_what_was_done_before_the_first_scrape_is_not_counted(tmp_path: Path) -> None:
    """A server that starts begins at 0, as Prometheus expects; what grows is counted."""
    fill_jobs(tmp_path)
    beat(tmp_path, "old", some(1000), age=3600)
    app = create_app(settings=settings_in(tmp_path))
    assert scraped(app)[ATTEMPTS.format("completed")] == 0
    beat(tmp_path, "old", some(1002), age=3600)
    assert scraped(app)[ATTEMPTS.format("completed")] == 2


def test_a_worker_that_starts_after_the_server_counts_in_full(tmp_path: Path) -> None:
    """Also before the first scrape."""
    fill_jobs(tmp_path)
    app = create_app(settings=settings_in(tmp_path))
    beat(tmp_path, "new", some(5))
    assert scraped(app)[ATTEMPTS.format("completed")] == 5


def test_drains_are_counted(app: FastAPI, tmp_path: Path) -> None:
    """All of a process, in one record: also those before it was asked, and each once."""
    url = f"sqlite:///{tmp_path}/work.db"
    with App(url, name="shop") as shop:

        @shop.job(queue="post", attempts=1)
        def send(number: int) -> None:
            if number < 0:
                raise Business("nowhere to send it")

        def counted(outcome: str) -> float:
            return scraped(app)[ATTEMPTS.replace("mail", "post").format(outcome)]

        def drained(*numbers: int) -> float:
            for number in numbers:
                send.enqueue(number)
            shop.drain(queues="post")
            return counted("completed")

        assert drained(1, 2, -1) == 2
        assert drained() == 2
        assert drained(3) == 3
        assert counted("failed") == 1
        assert len(shop.client.store.ended_workers()) == 1
        assert [each.id for each in shop.client.store.workers()] == ["w1"]


def test_a_worker_that_starts_after_the_clock_was_set_back_counts_in_full(tmp_path: Path) -> None:
    """When the server started is known by how long ago that was, and not by what a clock said."""
    counters, now = JobCounters(), 1_000.0
    new = WorkerRecord(
        id="new", host="here", pid=1, version="1", started_at=now, totals=some(5).document()
    )
    old = WorkerRecord(
        id="old", host="here", pid=1, version="1", started_at=now - 60, totals=some(9).document()
    )
    attempts = next(iter(counters.families([new, old], now)))
    assert isinstance(attempts, Family)
    assert next(iter(attempts.series)) == ({"queue": "mail", "outcome": "completed"}, 5)


def test_totals_that_cannot_be_read_are_left_out(app: FastAPI, tmp_path: Path) -> None:
    """A worker of another version may tell other things; the rest is told."""
    odd: Any = some(1).document()
    odd["mail"]["buckets"].append(7)
    with closing(open_job_store(f"sqlite:///{tmp_path}/work.db")) as store:
        about: dict[str, Any] = {"host": "here", "pid": 1, "version": "9", "started_at": 1e12}
        store.heartbeat(WorkerRecord(id="odd", totals=odd, **about))
        store.heartbeat(WorkerRecord(id="none", totals={"mail": None}, **about))
    found = scraped(app)
    assert not [name for name in found if name.startswith("ergon_job_attempts_total")]
    assert found['ergon_part_up{part="jobs"}'] == 1


def test_queues_without_number_are_counted_together() -> None:
    """A heartbeat stays small."""
    totals = WorkerTotals()
    for number in range(MAX_QUEUES + 5):
        totals.count(f"q{number}", "completed", None)
    told = totals.document()
    assert len(told) == MAX_QUEUES + 1
    assert told[OTHERS]["outcomes"] == {"completed": 5}
    assert numbers_of(told["q0"]) == (1, 0, 0, 0, 0, 0, *[0] * (len(BOUNDS) + 1), 0.0)


@pytest.mark.slow
def test_a_worker_counts_what_it_does(app: FastAPI, tmp_path: Path) -> None:
    """By queue: what became of jobs, and how long their attempts took.

    A burst is over before anybody scrapes, and so is the next of the same name; both are counted.
    """
    with closing(open_job_store(f"sqlite:///{tmp_path}/work.db")) as store:
        for number, handler in enumerate(("echo", "fail")):
            asked = job(handler, 1, id=f"new-{number}", queue="letters", max_attempts=1)
            store.add([asked])
            running = worker(store, burst=True, name="nightly", queues=["letters"])
            running.run()
            told = running.record().totals["letters"]
            assert sum(told["outcomes"].values()) == sum(told["buckets"]) == 1
            assert told["seconds"] > 0
        assert [each.id for each in store.workers()] == ["w1"]  # of the fixture
    found = scraped(app)
    letters = ATTEMPTS.replace("mail", "letters")
    assert found[letters.format("completed")] == 1
    assert found[letters.format("failed")] == 1
    assert found['ergon_job_duration_seconds_count{queue="letters"}'] == 2
    assert scraped(app)[letters.format("completed")] == 1


@pytest.mark.slow
def test_calls_of_two_processes_add_up(tmp_path: Path) -> None:
    """They write to one store, for different tenants; a server that starts anew begins at 0."""
    settings = settings_in(tmp_path)
    url = f"sqlite:///{tmp_path}/work.db"
    fill_calls(url, [])
    app = create_app(settings=settings)
    scraped(app)
    command = [sys.executable, "-c", CALLER, url]
    children = [fork_server.start([*command, tenant]) for tenant in ("one", "two")]
    assert [child.wait(60) for child in children] == [0, 0]
    for found in (scraped(app), scraped(app)):
        assert found[SUCCEEDED] == 4
        assert found[FAILED] == 2
        assert found[f"ergon_provider_attempts_total{{{LANE}}}"] == 6
        assert found[f"ergon_provider_attempt_duration_seconds_count{{{LANE}}}"] == 6
        bucket = f'ergon_provider_attempt_duration_seconds_bucket{{{LANE},le="60.0"}}'
        assert found[bucket] == 6
    again = scraped(create_app(settings=settings))
    assert again[SUCCEEDED] == 0
    assert again[f'ergon_provider_calls_1h{{{LANE},outcome="succeeded"}}'] == 4


def test_calls_after_a_scrape_that_found_no_tables_are_counted(tmp_path: Path) -> None:
    """The first provider of a place makes them; whatever is there then is new."""
    fill_jobs(tmp_path)
    app = create_app(settings=settings_in(tmp_path))
    assert MADE not in scraped(app)
    fill_calls(f"sqlite:///{tmp_path}/work.db")
    for _ in range(2):
        assert scraped(app)[MADE] == 1
    assert scraped(create_app(settings=settings_in(tmp_path)))[MADE] == 0


def test_calls_after_a_scrape_that_found_the_store_away_are_counted(tmp_path: Path) -> None:
    """The whole minute in which the server started: nobody could tell what it was before."""
    url, file = f"sqlite:///{tmp_path}/work.db", tmp_path / "work.db"
    fill_jobs(tmp_path)
    app = create_app(settings=settings_in(tmp_path))
    fill_calls(url)
    content = file.read_bytes()
    file.write_bytes(b"no database" * 1000)
    assert scraped(app)['ergon_part_up{part="providers"}'] == 0
    file.write_bytes(content)
    assert scraped(app)[MADE] == 1


def test_durations_are_counted_below_bounds() -> None:
    """Few ones exactly, many ones by their buckets."""
    few, many = DurationHistogram(), DurationHistogram()
    for milliseconds in (5, 6, 1000, 2000):
        few.add(milliseconds)
    counts, total = few.counted((0.005, 1.0))
    assert (counts, round(total, 6)) == ([1, 2, 1], 3.011)
    for _ in range(200):
        many.add(700)
    counts, total = many.counted((0.5, 1.0))
    assert counts == [0, 200, 0]
    assert total == pytest.approx(140, rel=0.02)


def test_counters_stay_while_a_store_does_not_answer(tmp_path: Path) -> None:
    """Another process holds it locked: the answer comes soon, with what the server knows."""
    fill_jobs(tmp_path)
    app = create_app(settings=settings_in(tmp_path))
    scraped(app)
    beat(tmp_path, "a", some(3, 1))
    known = scraped(app)
    with closing(sqlite3.connect(tmp_path / "work.db", isolation_level=None)) as locking:
        locking.execute("PRAGMA locking_mode = EXCLUSIVE")
        locking.execute("BEGIN EXCLUSIVE")
        began_at = time.monotonic()
        found = scraped(app)
        assert time.monotonic() - began_at < SCRAPE_TIMEOUT + 3.0  # the machine may be busy
    assert (found['ergon_part_up{part="jobs"}'], known['ergon_part_up{part="jobs"}']) == (0, 1)
    counters = [name for name in known if name.startswith(("ergon_job_attempts", "ergon_job_dur"))]
    assert len(counters) > 5
    assert {name: found[name] for name in counters} == {name: known[name] for name in counters}
    assert not [name for name in found if name.startswith("ergon_jobs{")]  # that may have changed


def test_names_without_number_are_counted_together(app: FastAPI, tmp_path: Path) -> None:
    """Many workers with many queues: the sums are right, and no series is left out."""
    for worker_name in ("a", "b"):
        totals = WorkerTotals()
        for number in range(MAX_QUEUES - 1):
            totals.count(f"{worker_name}{number}", "completed", 0.1)
        beat(tmp_path, worker_name, totals)
    for _ in range(2):
        found = scraped(app)
        done = {name: each for name, each in found.items() if 'outcome="completed"' in name}
        assert len(done) <= MAX_QUEUES
        assert sum(done.values()) == 2 * (MAX_QUEUES - 1)
        others = f'ergon_job_attempts_total{{queue="{OTHERS}",outcome="completed"}}'
        assert done[others] == MAX_QUEUES - 1
        assert found["ergon_series_left_out"] == 0
