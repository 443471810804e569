"""Why a job is not added, in words that are the same for every store."""

from __future__ import annotations

from ergon_framework.errors import DuplicateJobError
from ergon_framework.ports.jobstore import NewJob


def id_taken(job: NewJob) -> DuplicateJobError:
    """There is a job with this id."""
    return DuplicateJobError(
        f"there is a job with the id {job.id!r}",
        remedy="give each job an id of its own, or none to get one",
        details={"id": job.id},
    )


def key_unseen(job: NewJob, holder: str) -> DuplicateJobError:
    """The holder of its unique key is none that the caller's transaction could cancel."""
    return DuplicateJobError(
        f"a job that this transaction cannot see holds the unique key {job.unique_key!r}",
        remedy="the transaction is REPEATABLE READ or SERIALIZABLE and older than that job: roll"
        " back and begin again, or use READ COMMITTED",
        details={"unique_key": job.unique_key, "id": holder},
    )


def key_held(job: NewJob, holder: str | None = None) -> DuplicateJobError:
    """Another job that has not ended holds its unique key."""
    details = {"unique_key": job.unique_key}
    return DuplicateJobError(
        f"a job that has not ended holds the unique key {job.unique_key!r}",
        remedy="wait for it, cancel it, or ask for the job that is there",
        details=details if holder is None else details | {"id": holder},
    )
