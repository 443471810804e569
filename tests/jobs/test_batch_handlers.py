"""Batch handlers behind a real worker: how many jobs they get, and what a crash does to them."""

from __future__ import annotations

import sys
from typing import Any

import msgspec
import pytest

from ergon_framework.core.job import JobStatus
from ergon_framework.jobs.settings import ExecutorSettings
from ergon_framework.ports.jobstore import Job
from tests.jobs.real_worker import PROGRAMS, burst, get, history, job

pytestmark = [pytest.mark.slow, pytest.mark.req("JOBS:orchestrator")]


def batches(**options: Any) -> ExecutorSettings:
    """An executor with batch handlers, in one process."""
    app = f"{PROGRAMS / 'batches.py'}:registry"
    command = (sys.executable, "-m", "ergon_framework.executor", "--app", app)
    return ExecutorSettings(command=command, pool_size=1, **options)


def result(subject: Job) -> Any:
    """What a completed job returned."""
    assert subject.status is JobStatus.COMPLETED, subject.last_error
    return msgspec.json.decode(subject.result or b"")


def test_an_executor_with_batch_handlers_is_given_enough_jobs() -> None:
    """Nobody has set max_in_flight: the process says how many it can take, for both colours."""
    jobs = [job("count", n, id=f"c{n}") for n in range(40)]
    jobs += [job("count_async", n, id=f"a{n}") for n in range(40)]
    _, store = burst(jobs, executor=batches())
    sizes = [result(get(store, f"c{n}"))[0] for n in range(40)]
    assert max(sizes) >= 10
    assert max(result(get(store, f"a{n}")) for n in range(40)) >= 10


def test_a_number_that_was_set_is_kept() -> None:
    """One at a time stays one at a time, and nobody lingers for jobs that cannot come."""
    report, store = burst(
        [job("count", n, id=f"c{n}") for n in range(5)], executor=batches(max_in_flight=1)
    )
    assert report.completed == 5
    assert [result(get(store, f"c{n}"))[0] for n in range(5)] == [1] * 5
    took = [history(get(store, f"c{n}"))[-1]["seconds"] for n in range(5)]
    assert min(took) < 0.3


def test_after_a_crash_each_job_of_the_batch_is_tried_alone() -> None:
    """Only the one that kills the process is charged for it, and ends in the dead letters."""
    jobs = [job("poison", n, id=f"p{n}") for n in range(10, 16)]
    report, store = burst(jobs, executor=batches(max_in_flight=6))
    assert (report.completed, report.failed) == (5, 1)
    for n in (10, 11, 12, 14, 15):
        subject = get(store, f"p{n}")
        assert result(subject) == 1  # alone
        assert subject.attempts == 1
    dead = get(store, "p13")
    assert (dead.status, dead.attempts) == (JobStatus.FAILED, 2)
    assert dead.last_error is not None
    assert dead.last_error.code == "executor_died"
    events = [entry["event"] for entry in history(dead)]
    assert events == ["lost", "lost", "lost"]  # first among others, then twice alone
