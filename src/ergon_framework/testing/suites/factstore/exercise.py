"""The behaviour every fact store must show, as checks that run without a test framework."""

from __future__ import annotations

from collections.abc import Collection

from ergon_framework.testing.suites.drivers import HandClock
from ergon_framework.testing.suites.factstore.append import CHECKS as APPEND_CHECKS
from ergon_framework.testing.suites.factstore.concurrency import CHECKS as CONCURRENCY_CHECKS
from ergon_framework.testing.suites.factstore.consumers import CHECKS as CONSUMERS_CHECKS
from ergon_framework.testing.suites.factstore.corruption import CHECKS as CORRUPTION_CHECKS
from ergon_framework.testing.suites.factstore.durability import CHECKS as DURABILITY_CHECKS
from ergon_framework.testing.suites.factstore.leases import CHECKS as LEASES_CHECKS
from ergon_framework.testing.suites.factstore.objects import CHECKS as OBJECTS_CHECKS
from ergon_framework.testing.suites.factstore.pages import CHECKS as PAGES_CHECKS
from ergon_framework.testing.suites.factstore.quarantine import CHECKS as QUARANTINE_CHECKS
from ergon_framework.testing.suites.factstore.records import CHECKS as RECORDS_CHECKS
from ergon_framework.testing.suites.factstore.replication import CHECKS as REPLICATION_CHECKS
from ergon_framework.testing.suites.factstore.retention import CHECKS as RETENTION_CHECKS
from ergon_framework.testing.suites.factstore.under_test import (
    Corrupt,
    FactStoreSubject,
    MakeStore,
    Reopen,
    Restore,
    Ways,
)
from ergon_framework.testing.suites.framework import Check, SuiteFailure, SuiteReport
from ergon_framework.testing.suites.stores import StoreSuite

FACT_STORE_CHECKS: tuple[Check[FactStoreSubject], ...] = (
    *APPEND_CHECKS,
    *PAGES_CHECKS,
    *RETENTION_CHECKS,
    *CONSUMERS_CHECKS,
    *LEASES_CHECKS,
    *QUARANTINE_CHECKS,
    *OBJECTS_CHECKS,
    *REPLICATION_CHECKS,
    *CORRUPTION_CHECKS,
    *CONCURRENCY_CHECKS,
    *DURABILITY_CHECKS,
    *RECORDS_CHECKS,
)


class FactStoreSuiteError(SuiteFailure):
    """A fact store failed at least one required check."""

    code = "fact_store_suite"


_SUITE = StoreSuite("fact store", FACT_STORE_CHECKS, FactStoreSuiteError)


def exercise_fact_store(
    make: MakeStore,
    *,
    reopen: Reopen | None = None,
    corrupt: Corrupt | None = None,
    restore: Restore | None = None,
    only: Collection[str] | None = None,
    skip: Collection[str] = (),
    patience: float = 15.0,
    raises: bool = True,
) -> SuiteReport:
    """Try out everything a fact store promises; raise when it breaks a required promise.

    ``make(clock)`` gives a fresh, empty store that reads the time from ``clock`` alone: the checks
    let hours pass in an instant. Its ``close`` is called after each check. Without the following,
    the checks that need them are skipped: ``reopen(store)`` closes a store and opens it anew, as
    another process would; ``corrupt(store, log, offset)`` damages a stored fact behind the store's
    back; ``restore(folder, clock)`` opens what ``backup(folder)`` wrote. ``only`` names the checks
    to run, ``skip`` those to leave out. ``patience`` is how many seconds one wait may take; a whole
    check gets a few times as much.
    """

    def begin() -> FactStoreSubject:
        clock = HandClock()
        return FactStoreSubject(make(clock), clock, Ways(reopen, corrupt, restore), patience)

    return _SUITE.exercise(begin, only=only, skip=skip, raises=raises)
