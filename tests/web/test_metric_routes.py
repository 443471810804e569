"""``/metrics``: its format, what each part tells, and a part that tells nothing."""

from __future__ import annotations

import re
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fastapi import FastAPI
from sqlalchemy import Engine, event

from ergon_framework.core.circuit_breaker import Breaker, CircuitState
from ergon_framework.core.quota import QuotaWindow
from ergon_framework.jobs.store_urls import open_store as open_job_store
from ergon_framework.jobs.stores.sqlite import SqliteJobStore
from ergon_framework.ports.jobstore import NewJob
from ergon_framework.ports.providerstore import LaneKey
from ergon_framework.providers.migrations.database import database_of
from ergon_framework.providers.store_urls import open_store
from ergon_framework.providers.stores.inspector import SqlProviderInspector
from ergon_framework.telemetry.prometheus_text import Family
from ergon_framework.testing.suites.jobstore.claim import worker_with
from ergon_framework.web.application import create_app
from ergon_framework.web.metrics import MAX_LABEL, MAX_SERIES, exposed
from tests.providers.asgi_client import ask
from tests.web.content import TENANT, fill_calls, fill_jobs, fill_zone, settings_in

pytestmark = pytest.mark.req("ONE:serve")

_SAMPLE = re.compile(r'[a-z_0-9]+(\{([a-z_]+="(\\[\\n"]|[^"\\\n])*",?)+\})? -?[0-9.e+]+')


def scraped(app: FastAPI) -> dict[str, float]:
    """Every sample by its name and labels; the format is checked on the way."""
    answer = ask(app, path="/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert answer.text.endswith("\n")
    samples: dict[str, float] = {}
    family, names = "", [""]
    seen: set[str] = set()
    for line in answer.text.splitlines():
        if line.startswith("# HELP "):
            family = line.split()[2]
            assert family not in seen, "a family must come in one piece"
            seen.add(family)
        elif line.startswith("# TYPE "):
            kind = line.split()[3]
            assert line.split()[2] == family
            assert kind in ("gauge", "counter", "histogram")
            assert is_well_named(family, kind), family
            names = [family + end for end in ("_bucket", "_sum", "_count")]
            names = names if kind == "histogram" else [family]
        else:
            assert _SAMPLE.fullmatch(line), line
            name, _, value = line.rpartition(" ")
            assert name.partition("{")[0] in names
            assert name not in samples
            samples[name] = float(value)
    return samples


def is_well_named(family: str, kind: str) -> bool:
    """Whether promtool would find nothing to say about the name of a metric."""
    is_plain = re.fullmatch(r"[a-z][a-z0-9_]*", family) and "__" not in family
    is_reserved = family.endswith(("_bucket", "_sum", "_count"))
    has_unit = not re.search(r"_(ms|milliseconds|minutes|hours|kilobytes|kb|mb)(_|$)", family)
    is_counter = family.endswith("_total")
    return bool(is_plain and not is_reserved and has_unit and is_counter == (kind == "counter"))


def test_jobs(tmp_path: Path) -> None:
    """Counts by queue and status, the age of what is due, workers and dead letters."""
    fill_jobs(tmp_path, waiting=5, dead=2)
    found = scraped(create_app(settings=settings_in(tmp_path)))
    assert found['ergon_jobs{queue="mail",status="pending"}'] == 3
    assert found['ergon_jobs{queue="mail",status="failed"}'] == 2
    assert found['ergon_jobs{queue="pics",status="active"}'] == 0
    assert found['ergon_queue_oldest_due_seconds{queue="mail"}'] >= 0
    assert found['ergon_queue_paused{queue="mail"}'] == 0
    assert (found["ergon_workers_alive"], found['ergon_workers{state="running"}']) == (1, 1)
    assert found['ergon_dead_letters{kind="job"}'] == 2


def test_a_store_that_acknowledges_before_it_syncs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told for as long as it lasts."""
    fill_jobs(tmp_path, waiting=5, dead=2)
    app = create_app(settings=settings_in(tmp_path))
    assert scraped(app)["ergon_job_store_unsynced"] == 0
    monkeypatch.setattr(SqliteJobStore, "is_synced", False)
    assert scraped(app)["ergon_job_store_unsynced"] == 1


def test_missing_executors(tmp_path: Path) -> None:
    """An executor that due jobs name and no living worker has, and for how long."""
    fill_jobs(tmp_path, waiting=5, dead=2)
    app = create_app(settings=settings_in(tmp_path))
    assert not [name for name in scraped(app) if name.startswith("ergon_executor_missing")]
    with closing(open_job_store(f"sqlite:///{tmp_path}/work.db")) as store:
        store.add([NewJob(id="odd", handler="node#work", executor="node", queue="mail")])
    assert scraped(app)['ergon_executor_missing_seconds{executor="node"}'] >= 0
    answer = ask(app, path="/api/v1/queues").json()
    assert [each["missing_executors"] for each in answer["items"]] == [["node"], []]


def test_missing_versions(tmp_path: Path) -> None:
    """A queue that is pinned to a version that no living worker runs."""
    fill_jobs(tmp_path, waiting=5, dead=2)
    app = create_app(settings=settings_in(tmp_path))
    name = 'ergon_queue_version_missing{queue="mail",version="2"}'
    with closing(open_job_store(f"sqlite:///{tmp_path}/work.db")) as store:
        store.set_queue("mail", pinned_version="2")
        assert scraped(app)[name] == 1
        items = ask(app, path="/api/v1/queues").json()["items"]
        found = [(each["pinned_version"], each["missing_version"]) for each in items]
        assert found == [("2", "2"), (None, None)]
        record = msgspec.structs.replace(worker_with("w2"), app_version="2", seen_at=store.now())
        store.heartbeat(record)
        assert name not in scraped(app)
    items = ask(app, path="/api/v1/queues").json()["items"]
    assert [each["missing_version"] for each in items] == [None, None]


def check_calls(app: FastAPI) -> None:
    """What is told of a lane with an open circuit and a quota, and of two letters."""
    found = scraped(app)
    lane = 'provider="rank",capability="snapshot"'
    assert found[f'ergon_provider_circuits{{{lane},state="open"}}'] == 1
    assert found[f'ergon_provider_circuits{{{lane},state="closed"}}'] == 0
    assert found[f"ergon_provider_quota_used{{{lane}}}"] == 3
    assert found[f"ergon_provider_quota_limit{{{lane}}}"] == 10
    assert found[f'ergon_provider_calls_1h{{{lane},outcome="succeeded"}}'] == 1
    assert found[f'ergon_provider_calls_1h{{{lane},outcome="failed"}}'] == 1
    assert found[f"ergon_provider_attempts_1h{{{lane}}}"] == 2
    assert found[f'ergon_provider_attempts_5m{{{lane},reason="none"}}'] == 1
    assert found[f'ergon_provider_attempts_5m{{{lane},reason="timeout"}}'] == 1
    assert found[f'ergon_provider_lanes_failed_1h{{{lane},reason="timeout"}}'] == 1
    assert found['ergon_dead_letters{kind="provider"}'] == 2
    assert TENANT not in str(found)


def fill_lane(url: str) -> None:
    """Calls, letters, an open circuit and a quota that is used in part."""
    fill_calls(url, ["c0", "c1"])
    store, now = open_store(url), time.time()
    lane = LaneKey(TENANT, "rank", "snapshot")
    version = store.lane_state(lane).version
    assert store.compare_and_set(
        lane, version, Breaker(CircuitState.OPEN, 3, now + 30, generation=1)
    )
    store.reserve(lane, QuotaWindow(now - 1000, now + 1000), 10, 3)
    store.close()


def test_providers(tmp_path: Path) -> None:
    """All tenants together: none is named."""
    fill_lane(f"sqlite:///{tmp_path}/work.db")
    check_calls(create_app(f"sqlite:///{tmp_path}/work.db"))


@pytest.mark.slow
def test_providers_on_postgresql(postgres_url: str) -> None:
    """The same samples."""
    fill_lane(postgres_url)
    check_calls(create_app(postgres_url))


def test_zones(tmp_path: Path) -> None:
    """Heads, lags and what was set aside; a folder knows nothing about the mode of links."""
    fill_jobs(tmp_path, 1)
    fill_zone(tmp_path, facts=3)
    found = scraped(create_app(settings=settings_in(tmp_path)))
    assert found['ergon_zone_head_offset{zone="plant-a",log="outbound"}'] == 3
    assert found['ergon_zone_consumer_lag{zone="plant-a",consumer="reader"}'] == 2
    assert found['ergon_zone_quarantined{zone="plant-a"}'] == 1
    assert found['ergon_zone_lost_facts{zone="plant-a"}'] == 0
    assert found['ergon_zone_by_node{zone="plant-a"}'] == 0


def test_a_part_that_is_away_leaves_the_others_alone(tmp_path: Path) -> None:
    """It is marked, its failures are counted, and it is there again when its store is."""
    fill_zone(tmp_path)
    app = create_app(settings=settings_in(tmp_path))
    for count in (1, 2):
        found = scraped(app)
        assert found['ergon_part_up{part="jobs"}'] == 0
        assert found['ergon_part_up{part="zone:plant-a"}'] == 1
        assert found['ergon_scrape_errors_total{part="jobs"}'] == count
        assert found['ergon_scrape_errors_total{part="zone:plant-a"}'] == 0
        assert 'ergon_zone_quarantined{zone="plant-a"}' in found
        assert not any(name.startswith("ergon_jobs") for name in found)
    fill_jobs(tmp_path, 1)
    found = scraped(app)
    assert (found['ergon_part_up{part="jobs"}'], found['ergon_part_up{part="providers"}']) == (1, 1)


def test_a_part_that_fails_oddly_is_counted_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistake of ours in one part is not the end of the scrape."""
    fill_jobs(tmp_path, 1)
    app = create_app(settings=settings_in(tmp_path))
    name = "ergon_framework.web.metrics.worker_state"
    monkeypatch.setattr(name, lambda *_: 1 / 0)
    found = scraped(app)
    assert found['ergon_part_up{part="jobs"}'] == 0
    assert found['ergon_part_up{part="providers"}'] == 1


def test_labels_are_escaped_and_cut() -> None:
    """Whatever a queue is called, a line stays a line."""
    odd = [({"queue": 'a"b\\c\nd'}, 1), ({"queue": "x" * 1000}, 2.5)]
    text = exposed([Family("ergon_jobs", "gauge", "One\\two\nthree.", odd)])
    assert "# HELP ergon_jobs One\\\\two\\nthree.\n" in text
    assert 'ergon_jobs{queue="a\\"b\\\\c\\nd"} 1\n' in text
    assert f'ergon_jobs{{queue="{"x" * MAX_LABEL}"}} 2.5\n' in text
    assert all(_SAMPLE.fullmatch(line) for line in text.splitlines() if line[0] != "#")


def test_a_family_has_so_many_series_and_no_more() -> None:
    """What is left out is counted; families of the same name are one."""
    many = [({"queue": str(n)}, n) for n in range(MAX_SERIES)]
    text = exposed([Family("a", "gauge", "A.", many), Family("a", "gauge", "A.", [({}, 1)])])
    assert text.count("# TYPE a gauge") == 1
    assert sum(line.startswith("a{") for line in text.splitlines()) == MAX_SERIES
    assert "\nergon_series_left_out 1\n" in text


def test_the_page_names_every_metric(tmp_path: Path) -> None:
    """Each family that is told is in the reference, and none that is not."""
    fill_jobs(tmp_path, 1)
    fill_lane(f"sqlite:///{tmp_path}/work.db")
    fill_zone(tmp_path)
    text = ask(create_app(settings=settings_in(tmp_path)), path="/metrics").text
    told = set(re.findall(r"^# TYPE (\w+) ", text, re.MULTILINE))
    page = (Path(__file__).parents[2] / "docs/reference/http.md").read_text()
    section = page.split("\n## Metrics\n")[1]
    assert set(re.findall(r"`(ergon_\w+)`", section)) == told


def test_old_rows_are_not_walked_through(tmp_path: Path) -> None:
    """Attempts and roll-ups go back for long; what is new is found by an index."""
    fill_lane(f"sqlite:///{tmp_path}/work.db")
    database = database_of(f"sqlite:///{tmp_path}/work.db")
    seen: list[str] = []

    def saw(*given: Any) -> None:
        if "provider_metric_rollups" in given[2] or "provider_execution_metrics" in given[2]:
            seen.append(given[2])

    event.listen(Engine, "before_cursor_execute", saw)
    try:
        SqlProviderInspector(database).figures(time.time(), [])
    finally:
        event.remove(Engine, "before_cursor_execute", saw)
    with closing(sqlite3.connect(tmp_path / "work.db")) as looking:
        for statement in seen:
            values = ["x"] * statement.count("?")
            plan = looking.execute(f"EXPLAIN QUERY PLAN {statement}", values).fetchall()
            walked = [step[3] for step in plan if step[3].startswith("SCAN ")]
            assert all("provider_health_states" in step for step in walked), plan
    assert len(seen) == 2


def test_queues_that_have_no_room_are_counted_together(tmp_path: Path) -> None:
    """Sums by status stay right, the longest wait is told, and nothing is left out."""
    with closing(open_job_store(f"sqlite:///{tmp_path}/work.db")) as store:
        names = [f"q{number:04}" for number in range(MAX_SERIES + 50)]
        store.add([NewJob(id=name, handler="h", queue=name, args=b"[]") for name in names])
        store.set_queue(names[-1], is_paused=True)
    text = ask(create_app(settings=settings_in(tmp_path)), path="/metrics").text
    found = dict(line.rpartition(" ")[::2] for line in text.splitlines() if line[0] != "#")
    pending = [float(n) for name, n in found.items() if name.endswith('status="pending"}')]
    assert sum(pending) == len(names)
    assert found['ergon_jobs{queue="q0000",status="pending"}'] == "1"
    assert float(found['ergon_jobs{queue="(others)",status="pending"}']) > 50
    assert found['ergon_queue_paused{queue="q0998"}'] == "0"
    assert found['ergon_queue_paused{queue="(others)"}'] == "1"
    assert float(found['ergon_queue_oldest_due_seconds{queue="(others)"}']) >= 0
    assert found["ergon_series_left_out"] == "0"
