"""What every behaviour suite is made of: checks and their report."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, NoReturn, TypeVar

from ergon_framework.errors import ErgonError

S = TypeVar("S")


class CheckFailed(AssertionError):
    """The subject does not do what the check's sentence says."""


@dataclass(frozen=True, slots=True)
class Check(Generic[S]):
    """A named sentence about a subject, and the function that tries it out."""

    name: str
    sentence: str
    run: Callable[[S], None]
    needs: frozenset[str]
    required: bool
    colours: tuple[str, ...]


def register(checks: list[Check[S]]) -> Callable[..., Callable[[Callable[[S], None]], None]]:
    """A decorator that adds a function to ``checks``, under its name and with its docstring."""

    def check(
        *needs: str, required: bool = True, colours: tuple[str, ...] = ("sync", "async")
    ) -> Callable[[Callable[[S], None]], None]:
        def add(run: Callable[[S], None]) -> None:
            sentence = (run.__doc__ or "").strip()
            checks.append(Check(run.__name__, sentence, run, frozenset(needs), required, colours))

        return add

    return check


def expect(condition: object, complaint: str) -> None:
    """Fail the check with ``complaint`` unless ``condition`` holds."""
    if not condition:
        fail(complaint)


def fail(complaint: str) -> NoReturn:
    """Fail the check."""
    raise CheckFailed(complaint)


class CheckOutcome(StrEnum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"  # the subject does not offer what the check needs
    WAIVED = "waived"  # the author asked to leave it out


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check in one colour."""

    name: str
    sentence: str
    colour: str
    required: bool
    outcome: CheckOutcome
    reason: str = ""


class SuiteFailure(ErgonError, AssertionError):
    """A behaviour suite rejected its subject; ``report`` says why."""

    code = "suite"

    def __init__(self, message: str, report: SuiteReport) -> None:
        super().__init__(message)
        self.report = report


class ConnectorSuiteError(SuiteFailure):
    """A connector failed at least one required check."""

    code = "connector_suite"


@dataclass(frozen=True, slots=True)
class SuiteReport:
    """Every result of one run, in the order of the checks."""

    subject: str
    results: tuple[CheckResult, ...]
    failure: type[SuiteFailure] = SuiteFailure

    @property
    def ok(self) -> bool:
        """Whether no required check failed."""
        return not self.failures()

    @property
    def failed(self) -> tuple[str, ...]:
        """The names of all failed checks, recommended ones included, each once."""
        return _names(self.failures(recommended=True))

    @property
    def passed(self) -> tuple[str, ...]:
        """The names of the checks that passed in at least one colour."""
        return _names(one for one in self.results if one.outcome is CheckOutcome.PASSED)

    @property
    def skipped(self) -> tuple[str, ...]:
        """The names of the checks that were skipped or waived in at least one colour."""
        left_out = (CheckOutcome.SKIPPED, CheckOutcome.WAIVED)
        return _names(one for one in self.results if one.outcome in left_out)

    def failures(self, *, recommended: bool = False) -> tuple[CheckResult, ...]:
        """The failed required checks; with ``recommended`` the failed recommended ones too."""
        return tuple(
            one
            for one in self.results
            if one.outcome is CheckOutcome.FAILED and (one.required or recommended)
        )

    def raise_for_failures(self, *, recommended: bool = False) -> None:
        """Raise an AssertionError that lists what failed, if anything did."""
        failures = self.failures(recommended=recommended)
        if failures:
            raise self.failure(
                f"{self.subject} failed {len(failures)} of {len(self.results)} checks:\n"
                + "\n".join(f"  {_told(one)}" for one in failures),
                self,
            )

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values."""
        fields = ("name", "sentence", "colour", "required", "outcome", "reason")
        return {
            "subject": self.subject,
            "ok": self.ok,
            "results": [{name: getattr(one, name) for name in fields} for one in self.results],
        }

    def __str__(self) -> str:
        counts = (
            f"{sum(one.outcome is outcome for one in self.results)} {outcome}"
            for outcome in CheckOutcome
        )
        lines = [f"{self.subject}: {', '.join(counts)}"]
        lines += [
            f"  {one.outcome}: {_told(one)}"
            for one in self.results
            if one.outcome is not CheckOutcome.PASSED
        ]
        return "\n".join(lines)


def _told(one: CheckResult) -> str:
    weight = "" if one.required else " (recommended)"
    return f"{one.name} [{one.colour}]{weight}: {one.sentence} {one.reason}".rstrip()


def _names(results: Iterable[CheckResult]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one.name for one in results))
