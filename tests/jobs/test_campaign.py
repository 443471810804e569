"""The crash campaign: workers die at every named place, executors at random, and nothing is lost.

2,000 jobs on a real SQLite file. Each worker is a process of its own that kills itself with SIGKILL
at one failpoint; while it lives, a hand with a seeded dice kills its executors. Then a worker
without a failpoint finishes the rest, and the store is counted, not anything kept on the way.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from ergon_framework.core.job import JobStatus
from ergon_framework.jobs.chores import WorkerChores
from ergon_framework.jobs.stores.opening import open_store
from ergon_framework.ports.jobstore import NewJob, Search
from ergon_framework.storage.failpoints import NAMES
from tests.jobs.workplace import PATIENCE, PROGRAMS, wait_until

JOBS = 2_000
IN_FLIGHT = 8
POOL = 2
SEED = 20_261

WORKER = textwrap.dedent("""
    import json, sys
    from ergon_framework.jobs.settings import BackoffSettings, ExecutorSettings, JobsSettings
    from ergon_framework.jobs.stores.opening import open_store
    from ergon_framework.jobs.worker import Worker

    url, command, burst = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3] == "burst"
    settings = JobsSettings(
        backoff=BackoffSettings(base=0.01, cap=0.02), lease=0.5, max_attempts=200, grace=1.0
    )
    executor = ExecutorSettings(command=command, pool_size=2, max_in_flight=8, kill_grace=0.2)
    store = open_store(url)
    Worker(store, executors={"ledger": executor}, settings=settings, burst=burst).run()
""")

RARE = ("sweep", "rescue", "renew", "desk")
"""Places that a worker does not pass many times a second."""
ELSEWHERE = {
    "jobs.add.before_commit",  # of clients, operators and cron: their own tests kill them there
    "jobs.add.after_commit",
    "jobs.fire.before_commit",
    "jobs.fire.after_commit",
}


def points() -> list[str]:
    """Every failpoint that a running worker passes."""
    assert WorkerChores is not None  # imported for its failpoint
    known = (name for name in NAMES if name.startswith(("jobs.", "storage.", "worker.")))
    return sorted(name for name in known if name not in ELSEWHERE)


class Campaign:
    """One database, one ledger, and workers that die."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder / 'work.db'}"
        self.ledger = folder / "ledger"
        self.ledger.touch()
        self.command = [sys.executable, str(PROGRAMS / "ledger.py"), str(self.ledger)]
        self.dice = random.Random(SEED)  # noqa: S311 - to be repeatable
        self.kills = 0
        self.killed_executors = 0

    def start(self, failpoints: str = "", *, burst: bool = False) -> subprocess.Popen[bytes]:
        """A worker in a process of its own."""
        env = {**os.environ, "ERGON_FAILPOINTS": failpoints}
        mode = "burst" if burst else "stay"
        arguments = [sys.executable, "-c", WORKER, self.url, json.dumps(self.command), mode]
        return subprocess.Popen(arguments, env=env, stderr=subprocess.DEVNULL)  # noqa: S603

    def die_at(self, failpoint: str) -> None:
        """Let a worker live until it kills itself there."""
        nth = 1 if any(word in failpoint for word in RARE) else self.dice.randint(1, 6)
        worker = self.start(f"{failpoint}=kill@{nth}")
        try:
            self.trouble(worker)
            assert worker.wait(timeout=PATIENCE) == -signal.SIGKILL
        except subprocess.TimeoutExpired:
            pytest.fail(f"no worker came past {failpoint} {nth} times")
        finally:
            if worker.poll() is None:
                worker.kill()
                worker.wait()
        self.kills += 1

    def trouble(self, worker: subprocess.Popen[bytes]) -> None:
        """Kill an executor now and then, while the worker lives."""
        for _ in range(3):
            try:
                worker.wait(timeout=self.dice.uniform(0.2, 0.6))
            except subprocess.TimeoutExpired:
                self.kill_an_executor(worker.pid)

    def kill_an_executor(self, worker: int) -> None:
        """One of the worker's children, if it has any."""
        children = Path(f"/proc/{worker}/task/{worker}/children")
        pids = children.read_text(encoding="ascii").split() if children.exists() else []
        if pids:
            try:
                os.kill(int(self.dice.choice(pids)), signal.SIGKILL)
            except ProcessLookupError:
                return
            self.killed_executors += 1


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.req("JOBS:campaign", "X11", "X12", "X13")
def test_nothing_is_lost_and_nothing_is_completed_twice(tmp_path: Path) -> None:
    """Lost 0, completed twice 0, and no more re-executed than were in flight at the kills."""
    campaign = Campaign(tmp_path)
    with closing(open_store(campaign.url)) as store:
        names = points()
        share = JOBS // len(names)
        added = 0
        for name in names:
            fresh = [
                NewJob(id=f"job-{n}", handler="any" if n % 50 else "slow")
                for n in range(added, added + share)
            ]
            store.add(fresh)
            added += share
            campaign.die_at(name)
        store.add([NewJob(id=f"job-{n}", handler="any") for n in range(added, JOBS)])
        last = campaign.start()
        try:
            ended = Search(statuses=(JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED))
            wait_until(lambda: store.count(ended) == JOBS, "the end of every job")
        finally:
            last.terminate()
            last.wait(timeout=30)
        jobs = list(store.search(Search()))
    runs = Counter(campaign.ledger.read_text(encoding="ascii").split())
    lost = [job.id for job in jobs if job.status is not JobStatus.COMPLETED]
    twice = [job.id for job in jobs if _completions(job.history) != 1]
    again = sum(runs.values()) - JOBS
    in_flight = campaign.kills * POOL * IN_FLIGHT + campaign.killed_executors * IN_FLIGHT
    assert len(jobs) == JOBS
    assert lost == []
    assert twice == []
    assert set(runs) == {job.id for job in jobs}
    assert 0 <= again <= in_flight
    assert campaign.kills == len(names)


def _completions(history: tuple[bytes, ...]) -> int:
    return sum(msgspec.json.decode(entry)["event"] == "completed" for entry in history)
