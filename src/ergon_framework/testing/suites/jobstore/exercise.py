"""The behaviour every job store must show, as checks that run without a test framework."""

from __future__ import annotations

from collections.abc import Collection

from ergon_framework.testing.suites.drivers import HandClock
from ergon_framework.testing.suites.framework import Check, SuiteFailure, SuiteReport
from ergon_framework.testing.suites.jobstore import (
    admin,
    cancel,
    claim,
    enqueue,
    flows,
    handler_lanes,
    key_limits,
    leases,
    limits,
    records,
    retention,
    schedules,
    settle,
    subscriptions,
    unique,
    unreadable,
)
from ergon_framework.testing.suites.jobstore.subject import (
    JobStoreSubject,
    MakeStore,
    Reopen,
    Spoil,
)
from ergon_framework.testing.suites.stores import StoreSuite

JOB_STORE_CHECKS: tuple[Check[JobStoreSubject], ...] = (
    *enqueue.CHECKS,
    *unique.CHECKS,
    *claim.CHECKS,
    *handler_lanes.CHECKS,
    *settle.CHECKS,
    *limits.CHECKS,
    *key_limits.CHECKS,
    *leases.CHECKS,
    *cancel.CHECKS,
    *admin.CHECKS,
    *schedules.CHECKS,
    *subscriptions.CHECKS,
    *unreadable.CHECKS,
    *records.CHECKS,
    *flows.CHECKS,
    *retention.CHECKS,
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
