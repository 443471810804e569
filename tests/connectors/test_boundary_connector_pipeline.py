"""Facts become jobs, in processes that are killed on the way: nothing is lost, nothing doubled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from ergon_framework.core.job import JobStatus
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.store_urls import open_store
from ergon_framework.ports.jobstore import Search
from tests import fork_server
from tests.connectors import pipe_child
from tests.connectors.zone_node import cursor, fill, http_node

pytestmark = [pytest.mark.slow, pytest.mark.req("ONE:connector-jobs", "ONE:connector-boundary")]

FACTS = 20


def child(what: str, url: str, folder: Path, point: str = "") -> int:
    """Run a child to its end; what it ended with, a consumer that is still held aside."""
    store = f"sqlite:///{folder}/jobs.db"
    done = fork_server.run(
        [sys.executable, pipe_child.__file__, what, url, store, str(folder)],
        env={**os.environ, "ERGON_FAILPOINTS": point},
        check=False,
        timeout=60,
        stderr=subprocess.PIPE,
        text=True,
    )
    if "ConsumerHeldError" in done.stderr:  # by the one that was killed, until its lease ends
        time.sleep(0.2)
        return 0
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


def until_done(what: str, url: str, folder: Path, is_done: object) -> int:
    """Start it again until everything is done: leases of the dead have to end first."""
    runs = 0
    while not is_done():  # type: ignore[operator]
        assert child(what, url, folder) == 0
        runs += 1
        assert runs < 50
    return runs


def effects(folder: Path) -> Counter[int]:
    """How often each job was worked on."""
    path = folder / "effects"
    return Counter(map(int, path.read_text().split())) if path.exists() else Counter()


def completed(folder: Path) -> int:
    """Jobs that ended well."""
    store = open_store(f"sqlite:///{folder}/jobs.db")
    try:
        return store.count(Search(statuses=(JobStatus.COMPLETED,)))
    finally:
        store.close()


@pytest.mark.parametrize(("moment", "attempts"), [("before", 1), ("after", 2)])
def test_a_kill_around_the_charge(moment: str, attempts: int, tmp_path: Path) -> None:
    """What was only claimed keeps all its attempts; what was charged has one less."""
    store = open_store(f"sqlite:///{tmp_path}/jobs.db")
    JobClient(store=store).enqueue("work", kwargs={"n": 1}, id="a")
    store.close()
    point = f"connector.jobs.charging.{moment}=kill"
    assert child("work", "", tmp_path, point) == -signal.SIGKILL
    until_done("work", "", tmp_path, lambda: completed(tmp_path) == 1)
    store = open_store(f"sqlite:///{tmp_path}/jobs.db")
    job = store.find("a")
    store.close()
    assert job is not None
    assert (job.attempts, job.deliveries) == (attempts, 2)
    assert effects(tmp_path) == {1: 1}


@pytest.mark.parametrize("moment", ["before", "after"])
def test_facts_into_jobs_with_kills_in_the_middle(moment: str, tmp_path: Path) -> None:
    """Both processes are killed between an outcome and its settlement; the sums add up."""
    with http_node() as node:
        fill(node.zone, *range(1, FACTS + 1))
        killed = -signal.SIGKILL
        pipe_point = f"connector.boundary.confirming.{moment}=kill@2"
        assert child("pipe", node.url, tmp_path, pipe_point) == killed
        assert 0 < cursor(node.zone, "pipe") < FACTS
        until_done("pipe", node.url, tmp_path, lambda: cursor(node.zone, "pipe") == FACTS)
        assert node.zone.store.quarantine() == []
    work_point = f"connector.jobs.settling.{moment}=kill@5"
    assert child("work", "", tmp_path, work_point) == killed
    before = effects(tmp_path)
    assert completed(tmp_path) < FACTS
    until_done("work", "", tmp_path, lambda: completed(tmp_path) == FACTS)
    after = effects(tmp_path)
    store = open_store(f"sqlite:///{tmp_path}/jobs.db")
    jobs = list(store.search(Search()))
    store.close()
    assert sorted(job.id for job in jobs) == sorted(
        f"job-order:{n}:created" for n in range(1, FACTS + 1)
    )
    assert {job.status for job in jobs} == {JobStatus.COMPLETED}
    # Each was worked on, and only those in hand when the process died a second time.
    assert set(after) == set(range(1, FACTS + 1))
    again = {n for n, times in after.items() if times > 1}
    assert again <= set(before)
    assert len(again) <= 4
    assert max(after.values()) <= 2
