"""What a consume or produce call returns or raises: a report, which is an ``int`` with all counts
as fields, or the error that its report asks for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, Self

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.loop import StopReason
from ergon_framework.errors import (
    ConsumerLoopTimeoutException,
    ErgonError,
    FetchException,
    FetchTimeoutException,
    InputException,
    ProducerLoopTimeoutException,
    describe,
)

if TYPE_CHECKING:
    from ergon_framework.engine.plan import EnginePlan

_FIELDS = (
    "succeeded",
    "failed",
    "timed_out",
    "handler_failures",
    "aborted",
    "parked",
    "discarded",
    "released",
    "settlement_failures",
    "abandoned",
    "batches",
    "stranded",
    "duplicates",
    "malformed",
    "dead_letters",
    "elapsed",
    "stop_reason",
)

_LISTS = ("stranded", "duplicates", "dead_letters")

MAX_SHOWN_IDS = 5
"""Ids of a list that the text of a report names."""


class Report(int):
    """The number of transactions that got an outcome: succeeded + discarded + failed + timed out.

    ``discarded`` counts those that their hook called pointless, which is no failure.
    ``handler_failures`` counts exception handlers that failed themselves (their transactions are
    among the failed and timed out); ``aborted`` those cut off without an outcome; ``parked``
    those that a closed gate kept from beginning, and that their source brings again later;
    ``released`` those handed back to their source, unstarted or aborted; ``abandoned`` the calls
    that did not come back in time. ``stranded`` are ids that got no outcome and could not be handed
    back, ``duplicates`` ids a producer was given more than once. ``malformed`` counts what the
    source set aside because it was no transaction, into the files named in ``dead_letters``.
    """

    succeeded: int
    failed: int
    timed_out: int
    handler_failures: int
    aborted: int
    parked: int
    discarded: int
    released: int
    settlement_failures: int
    abandoned: int
    batches: int
    stranded: tuple[str, ...]
    duplicates: tuple[str, ...]
    malformed: int
    dead_letters: tuple[str, ...]
    elapsed: float
    stop_reason: StopReason

    def __new__(
        cls,
        *,
        succeeded: int = 0,
        failed: int = 0,
        timed_out: int = 0,
        discarded: int = 0,
        stop_reason: StopReason = StopReason.EMPTY,
        **fields: Any,
    ) -> Self:
        """Make a report; counts default to zero, tuples to empty."""
        self = super().__new__(cls, succeeded + discarded + failed + timed_out)
        values = {
            "succeeded": succeeded,
            "failed": failed,
            "timed_out": timed_out,
            "discarded": discarded,
            "stop_reason": stop_reason,
            **fields,
        }
        unknown = set(values) - set(_FIELDS)
        if unknown:
            raise TypeError(f"Report has no field {min(unknown)!r}")
        for name in _FIELDS:
            empty: Any = () if name in _LISTS else 0
            self.__dict__[name] = values.get(name, empty)
        return self

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a Report cannot be changed: {name}")

    @property
    def processed(self) -> int:
        """The report as a plain ``int``."""
        return int(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as the command line prints them."""
        document = {name: getattr(self, name) for name in _FIELDS}
        document["stop_reason"] = self.stop_reason.value
        document.update({name: list(document[name]) for name in _LISTS})
        return {"processed": int(self), **document}

    def __reduce__(self) -> tuple[Any, ...]:
        # By its fields: pickled as an ``int``, it would be restored from its number, which
        # ``__new__`` does not take.
        return (_restore, ({name: getattr(self, name) for name in _FIELDS},))

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{name}={_shown(getattr(self, name))}" for name in _FIELDS if getattr(self, name)
        )
        return f"Report({int(self)}: {shown})"

    __str__ = __repr__


def _shown(value: Any) -> str:
    """A long list of ids as its length and its first few; the field has all of them."""
    if not isinstance(value, tuple) or len(value) <= MAX_SHOWN_IDS:
        return repr(value)
    first = ", ".join(map(repr, value[:MAX_SHOWN_IDS]))
    return f"({first}, ... {len(value)} in all)"


def _restore(values: dict[str, Any]) -> Report:
    return Report(**values)


def ending_error(
    plan: EnginePlan, report: Report, cause: BaseException | None, failure: Failure | None
) -> ErgonError | None:
    """The error that a call ends with, if its report says so; ``cause`` is what a fetch raised."""
    if report.stop_reason is StopReason.TIMEOUT:
        return _loop_timeout(plan, report)
    if report.stop_reason is StopReason.FETCH_FAILED:
        return _fetch_error(plan, report, cause, failure)
    return None


def _loop_timeout(plan: EnginePlan, report: Report) -> ErgonError:
    role = plan.role
    kind = ProducerLoopTimeoutException if role == "producer" else ConsumerLoopTimeoutException
    return kind(
        f"{plan.task} ran out of its loop timeout of {plan.bounds.loop_timeout} s: "
        f"{int(report)} transactions got an outcome, {report.aborted} were cut off",
        remedy="raise loop.timeout, or lower loop.limit",
        report=report,
    )


def _fetch_error(
    plan: EnginePlan, report: Report, cause: BaseException | None, failure: Failure | None
) -> ErgonError:
    from ergon_framework.engine.classify import is_a  # late: commands read reports without asyncio

    text = describe(cause) if cause is not None else ""
    if plan.role == "producer":
        return InputException(f"the input of {plan.task} raised {text}", report=report)
    hung = failure is not None and failure.kind is Kind.TIMEOUT and cause is None
    if cause is not None and is_a(cause, TimeoutError):
        return FetchTimeoutException(
            f"the connector of {plan.task} timed out: {text}",
            remedy="see the cause; steps.fetch.retry sets how often it is tried",
            report=report,
        )
    if hung:
        return FetchTimeoutException(
            f"the connector of {plan.task} did not answer within "
            f"{plan.bounds.fetch_timeout} s, in {plan.loop.fetch.attempts} attempts",
            remedy="raise steps.fetch.retry.timeout or max_attempts, or check the system behind it",
            report=report,
        )
    return FetchException(
        f"the connector of {plan.task} could not be read: {text}",
        remedy="see the cause; steps.fetch.retry sets how often it is tried",
        report=report,
    )
