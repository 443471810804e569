"""Several processes on one store, processes that die at every failpoint, and a server that does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import pytest

from ergon_framework.core.job import JobStatus
from ergon_framework.errors import StoreUnavailableError
from ergon_framework.jobs.stores.postgres import PostgresJobStore
from ergon_framework.ports.jobstore import Leased, Schedule, Search, Topic
from ergon_framework.storage.failpoints import NAMES
from ergon_framework.testing.suites.jobstore.subject import ask, new
from tests.servers.postgres import PostgresServer

pytestmark = [pytest.mark.slow, pytest.mark.req("SCALE:jobs-postgres", "SCALE:campaign")]
CALLS = ("add", "exchange", "renew", "fire", "sweep", "desk")
POINTS = [f"jobs.{call}.{when}_commit" for call in CALLS for when in ("before", "after")]
WAIT = 60

# Each line on standard output is written with one call, before or after a promise of the store.
WORKER = """
import os, sys
from ergon_framework.jobs.stores.postgres import PostgresJobStore
from ergon_framework.ports.jobstore import Hold, NewJob, WorkerRecord
from ergon_framework.testing.suites.hand_clock import HandClock
from ergon_framework.testing.suites.jobstore.subject import SUCCEEDED, Subject, ask

def say(*words):
    os.write(1, (" ".join(words) + "\\n").encode())

store = PostgresJobStore(sys.argv[1])
s = Subject(store, HandClock(), None, 15.0)
store.tell(WorkerRecord(id="w", host="h", pid=1, version="1", started_at=0.0))
[at] = [each.next_at for each in store.schedules()]
for n in range(6):
    ids = [f"{n}-{m}" for m in range(3)]
    say("adding", *ids)
    store.add([NewJob(id=each, handler="work", limit_key=each[-1]) for each in ids])
    say("added", *ids)
    if store.fire("cron", at, at + 1, [NewJob(id=f"cron-{at}", handler="work")]):
        say("fired", f"cron-{at}")
    at += 1
    jobs = store.exchange([], ask(2))[1].jobs
    say("claimed", *(job.id for job in jobs))
    store.renew([Hold(job.key, job.id, job.fence, True) for job in jobs], 30.0)
    told = [s.told(job, SUCCEEDED, keep=600.0, result=b"1") for job in jobs]
    say("settling", *(job.id for job in jobs))
    applied, _ = store.exchange(told, None)
    assert all(applied)
    say("settled", *(job.id for job in jobs))
    store.sweep(10)
say("end")
"""

CLAIMER = """
import sys
from ergon_framework.jobs.stores.postgres import PostgresJobStore
from ergon_framework.testing.suites.hand_clock import HandClock
from ergon_framework.testing.suites.jobstore.subject import SUCCEEDED, Subject, ask

store = PostgresJobStore(sys.argv[1])
s = Subject(store, HandClock(), None, 15.0)
print("ready", flush=True)
sys.stdin.readline()
told, misses = [], 0
while misses < 20:
    applied, claimed = store.exchange(told, ask(7))
    assert all(applied)
    misses = 0 if claimed.jobs else misses + 1
    for job in claimed.jobs:
        print(job.id, job.deliveries)
    told = [s.told(job, SUCCEEDED, keep=600.0) for job in claimed.jobs]
"""


@pytest.fixture
def store(jobs_url: str) -> Iterator[PostgresJobStore]:
    """An empty store."""
    store = PostgresJobStore(jobs_url)
    yield store
    store.close()


def schedule(next_at: float) -> Schedule:
    """A schedule that fires at that instant."""
    return Schedule(name="cron", cron="*", zone="UTC", misfire="skip", job=b"{}", next_at=next_at)


def run(url: str, point: str, passes: int) -> tuple[int, dict[str, list[str]]]:
    """Let a process work until it dies; how it ended, and what it said by word."""
    env = os.environ | {"ERGON_FAILPOINTS": f"{point}=kill@{passes}"}
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", WORKER, url],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT,
    )
    said: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        word, *ids = line.split()
        said.setdefault(word, []).extend(ids)
    return done.returncode, said


def claimed(store: PostgresJobStore) -> list[Leased]:
    """All that can be claimed, by and by."""
    found: list[Leased] = []
    while jobs := store.exchange([], ask(100))[1].jobs:
        found += jobs
    return found


def test_the_failpoints_are_there() -> None:
    """Before and after the commit of each call that changes jobs."""
    assert set(POINTS) <= NAMES


@pytest.mark.parametrize("point", POINTS)
def test_a_process_that_dies_keeps_its_promises(
    point: str, store: PostgresJobStore, jobs_url: str
) -> None:
    """What was acknowledged is there, batches are whole, and the rest can be done again."""
    store.put_schedule(schedule(100.0))
    code, said = run(jobs_url, point, 1 if "desk" in point else 3)
    assert code == -signal.SIGKILL
    found = {job.id: job for job in store.search(Search())}
    settled = set(said.get("settled", ()))
    assert set(said.get("added", ())) | set(said.get("fired", ())) <= found.keys()
    for n in range(6):
        assert sum(f"{n}-{m}" in found for m in range(3)) in {0, 3}
    done = {name for name, job in found.items() if job.status is JobStatus.COMPLETED}
    assert settled <= done <= set(said.get("settling", ()))
    [cron] = store.schedules()
    fired = {name for name in found if name.startswith("cron-")}
    assert cron.next_at == 100.0 + len(fired)
    held = [job for job in found.values() if job.status is JobStatus.ACTIVE]
    assert len(held) <= 2
    store.sweep(100)  # wakes who waits for a limit key whose holder died before it could
    running = {job.limit_key for job in held} - {None}
    free = {n[-1] for n in found if n not in done and not n.startswith("cron")} - running
    came = claimed(store)
    assert {job.id[-1] for job in came if not job.id.startswith("cron")} == free


def test_processes_never_get_the_same_job(store: PostgresJobStore, jobs_url: str) -> None:
    """Workers that claim as fast as they can share the jobs, and each job runs once."""
    store.add([new(f"j{n}", queue=f"q{n % 5}", priority=n % 3) for n in range(1000)])
    store.set_queue("q1", max_active=9)
    crew = [
        subprocess.Popen(  # noqa: S603 - our own interpreter
            [sys.executable, "-c", CLAIMER, jobs_url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
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
    assert [each.returncode for each in crew] == [0, 0, 0]
    assert claims == {f"j{n} 1": 1 for n in range(1000)}
    assert store.count(Search(statuses=(JobStatus.COMPLETED,))) == 1000


def test_a_bell_is_heard_from_another_process(store: PostgresJobStore, jobs_url: str) -> None:
    """A job added elsewhere wakes whoever listens here, and so does its end."""
    store.put_schedule(schedule(100.0))
    work, done = store.listen(Topic.WORK), store.listen(Topic.DONE)
    code, said = run(jobs_url, "jobs.sweep.before_commit", 1)
    assert code == -signal.SIGKILL
    assert said["settled"]
    assert work.wait(WAIT)
    assert done.wait(WAIT)
    work.close()
    done.close()


@pytest.mark.req("SCALE:fleet-outage")
def test_a_server_that_is_killed_and_comes_back() -> None:
    """Calls fail meanwhile with an error that says so; nothing is lost, and nobody restarts."""
    server = PostgresServer(is_durable=True)
    try:
        server.start()
        store = PostgresJobStore(server.url())
        store.add([new("a"), new("b")])
        [job] = store.exchange([], ask(1))[1].jobs
        bell = store.listen(Topic.WORK)
        server.kill()
        for call in (lambda: store.add([new("c")]), lambda: store.exchange([], ask(1))):
            with pytest.raises(StoreUnavailableError):
                call()
        server.start()
        assert bell.wait(WAIT)  # for whatever was missed
        assert [each.id for each in store.search(Search(queue="default"))] == ["b", "a"]
        assert store.find("a") is not None
        assert [each.id for each in store.exchange([], ask(5))[1].jobs] == ["b"]
        assert job.id == "a"
        store.close()
    finally:
        server.remove()
