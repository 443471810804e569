"""Several processes on one store, and processes that die at every failpoint, on every engine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from ergon_framework.core.job import JobStatus
from ergon_framework.jobs.store_urls import open_store
from ergon_framework.ports.jobstore import FullJobStore, Schedule, Search, Settlement, Topic
from ergon_framework.storage.failpoints import NAMES
from ergon_framework.testing.suites.drivers import HandClock
from ergon_framework.testing.suites.jobstore.under_test import SUCCEEDED, JobStoreSubject, ask, new
from tests import fork_server
from tests.campaign.parameter_sample import sampled
from tests.jobs.programs.store_user import ROUNDS
from tests.jobs.real_worker import PROGRAMS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.req("JOBS:store", "JOBS:campaign"),
    pytest.mark.req("SCALE:jobs-postgres", "SCALE:jobs-redis", "SCALE:campaign"),
]
CALLS = [f"jobs.{call}" for call in ("add", "desk", "exchange", "fire", "renew", "sweep")]
POINTS = [f"{call}.{when}_commit" for call in (*CALLS, "move.jobs") for when in ("before", "after")]
COMMITS = ["storage.commit.before", "storage.commit.after"]
ENGINES = {"sqlite": (1, 2, 5), "postgres": (3,), "redis": (1, 3)}
"""At which passes of a failpoint a process dies there; ``make test`` has the middle one."""
KEYS = {"sqlite": "plain", "postgresql": "limit", "redis": "unique"}
"""What the jobs have, by the scheme of the URL: plain ones and others are added in other ways."""
DEATHS = [
    pytest.param(
        *(engine, point, nth),
        id=f"{engine}-{point}-{nth}",
        marks=() if nth == passes[len(passes) // 2] else pytest.mark.campaign,
    )
    for engine, passes in ENGINES.items()
    for point in (*POINTS, *(COMMITS if engine == "sqlite" else ()))
    for nth in passes
]
CREW = 3
WAIT = 60

on_every_engine = pytest.mark.parametrize("url", ENGINES, indirect=True)


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty place on that engine."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@pytest.fixture
def store(url: str) -> Iterator[FullJobStore]:
    """A store there, with a schedule that is due."""
    store = open_store(url)
    store.put_schedule(
        Schedule(name="cron", cron="*", zone="UTC", misfire="skip", job=b"{}", next_at=100.0)
    )
    yield store
    store.close()


def run(url: str, point: str, nth: int) -> dict[str, list[str]]:
    """Let a process work until it dies at that pass; what it said, by word."""
    done = fork_server.run(
        [sys.executable, PROGRAMS / "store_user.py", url, KEYS[url.partition(":")[0]]],
        env=os.environ | {"ERGON_FAILPOINTS": f"{point}=kill@{nth}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT,
    )
    assert done.returncode == -signal.SIGKILL, f"{point} not passed {nth} times: {done.stderr}"
    said: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        word, *ids = line.split()
        said.setdefault(word, []).extend(ids)
    return said


def drained(store: FullJobStore) -> Counter[str]:
    """Do all that can be done; how often each job came."""
    subject = JobStoreSubject(store, HandClock(), None, 15.0)
    came: Counter[str] = Counter()
    told: list[Settlement] = []
    while True:
        applied, claimed = store.settle_and_claim(told, ask(100))
        assert all(applied)
        if not claimed.jobs:
            return came
        came.update(job.id for job in claimed.jobs)
        told = [subject.told(job, SUCCEEDED, keep=600.0) for job in claimed.jobs]


def test_the_failpoints_are_there() -> None:
    """Before and after the commit of each call that changes jobs.

    Those around an object of a payload are passed in test_payload_objects.py.
    """
    for engine in ENGINES:
        import_module(f"ergon_framework.jobs.stores.{engine}.transactions")
    found = {name for name in NAMES if name.startswith(("jobs.", "move.jobs."))}
    assert {name for name in found if not name.startswith("jobs.object.")} == set(POINTS)
    assert set(COMMITS) <= NAMES


@pytest.mark.parametrize(("url", "point", "nth"), sampled(DEATHS, DEATHS[::2]), indirect=["url"])
def test_a_process_that_dies_keeps_its_promises(
    url: str, point: str, nth: int, store: FullJobStore
) -> None:
    """What was acknowledged is there, batches are whole, and the rest can be done again."""
    said = run(url, point, nth)
    found = {job.id: job for job in store.search(Search())}
    assert set(said.get("added", ())) | set(said.get("fired", ())) <= found.keys()
    for n in range(ROUNDS):
        assert sum(f"{n}-{m}" in found for m in range(3)) in {0, 3}
    done = {name for name, job in found.items() if job.status is JobStatus.COMPLETED}
    assert set(said.get("settled", ())) <= done <= set(said.get("settling", ()))
    [cron] = store.schedules()
    assert cron.next_at == 100.0 + sum(name.startswith("cron-") for name in found)
    held = {name for name, job in found.items() if job.status is JobStatus.ACTIVE}
    assert len(held) <= 2
    store.prune(100)  # wakes who waits for a limit key whose holder died before it could
    taken = {found[name].limit_key for name in held} - {None}
    free = {name for name in found.keys() - done - held if found[name].limit_key not in taken}
    assert drained(store) == dict.fromkeys(free, 1)


@on_every_engine
def test_processes_never_get_the_same_job(url: str, store: FullJobStore) -> None:
    """Workers that claim as fast as they can share the jobs, and each job runs once."""
    store.add([new(f"j{n}", queue=f"q{n % 5}", priority=n % 3) for n in range(1000)])
    store.set_queue("q1", max_active=9)
    crew = [
        fork_server.start(
            [sys.executable, PROGRAMS / "claim_loop.py", url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(CREW)
    ]
    for each in crew:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"
    for each in crew:
        assert each.stdin is not None
        each.stdin.write("go\n")
        each.stdin.flush()
    claims = Counter(
        line for each in crew for line in each.communicate(timeout=WAIT)[0].splitlines()
    )
    assert [each.returncode for each in crew] == [0] * CREW
    assert claims == {f"j{n} 1": 1 for n in range(1000)}
    assert store.count(Search(statuses=(JobStatus.COMPLETED,))) == 1000


@on_every_engine
def test_a_bell_is_heard_from_another_process(url: str, store: FullJobStore) -> None:
    """A job added elsewhere wakes whoever listens here, and so does its end."""
    work, done = store.subscribe(Topic.WORK), store.subscribe(Topic.DONE)
    assert run(url, "jobs.sweep.before_commit", 1)["settled"]
    # Files were changed when the process died; what a server says may still be on its way.
    patience = 0 if url.startswith("sqlite") else WAIT
    assert work.wait(patience)
    assert done.wait(patience)
    work.close()
    done.close()
