"""Executor processes that are replaced: after so many jobs, with so much memory, after so long."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ergon_framework.jobs.executor_process import ProcessLimits, RecycleReason
from ergon_framework.jobs.memory_watch import MemoryWatch, of_trees, resident_memory
from ergon_framework.jobs.settings import ExecutorSettings
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.jobs.worker import Worker
from ergon_framework.ports.notice import Notice
from ergon_framework.telemetry.notices import add_listener, remove_listener
from tests.jobs.real_worker import (
    at_work,
    executor_status,
    get,
    job,
    unruly,
    wait_until,
    worker,
)

pytestmark = [pytest.mark.slow, pytest.mark.req("JOBS:orchestrator")]

MIB = 1 << 20


def pid_of(store: MemoryJobStore, name: str) -> int:
    """The process in which a job of the handler ``pid`` ran; it must have run once."""
    found = get(store, name)
    assert (found.attempts, found.deliveries) == (1, 1)
    return int(msgspec.json.decode(found.result or b"0"))


def run_pid(store: MemoryJobStore, name: str) -> int:
    """Run a job of the handler ``pid``."""
    store.add([job("pid", id=name)])
    wait_until(lambda: get(store, name).status.is_final)
    return pid_of(store, name)


def recycled(subject: Worker) -> dict[str, int]:
    """What the heartbeat tells."""
    return dict(executor_status(subject)["recycled"])


def check_limits(kind: type[ProcessLimits]) -> None:
    """The rules of recycling, for what decides by them."""

    def made(**options: Any) -> ProcessLimits:
        return kind(ExecutorSettings(command=("x",), **options), started_at=100.0)

    def counted(limits: ProcessLimits) -> int:
        """With how many jobs it is to be replaced."""
        for number in range(1, 1_000):
            limits.look(number, 100.0)
            if limits.reason is not None:
                assert limits.reason is RecycleReason.MAX_JOBS
                return number
        return 0

    def reason(limits: ProcessLimits) -> RecycleReason | None:
        return limits.reason

    assert made(max_jobs=100).max_jobs == 100
    numbers = {counted(made(max_jobs=100)) for _ in range(200)}
    assert 90 <= min(numbers) < max(numbers) <= 100  # early by a tenth at most, not all at once
    assert counted(made(max_jobs=1)) == 1
    retired = {made(max_age=10.0).retires_at for _ in range(200)}
    assert 109.0 <= min(retired) < max(retired) <= 110.0
    old = made(max_age=10.0)
    old.look(1, 108.9)
    assert reason(old) is None
    old.look(1, 110.0)
    assert reason(old) is RecycleReason.MAX_AGE
    large = made(max_memory=120 * MIB, max_jobs=10)
    large.look_at_memory(0, 500 * MIB)  # every new one is so large
    large.look_at_memory(1, 120 * MIB - 1)
    assert reason(large) is None
    large.look_at_memory(1, 120 * MIB)
    large.look(10, 1e9)
    assert reason(large) is RecycleReason.MAX_MEMORY  # the first reason stays
    endless = made()
    endless.look(10**9, 1e9)
    endless.look_at_memory(10**9, 10**15)
    assert reason(endless) is None


def test_when_a_process_is_to_be_replaced() -> None:
    """After so many jobs, so large or so old; a little early, and not all at once."""
    check_limits(ProcessLimits)


def test_a_process_is_replaced_after_so_many_jobs() -> None:
    """``max_jobs`` bounds what a leaking executor can do, and no job is charged for it."""
    store = MemoryJobStore()
    store.add([job("pid", id=str(number)) for number in range(7)])
    told: list[dict[str, Any]] = []
    subject = worker(store, executor=unruly(max_jobs=2, pool_size=2), burst=True)

    def hear(notice: Notice) -> None:
        if notice.name == "executor.recycled":
            told.append(dict(notice.fields))

    add_listener(hear)
    try:
        report = subject.run()
    finally:
        remove_listener(hear)
    ran = Counter(pid_of(store, str(number)) for number in range(7))
    assert report.completed == 7
    assert max(ran.values()) == 2
    full = {pid for pid, number in ran.items() if number == 2}
    assert {each["pid"] for each in told} == full
    assert {each["reason"] for each in told} == {"max_jobs"}
    assert recycled(subject) == {"max_jobs": len(full)}


def test_an_old_process_finishes_what_it_has_beside_its_successor(tmp_path: Path) -> None:
    """``max_age``: the successor starts in time, and both run no more jobs than the pool may."""
    store = MemoryJobStore()
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    subject = worker(store, executor=unruly(max_age=0.5))
    with at_work(subject):
        old = run_pid(store, "first")
        store.add([job("wait_for", str(gate)), job("pid", id="second")])
        wait_until(lambda: executor_status(subject)["processes"] == 2, "the successor")
        wait_until(lambda: get(store, "wait_for").is_charged, "the charge")
        assert get(store, "second").deliveries == 0  # the pool has room for one job
        gate.write_bytes(b"")
        wait_until(lambda: get(store, "second").status.is_final, "the second job")
        held = get(store, "wait_for")
        assert (held.status.value, held.attempts, held.deliveries) == ("completed", 1, 1)
        assert msgspec.json.decode(held.result or b"0") == old
        wait_until(lambda: recycled(subject).get("max_age", 0) >= 1, "the end of the old process")
        assert run_pid(store, "third") != old


def test_an_old_process_goes_on_when_its_successor_does_not_start(tmp_path: Path) -> None:
    """An executor that cannot be started any more, after a deployment, still works as it did."""
    store = MemoryJobStore()
    cure = tmp_path / "cure"
    cure.touch()
    # A shell ends at once; Python may take so long to start that it counts as up before it ends.
    program = f'test -e {cure} || {{ echo cannot import the moon >&2; exit 7; }}; exec "$@"'
    python = unruly(max_age=0.8)
    command = ("/bin/sh", "-c", program, "sh", *python.command)
    subject = worker(store, executor=python.model_copy(update={"command": command}))
    with at_work(subject):
        run_pid(store, "first")
        cure.unlink()
        wait_until(lambda: executor_status(subject)["failed_starts"] >= 1, "a failed start")
        old = run_pid(store, "second")
        wait_until(lambda: executor_status(subject)["failed_starts"] >= 2, "another one")
        assert run_pid(store, "third") == old


@pytest.mark.parametrize("handler", ["grow", "grow_child"])
def test_a_process_with_too_much_memory_is_replaced(handler: str) -> None:
    """Its own memory counts, and that of what it has started; a new one is left alone."""
    store = MemoryJobStore()
    subject = worker(store, executor=unruly(max_memory=120 * MIB))
    with at_work(subject):
        old = run_pid(store, "first")
        store.add([job(handler, 150 * MIB)])
        wait_until(lambda: recycled(subject) == {"max_memory": 1}, "the limit")
        assert get(store, handler).attempts == 1
        assert run_pid(store, "second") != old
        assert recycled(subject) == {"max_memory": 1}


def test_memory_is_added_up_over_a_process_and_what_it_has_started() -> None:
    """As the system tells it, and as ``ps`` does elsewhere; nothing is told of who is gone."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        wait_until(lambda: child.pid in resident_memory([child.pid]))
        both = resident_memory([os.getpid(), child.pid, 2**22 + 1])
        assert both.keys() == {os.getpid(), child.pid}
        assert both[os.getpid()] > both[child.pid] > 1 * MIB
    finally:
        child.communicate()
    lines = ["  1  0  10", " 20  1  200", "300 20 3000", "  7  1     5", "300 300 3000"]
    assert of_trees(lines, [20, 7, 99]) == {20: 3200 * 1024, 7: 5 * 1024}


def test_memory_that_cannot_be_measured_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """A system without ``ps``: the worker goes on without the limit, and says so."""
    calls: list[int] = []

    def fails(pids: Any) -> dict[int, int]:
        calls.extend(pids)
        raise FileNotFoundError("there is no ps")

    watch = MemoryWatch(lambda: [1], lambda found: calls.append(-1), fails)
    with caplog.at_level(logging.WARNING, "ergon.jobs"):
        watch.start()
        wait_until(lambda: len(calls) >= 2)
        watch.close()
    assert set(calls) == {1}
    assert [each.getMessage() for each in caplog.records] == [
        "the memory of executors cannot be measured, so max_memory is not kept: there is no ps"
    ]


def test_the_former_name_of_max_jobs_is_read() -> None:
    """``recycle_after`` stands in settings that were written before; both at once are refused."""
    assert ExecutorSettings.model_validate({"command": ["x"], "recycle_after": 3}).max_jobs == 3
    both = {"command": ["x"], "recycle_after": 3, "max_jobs": 3}
    with pytest.raises(ValueError, match="recycle_after is the former name of max_jobs"):
        ExecutorSettings.model_validate(both)
