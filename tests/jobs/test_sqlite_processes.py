"""Several processes on one store, and processes that die at every failpoint."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from ergon_framework.core.job import JobStatus
from ergon_framework.jobs.stores.sqlite import SqliteJobStore
from ergon_framework.ports.jobstore import Schedule, Search, Topic
from ergon_framework.storage.failpoints import NAMES
from ergon_framework.testing.suites.jobstore.subject import ask, new

pytestmark = [pytest.mark.slow, pytest.mark.req("JOBS:store", "JOBS:campaign")]
POINTS = sorted(name for name in NAMES if name.startswith(("jobs.", "storage.commit.")))
PASSES = (1, 2, 5)
WAIT = 50

# Each line on standard output is written with one call, before or after a promise of the store.
WORKER = """
import os, sys
from ergon_framework.jobs.stores.sqlite import SqliteJobStore
from ergon_framework.ports.jobstore import Hold, NewJob, WorkerRecord
from ergon_framework.testing.suites.hand_clock import HandClock
from ergon_framework.testing.suites.jobstore.subject import SUCCEEDED, Subject, ask

def say(*words):
    os.write(1, (" ".join(words) + "\\n").encode())

store = SqliteJobStore(sys.argv[1])
s = Subject(store, HandClock(), None, 15.0)
store.tell(WorkerRecord(id="w", host="h", pid=1, version="1", started_at=0.0))
[at] = [each.next_at for each in store.schedules()]
for n in range(8):
    ids = [f"{n}-{m}" for m in range(3)]
    say("adding", *ids)
    store.add([NewJob(id=each, handler="work") for each in ids])
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
import os, sys
from ergon_framework.jobs.stores.sqlite import SqliteJobStore
from ergon_framework.testing.suites.hand_clock import HandClock
from ergon_framework.testing.suites.jobstore.subject import SUCCEEDED, Subject, ask

store = SqliteJobStore(sys.argv[1])
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


def run(path: Path, point: str, passes: int) -> tuple[int, dict[str, list[str]]]:
    """Let a process work until it dies; how it ended, and what it said by word."""
    env = os.environ | {"ERGON_FAILPOINTS": f"{point}=kill@{passes}"}
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", WORKER, str(path)],
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
    """Before and after the commit of each call that changes jobs."""
    calls = {name.split(".")[1] for name in POINTS if name.startswith("jobs.")}
    assert calls >= {"add", "exchange", "renew", "fire"}
    assert all(
        f"jobs.{call}.{when}_commit" in POINTS for call in calls for when in ("before", "after")
    )


@pytest.mark.parametrize("point", POINTS)
def test_a_process_that_dies_keeps_its_promises(point: str, tmp_path: Path) -> None:
    """What was acknowledged is there, batches are whole, and the rest can be done again."""
    for passes in PASSES:
        path = tmp_path / f"{passes}.db"
        store = SqliteJobStore(path)
        store.put_schedule(schedule(100.0))
        store.close()
        code, said = run(path, point, passes)
        if code == 0:
            assert passes > 1, f"{point} is never passed"
            continue
        assert code == -signal.SIGKILL
        store = SqliteJobStore(path)
        found = {job.id: job for job in store.search(Search())}
        settled = set(said.get("settled", ()))
        assert set(said.get("added", ())) | set(said.get("fired", ())) <= found.keys()
        for n in range(8):
            assert sum(f"{n}-{m}" in found for m in range(3)) in {0, 3}
        done = {name for name, job in found.items() if job.status is JobStatus.COMPLETED}
        assert settled <= done <= set(said.get("settling", ()))
        [cron] = store.schedules()
        fired = {name for name in found if name.startswith("cron-")}
        assert cron.next_at == 100.0 + len(fired)
        held = [job for job in found.values() if job.status is JobStatus.ACTIVE]
        assert len(held) <= 2
        free = len(found) - len(done) - len(held)
        assert len(store.exchange([], ask(100))[1].jobs) == free
        store.close()


def test_processes_never_get_the_same_job(tmp_path: Path) -> None:
    """Two workers that claim as fast as they can share the jobs, and each job runs once."""
    path = tmp_path / "jobs.db"
    store = SqliteJobStore(path)
    store.add([new(f"j{n}", queue=f"q{n % 5}", priority=n % 3) for n in range(1000)])
    crew = [
        subprocess.Popen(  # noqa: S603 - our own interpreter
            [sys.executable, "-c", CLAIMER, str(path)],
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
    store.close()


def test_a_bell_is_heard_from_another_process(tmp_path: Path) -> None:
    """A job added elsewhere wakes whoever listens here, and so does its end."""
    path = tmp_path / "jobs.db"
    store = SqliteJobStore(path)
    store.put_schedule(schedule(100.0))
    work, done = store.listen(Topic.WORK), store.listen(Topic.DONE)
    code, said = run(path, "jobs.sweep.before_commit", 1)
    assert code == -signal.SIGKILL
    assert said["settled"]
    assert work.wait(0)
    assert done.wait(0)
    work.close()
    done.close()
    store.close()
