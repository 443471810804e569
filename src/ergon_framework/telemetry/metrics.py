"""Sums that are kept in the process and read when the metrics are collected.

A counter of the OpenTelemetry SDK costs about as much per increment as a whole lifecycle of the
engine. An observable one costs nothing until it is collected.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.transaction_lifecycle import TimeoutScope
from ergon_framework.errors import LoopTimeoutException
from ergon_framework.ports.context import Attempt, Call
from ergon_framework.ports.notice import Notice
from ergon_framework.telemetry.attributes import SETTLE_SPAN
from ergon_framework.telemetry.conventions import MessagingInstruments, task_place

Labels = tuple[str, ...]


class LabelledSums:
    """One sum per combination of label values. Labels come from closed lists, so it stays small."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self._lock = threading.Lock()
        self._sums: dict[Labels, int] = {}

    def add(self, labels: Labels, amount: int = 1) -> None:
        """Add to one sum."""
        with self._lock:
            self._sums[labels] = self._sums.get(labels, 0) + amount

    def observe(self, _: CallbackOptions) -> Iterable[Observation]:
        """All sums as they are now."""
        with self._lock:
            sums = list(self._sums.items())
        for labels, value in sums:
            yield Observation(value, dict(zip(self._names, labels, strict=True)))


_SECONDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
    0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0,
)  # fmt: skip
_SIZES = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)

_HOOKS = {"process", "produce", "success", "exception"}
_LIFECYCLE = (
    f"{TimeoutScope.LIFECYCLE}_timeout"  # the code of a failure that a lifecycle's deadline made
)

_SUMS = {
    "ergon.transactions": (
        ("task", "role", "outcome"), "{transaction}", "Transactions that got their outcome.",
    ),
    "ergon.handler.failures": (
        ("task", "role"), "{failure}", "Exception handlers that failed themselves.",
    ),
    "ergon.timeouts": (("task", "role", "scope"), "{timeout}", "Deadlines that passed."),
    "ergon.retries": (("task", "role", "step"), "{retry}", "Attempts after the first."),
}  # fmt: skip
_LEVELS = {
    "ergon.in_flight": (("task", "role"), "{transaction}", "Transactions in work."),
    "ergon.concurrency.limit": (
        ("task", "role"), "{transaction}", "The most that may be in work at once.",
    ),
    "ergon.abandoned": (
        ("task", "role"), "{call}", "Calls the engine gave up on that have not come back.",
    ),
}  # fmt: skip


class Instruments:
    """All instruments of one meter provider, made once."""

    def __init__(self, meter: Meter) -> None:
        self.totals: dict[str, LabelledSums] = {}
        for name, (labels, unit, text) in _SUMS.items():
            totals = self.totals[name] = LabelledSums(*labels)
            meter.create_observable_counter(name, [totals.observe], unit, text)
        for name, (labels, unit, text) in _LEVELS.items():
            totals = self.totals[name] = LabelledSums(*labels)
            meter.create_observable_up_down_counter(name, [totals.observe], unit, text)

        def histogram(name: str, unit: str, text: str, bounds: Any) -> Callable[..., None]:
            return meter.create_histogram(
                name, unit, text, explicit_bucket_boundaries_advisory=bounds
            ).record

        self.backoff = histogram("ergon.backoff", "s", "Waits before another try.", _SECONDS)
        self.step = histogram("ergon.step.duration", "s", "One call of one hook.", _SECONDS)
        self.lifecycle = histogram(
            "ergon.lifecycle.duration", "s", "One transaction from start to outcome.", _SECONDS
        )
        self.settlement = histogram(
            "ergon.settlement.duration", "s", "One settlement, with its retries.", _SECONDS
        )
        self.fetch = histogram("ergon.fetch.duration", "s", "One fetch attempt.", _SECONDS)
        self.batch = histogram("ergon.batch.size", "{transaction}", "One delivery.", _SIZES)


class MetricSink:
    """Counts and measures. Keeps nothing about calls or transactions."""

    def __init__(
        self,
        instruments: Instruments,
        messaging: MessagingInstruments | None = None,
        *,
        conventions: bool = False,
    ) -> None:
        """With ``conventions``, durations of each transaction are recorded under both names."""
        self._measure = instruments
        self._messaging = messaging
        self._conventions = conventions
        totals = instruments.totals
        self._transactions = totals["ergon.transactions"].add
        self._handler_failures = totals["ergon.handler.failures"].add
        self._timeouts = totals["ergon.timeouts"].add
        self._retries = totals["ergon.retries"].add
        self._in_flight = totals["ergon.in_flight"].add
        self._limit = totals["ergon.concurrency.limit"].add
        self._abandoned = totals["ergon.abandoned"].add
        self.handlers: Mapping[str, Callable[[Notice], None]] = {
            "call.began": self._call_began,
            "call.ended": self._call_ended,
            "fetch.began": self._fetch_began,
            "fetch.ended": self._fetch_ended,
            "queue.empty": self._queue_empty,
            "transaction.began": self._transaction_began,
            "attempt.ended": self._attempt_ended,
            "retry.scheduled": self._retry_scheduled,
            "attempt.abandoned": self._attempt_abandoned,
            "attempt.late": self._attempt_late,
            "transaction.ended": self._transaction_ended,
            "settlement.ended": self._settlement_ended,
        }

    def _call_began(self, notice: Notice) -> None:
        call = notice["call"]
        self._limit((call.task, call.role), call.settings.get("concurrency", 1))

    def _call_ended(self, notice: Notice) -> None:
        call = notice["call"]
        self._limit((call.task, call.role), -call.settings.get("concurrency", 1))
        if isinstance(notice["error"], LoopTimeoutException):
            self._timeouts((call.task, call.role, "loop"))

    def _fetch_began(self, notice: Notice) -> None:
        call = notice["call"]
        if notice["attempt"].number > 0:
            self._retries((call.task, call.role, "fetch"))

    def _fetch_ended(self, notice: Notice) -> None:
        call, failure = notice["call"], notice["failure"]
        labels = {"task": call.task, "role": call.role}
        outcome = {"outcome": _outcome(failure)}
        self._measure.fetch(max(0.0, notice.at - notice["began_at"]), {**labels, **outcome})
        if self._messaging is not None:
            place, took = task_place(call.task, call.role), notice.at - notice["began_at"]
            self._messaging.operated("receive", "receive", place, took, _error(failure))
            if failure is None:
                self._messaging.consumed("receive", place, notice["delivered"])
        if failure is None:
            self._measure.batch(notice["delivered"], labels)
        elif failure.kind is Kind.TIMEOUT:
            self._timeouts((call.task, call.role, "fetch"))

    def _queue_empty(self, notice: Notice) -> None:
        self._waited(notice["call"], "empty_queue", notice["delay"])

    def _transaction_began(self, notice: Notice) -> None:
        call = notice["call"]
        self._in_flight((call.task, call.role))

    def _attempt_ended(self, notice: Notice) -> None:
        attempt: Attempt = notice["attempt"]
        failure: Failure | None = notice["failure"]
        call = attempt.call
        if attempt.phase not in _HOOKS:
            return  # a wait that was cut off
        labels = {
            "task": call.task,
            "role": call.role,
            "step": attempt.phase,
            "outcome": _outcome(failure),
        }
        took = max(0.0, notice.at - attempt.began_at)
        self._measure.step(took, labels)
        if self._messaging is not None:
            self._measure_message(attempt, took, _error(failure))
        if failure is not None and failure.kind is Kind.TIMEOUT and failure.code != _LIFECYCLE:
            self._timeouts((call.task, call.role, attempt.phase))

    def _measure_message(self, attempt: Attempt, took: float, error: str | None) -> None:
        messaging, place = self._messaging, task_place(attempt.call.task, attempt.call.role)
        if messaging is None:
            return
        if attempt.phase == "produce":
            messaging.sent("produce", place, 1, error or "")
            if self._conventions:
                messaging.operated("produce", "send", place, took, error)
        elif attempt.phase == "process" and self._conventions:
            messaging.processed(place, took, error)

    def _retry_scheduled(self, notice: Notice) -> None:
        call, step = notice["call"], notice["phase"]
        self._retries((call.task, call.role, step))
        self._waited(call, step, notice["delay"])

    def _attempt_abandoned(self, notice: Notice) -> None:
        call = notice["attempt"].call
        self._abandoned((call.task, call.role))

    def _attempt_late(self, notice: Notice) -> None:
        call = notice["attempt"].call
        self._abandoned((call.task, call.role), -1)

    def _transaction_ended(self, notice: Notice) -> None:
        call, outcome, failure = notice["call"], str(notice["ending"]), notice["failure"]
        self._in_flight((call.task, call.role), -1)
        self._transactions((call.task, call.role, outcome))
        labels = {"task": call.task, "role": call.role, "outcome": outcome}
        self._measure.lifecycle(max(0.0, notice.at - notice["run"].began_at), labels)
        if failure is not None and failure.code == _LIFECYCLE:
            self._timeouts((call.task, call.role, "transaction"))
        if notice["handler_failure"] is not None:
            self._handler_failures((call.task, call.role))

    def _settlement_ended(self, notice: Notice) -> None:
        call, failure = notice["call"], notice["failure"]
        labels = {
            "task": call.task,
            "role": call.role,
            "verb": notice["verb"],
            "outcome": _outcome(failure),
        }
        took = max(0.0, notice.at - notice["began_at"])
        self._measure.settlement(took, labels)
        if self._messaging is not None and self._conventions:
            place = task_place(call.task, call.role)
            self._messaging.operated(notice["verb"], "settle", place, took, _error(failure))
        if failure is not None and failure.kind is Kind.TIMEOUT:
            self._timeouts((call.task, call.role, SETTLE_SPAN))

    def _waited(self, call: Call, step: str, delay: float) -> None:
        self._measure.backoff(delay, {"task": call.task, "role": call.role, "step": step})


def _error(failure: Failure | None) -> str | None:
    """The class of an error: of a closed list, as labels must be."""
    return None if failure is None else failure.kind.value


def _outcome(failure: Failure | None) -> str:
    return "ok" if failure is None else failure.kind.value
