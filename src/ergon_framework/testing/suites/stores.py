"""What the suites for stores share: a fresh store for each check, and no wait without an end."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from ergon_framework.errors import WiringError, describe
from ergon_framework.testing.suites.drivers import ThreadCaller, outcome
from ergon_framework.testing.suites.framework import (
    Check,
    CheckFailed,
    CheckOutcome,
    CheckResult,
    SuiteFailure,
    SuiteReport,
)

PATIENT = 4  # waits that one check may be made to wait in vain


class Closable(Protocol):
    """All that is asked of a store here."""

    def close(self) -> None:
        """Let go of everything."""


T = TypeVar("T", bound=Closable)


class StoreSubject(Generic[T]):
    """One fresh, empty store, as the checks see it."""

    def __init__(self, store: T, patience: float) -> None:
        self.store = store
        self.patience = patience

    @property
    def capabilities(self) -> frozenset[str]:
        """What the checks may use beside the port."""
        return frozenset()

    def close(self) -> None:
        """The check is over."""
        self.hurry(self.store.close, "close")

    def together(self, calls: Iterable[Callable[[], Any]]) -> list[Any]:
        """Make calls from a thread each, all at once; what they returned."""
        futures = ThreadCaller().together(list(calls))
        return [outcome(each, self.patience, "a call") for each in futures]

    def refusal(self, call: Callable[[], Any]) -> Exception | None:
        """The exception that ``call`` raises, or None when it returns."""
        try:
            call()
        except CheckFailed:
            raise
        except Exception as error:
            return error
        return None

    def hurry(self, call: Callable[[], Any], what: str) -> Any:
        """Make a call in a thread of its own and wait for it, but not for ever."""
        caller = ThreadCaller()
        try:
            return outcome(caller.start(call), self.patience, what)
        finally:
            caller.close()


S = TypeVar("S", bound=StoreSubject[Any])


@dataclass(frozen=True, slots=True)
class StoreSuite(Generic[S]):
    """The checks for one kind of store."""

    kind: str
    checks: tuple[Check[S], ...]
    failure: type[SuiteFailure]

    def exercise(
        self,
        begin: Callable[[], S],
        *,
        only: Collection[str] | None,
        skip: Collection[str],
        raises: bool,
    ) -> SuiteReport:
        """Run the checks, each on what ``begin`` gives, and raise when a required one fails."""
        self._refuse_unknown({*(only or ()), *skip})
        title = ""
        results = []
        for check in self.checks:
            if only is None or check.name in only:
                name, result = _result(check, begin, is_waived=check.name in skip)
                title = title or name
                results.append(result)
        report = SuiteReport(title or self.kind, tuple(results), self.failure)
        if raises:
            report.raise_for_failures()
        return report

    def _refuse_unknown(self, names: Collection[str]) -> None:
        known = {check.name for check in self.checks}
        unknown = sorted(set(names) - known)
        if unknown:
            near = difflib.get_close_matches(unknown[0], known, 1)
            listed = f"{self.kind} checks".upper().replace(" ", "_")
            raise WiringError(
                f"there is no check {unknown[0]!r}",
                remedy=f"did you mean {near[0]!r}?" if near else f"see {listed}",
            )


def _result(check: Check[S], begin: Callable[[], S], *, is_waived: bool) -> tuple[str, CheckResult]:
    """Run one check on a store of its own; the store's name and how it went."""
    name, how, reason = "", CheckOutcome.WAIVED, ""
    if not is_waived:
        subject = begin()
        name = type(subject.store).__name__
        try:
            how, reason = _run(check, subject)
        finally:
            with contextlib.suppress(Exception):  # closing has checks of its own
                subject.close()
    return name, CheckResult(check.name, check.sentence, "sync", check.required, how, reason)


def _run(check: Check[S], subject: S) -> tuple[CheckOutcome, str]:
    missing = check.needs - subject.capabilities
    if missing:
        return CheckOutcome.SKIPPED, f"needs {', '.join(sorted(missing))}"
    caller = ThreadCaller()
    try:
        outcome(caller.start(lambda: check.run(subject)), PATIENT * subject.patience, "the check")
    except CheckFailed as error:
        return CheckOutcome.FAILED, str(error)
    except Exception as error:
        return CheckOutcome.FAILED, describe(error)
    finally:
        caller.close()
    return CheckOutcome.PASSED, ""
