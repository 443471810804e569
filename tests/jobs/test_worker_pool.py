"""How a worker starts, feeds and replaces the processes of an executor."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ergon_framework.core.failure import Kind
from ergon_framework.core.job import JobStatus
from ergon_framework.errors import ConfigurationError, ErgonError, ExecutorError
from ergon_framework.jobs.settings import ExecutorSettings
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.jobs.worker import Worker, WorkerTiming
from tests.jobs.real_worker import (
    PROGRAMS,
    at_work,
    burst,
    executor_status,
    finish,
    get,
    history,
    job,
    quick,
    unruly,
    wait_until,
    worker,
)

pytestmark = [pytest.mark.slow, pytest.mark.req("JOBS:orchestrator")]


def batching(*arguments: str, **options: Any) -> ExecutorSettings:
    """An executor that wants its slots filled."""
    command = (sys.executable, str(PROGRAMS / "batching_executor.py"), *arguments)
    values = {"pool_size": 1, "max_in_flight": 4, "kill_grace": 0.5}
    return ExecutorSettings(command=command, **{**values, **options})


def test_several_requests_are_in_flight_when_asked_for() -> None:
    """With ``max_in_flight = 4`` a process gets four requests, and no more, at once."""
    jobs = [job("any", id=str(n)) for n in range(12)]
    _, store = burst(jobs, executor=batching())
    results = {msgspec.json.decode(get(store, each.id).result or b"") for each in jobs}
    assert results == {4}


def test_one_request_is_in_flight_otherwise() -> None:
    """By default the next request is written only after the answer to the one before."""
    jobs = [job("any", id=str(n)) for n in range(5)]
    _, store = burst(jobs, executor=batching(max_in_flight=1))
    results = {msgspec.json.decode(get(store, each.id).result or b"") for each in jobs}
    assert results == {1}


@pytest.mark.req("X9")
def test_a_crash_with_several_in_flight_charges_nobody_and_tries_each_alone(
    tmp_path: Path,
) -> None:
    """The guilty one is found by running each alone; the others lose no attempt."""
    trace = str(tmp_path / "crashed")
    jobs = [job("any", trace, id=f"good{n}") for n in range(3)]
    jobs.append(job("crash", trace, max_attempts=1))
    done = finish(jobs, executor=batching())
    for each in jobs[:3]:
        good = done[each.id]
        assert (good.status, good.attempts, good.deliveries) == (JobStatus.COMPLETED, 1, 2)
        assert [entry["event"] for entry in history(good)] == ["lost", "completed"]
    bad = done["crash"]
    assert (bad.status, bad.attempts, bad.deliveries) == (JobStatus.FAILED, 1, 2)
    assert bad.why == "attempts_spent"


@pytest.mark.req("X7")
def test_an_executor_that_dies_at_start_costs_its_jobs_nothing(tmp_path: Path) -> None:
    """Its jobs wait unclaimed and uncharged until it starts, and then run."""
    cure = tmp_path / "cure"
    store = MemoryJobStore()
    store.add([job("echo", id=str(n)) for n in range(5)])
    subject = worker(store, executor=unruly(str(cure)))
    with at_work(subject):
        wait_until(store.workers)
        wait_until(lambda: executor_status(subject)["failed_starts"] >= 3)
        for n in range(5):
            assert get(store, str(n)).attempts == 0
        cure.touch()
        wait_until(lambda: all(get(store, str(n)).status.is_final for n in range(5)))
    for n in range(5):
        done = get(store, str(n))
        assert (done.status, done.attempts) == (JobStatus.COMPLETED, 1)


@pytest.mark.req("X7")
@pytest.mark.parametrize("text", ["#!/no/such/interpreter\n", "\x7fELF of another machine"])
def test_a_program_that_cannot_be_executed_is_told_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    """It is there and may be executed, so that only the system finds out."""
    program = tmp_path / "program"
    program.write_text(text)
    program.chmod(0o755)
    executor = ExecutorSettings(command=(str(program),), pool_size=1)
    with pytest.raises(ErgonError, match="does not start"):
        burst([job("echo")], executor=executor)
    assert "Traceback" not in caplog.text
    assert f"cannot execute {program}: " in caplog.text or "cannot start" in caplog.text


@pytest.mark.req("X7")
def test_a_burst_gives_up_on_an_executor_that_never_starts() -> None:
    """It says so, and the jobs are as they were."""
    store = MemoryJobStore()
    store.add([job("echo")])
    with pytest.raises(ErgonError, match=r"'python' does not start.*status 7"):
        worker(store, executor=unruly("no-such-file"), burst=True).run()
    waiting = get(store, "echo")
    assert (waiting.status, waiting.attempts) == (JobStatus.PENDING, 0)


@pytest.mark.req("X7")
def test_a_worker_with_a_limit_gives_up_on_an_executor_that_never_came_up(tmp_path: Path) -> None:
    """Two that are started together fail once; one that has come up before is tried for ever."""
    store = MemoryJobStore()
    store.add([job("echo")])
    subject = worker(store, executor=unruly("no-such-file", pool_size=2), max_failed_starts=1)
    with pytest.raises(ExecutorError, match=r"'python' does not start, tried 2 times:.*status 7"):
        subject.run()
    waiting = get(store, "echo")
    assert (waiting.status, waiting.attempts) == (JobStatus.PENDING, 0)
    cure = tmp_path / "cure"
    cure.touch()
    subject = worker(store, executor=unruly(str(cure)), max_failed_starts=1)
    with at_work(subject):
        wait_until(lambda: get(store, "echo").status.is_final)
        cure.unlink()
        store.add([job("crash", max_attempts=1), job("echo", id="last")])
        wait_until(lambda: executor_status(subject)["failed_starts"] >= 2)
        cure.touch()
        wait_until(lambda: get(store, "last").status.is_final)


def let_pass(seconds: float) -> None:
    """Let a process live for so long; longer does no harm."""
    until = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= until)


def silent(
    folder: Path, before: str = ":", **options: Any
) -> tuple[ExecutorSettings, Callable[[], list[int]]]:
    """An executor in another language that knows of no ready descriptor, and who its processes are.

    It reads requests to the end of its input, and answers none. ``before`` is done at its start.
    """
    program, pids = folder / "silent.sh", folder / "pids"
    pids.touch()
    program.write_text(f"#!/bin/sh\n{before}\necho $$ >> {pids}\nwhile read -r line; do :; done\n")
    program.chmod(0o755)
    values = {"command": (str(program),), "pool_size": 1, "kill_grace": 0.5, **options}
    return ExecutorSettings(**values), lambda: [*map(int, pids.read_text().split())]


@pytest.mark.req("X7")
def test_an_idle_executor_that_is_killed_from_outside_is_replaced_however_often(
    tmp_path: Path,
) -> None:
    """One that lived through its startup grace did start, though it never said or answered any."""
    executor, started = silent(tmp_path, startup_grace=0.3)
    subject = worker(MemoryJobStore(), executor=executor, max_failed_starts=1)
    with at_work(subject):
        for number in range(1, 5):
            wait_until(lambda n=number: len(started()) == n)  # type: ignore[misc]
            let_pass(0.6)
            os.kill(started()[-1], signal.SIGKILL)
        wait_until(lambda: len(started()) == 5)
    # the end of the block raises what the worker raised: it has not failed


@pytest.mark.req("X7")
def test_an_executor_that_has_said_it_is_ready_may_be_killed_within_its_startup_grace(
    tmp_path: Path,
) -> None:
    """One process of it has come up: its program starts, whatever ends the others."""
    says = 'echo ready > "/dev/fd/$ERGON_READY_FD"'
    executor, started = silent(tmp_path, before=says, startup_grace=10.0)
    subject = worker(MemoryJobStore(), executor=executor, max_failed_starts=1)
    with at_work(subject):
        for number in range(1, 4):
            wait_until(lambda n=number: len(started()) == n)  # type: ignore[misc]
            wait_until(lambda: executor_status(subject)["slots"] == 1)
            os.kill(started()[-1], signal.SIGKILL)
        wait_until(lambda: len(started()) == 4)


@pytest.mark.req("X7")
def test_a_silent_executor_that_is_killed_within_its_startup_grace_has_not_started(
    tmp_path: Path,
) -> None:
    """Whatever ended it: a kernel that is out of memory ends programs while they start, too."""
    executor, started = silent(tmp_path, startup_grace=60.0)
    subject = worker(MemoryJobStore(), executor=executor, max_failed_starts=1)

    def kill_twice() -> None:
        with at_work(subject):
            for number in (1, 2):
                wait_until(lambda n=number: len(started()) == n)  # type: ignore[misc]
                os.kill(started()[-1], signal.SIGKILL)
            wait_until(lambda: executor_status(subject)["failed_starts"] >= 2)

    with pytest.raises(ExecutorError, match=r"'python' does not start, tried 2 times: .*SIGKILL"):
        kill_twice()


@pytest.mark.req("X7")
@pytest.mark.parametrize("grace", [0.3, 10.0])
def test_an_idle_executor_that_cannot_be_replaced_makes_the_worker_fail(
    tmp_path: Path, grace: float
) -> None:
    """It goes on trying, in case somebody fixes the program; asked to stop, it says what it lacks.

    Whether the process that was killed had lived through its startup grace makes no difference.
    """
    executor, started = silent(tmp_path, startup_grace=grace)
    subject = worker(MemoryJobStore(), executor=executor)

    def kill_and_stop() -> None:
        with at_work(subject):
            wait_until(lambda: len(started()) == 1)
            let_pass(0.6)
            (tmp_path / "silent.sh").unlink()
            os.kill(started()[0], signal.SIGKILL)
            wait_until(lambda: executor_status(subject)["failed_starts"] >= 2)

    with pytest.raises(ExecutorError, match="'python' was not running at the end") as raised:
        kill_and_stop()
    assert "silent.sh" in raised.value.message


@pytest.mark.req("X7")
def test_an_executor_that_says_it_cannot_serve_is_given_nothing() -> None:
    """It is ended and counts as one that does not start; its job is as it was."""
    store = MemoryJobStore()
    store.add([job("echo")])
    says = "import os, sys; os.write(int(os.environ['ERGON_READY_FD']), b'{\"ready\": false}\\n')"
    command = (sys.executable, "-c", f"{says}; sys.stdin.read()")
    executor = ExecutorSettings(command=command, pool_size=1, kill_grace=0.5)
    with pytest.raises(ErgonError, match="'python' does not start"):
        worker(store, executor=executor, burst=True).run()
    waiting = get(store, "echo")
    assert (waiting.status, waiting.attempts) == (JobStatus.PENDING, 0)


@pytest.mark.req("X7")
def test_a_burst_gives_up_on_one_broken_executor_among_others() -> None:
    """What the others can run is run first."""
    store = MemoryJobStore()
    store.add([job("a#echo"), job("b#echo")])
    executors = {"a": unruly("no-such-file"), "b": unruly()}
    subject = worker(store, executors=executors, settings=quick(default_executor="b"), burst=True)
    with pytest.raises(ErgonError, match=r"'a' does not start"):
        subject.run()
    assert get(store, "a#echo").status is JobStatus.PENDING
    assert get(store, "b#echo").status is JobStatus.COMPLETED


@pytest.mark.req("X4", "X8")
def test_the_time_of_starting_is_not_the_time_of_a_job(tmp_path: Path) -> None:
    """A job whose timeout is shorter than the start of its executor still succeeds."""
    go = tmp_path / "go"
    store = MemoryJobStore()
    store.add([job("alone", timeout=1.0)])  # once it has started, an executor may be held up
    subject = worker(store, executor=batching(str(go), max_in_flight=1))
    with at_work(subject):
        wait_until(lambda: get(store, "alone").deliveries == 1)  # written, and not read
        looks = iter(range(200))
        wait_until(lambda: next(looks, None) is None)  # longer than its timeout
        assert get(store, "alone").status is JobStatus.ACTIVE
        go.touch()
        wait_until(lambda: get(store, "alone").status.is_final)
    assert (get(store, "alone").status, get(store, "alone").attempts) == (JobStatus.COMPLETED, 1)


@pytest.mark.req("X11")
def test_an_executor_that_never_reads_is_bounded_by_deliveries(tmp_path: Path) -> None:
    """After the start-up grace the time of a job counts, read or not; attempts are not charged."""
    never = str(tmp_path / "never")
    executor = batching(never, max_in_flight=1, startup_grace=0.3)
    asked = job("alone", timeout=0.2, max_attempts=1, max_deliveries=2)
    dead = finish([asked], executor=executor)["alone"]
    assert (dead.status, dead.why) == (JobStatus.FAILED, "deliveries_spent")
    assert (dead.attempts, dead.deliveries) == (0, 2)
    assert dead.last_error is not None
    assert (dead.last_error.kind, dead.last_error.code) == (Kind.TIMEOUT, "request_unread")


@pytest.mark.req("X9")
def test_neighbours_of_an_answer_that_cannot_be_used_finish_first() -> None:
    """Their answers count; then the process is replaced."""
    jobs = [job("any", id=f"good{n}") for n in range(3)]
    jobs.append(job("bad_status", max_attempts=1))  # it is answered first
    done = finish(jobs, executor=batching())
    assert done["bad_status"].status is JobStatus.FAILED
    for each in jobs[:3]:
        good = done[each.id]
        assert (good.status, good.attempts, good.deliveries) == (JobStatus.COMPLETED, 1, 1)


@pytest.mark.req("X2", "X9")
def test_neighbours_of_a_line_without_an_end_are_given_back() -> None:
    """Whose line it is stands at its start: that job is charged, and no other."""
    timing = WorkerTiming(confused_after=0.5)
    jobs = [job("any", id=f"good{n}") for n in range(3)]
    jobs.append(job("endless_line", max_attempts=1))
    store = MemoryJobStore()
    store.add(jobs)
    with at_work(worker(store, executor=batching(response_limit=100_000), timing=timing)):
        wait_until(lambda: get(store, "endless_line").status.is_final)
        wait_until(lambda: all(get(store, each.id).excused for each in jobs[:3]))
    dead = get(store, "endless_line")
    assert dead.last_error is not None
    assert (dead.last_error.code, dead.attempts) == ("response_too_large", 1)
    assert {get(store, each.id).attempts for each in jobs[:3]} == {0}


@pytest.mark.req("X8")
def test_nothing_is_claimed_for_an_executor_without_a_free_slot() -> None:
    """While one job hangs in the only slot, the others stay unclaimed and other executors run."""
    store = MemoryJobStore()
    store.add([job("a#hang"), *(job("a#echo", id=str(n)) for n in range(3)), job("b#echo")])
    executors = {"a": unruly(), "b": unruly()}
    subject = worker(store, executors=executors, settings=quick(default_executor="a", grace=0.0))
    with at_work(subject):
        wait_until(lambda: get(store, "b#echo").status is JobStatus.COMPLETED)
        wait_until(lambda: get(store, "a#hang").status is JobStatus.ACTIVE)
        assert {get(store, str(n)).deliveries for n in range(3)} == {0}


def test_a_pool_never_outgrows_its_size() -> None:
    """Crashes are replaced one for one."""
    store = MemoryJobStore()
    store.add([job("crash", id=str(n), max_attempts=1) for n in range(8)])
    subject = worker(store, executor=unruly(pool_size=2))
    most = 0
    with at_work(subject):
        wait_until(store.workers)

        def look() -> bool:
            nonlocal most
            most = max(most, executor_status(subject)["processes"])
            return all(get(store, str(n)).status.is_final for n in range(8))

        wait_until(look)
    assert most <= 2


@pytest.mark.req("JOBS:badinput")
@pytest.mark.parametrize("program", ["no-such-program", "./missing.sh", "/"])
def test_a_command_that_does_not_exist_is_refused_before_anything_starts(program: str) -> None:
    """The error names the setting and the program."""
    with pytest.raises(ConfigurationError, match=r"executors.python.command.*no program") as error:
        worker(MemoryJobStore(), executor=ExecutorSettings(command=(program,)))
    assert program in str(error.value)


@pytest.mark.req("JOBS:badinput")
def test_a_folder_that_does_not_exist_is_refused() -> None:
    """So is a working directory that is not there."""
    with pytest.raises(ConfigurationError, match=r"executors.python.cwd.*no folder"):
        worker(MemoryJobStore(), executor=unruly(cwd="no/such/folder"))


@pytest.mark.req("JOBS:badinput", "EXEC:Selection")
def test_executors_and_default_must_fit_together() -> None:
    """No executor, several without a default, or an unknown default: each is said plainly."""
    store = MemoryJobStore()
    with pytest.raises(ConfigurationError, match="no executor is configured"):
        _make(store, {})
    two = {"a": unruly(), "b": unruly()}
    with pytest.raises(ConfigurationError, match="several executors and no default"):
        _make(store, two)
    with pytest.raises(ConfigurationError, match="there is no executor 'c'"):
        _make(store, two, default_executor="c")
    with pytest.raises(ConfigurationError, match="there is no executor 'd'"):
        _make(store, two, default_executor="a", routes={"q": "d"})


def _make(store: Any, executors: dict[str, ExecutorSettings], **settings: Any) -> Any:
    return Worker(store, executors=executors, settings=quick(**settings))
