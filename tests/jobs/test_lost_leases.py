"""Who still works on a job whose lease is lost, or whose worker is dead: nobody, and soon."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from ergon_framework.core.claim import ClaimRequest
from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.job import JobStatus, LeaseExpired, Transition
from ergon_framework.jobs.child_process import ChildProcess
from ergon_framework.jobs.settings import ExecutorSettings
from ergon_framework.jobs.settlement import Settler
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.jobs.stores.sqlite import SqliteJobStore
from ergon_framework.jobs.watchdog import Watchdog
from ergon_framework.ports.jobstore import LeaseRenewal, NewJob, Settlement, WorkerRecord
from tests.executor.link import request
from tests.jobs.real_worker import (
    PATIENCE,
    at_work,
    get,
    history,
    is_alive,
    job,
    quick,
    unruly,
    wait_until,
    worker,
)

pytestmark = pytest.mark.slow

APP = """
import os, time
from pathlib import Path
from ergon_framework.executor import Registry

registry = Registry()

@registry.handler
def linger(started, until):
    Path(started).write_text(str(os.getpid()))
    while not Path(until).exists():
        time.sleep(0.02)

@registry.handler
def spin(started):
    Path(started).write_text(str(os.getpid()))
    while True:
        pass
"""

PARENT = """
import sys, time
from ergon_framework.jobs.child_process import ChildProcess
child = ChildProcess(sys.argv[1:], {"PATH": "/usr/bin:/bin"}, None)
print(child.pid, flush=True)
time.sleep(600)
"""


class Taken(MemoryJobStore):
    """Others take some jobs over while they run."""

    taken: frozenset[str] = frozenset()
    was_told = False  # that they did

    def renew(self, holds: Sequence[LeaseRenewal], lease: float) -> list[bool]:
        kept = super().renew(holds, lease)
        self.was_told = self.was_told or any(hold.id in self.taken for hold in holds)
        return [
            is_kept and hold.id not in self.taken for is_kept, hold in zip(kept, holds, strict=True)
        ]


def is_ignored(pid: int, number: int) -> bool:
    """Whether a process ignores a signal, where the system tells that."""
    file = Path(f"/proc/{pid}/status")
    if not file.exists():
        return True
    [ignored] = [line for line in file.read_text().splitlines() if line.startswith("SigIgn:")]
    return bool(int(ignored.split()[1], 16) >> (number - 1) & 1)


def pid_in(file: Path) -> int:
    """What a handler wrote when it began."""
    wait_until(lambda: file.exists() and file.read_text(), "the start of a handler")
    return int(file.read_text().split()[0])


def executor_in(folder: Path) -> tuple[str, ...]:
    """The command of an executor with the handlers above."""
    (folder / "app.py").write_text(APP)
    return (sys.executable, "-m", "ergon_framework.executor", "--app", f"{folder}/app.py:registry")


def started(folder: Path) -> subprocess.Popen[bytes]:
    """That executor, as a program that is no worker would start it."""
    return subprocess.Popen(  # noqa: S603 - a program of this test
        executor_in(folder), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


def test_the_process_of_a_lost_job_is_killed(tmp_path: Path) -> None:
    """Even one that ignores SIGTERM, long before its time is over; another takes its place."""
    store = Taken()
    started = tmp_path / "started"
    settings = quick(lease=0.6)
    with at_work(worker(store, executor=unruly(kill_grace=20.0), settings=settings)):
        store.add([job("stubborn", str(started))])
        pid = pid_in(started)
        store.taken = frozenset({"stubborn"})
        wait_until(lambda: not is_alive(pid), "the end of the process")
        store.add([job("echo")])
        wait_until(lambda: get(store, "echo").status.is_final, "another job")


class SetClock:
    """A clock that somebody sets while it runs.

    One that stood still would jump all the time in the eyes of a worker, which measures it by its
    own, and after each jump the next rescue waits for a lease.
    """

    def __init__(self) -> None:
        self._ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self._ahead

    def forward(self, seconds: float) -> None:
        """Set it."""
        self._ahead += seconds


def retried_by_hand(store: MemoryJobStore, new: NewJob, delay: float) -> None:
    """Put a job into the store that has failed once, and is to be tried again later."""
    store.add([new])
    slots = {"python": 1}
    ask = ClaimRequest(worker="w", lease=60.0, slots=slots, default="python", own=frozenset(slots))
    [leased] = store.settle_and_claim([], ask)[1].jobs
    failure = Failure(Kind.DEFECT, "boom")
    again = Transition(JobStatus.RETRYING, "failed", 1, 0, delay, failure, "boom")
    settlement = Settlement(
        key=leased.key,
        id=leased.id,
        fence=leased.fence,
        expected=JobStatus.ACTIVE,
        transition=again,
        entry=b"{}",
    )
    assert store.settle_and_claim([settlement], None)[0] == [True]


def test_a_worker_heals_leases_after_the_clock_was_set_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A dead worker's job is run a lease later by the store's clock, not an hour later; a retry as
    soon as was decided.
    """
    clock = SetClock()
    store = MemoryJobStore(clock)
    lease = 0.6
    retried_by_hand(store, job("echo", id="retried"), delay=0.3)
    store.add([job("echo")])
    dead = WorkerRecord(id="dead", host="h", pid=1, version="1", started_at=0.0, lease=lease)
    store.heartbeat(dead)
    slots = {"python": 1}
    ask = ClaimRequest(
        worker="dead", lease=lease, slots=slots, default="python", own=frozenset(slots)
    )
    assert store.settle_and_claim([], ask)[1].jobs
    clock.forward(-3600.0)
    began_at = clock()
    with at_work(worker(store, settings=quick(lease=lease))):
        wait_until(lambda: get(store, "echo").status.is_final, "the next attempt")
        wait_until(lambda: get(store, "retried").status.is_final, "the retry")
    assert "clock was set back: 1 lease(s)" in caplog.text
    assert "clock was set back: 1 job(s)" in caplog.text
    found = get(store, "echo")
    assert found.status == "completed"
    assert found.finished_at is not None
    assert began_at + lease <= found.finished_at < began_at + 60.0


def test_the_neighbours_of_a_lost_job_finish_first(tmp_path: Path) -> None:
    """A process that runs several jobs is ended when no other is left in it, and gets no more."""
    executor = ExecutorSettings(
        command=executor_in(tmp_path), pool_size=1, max_in_flight=2, startup_grace=60.0
    )
    store = Taken()
    until = tmp_path / "until"
    with at_work(worker(store, executor=executor, settings=quick(lease=0.6))):
        for name in ("lost", "kept"):
            store.add(
                [job("linger", str(tmp_path / name), str(tmp_path / f"{name}-ends"), id=name)]
            )
        pid = pid_in(tmp_path / "lost")
        assert pid_in(tmp_path / "kept") == pid
        until.touch()
        store.taken = frozenset({"lost"})
        store.add([job("linger", str(tmp_path / "next"), str(until), id="next")])
        wait_until(lambda: store.was_told, "the loss")
        assert is_alive(pid)
        (tmp_path / "kept-ends").touch()
        wait_until(lambda: get(store, "kept").status.is_final, "the neighbour")
        assert get(store, "kept").status == "completed"
        wait_until(lambda: not is_alive(pid), "the end of the process")
        wait_until(lambda: get(store, "next").status.is_final, "the next job")
        assert pid_in(tmp_path / "next") != pid


def test_a_job_that_comes_back_to_its_own_worker_ends_the_earlier_attempt(tmp_path: Path) -> None:
    """A rescue gave the job back to the queue before its worker renewed, and the same worker claims
    it again: in a process of its own, and the first one is killed.
    """
    store = MemoryJobStore()
    started = tmp_path / "started"
    executor = unruly(pool_size=2)
    settings = quick(lease=60.0, max_attempts=5, grace=0.0)
    with at_work(worker(store, executor=executor, settings=settings)):
        store.add([job("stubborn", str(started))])
        first = pid_in(started)
        found = get(store, "stubborn")
        rescue = Settler(settings, "other").settle_stored(found, LeaseExpired(), store.now())
        assert store.settle_and_claim([rescue], None)[0] == [True]
        wait_until(lambda: len(started.read_text().split()) == 2, "the next attempt")
        wait_until(lambda: not is_alive(first), "the end of the first process")
        assert is_alive(int(started.read_text().split()[1]))


@pytest.mark.skipif(sys.platform != "linux", reason="there is no parent-death signal")
def test_an_executor_dies_with_its_worker() -> None:
    """Whatever it is written in, and though it reads no input."""
    with subprocess.Popen(  # noqa: S603 - a program of this test
        [sys.executable, "-c", PARENT, "sleep", "600"], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        os.kill(parent.pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(pid), "the end of the executor")


WORKER = """
import sys
from ergon_framework.jobs.settings import ExecutorSettings
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.jobs.worker import Worker
executor = ExecutorSettings(command=("sh", "-c", sys.argv[1]), pool_size=1)
Worker(MemoryJobStore(), executors={"shell": executor}).run()
"""


def test_what_an_executor_started_dies_with_the_worker(tmp_path: Path) -> None:
    """A program of its group that reads nothing, and was never told who had it started."""
    file = tmp_path / "pid"
    script = f"sleep 600 </dev/null >/dev/null 2>&1 & echo $! > {file}; wait"
    with subprocess.Popen([sys.executable, "-c", WORKER, script]) as parent:  # noqa: S603
        pid = pid_in(file)
        assert is_alive(pid)
        os.kill(parent.pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(pid), "the end of what the executor had started", 10.0)


@pytest.mark.skipif(sys.platform != "linux", reason="commands are started directly")
def test_an_executor_begins_when_the_watchdog_knows_of_it(tmp_path: Path) -> None:
    """What it starts before that would outlive a worker that is killed in between."""
    file, had_begun = tmp_path / "begun", []

    class Late(Watchdog):
        def watch(self, group: int) -> None:
            time.sleep(0.5)
            had_begun.append(file.exists())
            super().watch(group)

    watchdog = Late()
    child = ChildProcess(("touch", str(file)), os.environ, None, watchdog)
    wait_until(child.has_exited, "its end")
    child.close()
    watchdog.close()
    assert had_begun == [False]
    assert file.exists()
    assert child.status == 0


STOPPED = """
import sys
from ergon_framework.jobs.settings import ExecutorSettings, JobsSettings
from ergon_framework.jobs.stores.sqlite import SqliteJobStore
from ergon_framework.jobs.worker import Worker
store, *command = sys.argv[1:]
executor = ExecutorSettings(command=tuple(command), pool_size=1)
settings = JobsSettings(lease=12.5, grace=0.0)
print(Worker(SqliteJobStore(store), executors={"python": executor}, settings=settings).run())
"""


def test_the_executors_of_a_stopped_worker_end_before_its_leases_do(tmp_path: Path) -> None:
    """SIGSTOP reaches the worker alone. Its watchdog kills the executor while nobody else can have
    the job yet; continued, the worker gives the job back without a charge and runs it again.
    """
    started = tmp_path / "started"
    store = SqliteJobStore(tmp_path / "jobs.db")
    store.add([job("stubborn", str(started))])
    command = unruly().command
    words = [sys.executable, "-c", STOPPED, str(tmp_path / "jobs.db"), *command]
    with closing(store), subprocess.Popen(words) as parent:  # noqa: S603
        try:
            pid = pid_in(started)
            held = get(store, "stubborn").lease_expires_at
            wait_until(lambda: get(store, "stubborn").lease_expires_at != held, "a renewal")
            os.kill(parent.pid, signal.SIGSTOP)
            wait_until(lambda: not is_alive(pid), "the end of the executor")
            assert (get(store, "stubborn").lease_expires_at or 0.0) > store.now()
            os.kill(parent.pid, signal.SIGCONT)
            wait_until(lambda: len(started.read_text().split()) == 2, "the next attempt")
            assert is_alive(int(started.read_text().split()[1]))
            found = get(store, "stubborn")
            assert [each["event"] for each in history(found)] == ["released"]
            assert (found.excused, found.deliveries) == (1, 2)
        finally:
            parent.kill()


def test_a_watchdog_that_was_killed_is_replaced_soon() -> None:
    """Though no executor begins or ends: the worker may live for days with the same ones."""
    watchdog = Watchdog()
    group = subprocess.Popen(["sleep", "600"], start_new_session=True)  # noqa: S607
    try:
        watchdog.watch(group.pid)
        first = watchdog.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: not is_alive(first), "the end of the watchdog")
        wait_until(lambda: watchdog.pid not in (None, first), "another watchdog")
        assert is_alive(group.pid)
        watchdog.close()
        wait_until(lambda: not is_alive(group.pid), "the end of the group")
    finally:
        watchdog.close()
        group.kill()
        group.wait()


def test_a_silence_that_may_have_cost_the_executors_is_noticed() -> None:
    """A heartbeat less than the watchdog's timeout: it counts from the last one before the stop."""
    watchdog = Watchdog(lease=20.0)
    assert watchdog.timeout == 10.0
    assert [watchdog.was_stopped(now) for now in (0.0, 1.0, 9.0, 17.7)] == [*[False] * 3, True]


def test_a_watchdog_that_was_killed_is_replaced() -> None:
    """The next one knows all groups; one that was forgotten is left alone at the end."""
    watchdog = Watchdog()
    groups = [
        subprocess.Popen(["sleep", "600"], start_new_session=True)  # noqa: S607
        for _ in range(3)
    ]
    try:
        watchdog.watch(groups[0].pid)
        watchdog.watch(groups[1].pid)
        first = watchdog.pid
        assert first is not None
        wait_until(lambda: is_ignored(first, signal.SIGTERM), "its start")
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: not is_alive(first), "the end of the watchdog")
        watchdog.forget(groups[1].pid)
        watchdog.watch(groups[2].pid)
        assert watchdog.pid not in (None, first)
        assert [is_alive(each.pid) for each in groups] == [True, True, True]
        watchdog.close()
        wait_until(lambda: not is_alive(groups[0].pid), "the end of the first")
        wait_until(lambda: not is_alive(groups[2].pid), "the end of the last")
        assert is_alive(groups[1].pid)
        assert watchdog.pid is None
    finally:
        watchdog.close()
        for each in groups:
            each.kill()
            each.wait()


def test_an_executor_ends_when_nobody_is_at_its_pipes(tmp_path: Path) -> None:
    """Everywhere, though its handler is busy in Python and never comes back."""
    with started(tmp_path) as executor:
        assert executor.stdin is not None
        assert executor.stdout is not None
        executor.stdin.write(request("spin", str(tmp_path / "started")))
        executor.stdin.flush()
        pid_in(tmp_path / "started")
        executor.stdin.close()
        executor.stdout.close()
        assert executor.wait(PATIENCE) != 0


def test_an_executor_answers_when_only_its_input_has_ended(tmp_path: Path) -> None:
    """The end of the input means that no request follows, and nothing more."""
    asked = request("linger", str(tmp_path / "started"), str(tmp_path / "until"))
    with started(tmp_path) as executor:
        assert executor.stdin is not None
        assert executor.stdout is not None
        executor.stdin.write(asked)
        executor.stdin.close()
        pid_in(tmp_path / "started")
        (tmp_path / "until").touch()
        assert b'"success"' in executor.stdout.readline()
        assert executor.wait(PATIENCE) == 0
