"""Notices become spans, in the tree of RFC-004 section 12 and RFC-005 section 14.

::

    consume_transactions                      produce_transactions
    ├ fetch_transactions                      └ start_producing
    │   └ fetch_transactions.attempt              ├ produce
    └ start_processing                            │   └ produce.attempt
        ├ process                                 ├ handle_produce_success
        │   └ process.attempt                     │   └ handle_produce_success.attempt
        ├ handle_success                          └ handle_produce_exception
        │   └ handle_success.attempt                  └ handle_produce_exception.attempt
        ├ handle_exception
        │   └ handle_exception.attempt
        └ settle

The attempt's span is current while user code runs. The state of a lifecycle travels in
``run.note``, which one driver owns at a time, so lifecycles share nothing and need no lock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import Context
from typing import Any

from ergon_framework.core.failure import Failure
from ergon_framework.ports.context import Attempt, Call
from ergon_framework.ports.notice import Notice
from ergon_framework.telemetry.attributes import (
    SETTLE_SPAN,
    Attributes,
    failure_attributes,
    failure_message,
)
from ergon_framework.telemetry.current import make_current
from ergon_framework.telemetry.fan_out import complain
from ergon_framework.telemetry.lifecycle_spans import LifecycleSpans, finish_settling
from ergon_framework.telemetry.loop_spans import LoopSpans
from ergon_framework.telemetry.propagation import extract
from ergon_framework.telemetry.settings import TelemetrySettings
from ergon_framework.telemetry.writer import SpanWriter

_NOTHING: Attributes = {}


class SpanSink:
    """Turns notices into spans. One serves any number of calls.

    It is a sink by itself, for calls that have no other listener; what fails in here is told once.
    """

    def __init__(self, writer: SpanWriter, settings: TelemetrySettings) -> None:
        self._writer = writer
        self._settings = settings
        self._loops: dict[str, LoopSpans] = {}
        self.handlers: Mapping[str, Callable[[Notice], None]] = {
            "call.began": self._call_began,
            "call.ended": self._call_ended,
            "fetch.began": self._fetch_began,
            "fetch.ended": self._fetch_ended,
            "transaction.began": self._transaction_began,
            "attempt.ended": self._attempt_ended,
            "retry.scheduled": self._retry_scheduled,
            "transaction.ended": self._transaction_ended,
            "settlement.ended": self._settlement_ended,
        }

    def emit(self, notice: Notice) -> None:
        """Take what concerns spans."""
        handler = self.handlers.get(notice.name)
        if handler is not None:
            try:
                handler(notice)
            except Exception as error:
                complain(handler, error)

    def enter(self, attempt: Attempt, context: Context) -> None:
        """Make the attempt's span current in ``context``."""
        try:
            run = attempt.run
            if run is None:
                loop = self._loops.get(attempt.call.call_id)
                if loop is not None:
                    loop.enter_fetch(context)
            elif run.note is not None:
                make_current(run.note.enter(attempt), run.note.base, context)
        except Exception as error:
            complain(self.enter, error)

    def _call_began(self, notice: Notice) -> None:
        call = notice["call"]
        loop = LoopSpans(call, notice.at, self._writer, self._settings)
        self._loops[call.call_id] = loop

    def _call_ended(self, notice: Notice) -> None:
        loop = self._loops.pop(notice["call"].call_id, None)
        if loop is not None:
            loop.ended(notice.at, notice["report"], notice["error"])

    def _fetch_began(self, notice: Notice) -> None:
        loop = self._loops.get(notice["call"].call_id)
        if loop is not None:
            loop.fetch_began(notice.at, notice["attempt"].number, notice["requested"])

    def _fetch_ended(self, notice: Notice) -> None:
        loop = self._loops.get(notice["call"].call_id)
        if loop is not None:
            loop.fetch_ended(notice.at, notice["delivered"], notice["failure"])

    def began(self, call: Call, run: Any) -> None:
        """A lifecycle started."""
        try:
            loop = self._loops.get(call.call_id)
            if loop is not None:
                if loop.is_quiet and extract(run.transaction) is None:
                    return
                if loop.rotate_at is not None:
                    loop.rotate(run.began_at)
                run.note = LifecycleSpans(loop, run.transaction, run.began_at)
        except Exception as error:
            complain(self.began, error)

    def left(
        self,
        attempt: Attempt,
        at: float,
        failure: Failure | None,
        exception: BaseException | None,
        result: Any,
    ) -> None:
        """A hook returned, raised or ran out of time."""
        run = attempt.run
        if run is not None and run.note is not None:
            try:
                run.note.attempt_ended(at, failure, exception, result)
            except Exception as error:
                complain(self.left, error)

    def ended(
        self,
        call: Call,
        run: Any,
        at: float,
        ending: str,
        failure: Failure | None,
        handler_failure: Failure | None,
    ) -> None:
        """A lifecycle reached its one outcome."""
        life: LifecycleSpans | None = run.note
        if life is None:
            return
        run.note = None
        try:
            if ending == "succeeded":
                life.ended(at, ending, _NOTHING, None)
            else:
                life.ended(at, ending, *_trouble(run, ending, failure, handler_failure))
        except Exception as error:
            complain(self.ended, error)

    def _settlement_ended(self, notice: Notice) -> None:
        run, told = notice["run"], (notice["verb"], notice["attempts"], notice["failure"])
        if run is not None:
            if run.note is not None:
                run.note.settled(notice.at, *told)
            return
        loop = self._loops.get(notice["call"].call_id)
        if loop is not None and not loop.is_quiet:  # a release at the end of the call
            key = notice["transaction_id"]
            shared = {**loop.shared, "transaction_id": key, "transaction.id": key}
            at = loop.ns(notice["began_at"])
            span = self._writer.start(SETTLE_SPAN, loop.below, at, shared)
            finish_settling(loop, span, notice.at, *told)

    def _retry_scheduled(self, notice: Notice) -> None:
        if notice["phase"] == SETTLE_SPAN:
            return
        life: LifecycleSpans | None = notice["run"].note
        if life is not None:
            life.wait()

    def _transaction_began(self, notice: Notice) -> None:
        self.began(notice["call"], notice["run"])

    def _attempt_ended(self, notice: Notice) -> None:
        fields = notice.fields
        self.left(
            fields["attempt"],
            notice.at,
            fields["failure"],
            fields["exception"],
            fields["result"],
        )

    def _transaction_ended(self, notice: Notice) -> None:
        fields = notice.fields
        self.ended(
            fields["call"],
            fields["run"],
            notice.at,
            str(fields["ending"]),
            fields["failure"],
            fields["handler_failure"],
        )


def _trouble(
    run: Any, ending: str, failure: Failure | None, handler_failure: Failure | None
) -> tuple[Attributes, str]:
    """What a lifecycle that did not succeed says about it, and its error text."""
    trouble: Attributes = {}
    error = ending
    if failure is not None:
        trouble = failure_attributes(failure, run.exception)
        error = failure_message(failure, run.exception)
    if handler_failure is not None:
        trouble["handler.exception.message"] = failure_message(handler_failure)
    return trouble, error
