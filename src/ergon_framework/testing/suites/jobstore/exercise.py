"""The behaviour every job store must show, as checks that run without a test framework."""

from __future__ import annotations

from collections.abc import Collection

from ergon_framework.testing.suites.drivers import HandClock
from ergon_framework.testing.suites.framework import Check, SuiteFailure, SuiteReport
from ergon_framework.testing.suites.jobstore.admin import CHECKS as ADMIN_CHECKS
from ergon_framework.testing.suites.jobstore.cancel import CHECKS as CANCEL_CHECKS
from ergon_framework.testing.suites.jobstore.claim import CHECKS as CLAIM_CHECKS
from ergon_framework.testing.suites.jobstore.enqueue import CHECKS as ENQUEUE_CHECKS
from ergon_framework.testing.suites.jobstore.flows import CHECKS as FLOWS_CHECKS
from ergon_framework.testing.suites.jobstore.handler_lanes import CHECKS as HANDLER_LANES_CHECKS
from ergon_framework.testing.suites.jobstore.key_limits import CHECKS as KEY_LIMITS_CHECKS
from ergon_framework.testing.suites.jobstore.leases import CHECKS as LEASES_CHECKS
from ergon_framework.testing.suites.jobstore.limits import CHECKS as LIMITS_CHECKS
from ergon_framework.testing.suites.jobstore.queue_counts import CHECKS as QUEUE_COUNTS_CHECKS
from ergon_framework.testing.suites.jobstore.records import CHECKS as RECORDS_CHECKS
from ergon_framework.testing.suites.jobstore.retention import CHECKS as RETENTION_CHECKS
from ergon_framework.testing.suites.jobstore.schedules import CHECKS as SCHEDULES_CHECKS
from ergon_framework.testing.suites.jobstore.settle import CHECKS as SETTLE_CHECKS
from ergon_framework.testing.suites.jobstore.subscriptions import CHECKS as SUBSCRIPTIONS_CHECKS
from ergon_framework.testing.suites.jobstore.under_test import (
    JobStoreSubject,
    MakeStore,
    Reopen,
    Spoil,
)
from ergon_framework.testing.suites.jobstore.unique import CHECKS as UNIQUE_CHECKS
from ergon_framework.testing.suites.jobstore.unreadable import CHECKS as UNREADABLE_CHECKS
from ergon_framework.testing.suites.jobstore.versions import CHECKS as VERSIONS_CHECKS
from ergon_framework.testing.suites.stores import StoreSuite

JOB_STORE_CHECKS: tuple[Check[JobStoreSubject], ...] = (
    *ENQUEUE_CHECKS,
    *UNIQUE_CHECKS,
    *CLAIM_CHECKS,
    *HANDLER_LANES_CHECKS,
    *SETTLE_CHECKS,
    *LIMITS_CHECKS,
    *KEY_LIMITS_CHECKS,
    *VERSIONS_CHECKS,
    *LEASES_CHECKS,
    *CANCEL_CHECKS,
    *ADMIN_CHECKS,
    *QUEUE_COUNTS_CHECKS,
    *SCHEDULES_CHECKS,
    *SUBSCRIPTIONS_CHECKS,
    *UNREADABLE_CHECKS,
    *RECORDS_CHECKS,
    *FLOWS_CHECKS,
    *RETENTION_CHECKS,
)


class JobStoreSuiteError(SuiteFailure):
    """A job store failed at least one required check."""

    code = "job_store_suite"


_SUITE = StoreSuite("job store", JOB_STORE_CHECKS, JobStoreSuiteError)


def exercise_job_store(
    make: MakeStore,
    *,
    reopen: Reopen | None = None,
    spoil: Spoil | None = None,
    only: Collection[str] | None = None,
    skip: Collection[str] = (),
    patience: float = 15.0,
    raises: bool = True,
) -> SuiteReport:
    """Try out everything a job store promises; raise when it breaks a required promise.

    ``make(clock)`` gives a fresh, empty store that reads the time from ``clock`` alone: the checks
    let hours pass in an instant. Its ``close`` is called after each check. ``reopen(store)`` closes
    a store and opens it anew, as another process would; without it the checks that need it are
    skipped; likewise ``spoil(store, job_id)``, which makes the row of a job unreadable and answers
    with a function that puts it right. ``only`` names the checks to run, ``skip`` those to leave
    out. ``patience`` is how many seconds one wait may take; a whole check gets a few times as much.
    """

    def begin() -> JobStoreSubject:
        clock = HandClock()
        return JobStoreSubject(make(clock), clock, reopen, patience, spoil)

    return _SUITE.exercise(begin, only=only, skip=skip, raises=raises)
