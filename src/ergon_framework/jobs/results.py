"""Waiting for a job's end, woken by the store and never busy."""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.job import JobStatus
from ergon_framework.core.text import indented
from ergon_framework.engine.clocks import SYSTEM_CLOCK, sleep_until
from ergon_framework.errors import (
    JobFailedError,
    JobNotFoundError,
    ResultTimeoutError,
    StoreUnavailableError,
    UnreadableJobError,
)
from ergon_framework.jobs.views import decoded, error_shape, last_told
from ergon_framework.ports.jobstore import Bell, Job, JobStore, Topic
from ergon_framework.storage.deadlines import ASKING
from ergon_framework.storage.urls import store_option

APART = 0.005
"""Seconds between two looks at the store: in a busy one, jobs end all the time."""
POLL = 1.0
"""Seconds after which one looks without having been woken."""


class Ear:
    """One bell of a store for all threads that wait: they take turns at listening to it."""

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._changed = threading.Condition()
        self._bell: Bell | None = None
        self._users = 0
        self._is_heard = False  # somebody listens, and tells the others
        self._rings = 0

    def listen(self) -> Share:
        """A share in the bell, which is there as long as anybody has one."""
        with self._changed:
            if self._bell is None:
                self._bell = self._store.listen(Topic.DONE)
                self._is_heard = False
            self._users += 1
            return Share(self, self._bell, self._rings)

    def leave(self) -> None:
        """One share less; the last one closes the bell."""
        with self._changed:
            self._users -= 1
            if self._users == 0 and self._bell is not None:
                self._bell.close()
                self._bell = None

    def wait(self, bell: Bell, heard: int, seconds: float) -> int:
        """Sleep until there are more rings than were heard, or for so long; how many there are."""
        until = time.monotonic() + seconds
        if self._is_my_turn(heard, until):
            is_rung = False
            try:
                is_rung = bell.wait(max(0.0, until - time.monotonic()))
            finally:
                with self._changed:
                    self._is_heard = False
                    self._rings += is_rung
                    self._changed.notify_all()  # they heard it too, or one of them listens now
        return self._rings

    def _is_my_turn(self, heard: int, until: float) -> bool:
        with self._changed:
            self._changed.wait_for(
                lambda: self._rings != heard or not self._is_heard,
                max(0.0, until - time.monotonic()),
            )
            if self._rings != heard or self._is_heard:
                return False
            self._is_heard = True
            return True


class Share:
    """One waiter's share in a bell; a ring between two waits counts."""

    def __init__(self, ear: Ear, bell: Bell, heard: int) -> None:
        self._ear = ear
        self._bell = bell
        self._heard = heard

    def wait(self, seconds: float) -> bool:
        """Sleep until rung or until that much time has passed; whether it was rung."""
        before = self._heard
        self._heard = self._ear.wait(self._bell, before, seconds)
        return self._heard != before

    def close(self) -> None:
        """Give it back, once."""
        self._ear.leave()


def wait_in_time(store: JobStore, ear: Ear, job_id: str, timeout: float | None, poll: float) -> Job:
    """The same as :func:`wait_for`, also when the store does not answer for longer than that."""
    began = time.monotonic()
    try:
        return ASKING.hurried(timeout, lambda: wait_for(store, ear, job_id, timeout, poll))
    except StoreUnavailableError as error:
        if timeout is None or time.monotonic() < began + timeout:
            raise
        raise unanswered(job_id, timeout, error) from error


def _sleep(seconds: float) -> None:
    sleep_until(SYSTEM_CLOCK, SYSTEM_CLOCK.now() + seconds)


def wait_for(
    store: JobStore,
    ear: Ear,
    job_id: str,
    timeout: float | None,
    poll: float = POLL,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = _sleep,
) -> Job:
    """The job in its final state."""
    job = found(store, job_id)
    if job.status.is_final:
        return job
    until = None if timeout is None else now() + timeout
    with closing(ear.listen()) as bell:
        while True:
            looked_at = now()
            job = found(store, job_id)  # after the bell is there, so that no end is missed
            if job.status.is_final:
                return job
            left = poll if until is None else min(poll, until - now())
            if left <= 0:
                raise timed_out(job, timeout)
            if bell.wait(left):
                sleep(max(0.0, min(looked_at + APART - now(), left)))


def found(store: JobStore, job_id: str) -> Job:
    """The job of that id."""
    job = store.find(job_id)
    if job is None:
        raise not_found(job_id)
    return job


def result_of(job: Job, url: str = "") -> Any:
    """What a completed job returned; raises JobFailedError for one that ended otherwise.

    ``url`` is the store, for the command that tells more.
    """
    if job.status is JobStatus.COMPLETED:
        return None if job.result is None else _read(job)
    is_cancelled = job.status is JobStatus.CANCELLED
    failure = job.last_error
    if is_cancelled or failure is None:
        failure = Failure(Kind.CANCELLED if is_cancelled else Kind.DEFECT, job.status.value)
    how = "was cancelled" if is_cancelled else f"failed: {failure.message or failure.code}"
    details = {"job_id": job.id, "status": job.status.value, **error_shape(failure)}
    remedy = f"this tells more:  ergon why {shlex.quote(job.id)}{store_option(url)}"
    error = JobFailedError(f"the job {job.id} {how}", remedy=remedy, details=details)
    entry = None if is_cancelled else last_told(job, "traceback")
    if entry is not None:
        error.add_note(f"It failed here:\n{indented(str(entry['traceback']))}")
    raise error


def _read(job: Job) -> Any:
    """The result of a completed job; an executor may write numbers that nobody here can read."""
    value = decoded(job.result or b"null")
    if value is None and job.result is not None and job.result.strip() != b"null":
        raise UnreadableJobError(
            f"the job {job.id} is completed, but its result cannot be read: it has a number that is"
            " too large, or was damaged",
            remedy="let the executor write such numbers as text",
            details={"job_id": job.id},
        )
    return value


def not_found(job_id: str) -> JobNotFoundError:
    """There is no such job."""
    return JobNotFoundError(
        f"there is no job {job_id!r}",
        remedy="look for its id with ergon jobs list; ended jobs are kept for a while only",
        details={"job_id": job_id},
    )


def timed_out(job: Job, timeout: float | None) -> ResultTimeoutError:
    """The job goes on, but nobody waits for it any longer."""
    return ResultTimeoutError(
        f"the job {job.id} is still {job.status} after {timeout:g} seconds",
        remedy="wait longer; the job goes on",
        details={"job_id": job.id, "status": job.status.value},
    )


def unanswered(
    job_id: str, timeout: float, error: StoreUnavailableError | None
) -> ResultTimeoutError:
    """The store did not say in time how the job stands."""
    reason = "" if error is None else f": {error.message}"
    return ResultTimeoutError(
        f"the store did not tell within {timeout:g} seconds how the job {job_id} stands{reason}",
        remedy="see that the server of the store runs; the job goes on",
        details={"job_id": job_id},
    )
