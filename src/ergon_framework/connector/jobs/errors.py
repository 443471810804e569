"""What the connector for jobs refuses."""

from __future__ import annotations

from ergon_framework.errors import ConnectorError


class JobsConnectorError(ConnectorError):
    """The connector was asked for something it must refuse."""

    code = "jobs_connector"


class ConflictingJobError(JobsConnectorError):
    """The transaction's id stands for a job with other content. Nothing of the batch was stored."""

    code = "conflicting_job"


class LeaseLostError(JobsConnectorError):
    """Another process has the job by now, and its outcome counts."""

    code = "lease_lost"
    failure_kind = "lost"
