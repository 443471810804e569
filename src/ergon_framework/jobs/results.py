"""Waits for the end of a job, woken by the store instead of polling all the time."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.job import HANDLER_MISSING, JobStatus
from ergon_framework.core.text import indented
from ergon_framework.engine.clocks import SYSTEM_CLOCK, sleep_until
from ergon_framework.errors import (
    JobError,
    JobFailedError,
    JobNotFoundError,
    JobStateError,
    ResultTimeoutError,
    StoreUnavailableError,
    UnreadableJobError,
)
from ergon_framework.jobs.payload_codec import PLAIN, PayloadCodec
from ergon_framework.jobs.stores.erasure import is_erased
from ergon_framework.jobs.views import decoded, error_view, last_entry_with
from ergon_framework.ports.job_fields import is_storable
from ergon_framework.ports.jobstore import Job, JobStore, Subscription, Topic
from ergon_framework.storage.deadlines import CALL_BUDGET
from ergon_framework.storage.urls import option_for, pasteable

MIN_POLL_INTERVAL = 0.005
"""Seconds between two reads of the store: in a busy store jobs end all the time, and each end wakes
the waiters.
"""
POLL_INTERVAL = 1.0
"""Seconds after which a waiter reads the store without having been woken."""


class SharedSubscription:
    """One subscription for all threads that wait: one thread waits on it and wakes the others."""

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._changed = threading.Condition()
        self._subscription: Subscription | None = None
        self._users = 0
        self._is_watched = False  # Whether a thread waits on it, and will wake the others.
        self._notifications = 0

    @property
    def waiters(self) -> int:
        """How many threads have joined and not left."""
        return self._users

    def join(self) -> Waiter:
        """Join the subscription, which stays open while it has a waiter."""
        with self._changed:
            if self._subscription is None:
                self._subscription = self._store.subscribe(Topic.DONE)
                # A thread that left while it waited on the earlier subscription must not keep the
                # new one from being watched.
                self._is_watched = False
            self._users += 1
            return Waiter(self, self._subscription, self._notifications)

    def leave(self) -> None:
        """Leave. The last waiter closes the subscription."""
        with self._changed:
            self._users -= 1
            # Kept while anybody waits, because subscribing costs a pipe or a connection.
            if self._users == 0 and self._subscription is not None:
                self._subscription.close()
                self._subscription = None

    def wait(self, subscription: Subscription, seen: int, seconds: float) -> int:
        """Wait until there are more notifications than ``seen``, or for so long. Returns their
        number.
        """
        until = time.monotonic() + seconds
        if self._is_my_turn(seen, until):
            is_notified = False
            try:
                is_notified = subscription.wait(max(0.0, until - time.monotonic()))
            finally:
                with self._changed:
                    # Also when it was interrupted: the others would wait for a thread that has
                    # left.
                    self._is_watched = False
                    self._notifications += is_notified
                    # The others were notified too, or one of them waits on it now.
                    self._changed.notify_all()
        return self._notifications

    def _is_my_turn(self, seen: int, until: float) -> bool:
        with self._changed:
            self._changed.wait_for(
                # A notification that came in between counts, whichever thread received it.
                lambda: self._notifications != seen or not self._is_watched,
                max(0.0, until - time.monotonic()),
            )
            if self._notifications != seen or self._is_watched:
                return False
            self._is_watched = True
            return True


class Waiter:
    """One thread that waits. A notification between two waits is not lost."""

    def __init__(self, shared: SharedSubscription, subscription: Subscription, seen: int) -> None:
        self._shared = shared
        self._subscription = subscription
        self._seen = seen

    def wait(self, seconds: float) -> bool:
        """Wait until notified, or for so long. Returns whether it was notified."""
        before = self._seen
        self._seen = self._shared.wait(self._subscription, before, seconds)
        return self._seen != before

    def close(self) -> None:
        """Leave, once."""
        self._shared.leave()


def wait_in_time(
    store: JobStore, shared: SharedSubscription, job_id: str, timeout: float | None, poll: float
) -> Job:
    """Call :func:`wait_for`, and keep the caller's timeout even if the store does not answer."""
    check_timeout(timeout)
    began = time.monotonic()
    try:
        # Limited to the caller's time: a server that does not answer would keep the caller for the
        # server's own timeout.
        return CALL_BUDGET.run_within(
            timeout, lambda: wait_for(store, shared, job_id, timeout, poll)
        )
    except StoreUnavailableError as error:
        if timeout is None or time.monotonic() < began + timeout:
            raise
        raise unanswered(job_id, timeout, error) from error


def check_timeout(timeout: Any) -> None:
    """Refuse a timeout that is no number of seconds: with NaN the wait would never end."""
    if timeout is None:
        return
    is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
    if not is_number or math.isnan(timeout):
        raise JobError(
            f"timeout is {timeout!r}, and no number of seconds",
            remedy="give a number, or None to wait as long as it takes",
            details={"field": "timeout"},
        )


def _sleep(seconds: float) -> None:
    sleep_until(SYSTEM_CLOCK, SYSTEM_CLOCK.now() + seconds)


def wait_for(
    store: JobStore,
    shared: SharedSubscription,
    job_id: str,
    timeout: float | None,
    poll: float = POLL_INTERVAL,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = _sleep,
) -> Job:
    """The job in its final state."""
    job = found(store, job_id)
    if job.status.is_final:
        return job
    refuse_to_wait(store, job_id)
    until = None if timeout is None else now() + timeout
    with closing(shared.join()) as waiter:
        while True:
            looked_at = now()
            job = found(store, job_id)  # After subscribing, so that no end is missed.
            if job.status.is_final:
                return job
            left = poll if until is None else min(poll, until - now())
            if left <= 0:
                raise timed_out(job, timeout, store)
            # The end of any job wakes this thread: in a busy store that is many times a second, and
            # each time costs a read.
            if waiter.wait(left):
                sleep(max(0.0, min(looked_at + MIN_POLL_INTERVAL - now(), left)))


def refuse_to_wait(store: JobStore, job_id: str) -> None:
    """Refuse to wait for a job that no worker runs meanwhile: in a sandbox only a drain
    runs jobs.
    """
    if not getattr(store, "is_drained_by_hand", False):
        return
    job = found(store, job_id)
    if not job.status.is_final:
        raise ResultTimeoutError(
            f"the job {job.id} is {job.status}, and in a sandbox nobody runs it while you wait",
            remedy="call ergon.drain() first; if it is not due yet, ergon.advance(seconds)",
            details={"job_id": job.id, "status": job.status.value},
        )


def found(store: JobStore, job_id: str) -> Job:
    """The job of that id. Raises JobNotFoundError."""
    job = store.find(job_id) if is_storable(job_id) else None
    if job is None:
        raise not_found(job_id, option_for(store))
    return job


def why_hint(store: JobStore, any_id: str) -> str:
    """The command that explains a job or a flow; empty for a store in memory."""
    from ergon_framework.jobs.stores.memory import MemoryJobStore

    if isinstance(getattr(store, "plain", store), MemoryJobStore):
        return ""
    return f"this tells more:  {pasteable('why', any_id, option_for(store))}"


def result_of(job: Job, store: JobStore, codec: PayloadCodec = PLAIN) -> Any:
    """What a completed job returned. Raises JobFailedError for a job that ended otherwise.

    ``codec`` decodes the result, and fetches it from an object store. A result that was erased
    raises JobStateError, because None would look like what the handler returned.
    """
    if job.status is JobStatus.COMPLETED:
        refuse_erased_result(job)
        return None if job.result is None else _read(job, codec)
    is_cancelled = job.status is JobStatus.CANCELLED
    failure = job.last_error
    if is_cancelled or failure is None:
        failure = Failure(Kind.CANCELLED if is_cancelled else Kind.DEFECT, job.status.value)
    how = "was cancelled" if is_cancelled else f"failed: {failure.message or failure.code}"
    details = {"job_id": job.id, "status": job.status.value, **error_view(failure)}
    error = JobFailedError(
        f"the job {job.id} {how}", remedy=why_hint(store, job.id), details=details
    )
    entry = None if is_cancelled else last_entry_with(job, "traceback")
    if entry is not None:
        error.add_note(f"It failed here:\n{indented(str(entry['traceback']))}")
    raise error


def refuse_erased_result(job: Job) -> None:
    """Raise JobStateError if the result of a completed job was erased."""
    if is_erased(job):
        raise JobStateError(
            f"the job {job.id} was erased, and its result with it",
            remedy="enqueue it again with its arguments",
            details={"job_id": job.id, "status": job.status.value},
        )


def _read(job: Job, codec: PayloadCodec) -> Any:
    """The result of a completed job. An executor may write numbers that Python cannot read."""
    value = decoded(codec.decode_result(job.result or b"null"))
    if value is None and job.result is not None and job.result.strip() != b"null":
        raise UnreadableJobError(
            f"the job {job.id} is completed, but its result cannot be read: it has a number that is"
            " too large, or was damaged",
            remedy="let the executor write such numbers as text",
            details={"job_id": job.id},
        )
    return value


def not_found(job_id: str, options: str = "") -> JobNotFoundError:
    """The error for an unknown id; ``options`` name the store in the command of the remedy."""
    return JobNotFoundError(
        f"there is no job {job_id!r}",
        remedy=f"look for its id with ergon jobs list{options}; ended jobs are kept for a while"
        " only",
        details={"job_id": job_id},
    )


def timed_out(job: Job, timeout: float | None, store: JobStore) -> ResultTimeoutError:
    """The error for a wait that is over while the job goes on, or waits for a worker."""
    is_left = job.why == HANDLER_MISSING and not job.status.is_final
    reason = f", and waits for a worker that has the handler {job.handler!r}" if is_left else ""
    hints = ["" if is_left else "wait longer; the job goes on", why_hint(store, job.id)]
    return ResultTimeoutError(
        f"the job {job.id} is still {job.status} after {timeout:g} seconds{reason}",
        remedy="; ".join(filter(None, hints)) or "start a worker that has the handler",
        details={"job_id": job.id, "status": job.status.value},
    )


def unanswered(
    job_id: str, timeout: float, error: StoreUnavailableError | None
) -> ResultTimeoutError:
    """The error for a store that did not answer in time."""
    reason = "" if error is None else f": {error.message}"
    return ResultTimeoutError(
        f"the store did not tell within {timeout:g} seconds how the job {job_id} stands{reason}",
        remedy="see that the server of the store runs; the job goes on",
        details={"job_id": job_id},
    )
