"""Cancelling a job that runs: its handler is told, its process ended, and nobody else harmed."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from ergon_framework.core.job import JobStatus
from ergon_framework.errors import StoreUnavailableError
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.settings import ExecutorSettings
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.jobs.stores.sqlite import SqliteJobStore
from ergon_framework.ports.jobstore import CancelRequest, FullJobStore, Job, LeaseRenewal
from tests import fork_server
from tests.jobs.real_worker import (
    PATIENCE,
    at_work,
    executor_status,
    get,
    history,
    is_alive,
    job,
    quick,
    wait_until,
    worker,
)

pytestmark = [pytest.mark.slow, pytest.mark.req("JOBS:orchestrator")]

APP = """
import asyncio, os, time
from pathlib import Path
from ergon_framework.executor import JobContext, Registry

registry = Registry()

@registry.handler
def polls(started, job: JobContext):
    Path(started).write_text(str(os.getpid()))
    while True:
        job.raise_if_cancelled()
        time.sleep(0.01)

@registry.handler
def finishes(started, job: JobContext):
    Path(started).write_text(str(os.getpid()))
    while not job.is_cancelled:
        time.sleep(0.01)
    return "done all the same"

@registry.handler
async def awaits(started):
    Path(started).write_text(str(os.getpid()))
    try:
        await asyncio.sleep(600)
    finally:
        Path(started + ".cleaned").touch()

@registry.handler
def deaf(started):
    Path(started).write_text(str(os.getpid()))
    while True:
        time.sleep(0.05)

@registry.handler
def lingers(started, until):
    Path(started).write_text(str(os.getpid()))
    while not Path(until).exists():
        time.sleep(0.01)

@registry.handler
def pid():
    return os.getpid()
"""

WORKER = """
import sys
sys.path.insert(0, sys.argv[2])
from ergon_framework.jobs.stores.sqlite import SqliteJobStore
from tests.jobs.real_worker import quick, unruly, worker
store = SqliteJobStore(sys.argv[1])
worker(store, executor=unruly(kill_grace=60.0), settings=quick(lease=1.5)).run()
"""


def python(folder: Path, **options: object) -> ExecutorSettings:
    """Ergon's own executor with the handlers above."""
    (folder / "app.py").write_text(APP)
    command = sys.executable, "-m", "ergon_framework.executor", "--app", f"{folder}/app.py:registry"
    return ExecutorSettings.model_validate(
        {"command": command, "pool_size": 1, "kill_grace": 20.0, **options}
    )


def pid_in(file: Path) -> int:
    """What a handler wrote when it began."""
    wait_until(lambda: file.exists() and file.read_text(), "the start of a handler", 2 * PATIENCE)
    return int(file.read_text().split()[0])


@contextmanager
def another_client(path: Path) -> Iterator[JobClient]:
    """A client that shares nothing with the worker but the file."""
    with JobClient(f"sqlite:///{path}") as client:
        yield client


def ended(store: FullJobStore, job_id: str) -> Job:
    """The job, once it has ended."""
    wait_until(lambda: get(store, job_id).status.is_final, f"the end of {job_id}")
    return get(store, job_id)


def assert_cancelled(found: Job, *, attempts: int = 1) -> None:
    """It was cancelled while it ran, by whom we said, and nothing else was recorded."""
    assert (found.status, found.why) == (JobStatus.CANCELLED, "cancelled_running")
    assert (found.attempts, found.last_error) == (attempts, None)
    last = history(found)[-1]
    assert (last["event"], last["by"], last["reason"]) == ("cancelled", "ann", "the wrong file")


def test_handlers_are_told_and_their_process_goes_on(tmp_path: Path) -> None:
    """A plain one sees it, an async one is cancelled; one that completes first has completed.

    The worker is woken by the request: it renews its leases only after a quarter of an hour.
    """
    path = tmp_path / "jobs.db"
    names = ("polls", "finishes", "awaits")
    with closing(SqliteJobStore(path)) as store:
        store.add([job(each, str(tmp_path / each)) for each in names])
        executor = python(tmp_path, max_in_flight=4)
        with at_work(worker(store, executor=executor, settings=quick(lease=3600))):
            pids = {pid_in(tmp_path / each) for each in names}
            with another_client(path) as client:
                for each in names:
                    assert client.cancel(each, running=True, by="ann", reason="the wrong file")
                assert_cancelled(ended(store, "polls"))
                assert_cancelled(ended(store, "awaits"))
                assert client.result("finishes", timeout=PATIENCE) == "done all the same"
                assert {client.result(client.enqueue("pid"), timeout=PATIENCE)} == pids
        assert get(store, "finishes").history[-1].count(b"ann") == 0
    assert (tmp_path / "awaits.cleaned").exists()


@pytest.mark.parametrize("handler", ["grandchild", "stubborn"])
def test_the_process_of_an_executor_that_knows_only_version_1_is_ended(
    tmp_path: Path, handler: str
) -> None:
    """With all that it has started, by SIGTERM or, where that is ignored, by SIGKILL."""
    store, trace = MemoryJobStore(), tmp_path / "pid"
    client = JobClient(store=store)
    subject = worker(store)
    with at_work(subject):
        store.add([job(handler, str(trace))])
        pid = pid_in(trace)
        assert client.cancel(handler, running=True, by="ann", reason="the wrong file")
        assert_cancelled(ended(store, handler))
        wait_until(lambda: not is_alive(pid), "the end of the process")
        store.add([job("echo")])
        assert ended(store, "echo").status is JobStatus.COMPLETED
        assert executor_status(subject)["failed_starts"] == 0


def test_neighbours_finish_before_their_process_is_ended(tmp_path: Path) -> None:
    """A cancelled handler that does not listen keeps its process only as long as others need it."""
    store, gate = MemoryJobStore(), tmp_path / "gate"
    client = JobClient(store=store)
    executor = python(tmp_path, max_in_flight=3, kill_grace=0.2)
    subject = worker(store, executor=executor)
    with at_work(subject):
        store.add([job("deaf", str(tmp_path / "deaf"))])
        store.add([job("lingers", str(tmp_path / "lingers"), str(gate))])
        pid = pid_in(tmp_path / "deaf")
        assert pid_in(tmp_path / "lingers") == pid
        client.cancel("deaf", running=True, by="ann", reason="the wrong file")
        wait_until(lambda: executor_status(subject)["slots"] == 0, "a process that takes no more")
        store.add([job("pid")])
        time.sleep(0.6)  # three graces
        assert is_alive(pid)
        assert get(store, "deaf").cancel_request is not None
        gate.touch()
        neighbour = ended(store, "lingers")
        assert (neighbour.status, neighbour.attempts) == (JobStatus.COMPLETED, 1)
        assert_cancelled(ended(store, "deaf"))
        assert client.result("pid", timeout=PATIENCE) != pid


class Away(MemoryJobStore):
    """A store that does not answer for a while."""

    is_away = False
    refused = 0

    def _answer(self) -> None:
        if self.is_away:
            self.refused += 1
            raise StoreUnavailableError("away")

    def renew(self, holds: Sequence[LeaseRenewal], lease: float) -> list[bool]:
        self._answer()
        return super().renew(holds, lease)

    def cancel_requests(self, claims: Sequence[LeaseRenewal]) -> Mapping[str, CancelRequest]:
        self._answer()
        return super().cancel_requests(claims)


def test_a_request_is_seen_when_the_store_is_back(tmp_path: Path) -> None:
    """The notification came while the store did not answer."""
    store, trace = Away(), tmp_path / "pid"
    with at_work(worker(store, settings=quick(lease=30.0))):
        store.add([job("stubborn", str(trace))])
        pid_in(trace)
        store.is_away = True
        JobClient(store=store).cancel("stubborn", running=True, by="ann", reason="the wrong file")
        wait_until(lambda: store.refused, "a question that was not answered")
        assert get(store, "stubborn").status is JobStatus.ACTIVE
        store.is_away = False
        assert_cancelled(ended(store, "stubborn"))


def test_a_worker_that_is_killed_meanwhile_leaves_a_cancelled_job(tmp_path: Path) -> None:
    """Whoever rescues the job does not run it again."""
    path, trace = tmp_path / "jobs.db", tmp_path / "pid"
    with closing(SqliteJobStore(path)) as store:
        store.add([job("stubborn", str(trace))])
        (tmp_path / "worker.py").write_text(WORKER)
        here = Path(__file__).parents[2]
        doomed = fork_server.start([sys.executable, tmp_path / "worker.py", path, here])
        with doomed:
            pid = pid_in(trace)
            with another_client(path) as client:
                client.cancel("stubborn", running=True, by="ann", reason="the wrong file")
            doomed.send_signal(signal.SIGKILL)
        wait_until(lambda: not is_alive(pid), "the end of what it ran")
        assert get(store, "stubborn").status is JobStatus.ACTIVE
        with at_work(worker(store, settings=quick(lease=1.5))):
            found = ended(store, "stubborn")
        assert found.status is JobStatus.CANCELLED
        assert history(found)[-1]["by"] == "ann"
    assert trace.read_text().split() == [str(pid)]


def test_a_worker_that_stops_cancels_what_it_would_give_back(tmp_path: Path) -> None:
    """Its grace ends before that of the cancelled handler."""
    store, trace = MemoryJobStore(), tmp_path / "polls"
    executor = python(tmp_path)
    subject = worker(store, executor=executor, settings=quick(grace=0.1))
    with at_work(subject):
        store.add([job("deaf", str(trace))])
        os.kill(pid_in(trace), 0)
        JobClient(store=store).cancel("deaf", running=True, by="ann", reason="the wrong file")
        subject.stop()
    assert get(store, "deaf").status is JobStatus.CANCELLED
