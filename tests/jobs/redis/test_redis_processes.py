"""Several processes on one Redis store, and processes that die at every failpoint."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter

import pytest

from ergon_framework.core.job import JobStatus
from ergon_framework.ports.jobstore import Schedule, Search, Topic
from ergon_framework.storage.failpoints import NAMES
from ergon_framework.testing.suites.jobstore.subject import ask, new
from tests.jobs.redis.conftest import Open

pytestmark = [pytest.mark.slow, pytest.mark.req("SCALE:jobs-redis")]
CALLS = [f"jobs.{call}" for call in ("add", "desk", "exchange", "fire", "renew", "sweep")]
POINTS = [f"{call}.{when}_commit" for call in (*CALLS, "move.jobs") for when in ("before", "after")]
PASSES = (1, 3)
WAIT = 50

# Each line on standard output is written with one call, before or after a promise of the store.
WORKER = """
import os, sys
from ergon_framework.jobs.stores.redis import RedisJobStore
from ergon_framework.ports.jobstore import Hold, NewJob, WorkerRecord
from ergon_framework.ports.copies import JobCopy
from ergon_framework.testing.suites.hand_clock import HandClock
from ergon_framework.testing.suites.jobstore.subject import SUCCEEDED, Subject, ask

def say(*words):
    os.write(1, (" ".join(words) + "\\n").encode())

store = RedisJobStore(sys.argv[1])
s = Subject(store, HandClock(), None, 15.0)
store.tell(WorkerRecord(id="w", host="h", pid=1, version="1", started_at=0.0))
[at] = [each.next_at for each in store.schedules()]
for n in range(5):
    ids = [f"{n}-{m}" for m in range(3)]
    say("adding", *ids)
    store.add([NewJob(id=each, handler="work", unique_key=f"u{each}") for each in ids])
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
    store.set_queue("q", max_active=n + 1)
    store.load(store.dump(JobCopy, None, 100))
say("end")
"""

CLAIMER = """
import sys
from ergon_framework.jobs.stores.redis import RedisJobStore
from ergon_framework.testing.suites.hand_clock import HandClock
from ergon_framework.testing.suites.jobstore.subject import SUCCEEDED, Subject, ask

store = RedisJobStore(sys.argv[1])
s = Subject(store, HandClock(), None, 15.0)
print("ready", flush=True)
sys.stdin.readline()
told = []
while True:
    applied, claimed = store.exchange(told, ask(7))
    assert all(applied)
    if not claimed.jobs:
        break
    for job in claimed.jobs:
        print(job.id, job.deliveries)
    told = [s.told(job, SUCCEEDED, keep=600.0) for job in claimed.jobs]
"""


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


def test_the_failpoints_are_there() -> None:
    """Before and after each script that changes something."""
    assert set(POINTS) <= NAMES


@pytest.mark.parametrize("point", POINTS)
def test_a_process_that_dies_keeps_its_promises(
    point: str, redis_url: str, open_store: Open
) -> None:
    """What was acknowledged is there, batches are whole, and the rest can be done again."""
    for passes in PASSES:
        url = f"{redis_url}?prefix=pass{passes}"
        store = open_store(url)
        store.put_schedule(schedule(100.0))
        code, said = run(url, point, passes)
        assert code == -signal.SIGKILL, f"{point} was not passed {passes} times"
        found = {job.id: job for job in store.search(Search())}
        assert set(said.get("added", ())) | set(said.get("fired", ())) <= found.keys()
        for n in range(5):
            assert sum(f"{n}-{m}" in found for m in range(3)) in {0, 3}
        done = {name for name, job in found.items() if job.status is JobStatus.COMPLETED}
        assert set(said.get("settled", ())) <= done <= set(said.get("settling", ()))
        [cron] = store.schedules()
        fired = {name for name in found if name.startswith("cron-")}
        assert cron.next_at == 100.0 + len(fired)
        held = [job for job in found.values() if job.status is JobStatus.ACTIVE]
        assert len(held) <= 2
        free = len(found) - len(done) - len(held)
        assert len(store.exchange([], ask(100))[1].jobs) == free


def test_processes_never_get_the_same_job(redis_url: str, open_store: Open) -> None:
    """Two workers that claim as fast as they can share the jobs, and each job runs once."""
    store = open_store()
    store.add([new(f"j{n}", queue=f"q{n % 5}", priority=n % 3) for n in range(1000)])
    crew = [
        subprocess.Popen(  # noqa: S603 - our own interpreter
            [sys.executable, "-c", CLAIMER, redis_url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for each in crew:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"
    claims = Counter(
        line for each in crew for line in each.communicate("go\n", timeout=WAIT)[0].splitlines()
    )
    assert [each.returncode for each in crew] == [0, 0]
    assert claims == {f"j{n} 1": 1 for n in range(1000)}
    assert store.count(Search(statuses=(JobStatus.COMPLETED,))) == 1000


def test_a_bell_is_heard_from_another_process(redis_url: str, open_store: Open) -> None:
    """A job added elsewhere wakes whoever listens here, and so does its end."""
    store = open_store()
    store.put_schedule(schedule(100.0))
    work, done = store.listen(Topic.WORK), store.listen(Topic.DONE)
    code, said = run(redis_url, "jobs.sweep.before_commit", 1)
    assert code == -signal.SIGKILL
    assert said["settled"]
    assert work.wait(WAIT)
    assert done.wait(WAIT)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_connections_of_its_own(open_store: Open) -> None:
    """Parent and child use the store they both have, and get their own answers and bells."""
    store = open_store()
    bell = store.listen(Topic.WORK)
    store.add([new("before")])
    assert bell.wait(WAIT)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            store.add([new(f"child-{n}") for n in range(20)])
            heard = store.listen(Topic.WORK)
            store.add([new("child-last")])
            code = 0 if heard.wait(WAIT) and store.find("before") is not None else 2
        finally:
            os._exit(code)
    store.add([new(f"parent-{n}") for n in range(20)])
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert store.count(Search()) == 42
    assert bell.wait(WAIT)
