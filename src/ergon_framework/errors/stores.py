"""Errors of stores and of the jobs in them."""

from __future__ import annotations

from ergon_framework.errors.base import ErgonError


class StoreError(ErgonError):
    """A store refuses, or cannot do what it was asked; nothing was changed."""

    code = "store"


class StoreUnavailableError(StoreError):
    """The store cannot be used for now; the same call may succeed later."""

    code = "store_unavailable"


class StoreFullError(StoreError):
    """There is no room left on the store's disk."""

    code = "store_full"


class StoreReadOnlyError(StoreError):
    """The store may be read but not written."""

    code = "store_read_only"


class StoreUnsafeError(StoreError):
    """Another local user may have put the store's file there: it was not opened."""

    code = "store_unsafe"


class StoreBrokenError(StoreError):
    """A write may not have reached the disk: the store takes no more of them."""

    code = "store_broken"


class StoreSchemaError(StoreError):
    """The store's tables are not those this version works with."""

    code = "store_schema"


class UnreadableJobError(StoreError):
    """The row of a job cannot be read: it was damaged, or written by a newer version."""

    code = "unreadable_job"


class JobError(ErgonError, ValueError):
    """A job, a queue or a schedule is refused; nothing was stored."""

    code = "job"


class DuplicateJobError(JobError):
    """There is a job with this id, or one that holds this unique key."""

    code = "duplicate_job"


class JobStateError(JobError):
    """The job's state does not allow what was asked."""

    code = "job_state"


class JobNotFoundError(JobError, LookupError):
    """There is no job, queue or schedule of that name."""

    code = "not_found"


class JobFailedError(ErgonError):
    """The job whose result was asked for ended without one; ``details`` says why."""

    code = "job_failed"


class ResultTimeoutError(ErgonError, TimeoutError):
    """The job had not ended within the time given; it goes on."""

    code = "result_timeout"
