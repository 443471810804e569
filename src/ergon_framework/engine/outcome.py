"""How a call ends: its report, or the exception that carries it."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from ergon_framework.core.failure import Kind
from ergon_framework.core.loop import StopReason
from ergon_framework.engine.classify import is_a
from ergon_framework.engine.report import Report
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
    from ergon_framework.engine.flight import Flight

logger = logging.getLogger("ergon.engine")


def conclude(flight: Flight, report: Report) -> Report:
    """Return the report, or raise what the call ends with."""
    error = _error(flight, report)
    _tell_duplicates(flight, report)
    flight.emit("call.ended", report=report, error=error)
    if error is None:
        return report
    if error is flight.outbreak:
        with suppress(Exception):  # an exception of the user's may refuse attributes
            error.report = report  # type: ignore[attr-defined]
    cause, flight.fetch_error = flight.fetch_error, None
    if flight.outbreak is None and cause is not None:
        raise error from cause
    raise error


def _tell_duplicates(flight: Flight, report: Report) -> None:
    for key in report.duplicates:
        flight.emit("transaction.duplicate", transaction_id=key)
    if report.duplicates:
        logger.warning(
            "%s was given %d transactions whose id it had already produced; skipped: %s",
            flight.plan.task,
            len(report.duplicates),
            ", ".join(report.duplicates[:20]),
        )


def _error(flight: Flight, report: Report) -> BaseException | None:
    if flight.outbreak is not None:
        return flight.outbreak
    if report.stop_reason is StopReason.TIMEOUT:
        return _loop_timeout(flight, report)
    if report.stop_reason is StopReason.FETCH_FAILED:
        return _fetch_error(flight, report)
    return None


def _loop_timeout(flight: Flight, report: Report) -> ErgonError:
    role = flight.plan.role
    kind = ProducerLoopTimeoutException if role == "producer" else ConsumerLoopTimeoutException
    return kind(
        f"{flight.plan.task} ran out of its loop timeout of {flight.plan.bounds.loop_timeout} s: "
        f"{int(report)} transactions got an outcome, {report.aborted} were cut off",
        remedy="raise loop.timeout, or lower loop.limit",
        report=report,
    )


def _fetch_error(flight: Flight, report: Report) -> ErgonError:
    cause, failure = flight.fetch_error, flight.loop.failure
    text = describe(cause) if cause is not None else ""
    if flight.plan.role == "producer":
        return InputException(f"the input of {flight.plan.task} raised {text}", report=report)
    hung = failure is not None and failure.kind is Kind.TIMEOUT and cause is None
    if cause is not None and is_a(cause, TimeoutError):
        return FetchTimeoutException(
            f"the connector of {flight.plan.task} timed out: {text}",
            remedy="see the cause; steps.fetch.retry sets how often it is tried",
            report=report,
        )
    if hung:
        return FetchTimeoutException(
            f"the connector of {flight.plan.task} did not answer within "
            f"{flight.plan.bounds.fetch_timeout} s, in {flight.plan.loop.fetch.attempts} attempts",
            remedy="raise steps.fetch.retry.timeout or max_attempts, or check the system behind it",
            report=report,
        )
    return FetchException(
        f"the connector of {flight.plan.task} could not be read: {text}",
        remedy="see the cause; steps.fetch.retry sets how often it is tried",
        report=report,
    )
