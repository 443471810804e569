"""The behaviour every provider store must show, as checks that run without a test framework."""

from __future__ import annotations

from collections.abc import Collection

from ergon_framework.testing.suites.drivers import HandClock
from ergon_framework.testing.suites.framework import Check, SuiteFailure, SuiteReport
from ergon_framework.testing.suites.providerstore.attempts import CHECKS as ATTEMPTS_CHECKS
from ergon_framework.testing.suites.providerstore.circuits import CHECKS as CIRCUITS_CHECKS
from ergon_framework.testing.suites.providerstore.concurrency import CHECKS as CONCURRENCY_CHECKS
from ergon_framework.testing.suites.providerstore.dead_letters import CHECKS as DEAD_LETTERS_CHECKS
from ergon_framework.testing.suites.providerstore.health import CHECKS as HEALTH_CHECKS
from ergon_framework.testing.suites.providerstore.idempotency import CHECKS as IDEMPOTENCY_CHECKS
from ergon_framework.testing.suites.providerstore.maintenance import CHECKS as MAINTENANCE_CHECKS
from ergon_framework.testing.suites.providerstore.quotas import CHECKS as QUOTAS_CHECKS
from ergon_framework.testing.suites.providerstore.under_test import (
    OpenBeside,
    OpenStore,
    ProviderStoreSubject,
)
from ergon_framework.testing.suites.stores import StoreSuite

PROVIDER_STORE_CHECKS: tuple[Check[ProviderStoreSubject], ...] = (
    *CIRCUITS_CHECKS,
    *QUOTAS_CHECKS,
    *ATTEMPTS_CHECKS,
    *HEALTH_CHECKS,
    *IDEMPOTENCY_CHECKS,
    *DEAD_LETTERS_CHECKS,
    *MAINTENANCE_CHECKS,
    *CONCURRENCY_CHECKS,
)


class ProviderStoreSuiteError(SuiteFailure):
    """A provider store failed at least one required check."""

    code = "provider_store_suite"


_SUITE = StoreSuite("provider store", PROVIDER_STORE_CHECKS, ProviderStoreSuiteError)


def exercise_provider_store(
    open_store: OpenStore,
    *,
    has_own_clock: bool = False,
    open_beside: OpenBeside | None = None,
    only: Collection[str] | None = None,
    skip: Collection[str] = (),
    patience: float = 15.0,
    raises: bool = True,
) -> SuiteReport:
    """Try out everything a provider store promises; raise when it breaks a required promise.

    ``open_store(clock)`` gives a fresh, empty store that reads the time from ``clock`` alone: the
    checks let hours pass in an instant. With ``has_own_clock`` it may leave ``clock`` alone, and
    the checks that set it are skipped. Its ``close`` is called after each check.
    ``open_beside(store, clock)`` opens what a store holds once more, as another process would;
    without it the checks that need it are skipped. ``only`` names the checks to run, ``skip`` those
    to leave out. ``patience`` is how many seconds one wait may take; a whole check gets a few times
    as much.
    """

    def begin() -> ProviderStoreSubject:
        clock = HandClock()
        store = open_store(clock)
        return ProviderStoreSubject(store, None if has_own_clock else clock, open_beside, patience)

    return _SUITE.exercise(begin, only=only, skip=skip, raises=raises)
