"""The behaviour every fact store must show, as checks that run without a test framework."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Collection

from ergon_framework.errors import WiringError, describe
from ergon_framework.testing.suites.check import Check, CheckFailed
from ergon_framework.testing.suites.factstore import (
    appending,
    capacity,
    consumers,
    corruption,
    duplicates,
    leases,
    links,
    losses,
    objects,
    pages,
    quarantine,
    receiving,
    references,
    released,
    retention,
    seeking,
    serving,
    surviving,
    threads,
    upkeep,
)
from ergon_framework.testing.suites.factstore.subject import (
    Corrupt,
    MakeStore,
    Reopen,
    Restore,
    Subject,
    Ways,
)
from ergon_framework.testing.suites.hands import ThreadHands, outcome
from ergon_framework.testing.suites.jobstore.subject import HandClock
from ergon_framework.testing.suites.report import CheckResult, Outcome, SuiteFailure, SuiteReport

FACT_STORE_CHECKS: tuple[Check[Subject], ...] = (
    *appending.CHECKS,
    *duplicates.CHECKS,
    *capacity.CHECKS,
    *references.CHECKS,
    *pages.CHECKS,
    *retention.CHECKS,
    *losses.CHECKS,
    *consumers.CHECKS,
    *serving.CHECKS,
    *seeking.CHECKS,
    *leases.CHECKS,
    *quarantine.CHECKS,
    *released.CHECKS,
    *objects.CHECKS,
    *receiving.CHECKS,
    *links.CHECKS,
    *corruption.CHECKS,
    *threads.CHECKS,
    *upkeep.CHECKS,
    *surviving.CHECKS,
)
PATIENT = 4  # waits that one check may be made to wait in vain


class FactStoreSuiteError(SuiteFailure):
    """A fact store failed at least one required check."""

    code = "fact_store_suite"


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
    _refuse_unknown({*(only or ()), *skip})
    title = ""
    results = []
    ways = Ways(reopen, corrupt, restore)
    for check in FACT_STORE_CHECKS:
        if only is None or check.name in only:
            name, result = _result(check, make, ways, patience, is_waived=check.name in skip)
            title = title or name
            results.append(result)
    report = SuiteReport(title or "fact store", tuple(results), FactStoreSuiteError)
    if raises:
        report.raise_for_failures()
    return report


def _result(
    check: Check[Subject], make: MakeStore, ways: Ways, patience: float, *, is_waived: bool
) -> tuple[str, CheckResult]:
    """Run one check on a store of its own; the store's name and how it went."""
    name, how, reason = "", Outcome.WAIVED, ""
    if not is_waived:
        clock = HandClock()
        subject = Subject(make(clock), clock, ways, patience)
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
    known = {check.name for check in FACT_STORE_CHECKS}
    unknown = sorted(set(names) - known)
    if unknown:
        near = difflib.get_close_matches(unknown[0], known, 1)
        raise WiringError(
            f"there is no check {unknown[0]!r}",
            remedy=f"did you mean {near[0]!r}?" if near else "see FACT_STORE_CHECKS",
        )
