"""The behaviour every object store must show, as checks that run without a test framework."""

from __future__ import annotations

import contextlib
import difflib
import time
from collections.abc import Callable, Collection

from ergon_framework.errors import WiringError, describe
from ergon_framework.testing.suites.check import Check, CheckFailed
from ergon_framework.testing.suites.hands import ThreadHands, outcome
from ergon_framework.testing.suites.jobstore.subject import HandClock
from ergon_framework.testing.suites.objectstore import giving, parts, taking, upkeep
from ergon_framework.testing.suites.objectstore.subject import (
    Damage,
    MakeStore,
    Reopen,
    Subject,
)
from ergon_framework.testing.suites.report import CheckResult, Outcome, SuiteFailure, SuiteReport

OBJECT_STORE_CHECKS: tuple[Check[Subject], ...] = (
    *taking.CHECKS,
    *giving.CHECKS,
    *parts.CHECKS,
    *upkeep.CHECKS,
)
PATIENT = 4  # waits that one check may be made to wait in vain


class ObjectStoreSuiteError(SuiteFailure):
    """A object store failed at least one required check."""

    code = "object_store_suite"


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
    _refuse_unknown({*(only or ()), *skip})

    def begin() -> Subject:
        clock = HandClock(time.time())  # beside it, a disk has a clock of its own
        return Subject(make(clock), clock, reopen, damage, patience)

    title = ""
    results = []
    for check in OBJECT_STORE_CHECKS:
        if only is None or check.name in only:
            name, result = _result(check, begin, is_waived=check.name in skip)
            title = title or name
            results.append(result)
    report = SuiteReport(title or "object store", tuple(results), ObjectStoreSuiteError)
    if raises:
        report.raise_for_failures()
    return report


def _result(
    check: Check[Subject], begin: Callable[[], Subject], *, is_waived: bool
) -> tuple[str, CheckResult]:
    """Run one check on a store of its own; the store's name and how it went."""
    name, how, reason = "", Outcome.WAIVED, ""
    if not is_waived:
        subject = begin()
        name = type(subject.store).__name__
        try:
            how, reason = _run(check, subject)
        finally:
            with contextlib.suppress(Exception):  # closing has checks of its own
                subject.hurry(lambda: subject.store.close(), "close")  # noqa: PLW0108 - reopened
    return name, CheckResult(check.name, check.sentence, "sync", check.required, how, reason)


def _run(check: Check[Subject], subject: Subject) -> tuple[Outcome, str]:
    missing = check.needs - subject.capabilities
    if missing:
        return Outcome.SKIPPED, f"needs {', '.join(sorted(missing))}"
    hands = ThreadHands()
    try:
        outcome(hands.start(lambda: check.run(subject)), PATIENT * subject.patience, "the check")
    except CheckFailed as error:
        return Outcome.FAILED, str(error)
    except Exception as error:
        return Outcome.FAILED, describe(error)
    finally:
        hands.close()
    return Outcome.PASSED, ""


def _refuse_unknown(names: Collection[str]) -> None:
    known = {check.name for check in OBJECT_STORE_CHECKS}
    unknown = sorted(set(names) - known)
    if unknown:
        near = difflib.get_close_matches(unknown[0], known, 1)
        raise WiringError(
            f"there is no check {unknown[0]!r}",
            remedy=f"did you mean {near[0]!r}?" if near else "see OBJECT_STORE_CHECKS",
        )
