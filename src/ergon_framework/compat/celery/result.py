"""``AsyncResult`` for a task that runs as a job: what ``delay`` and ``apply_async`` return."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

from ergon_framework.compat.celery.arguments import decode
from ergon_framework.compat.celery.exceptions import missing_name
from ergon_framework.core.job import EXPIRED, JobStatus
from ergon_framework.errors import (
    JobFailedError,
    JobNotFoundError,
    JobStateError,
    ResultTimeoutError,
    StoreError,
    describe,
)
from ergon_framework.executor import current_job
from ergon_framework.jobs.client import JobClient

logger = logging.getLogger("ergon.compat.celery")

_STATES = {
    JobStatus.PENDING: "PENDING",
    JobStatus.ACTIVE: "STARTED",
    JobStatus.RETRYING: "RETRY",
    JobStatus.COMPLETED: "SUCCESS",
    JobStatus.FAILED: "FAILURE",
    JobStatus.CANCELLED: "REVOKED",
}
_ALONE = "ask the results of the other calls: a job has no children, and no parent"
_NAMES = {
    **dict.fromkeys(("children", "collect", "get_leaf", "graph", "iterdeps", "parent"), _ALONE),
    "backend": "ask the result itself: the store of jobs keeps it",
    "then": "wait with get(), or call the next task at the end of this one",
}
"""Attributes that results of Celery have and these do not, with what to do instead."""


class JobResult:
    """The result of a job, with the methods of Celery's ``AsyncResult``.

    A failed job raises :class:`JobFailedError`, which names the task's error; the error itself is
    not sent from process to process. ``str(result)`` is the id.
    """

    def __init__(self, job_id: str, client: JobClient | Callable[[], JobClient]) -> None:
        self.id = str(job_id)
        self._client = client

    @property
    def task_id(self) -> str:
        """The id of the task's job."""
        return self.id

    if not TYPE_CHECKING:  # type checkers are to say what is not there

        def __getattr__(self, name: str) -> NoReturn:
            raise missing_name(f"the result {self.__dict__.get('id')}", name, _NAMES)

    def __str__(self) -> str:
        return self.id

    def __repr__(self) -> str:
        return f"<JobResult: {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobResult) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def state(self) -> str:
        """PENDING, STARTED, RETRY, SUCCESS, FAILURE or REVOKED; PENDING for an unknown id.

        A job that has expired is REVOKED, because it was never run.
        """
        try:
            job = self._opened.find(self.id)
        except JobNotFoundError:
            return "PENDING"
        is_expired = job.status is JobStatus.FAILED and job.why == EXPIRED
        return "REVOKED" if is_expired else _STATES[job.status]

    status = state

    def ready(self) -> bool:
        """Whether the job has ended."""
        return self.state in ("SUCCESS", "FAILURE", "REVOKED")

    def successful(self) -> bool:
        """Whether the job has completed."""
        return self.state == "SUCCESS"

    def failed(self) -> bool:
        """Whether the job has been dead-lettered."""
        return self.state == "FAILURE"

    def get(
        self,
        timeout: float | None = None,
        propagate: bool = True,
        interval: float | None = None,
        no_ack: bool = True,
        follow_parents: bool = True,
        callback: Callable[[str, Any], object] | None = None,
        on_message: object = None,
        on_interval: object = None,
        disable_sync_subtasks: bool = True,
        **_: Any,
    ) -> Any:
        """Wait for the result. A failure is raised, or returned without ``propagate``.

        ``callback`` is called with the id and the value. ``interval``, ``no_ack`` and the arguments
        after ``callback`` change nothing: a store wakes its waiters, and sends no messages.
        """
        if disable_sync_subtasks and current_job() is not None:
            raise RuntimeError(
                "a task that waits for another one holds a process that the other may need:"
                " call the next task at the end of this one, or pass disable_sync_subtasks=False"
            )
        try:
            value = decode(self._opened.result(self.id, timeout))
        except ResultTimeoutError as error:
            raise _timeout_of_celery(error) from error.__cause__
        except JobFailedError as error:
            if propagate:
                raise
            return error
        if callback is not None:
            callback(self.id, value)
        return value

    wait = get

    @property
    def result(self) -> Any:
        """The value, the error of a failed job, or None while it has not ended."""
        return self.get(propagate=False, disable_sync_subtasks=False) if self.ready() else None

    info = result

    @property
    def traceback(self) -> str | None:
        """Where the last attempt failed, if it did."""
        try:
            history = self._opened.show(self.id).get("history") or []
        except JobNotFoundError:
            return None
        traces = [each["traceback"] for each in history if each.get("traceback")]
        return traces[-1] if traces else None

    def revoke(self, terminate: bool = False, **_: Any) -> None:
        """Cancel the job if it waits; with ``terminate`` also one that runs."""
        try:
            self._opened.cancel(self.id, running=terminate)
        # It runs, has ended or is unknown: ignored, as in Celery.
        except (JobStateError, JobNotFoundError):
            return

    def forget(self) -> None:
        """Do nothing: the job is kept as long as ``result_ttl`` says, and then deleted."""

    @property
    def _opened(self) -> JobClient:
        if not isinstance(self._client, JobClient):
            self._client = self._client()
        return self._client


def _timeout_of_celery(error: ResultTimeoutError) -> ResultTimeoutError:
    """The error, in a class that code which catches Celery's own ``TimeoutError``
    catches as well.
    """
    # Not imported: a program that catches Celery's TimeoutError has imported it, and Celery may not
    # be installed.
    celery = sys.modules.get("celery.exceptions")
    if celery is None:
        return error
    made: ResultTimeoutError = _timeout_class(celery.TimeoutError)(
        error.message, remedy=error.remedy, details=error.details
    )
    return made


@cache
def _timeout_class(of_celery: type[Exception]) -> type[ResultTimeoutError]:
    return type("ResultTimeoutError", (ResultTimeoutError, of_celery), {})


def result_class(of_celery: Any, find: Callable[[str], JobResult | None]) -> Any:
    """Celery's class of results, extended to ask the job store about ids of jobs.

    ``find`` returns the result of a job, or None for an id that is not a job's. It is called when a
    caller wants to know, and not when a result is made, because Celery makes one for each message
    that it sends.
    """

    class AsyncResult(of_celery):  # type: ignore[misc]
        """The result of a task, on whichever side it runs."""

        is_message = False
        """Whether it is known that Celery has the task."""

        def _job(self) -> JobResult | None:
            return None if self.is_message else find(str(self.id))

        def _get_task_meta(self) -> Any:
            try:
                job = self._job()
            except StoreError as error:  # Results of what Celery runs do not depend on it.
                logger.warning("whether %s is a job is not known: %s", self.id, describe(error))
                job = None
            if job is None:
                return super()._get_task_meta()
            outcome = {"status": job.state, "result": job.result, "traceback": job.traceback}
            return {"task_id": self.id, "children": [], **outcome}

        def get(self, *args: Any, **options: Any) -> Any:
            job = self._job()
            return super().get(*args, **options) if job is None else job.get(*args, **options)

        wait = get

        def revoke(self, *args: Any, **options: Any) -> None:
            job = self._job()
            if job is None:
                super().revoke(*args, **options)
            else:
                job.revoke(terminate=bool(options.get("terminate")))

        def forget(self) -> None:
            if self._job() is None:
                super().forget()

    return AsyncResult
