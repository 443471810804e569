"""Many workers on one store: they share the work, its limits and its clock, and nothing is lost."""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from datetime import datetime
from pathlib import Path

import pytest

from ergon_framework.core.job import JobStatus
from ergon_framework.errors import StoreError
from tests import fork_server
from tests.campaign.outage_retry import pause
from tests.campaign.parameter_sample import campaign
from tests.differential.engines import ServerEngine
from tests.fleet.conftest import MakeFleet
from tests.fleet.fleet import (
    LEASE,
    POOL,
    PROGRAMS,
    ROOT,
    Fleet,
    completions,
    hold,
    note,
    wait_until,
    with_path,
)
from tests.fleet.programs.newer import VERSION

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

NAMES = ("w1", "w2", "w3", "w4", "w5")
SKEW = 300
AWAY = 2.5 * LEASE
"""Seconds that the store is away; ``python -m tests.fleet`` has the whole minute."""


@pytest.mark.req("SCALE:fleet-cron")
@pytest.mark.parametrize("engine", ["postgres", campaign("redis")], indirect=True)
def test_cron_fires_once_without_a_leader(make_fleet: MakeFleet) -> None:
    """Five workers look at twenty schedules that are due every second: each fire is one job."""
    one = '[schedules.s{}]\nevery = "1s"\nhandler = "note"\nmisfire = "all"\n'
    fleet = make_fleet(more="\n".join(one.format(n) for n in range(20)))
    fleet.start(*NAMES)
    wait_until(lambda: len(fleet.told("end")) >= 100, "a hundred fires")
    fleet.leave()
    runs = Counter(words[0] for words in fleet.told("begin"))
    assert set(runs.values()) == {1}
    fires: dict[str, list[float]] = defaultdict(list)
    for job in fleet.jobs():
        schedule, _, instant = job.id.partition("@")
        fires[schedule].append(datetime.fromisoformat(instant).timestamp())
        assert completions(job) == runs[job.id]
    assert len(fires) == 20
    for instants in fires.values():
        first = min(instants)
        assert sorted(instants) == [first + n for n in range(len(instants))]  # none left out


@pytest.mark.req("SCALE:fleet-limits")
def test_limits_hold_across_workers(make_fleet: MakeFleet, tmp_path: Path) -> None:
    """Of each key two at once, of a limited queue one at once, whoever runs them."""
    fleet = make_fleet(more="[jobs.queues.narrow]\nmax_active = 1")
    fleet.start("w1", "w2", "w3")
    gate = tmp_path / "gate"
    first = [hold(f"{key}-hold-{n}", gate, limit_key=key, limit=2) for key in "ab" for n in (0, 1)]
    first.append(hold("narrow-hold", gate, queue="narrow"))
    fleet.add(*first)
    for job in first:  # more than two workers have room for: none does everything before the others
        fleet.holder(job.id)
    keys = [note(f"{key}-{n}", 0.02, limit_key=key, limit=2) for key in "ab" for n in range(30)]
    narrow = [note(f"narrow-{n}", 0.02, queue="narrow") for n in range(20)]
    fleet.add(*keys, *narrow)
    gate.touch()
    fleet.finish()
    most, workers = _most_at_once(fleet)
    assert most["a"] <= 2
    assert most["b"] <= 2
    assert most["narrow"] == 1
    assert workers == {"w1", "w2", "w3"}
    fleet.leave()


def _most_at_once(fleet: Fleet) -> tuple[Counter[str], set[str]]:
    """How many of each kind ran at once at most, by what was written down; and who ran them."""
    now, most = Counter[str](), Counter[str]()
    workers = set()
    for verb, job_id, worker, _ in fleet.book.lines():
        kind = job_id.partition("-")[0]
        now[kind] += 1 if verb == "begin" else -1
        most[kind] = max(most[kind], now[kind])
        workers.add(worker)
    return most, workers


@pytest.mark.req("SCALE:fleet-rescue")
@pytest.mark.parametrize("how", ["dies", "freezes"])
def test_a_lost_host_is_made_up_for_within_a_lease(
    make_fleet: MakeFleet, tmp_path: Path, how: str
) -> None:
    """By the store's clock, the others begin its job within a lease after its claim has expired."""
    fleet = make_fleet()
    fleet.start("w1", "w2")
    gate = tmp_path / "gate"
    fleet.add(hold("long", gate))
    lost = fleet.member(fleet.holder("long"))
    if how == "dies":
        lost.die()
    else:
        lost.freeze()
    held_until = fleet.job("long").lease_expires_at
    assert held_until is not None
    wait_until(lambda: fleet.job("long").deliveries == 2, "the rescue")
    claimed_at = fleet.job("long").claimed_at
    assert claimed_at is not None
    assert held_until <= claimed_at <= held_until + LEASE
    gate.touch()
    fleet.finish()
    if how == "freezes":
        lost.thaw()
        wait_until(lambda: "late result" in lost.said(), "the late result")
        assert lost.is_alive
    job = fleet.job("long")
    assert (job.status, completions(job)) == (JobStatus.COMPLETED, 1)
    fleet.leave()


@pytest.mark.req("SCALE:fleet-outage")
def test_a_store_that_goes_away_and_comes_back(
    make_fleet: MakeFleet, engine: ServerEngine, tmp_path: Path
) -> None:
    """Nothing is lost, nobody restarts, and what ended meanwhile is settled once it is back."""
    fleet = make_fleet()
    fleet.start("w1", "w2")
    gate = tmp_path / "gate"
    fleet.add(hold("long", gate), *(note(f"short-{n}", 0.05) for n in range(100)))
    fleet.holder("long")
    engine.server.stop()
    try:
        gate.touch()  # it ends while nobody can be told
        with pytest.raises(StoreError):
            fleet.add(note("refused"))
        for member in fleet.members:
            wait_until(lambda member=member: "does not answer" in member.said(), "notice")  # type: ignore[misc]
        pause(AWAY)
    finally:
        engine.server.start()
    _until_it_answers(fleet)
    fleet.add(note("after"))
    fleet.finish()
    jobs = {job.id: job for job in fleet.jobs()}
    assert len(jobs) == 102
    assert {job.status for job in jobs.values()} == {JobStatus.COMPLETED}
    assert {completions(job) for job in jobs.values()} == {1}
    assert jobs["long"].deliveries == 1  # nobody rescued what its worker still held
    assert all(member.is_alive for member in fleet.members)
    fleet.leave()


def _until_it_answers(fleet: Fleet) -> None:
    def answers() -> bool:
        try:
            return bool(fleet.store.workers())
        except StoreError:
            return False

    wait_until(answers, "the store's return")


@pytest.mark.req("SCALE:fleet-clocks")
@pytest.mark.parametrize("engine", [campaign("postgres"), "redis"], indirect=True)
def test_clocks_that_differ_change_nothing(make_fleet: MakeFleet, tmp_path: Path) -> None:
    """Five minutes fast, five minutes slow: delays, leases and histories go by the store."""
    fleet = make_fleet(more='[schedules.often]\nevery = "1s"\nhandler = "note"')
    began = fleet.store.now()
    path = with_path(str(PROGRAMS / "skewed"))["PYTHONPATH"]
    for name, seconds in (("fast", SKEW), ("slow", -SKEW), ("right", 0)):
        fleet.start(name, FLEET_SKEW=str(seconds), PYTHONPATH=path)
    gate = tmp_path / "gate"
    fleet.add(*(hold(f"long-{n}", gate) for n in range(3)))
    fleet.add(*(note(f"later-{n}", delay=1.0 + n / 10) for n in range(20)))
    wait_until(lambda: len(fleet.told("end")) >= 25, "jobs that were delayed")
    held = [fleet.job(f"long-{n}") for n in range(3)]
    pause(1.5 * LEASE)
    assert [fleet.job(job.id).deliveries for job in held] == [1, 1, 1]  # renewed, not rescued
    gate.touch()
    fleet.leave()
    ended = fleet.store.now()
    for job in fleet.jobs():
        # Whoever leaves gives back what was due at that moment; nobody's lease ran out.
        assert job.deliveries <= (3 if job.id.startswith("often@") else 1)
        assert not any(b"lease_expired" in entry for entry in job.history)
        assert began <= job.created_at <= ended
        assert job.claimed_at is None or job.run_at <= job.claimed_at <= ended
        for entry in job.history:
            assert "at" in json.loads(entry)
    assert {words[1] for words in fleet.told("begin")} == {"fast", "slow", "right"}


def _fill(fleet: Fleet, *names: str) -> None:
    """Give these workers as much as they can hold at once, so that each of them has something."""
    gate = fleet.folder / "filled"
    jobs = [hold(f"hold-{n}", gate) for n in range(POOL * len(names))]
    fleet.add(*jobs)
    assert {fleet.holder(job.id) for job in jobs} == {*names}
    gate.touch()


@pytest.mark.req("SCALE:fleet-versions", "SCALE:upgrade")
@pytest.mark.parametrize("engine", ["postgres", campaign("redis")], indirect=True)
def test_workers_of_two_versions_side_by_side(make_fleet: MakeFleet) -> None:
    """A later version comes with tables of its own; those who are there work on, and newcomers."""
    fleet = make_fleet()
    fleet.start("before")
    fleet.add(*(note(f"early-{n}", 0.01) for n in range(20)))
    newer = [sys.executable, "-m", "tests.fleet.programs.newer"]
    if fleet.place.url.startswith("postgresql"):  # Redis has no tables to be changed
        words = [*newer, "db", "upgrade"]
        fork_server.run(words, cwd=fleet.folder, env=with_path(str(ROOT)), check=True, timeout=60)
    fleet.run({"newer": [*newer, "worker", "--name", "newer"]})
    fleet.start("after")
    versions = {each.id: each.version for each in fleet.store.workers()}
    assert versions["newer"] == VERSION != versions["before"] == versions["after"]
    for n in range(100):
        fleet.add(note(f"late-{n}", 0.02))
    _fill(fleet, "before", "newer", "after")
    fleet.finish()
    assert {words[1] for words in fleet.told("end")} == {"before", "newer", "after"}
    runs = Counter(words[0] for words in fleet.told("begin"))
    assert len(runs) == 126
    assert set(runs.values()) == {1}
    assert {completions(job) for job in fleet.jobs()} == {1}
    fleet.leave()
