"""Running a real worker over a real executor process, for tests."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from ergon_framework.core.job import route
from ergon_framework.jobs.settings import BackoffSettings, ExecutorSettings, JobsSettings
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.jobs.worker import Worker, WorkerReport
from ergon_framework.ports.jobstore import Job, NewJob
from tests import waiting

PROGRAMS = Path(__file__).parent / "programs"
PATIENCE = 90.0


def unruly(*arguments: str, **options: Any) -> ExecutorSettings:
    """An executor that misbehaves on request."""
    command = (sys.executable, str(PROGRAMS / "unruly.py"), *arguments)
    return ExecutorSettings(command=command, **{"pool_size": 1, "kill_grace": 0.5, **options})


def quick(**options: Any) -> JobsSettings:
    """Settings under which nothing takes long."""
    backoff = BackoffSettings(base=0.01, cap=0.05)
    values = {"backoff": backoff, "max_attempts": 2, "timeout": 20.0, "lease": 3.0, "grace": 5.0}
    return JobsSettings(**{**values, **options})


def job(handler: str, *args: Any, **fields: Any) -> NewJob:
    """A job for that handler; its id is the handler's name unless one is given."""
    executor = route(handler)[0]
    values = {"id": handler, "handler": handler, "executor": executor}
    return NewJob(**{**values, "args": msgspec.json.encode(args), **fields})


def worker(store: Any, *, executor: ExecutorSettings | None = None, **options: Any) -> Worker:
    """A worker with one executor, ``python``."""
    settings = options.pop("settings", None) or quick()
    executors = options.pop("executors", None) or {"python": executor or unruly()}
    return Worker(store, executors=executors, settings=settings, **options)


def burst(jobs: Sequence[NewJob], **options: Any) -> tuple[WorkerReport, MemoryJobStore]:
    """Add the jobs to a store of their own and run what is due."""
    store = MemoryJobStore()
    store.add(jobs)
    return worker(store, burst=True, **options).run(), store


def finish(jobs: Sequence[NewJob], **options: Any) -> dict[str, Job]:
    """Run jobs until each has ended, with all their retries; answers them by id."""
    store = MemoryJobStore()
    store.add(jobs)
    with at_work(worker(store, **options)):
        for each in jobs:
            wait_until(lambda each=each: get(store, each.id).status.is_final)  # type: ignore[misc]
    return {each.id: get(store, each.id) for each in jobs}


def get(store: Any, job_id: str) -> Job:
    """A job that is there."""
    found = store.find(job_id)
    assert isinstance(found, Job)
    return found


@contextmanager
def at_work(subject: Worker) -> Iterator[Worker]:
    """A worker that runs in a thread from here to the end, and is stopped there."""
    ends: list[BaseException | WorkerReport] = []

    def body() -> None:
        try:
            ends.append(subject.run())
        except BaseException as error:
            ends.append(error)

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    try:
        yield subject
    finally:
        if not ends and not subject.is_stopping:
            subject.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the worker does not stop"
    if ends and isinstance(ends[0], BaseException):
        raise ends[0]


def executor_status(subject: Worker, name: str = "python") -> dict[str, Any]:
    """What a running worker tells of one of its executors."""
    return dict(subject.record().executors[name])


def wait_until(
    condition: Callable[[], object], what: str = "it", seconds: float = PATIENCE
) -> None:
    """Wait for something another thread or process brings about."""
    waiting.until(condition, what, seconds)


def history(subject: Job) -> list[dict[str, Any]]:
    """A job's history, decoded."""
    return [msgspec.json.decode(entry) for entry in subject.history]


def is_alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # the latter if it goes while it is read
        if Path("/proc/self").exists():
            return False
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        return True
    return state not in "ZX"
