"""How a run ended, in one process or in several."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ergon_framework.app.console import ExitCode
from ergon_framework.app.wiring import Role, TaskKind
from ergon_framework.core.loop import StopReason
from ergon_framework.engine.report import Report
from ergon_framework.errors import (
    ConfigurationError,
    EnvelopeError,
    ErgonError,
    JobError,
    StoreReadOnlyError,
    describe,
)


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """The end of one run."""

    task: str
    exit_code: ExitCode
    report: Report | None = None
    error: BaseException | None = None
    is_complete: bool = True
    """Whether the run came to its end, so that running it again would change nothing."""

    @property
    def leaves_threads(self) -> bool:
        """Whether calls may still hang somewhere in this process."""
        was_stopped = self.exit_code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED)
        return was_stopped or bool(self.report is not None and self.report.abandoned)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as the command line prints them."""
        return {
            "task": self.task,
            "exit_code": int(self.exit_code),
            "report": None if self.report is None else self.report.to_dict(),
            "error": None if self.error is None else error_shape(self.error),
        }


class RunFailedError(ErgonError):
    """A run came to its end, but with failures that need attention."""

    code = "run_failed"


def outcome_of(
    task: str, kind: TaskKind, result: object, error: BaseException | None, asked: ExitCode | None
) -> RunOutcome:
    """Decide what a run that gave this result, or raised this error, ends with."""
    report = result if isinstance(result, Report) else getattr(error, "report", None)
    is_complete = error is None and asked is None
    if error is None and report is not None:
        error = _result_problem(report, kind)
    # A signal decides the exit code, whatever goes wrong while the run stops.
    return RunOutcome(task, asked or exit_code_of(error), report, error, is_complete)


def exit_code_of(error: BaseException | None) -> ExitCode:
    """The exit code of a command that ended with this error."""
    if error is None:
        return ExitCode.DONE
    # JobError itself refuses what was typed; its subclasses are about a store or another job.
    if isinstance(error, ConfigurationError | EnvelopeError) or type(error) is JobError:
        return ExitCode.REFUSED
    if isinstance(error, StoreReadOnlyError) and "moved_to" in error.details:
        return ExitCode.REFUSED  # the settings name a store that was moved: waiting does not help
    if isinstance(error, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    if isinstance(error, SystemExit) and not error.code:
        return ExitCode.DONE
    return ExitCode.FAILED


def error_shape(error: BaseException) -> dict[str, Any]:
    """Code, message and details of any exception."""
    if isinstance(error, ErgonError):
        return error.to_dict()
    return {"code": "unexpected", "message": describe(error), "details": {}}


def _result_problem(report: Report, kind: TaskKind) -> ErgonError | None:
    """What is wrong with a run in which no exception was raised, if anything is."""
    problems = []
    if report.handler_failures:
        problems.append(f"{report.handler_failures} exception handlers failed themselves")
    if report.settlement_failures:
        problems.append(f"{report.settlement_failures} transactions could not be settled")
    # A producer that was given more than its limit leaves the rest on purpose.
    is_on_purpose = kind.role is Role.PRODUCER and report.stop_reason is StopReason.LIMIT
    if report.stranded and not is_on_purpose:
        problems.append(f"{len(report.stranded)} transactions were neither started nor handed back")
    if not problems:
        return None
    return RunFailedError("; ".join(problems), remedy="the log names them")
