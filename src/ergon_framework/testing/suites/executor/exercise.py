"""The behaviour that every executor of the Executor Protocol v1 must show, checked from outside.

Nothing is assumed about the language: the command is started, spoken to over its standard streams
and watched. The specification demands the required checks; the recommended ones make an executor
easier to operate.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from ergon_framework.errors import ErgonError, WiringError, describe
from ergon_framework.testing.suites.executor.first_request import CHECKS as FIRST_REQUEST_CHECKS
from ergon_framework.testing.suites.executor.handlers import CHECKS as HANDLERS_CHECKS
from ergon_framework.testing.suites.executor.harness import AnswerTimeout, Program
from ergon_framework.testing.suites.executor.lifecycle import CHECKS as LIFECYCLE_CHECKS
from ergon_framework.testing.suites.executor.malformed import CHECKS as MALFORMED_CHECKS
from ergon_framework.testing.suites.executor.outcomes import CHECKS as OUTCOMES_CHECKS
from ergon_framework.testing.suites.executor.requests import CHECKS as REQUESTS_CHECKS
from ergon_framework.testing.suites.executor.under_test import (
    ExecutorSubject,
    HandlerCall,
    NotTried,
)
from ergon_framework.testing.suites.framework import (
    Check,
    CheckFailed,
    CheckOutcome,
    CheckResult,
    SuiteFailure,
    SuiteReport,
)

EXECUTOR_CHECKS: tuple[Check[ExecutorSubject], ...] = (
    *FIRST_REQUEST_CHECKS,
    *OUTCOMES_CHECKS,
    *REQUESTS_CHECKS,
    *MALFORMED_CHECKS,
    *HANDLERS_CHECKS,
    *LIFECYCLE_CHECKS,
)
COLOUR = "stdio"
TIMEOUT = 10.0
Progress = Callable[[CheckResult], None]


class ExecutorSuiteError(SuiteFailure):
    """An executor failed at least one required check."""

    code = "executor_suite"


def exercise_executor(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | str | None = None,
    timeout: float = TIMEOUT,
    progress: Progress | None = None,
    call: HandlerCall | None = None,
    only: Collection[str] = (),
    required_only: bool = False,
) -> SuiteReport:
    """Start ``command`` as an executor, again and again, and try out what it must do.

    ``timeout``: seconds to wait for one answer. ``progress`` is called with every result.
    ``call``: a handler of the executor, used where a check needs one that succeeds and there is no
    ``echo``. ``only`` names the checks to run; ``required_only`` leaves out the recommended ones.

    Checks that need a sample handler the executor does not have are skipped and named. Nothing is
    raised for a bad executor: ``raise_for_failures`` of the report does that.
    """
    checks = chosen_checks(only, required_only=required_only)
    program = Program(tuple(command), dict(env or {}), None if cwd is None else Path(cwd))
    program.check()
    subject = ExecutorSubject(program, AnswerTimeout(timeout), call)
    results: list[CheckResult] = []
    try:
        for check in checks if subject.first.is_answered else _after_the_first(checks):
            results.append(_result(check, subject))
            if progress is not None:
                progress(results[-1])
    finally:
        subject.drop_shared()
    return SuiteReport(" ".join(program.command), tuple(results), ExecutorSuiteError)


def chosen_checks(
    only: Collection[str] = (), *, required_only: bool = False
) -> tuple[Check[ExecutorSubject], ...]:
    """The checks of these names, or all of them."""
    known = [check.name for check in EXECUTOR_CHECKS]
    for name in only:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            raise WiringError(
                f"there is no check {name!r}",
                remedy=f"did you mean {near[0]!r}?"
                if near
                else "see EXECUTOR_CHECKS, or ergon conform --list",
            )
    return tuple(
        check
        for check in EXECUTOR_CHECKS
        if (not only or check.name in only) and (check.required or not required_only)
    )


def _after_the_first(checks: Sequence[Check[ExecutorSubject]]) -> list[Check[ExecutorSubject]]:
    """The first check goes before the chosen ones, if it says why the first request got
    no answer.
    """
    return [*FIRST_REQUEST_CHECKS, *(one for one in checks if one not in FIRST_REQUEST_CHECKS)]


def _result(check: Check[ExecutorSubject], subject: ExecutorSubject) -> CheckResult:
    how, reason = _run(check, subject)
    return CheckResult(check.name, check.sentence, COLOUR, check.required, how, reason)


def _run(check: Check[ExecutorSubject], subject: ExecutorSubject) -> tuple[CheckOutcome, str]:
    if check not in FIRST_REQUEST_CHECKS and not subject.first.is_answered:
        return CheckOutcome.SKIPPED, "not tried: the first request had no answer that can be read"
    try:
        missing = subject.why_missing(check.needs)
        if missing:
            return CheckOutcome.SKIPPED, missing
        with subject.check():
            check.run(subject)
    except NotTried as why:
        return CheckOutcome.SKIPPED, f"not tried: {why}"
    except CheckFailed as error:
        return CheckOutcome.FAILED, str(error)
    except ErgonError:
        raise  # the command can no longer be started: no fault of this check
    except Exception as error:
        return CheckOutcome.FAILED, describe(error)
    return CheckOutcome.PASSED, ""
