"""The behaviour suite for job stores."""

from __future__ import annotations

from ergon_framework.testing.suites.jobstore.exercise import (
    JOB_STORE_CHECKS,
    JobStoreSuiteError,
    exercise_job_store,
)

__all__ = ["JOB_STORE_CHECKS", "JobStoreSuiteError", "exercise_job_store"]
