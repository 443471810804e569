"""Jobs as a connector: a transaction becomes a job, and a job becomes a transaction.

Dispatching enqueues: the job's id is the transaction's id, so dispatching again changes nothing.
Fetching claims: the task that consumes is the jobs' executor, and its outcome settles them.

- ``connector``: the connector and the checks of its arguments
- ``claims``: claimed jobs, their leases and their settlement
- ``codec``: transactions, jobs and outcomes; what is refused
"""

from __future__ import annotations

from ergon_framework.connector.jobs.codec import (
    ConflictingJobError,
    JobsConnectorError,
    LeaseLostError,
)
from ergon_framework.connector.jobs.connector import JobsConnector

__all__ = ["ConflictingJobError", "JobsConnector", "JobsConnectorError", "LeaseLostError"]
