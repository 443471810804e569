"""The behaviour every object store must show, as checks that run without a test framework."""

from __future__ import annotations

import time
from collections.abc import Collection

from ergon_framework.testing.suites.drivers import HandClock
from ergon_framework.testing.suites.framework import Check, SuiteFailure, SuiteReport
from ergon_framework.testing.suites.objectstore.downloads import CHECKS as DOWNLOADS_CHECKS
from ergon_framework.testing.suites.objectstore.maintenance import CHECKS as MAINTENANCE_CHECKS
from ergon_framework.testing.suites.objectstore.resumed_uploads import (
    CHECKS as RESUMED_UPLOADS_CHECKS,
)
from ergon_framework.testing.suites.objectstore.under_test import (
    Damage,
    MakeStore,
    ObjectStoreSubject,
    Reopen,
)
from ergon_framework.testing.suites.objectstore.uploads import CHECKS as UPLOADS_CHECKS
from ergon_framework.testing.suites.stores import StoreSuite

OBJECT_STORE_CHECKS: tuple[Check[ObjectStoreSubject], ...] = (
    *UPLOADS_CHECKS,
    *DOWNLOADS_CHECKS,
    *RESUMED_UPLOADS_CHECKS,
    *MAINTENANCE_CHECKS,
)


class ObjectStoreSuiteError(SuiteFailure):
    """An object store failed at least one required check."""

    code = "object_store_suite"


_SUITE = StoreSuite("object store", OBJECT_STORE_CHECKS, ObjectStoreSuiteError)


def exercise_object_store(
    make: MakeStore,
    *,
    reopen: Reopen | None = None,
    damage: Damage | None = None,
    only: Collection[str] | None = None,
    skip: Collection[str] = (),
    patience: float = 15.0,
    raises: bool = True,
) -> SuiteReport:
    """Try out everything an object store promises; raise when it breaks a required promise.

    ``make(clock)`` gives a fresh, empty store that tells the age of things by ``clock``, which
    starts at the present and lets hours pass in an instant. Its ``close`` is called after each
    check. ``reopen(store)`` closes a store and opens it anew, as another process would;
    ``damage(store, digest, data)`` lets other bytes lie where a blob lies; the checks that need one
    that is not given are skipped. ``only`` names the checks to run, ``skip`` those to leave out.
    ``patience`` is how many seconds one wait may take; a whole check gets a few times as much.
    """

    def begin() -> ObjectStoreSubject:
        clock = HandClock(time.time())  # beside it, a disk has a clock of its own
        return ObjectStoreSubject(make(clock), clock, reopen, damage, patience)

    return _SUITE.exercise(begin, only=only, skip=skip, raises=raises)
