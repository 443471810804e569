"""``AsyncResult`` for a task that runs as a job: what ``delay`` and ``apply_async`` return."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ergon_framework.compat.celery import arguments
from ergon_framework.core.job import JobStatus
from ergon_framework.errors import ErgonError, JobFailedError, JobNotFoundError, JobStateError
from ergon_framework.executor import current_job
from ergon_framework.jobs.client import JobClient

_STATES = {
    JobStatus.PENDING: "PENDING",
    JobStatus.ACTIVE: "STARTED",
    JobStatus.RETRYING: "RETRY",
    JobStatus.COMPLETED: "SUCCESS",
    JobStatus.FAILED: "FAILURE",
    JobStatus.CANCELLED: "REVOKED",
}


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
        """PENDING, STARTED, RETRY, SUCCESS, FAILURE or REVOKED; PENDING for an unknown id."""
        try:
            return _STATES[self._opened.status(self.id)]
        except JobNotFoundError:
            return "PENDING"

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
        disable_sync_subtasks: bool = True,
        **_: Any,
    ) -> Any:
        """Wait for the result; a failure is raised, or returned without ``propagate``.

        ``interval`` and ``no_ack`` change nothing: a store wakes whoever waits.
        """
        if disable_sync_subtasks and current_job() is not None:
            raise RuntimeError(
                "a task that waits for another one holds a process that the other may need:"
                " call the next task at the end of this one, or pass disable_sync_subtasks=False"
            )
        try:
            return arguments.decode(self._opened.result(self.id, timeout))
        except JobFailedError as error:
            if propagate:
                raise
            return error

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
        told = [each["traceback"] for each in history if each.get("traceback")]
        return told[-1] if told else None

    def revoke(self, terminate: bool = False, **_: Any) -> None:
        """Cancel the job if it waits. One that runs cannot be ended from here."""
        if terminate:
            raise ErgonError(
                f"the job {self.id} cannot be terminated while it runs",
                remedy="give the task a time_limit; revoke() cancels a job that waits",
            )
        try:
            self._opened.cancel(self.id)
        except (JobStateError, JobNotFoundError):  # running, ended or unknown: as with Celery
            return

    def forget(self) -> None:
        """Do nothing: the job is kept as long as ``result_ttl`` says, and then deleted."""

    @property
    def _opened(self) -> JobClient:
        if not isinstance(self._client, JobClient):
            self._client = self._client()
        return self._client
