"""What one call reports: notices and lifecycle events to its sink, and log lines.

A call without a sink builds no notices. What a sink raises is logged and never reaches the work.
"""

from __future__ import annotations

import contextvars
import logging
from collections.abc import Callable, Collection, Iterable
from itertools import islice
from typing import Any, cast

from ergon_framework.core.failure import Failure
from ergon_framework.core.transaction_lifecycle import SUCCEEDED, End, Ending, Verb
from ergon_framework.engine.plan import EnginePlan
from ergon_framework.engine.report import Report
from ergon_framework.engine.run import FETCH, InProgress, LifecycleRun, SettlementAttempt
from ergon_framework.ports.context import Call
from ergon_framework.ports.notice import LifecycleSink, Notice, Sink
from ergon_framework.ports.transaction import Transaction

logger = logging.getLogger("ergon.engine")

_QUIET_ENDINGS = (Ending.PARKED, Ending.DISCARDED)
"""Endings that no handler is called for, and that are no failures."""


class Instrumentation:
    """Sends the notices and log lines of one call. Nothing here waits."""

    def __init__(
        self, plan: EnginePlan, call: Call, now: Callable[[], float], sink: Sink | None
    ) -> None:
        given = cast(object, sink)
        self.plan = plan
        self.call = call
        self.now = now
        self.sink = sink
        self.lifecycle_sink = given if isinstance(given, LifecycleSink) else None
        self.reported_fetch: InProgress | None = None  # the fetch whose end was reported last

    def emit(self, name: str, **fields: Any) -> None:
        """Pass a notice to the sink, if there is one. What the sink raises never reaches the
        work.
        """
        if self.sink is None:
            return
        fields.setdefault("call", self.call)
        try:
            self.sink.emit(Notice(name, self.now(), fields))
        except Exception:
            logger.exception("a listener failed on %s", name)

    def enter(self, attempt: InProgress, context: contextvars.Context) -> None:
        """Let the sink make its span current for the attempt."""
        if self.sink is None or isinstance(attempt, LifecycleRun):
            return
        try:
            self.sink.enter(attempt, context)
        except Exception:
            logger.exception("a listener failed to enter %s", attempt.phase)

    # -- lifecycles --------------------------------------------------------------------------

    def began(self, run: LifecycleRun) -> None:
        """Tell the sink that a lifecycle started."""
        if self.lifecycle_sink is None:
            self.emit("transaction.began", run=run)
            return
        try:
            self.lifecycle_sink.began(self.call, run)
        except Exception:
            logger.exception("a listener failed on transaction.began")

    def attempt_ended(
        self,
        attempt: InProgress,
        failure: Failure | None,
        error: BaseException | None,
        result: Any = None,
        at: float | None = None,
    ) -> None:
        """Tell the sink how an attempt ended: now, or at an instant the caller has just read."""
        if self.lifecycle_sink is not None and not isinstance(attempt, LifecycleRun):
            try:
                ended_at = self.now() if at is None else at
                self.lifecycle_sink.left(attempt, ended_at, failure, error, result)
            except Exception:
                logger.exception("a listener failed on attempt.ended")
        elif self.sink is not None:
            self.emit(
                "attempt.ended", attempt=attempt, failure=failure, exception=error, result=result
            )

    def ended(self, run: LifecycleRun, end: End) -> None:
        """Report an ending to the sink, and log it where no other log line does."""
        key = run.transaction.transaction_id
        if end.handler_failure is not None:
            _log_handler_failure(key, end.handler_failure.message, run.handler_exception)
        elif end.how in _QUIET_ENDINGS and end.failure is not None:
            logger.info(
                "transaction %s is %s: %s",
                key,
                end.how.value,
                end.failure.message,
                extra={"transaction_id": key},
            )
        elif end.failure is not None and self.plan.hooks.exception is None:
            logger.error(
                "transaction %s failed: %s",
                key,
                end.failure.message,
                extra={"transaction_id": key, "ending": end.how.value},
            )
        if self.plan.ended is not None:
            self.plan.ended(run)
        if self.lifecycle_sink is not None:
            ending = "succeeded" if end is SUCCEEDED else end.how.value  # .value is slow
            try:
                self.lifecycle_sink.ended(
                    self.call, run, self.now(), ending, end.failure, end.handler_failure
                )
            except Exception:
                logger.exception("a listener failed on transaction.ended")
        elif self.sink is not None:
            self.emit(
                "transaction.ended",
                run=run,
                ending=end.how.value,
                failure=end.failure,
                handler_failure=end.handler_failure,
            )

    # -- fetches and abandoned calls ---------------------------------------------------------

    def fetch_ended(
        self, attempt: InProgress, requested: int, delivered: int, failure: Failure | None
    ) -> None:
        """Report the end of a fetch once per attempt: one that was abandoned has been reported
        already, whatever it returns later.
        """
        if self.sink is None or attempt is self.reported_fetch:
            return
        self.reported_fetch = attempt
        self.emit(
            "fetch.ended",
            attempt=attempt,
            requested=requested,
            delivered=delivered,
            failure=failure,
            began_at=attempt.began_at,
        )

    def abandoned(self, attempt: InProgress, abandoned: int) -> None:
        """The supervisor gave up on a call that did not end in time."""
        self.emit("attempt.abandoned", attempt=attempt, abandoned=abandoned)
        logger.warning(
            "gave up on %s of %s: the call did not end in time (%d such calls now)",
            attempt.phase,
            self.plan.task,
            abandoned,
            extra=_ids(attempt),
        )

    def stalled(self, abandoned: int) -> None:
        """Report that too many calls never came back, so that no new work may start."""
        self.emit("workers.stalled", abandoned=abandoned)
        logger.error(
            "%s is stalled: %d calls never came back, so no new work starts; see "
            "concurrency.max_abandoned",
            self.plan.task,
            abandoned,
        )

    def came_back(self, attempt: InProgress) -> None:
        """An abandoned call returned after all."""
        self.emit("attempt.late", attempt=attempt)
        phase = (isinstance(attempt, LifecycleRun) and attempt.lost_in) or attempt.phase
        addition = "" if phase == FETCH else "; its result is dropped"
        details = (phase, self.plan.task, addition)
        logger.warning("%s of %s came back too late%s", *details, extra=_ids(attempt))

    # -- settlement and the end --------------------------------------------------------------

    def settled(self, attempt: SettlementAttempt, failure: Failure | None) -> None:
        """Report to the sink that a run was settled with its source, or that its settlement was
        given up.
        """
        verb, attempts = attempt.verb, attempt.number + 1
        self.settlement_ended(
            attempt.transaction, verb, attempt.run, attempts, attempt.since, failure
        )

    def settlement_ended(
        self,
        transaction: Transaction,
        verb: Verb,
        run: LifecycleRun | None,
        attempts: int,
        since: float,
        failure: Failure | None,
    ) -> None:
        """Report the end of a settlement attempt, successful or not, to the sink."""
        if self.sink is not None:
            self.emit(
                "settlement.ended",
                run=run,
                transaction_id=transaction.transaction_id,
                verb=verb.value,
                attempts=attempts,
                began_at=since,
                failure=failure,
            )

    def settlement_failed(self, transaction: Transaction, verb: Verb, error: str) -> None:
        """ack, nack or release did not work: the source will deliver again."""
        key = transaction.transaction_id
        self.emit("settlement.failed", transaction_id=key, verb=verb.value, error=error)
        logger.error(
            "%s of transaction %s failed: %s",
            verb.value,
            key,
            error,
            extra={"transaction_id": key},
        )

    def settlement_retried(
        self, transaction: Transaction, verb: Verb, failure: Failure, delay: float
    ) -> None:
        """A settlement failed for a passing reason, and is tried again."""
        key = transaction.transaction_id
        logger.warning(
            "%s of transaction %s failed and is tried again in %.1f s: %s",
            verb.value,
            key,
            delay,
            failure.message,
            extra={"transaction_id": key},
        )

    def stranded(self, transactions: Collection[Transaction]) -> None:
        """Transactions got no outcome and could not be handed back: name them."""
        for transaction in transactions:
            self.emit("transaction.stranded", transaction_id=transaction.transaction_id)
        if transactions and self.plan.role == "producer":
            logger.warning(
                "%s leaves %d of its input without an outcome: %s",
                self.plan.task,
                len(transactions),
                _named(transactions),
            )
        elif transactions:
            logger.error(
                "%d delivered transactions got no outcome and could not be handed back: %s",
                len(transactions),
                _named(transactions),
            )

    def duplicates(self, report: Report) -> None:
        """A producer was given the same id more than once: name those that were skipped."""
        for key in report.duplicates:
            self.emit("transaction.duplicate", transaction_id=key)
        if report.duplicates:
            logger.warning(
                "%s was given %d transactions whose id it had already produced; skipped: %s",
                self.plan.task,
                len(report.duplicates),
                ", ".join(report.duplicates[:20]),
            )


def _named(transactions: Iterable[Transaction]) -> str:
    return ", ".join(each.transaction_id for each in islice(transactions, 20))


def _ids(attempt: InProgress) -> dict[str, str]:
    """The log fields with the ids: the supervisor logs outside of the attempt's context, which
    would supply them.
    """
    run = attempt.run
    return {} if run is None else {"transaction_id": run.transaction.transaction_id}


def _log_handler_failure(key: str, message: str, error: BaseException | None) -> None:
    """Log it with its traceback, if that can be had: it is made by asking the user's exceptions."""
    text = "the exception handler failed for transaction %s: %s"
    extra = {"transaction_id": key, "ending": "failed"}
    try:
        # As a tuple, for logging would ask the exception whether it is true.
        exc_info = None if error is None else (type(error), error, error.__traceback__)
        logger.error(text, key, message, exc_info=exc_info, extra=extra)
    except BaseException:
        logger.error(text, key, message, extra=extra)  # noqa: TRY400 - the traceback is what failed
