"""Clocks of servers and of workers that differ, or are set: leases last as long as they say."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from ergon_framework.core.claim import ClaimRequest
from ergon_framework.jobs.store_urls import open_store
from ergon_framework.ports.jobstore import FullJobStore, WorkerRecord
from tests.campaign.parameter_sample import sampled
from tests.docs.pages import ROOT
from tests.jobs.real_worker import PROGRAMS, at_work, get, job, quick, wait_until, worker
from tests.jobs.test_lost_leases import SetClock

pytestmark = [pytest.mark.slow, pytest.mark.req("X13"), pytest.mark.timeout(180)]
HOUR = 3600.0
LEASE = 1.0
on_servers = pytest.mark.parametrize("server", ["postgres_url", "redis_url"])


@pytest.fixture
def url(server: str, request: pytest.FixtureRequest) -> str:
    """An empty place on that server."""
    found: str = request.getfixturevalue(server)
    return found


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """What the handler ``wait_for`` waits for: until somebody opens it for writing."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


def leased_by_a_dead_worker(store: FullJobStore) -> None:
    """A job that a worker has claimed which is no more."""
    store.add([job("echo")])
    store.heartbeat(
        WorkerRecord(id="dead", host="h", pid=1, version="1", started_at=0.0, lease=LEASE)
    )
    slots = {"python": 1}
    ask = ClaimRequest(
        worker="dead", lease=LEASE, slots=slots, default="python", own=frozenset(slots)
    )
    assert store.settle_and_claim([], ask)[1].jobs


@on_servers
@pytest.mark.parametrize("step", [-HOUR, HOUR])
def test_the_lease_of_a_dead_worker_ends_although_the_servers_clock_was_set(
    url: str, step: float
) -> None:
    """Within seconds by a clock that nobody sets, and not in an hour; set back, not at once."""
    clock = SetClock()
    with closing(open_store(url, clock=clock)) as store:
        leased_by_a_dead_worker(store)
        clock.forward(step)
        began_at = clock()
        with at_work(worker(store, settings=quick(lease=LEASE))):
            wait_until(lambda: get(store, "echo").status.is_final, "the next attempt")
        found = get(store, "echo")
        assert (found.status, found.deliveries) == ("completed", 2)
        assert found.finished_at is not None
        assert found.finished_at < began_at + 60.0
        assert step > 0 or found.finished_at > began_at + LEASE / 2


@on_servers
@pytest.mark.parametrize("step", [-HOUR, HOUR])
def test_a_living_worker_keeps_its_job_although_the_servers_clock_is_set(
    url: str, step: float, pipe: Path
) -> None:
    """Another worker that looks on takes nothing from it, for several leases."""
    clock = SetClock()
    with closing(open_store(url, clock=clock)) as store, closing(open_store(url, clock=clock)) as b:
        store.add([job("wait_for", str(pipe))])
        with at_work(worker(store, settings=quick(lease=LEASE))):
            wait_until(lambda: get(store, "wait_for").status == "active", "the job")
            with at_work(worker(b, settings=quick(lease=LEASE))):
                clock.forward(step)
                later = clock() + 4 * LEASE
                wait_until(lambda: clock() > later, "four leases")
                assert get(store, "wait_for").attempts == 1
                pipe.write_text("go")
                wait_until(lambda: get(store, "wait_for").status.is_final, "the end")
        found = get(store, "wait_for")
        assert (found.status, found.attempts) == ("completed", 1)


@contextmanager
def skewed(url: str, seconds: float) -> Iterator[subprocess.Popen[str]]:
    """A worker on a machine whose clock is so many seconds ahead."""
    # Not forked: what is imported already has the clock of this process.
    words = [sys.executable, str(PROGRAMS / "skewed_worker.py"), url, str(seconds)]
    path = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    with subprocess.Popen(words, env=os.environ | path, text=True) as process:  # noqa: S603
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait(60)


@on_servers
@pytest.mark.parametrize("seconds", sampled([-HOUR, HOUR], [HOUR]))
def test_a_worker_with_a_wrong_clock_keeps_its_job_and_loses_it_when_it_dies(
    url: str, seconds: float, pipe: Path
) -> None:
    """The server's clock counts for both, whatever the machines of the workers think."""
    with closing(open_store(url)) as store:
        store.add([job("wait_for", str(pipe))])
        with skewed(url, seconds) as wrong:
            wait_until(lambda: get(store, "wait_for").status == "active", "the job")
            with at_work(worker(store, settings=quick(lease=LEASE))) as right:
                later = store.now() + 4 * LEASE
                wait_until(lambda: store.now() > later, "four leases")
                assert get(store, "wait_for").attempts == 1
                os.kill(wrong.pid, signal.SIGKILL)
                wait_until(lambda: get(store, "wait_for").attempts == 2, "the rescue", 30.0)
                pipe.write_text("go")
                wait_until(lambda: get(store, "wait_for").status.is_final, "the end")
                assert right is not None
        assert get(store, "wait_for").status == "completed"


@on_servers
@pytest.mark.parametrize("seconds", sampled([-HOUR, HOUR], [-HOUR]))
def test_a_worker_with_a_wrong_clock_takes_no_job_from_another(
    url: str, seconds: float, pipe: Path
) -> None:
    """Its own clock says that the lease is over, or that it lasts for an hour."""
    with closing(open_store(url)) as store:
        store.add([job("wait_for", str(pipe))])
        with at_work(worker(store, settings=quick(lease=LEASE))):
            wait_until(lambda: get(store, "wait_for").status == "active", "the job")
            with skewed(url, seconds):
                wait_until(lambda: len(store.workers()) == 2, "the other worker")
                later = store.now() + 4 * LEASE
                wait_until(lambda: store.now() > later, "four leases")
                assert get(store, "wait_for").attempts == 1
                pipe.write_text("go")
                wait_until(lambda: get(store, "wait_for").status.is_final, "the end")
        assert get(store, "wait_for").attempts == 1
