"""The behaviour suite for job stores.

A store keeps the ports in ``ergon_framework.ports.jobstore`` when every check passes. ``exercise``
runs them without a test framework; ``under_test`` is the store as the checks see it. The checks
stand by subject: ``enqueue``, ``unique``, ``claim``, ``handler_lanes``, ``settle``, ``limits``,
``key_limits``, ``versions``, ``leases``, ``schedules``, ``subscriptions``, ``admin``,
``queue_counts``, ``unreadable``, ``records``, ``flows``, ``retention``.
"""

from __future__ import annotations

from ergon_framework.testing.suites.jobstore.exercise import (
    JOB_STORE_CHECKS,
    JobStoreSuiteError,
    exercise_job_store,
)

__all__ = ["JOB_STORE_CHECKS", "JobStoreSuiteError", "exercise_job_store"]
