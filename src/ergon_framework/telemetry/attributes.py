"""What a span says: names and attributes, made from plain values only.

Payloads, metadata, connector options and results stay out; the settings may let a payload or a
result in. None is no legal attribute value, so what is unset is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.errors import TransactionException, describe
from ergon_framework.ports.context import Call

MAX_TEXT = 500
"""Characters of an exception's message, a payload or a result that a span keeps."""

LOOP_SPAN = {"consumer": "consume_transactions", "producer": "produce_transactions"}
LIFECYCLE_SPAN = {"consumer": "start_processing", "producer": "start_producing"}
FETCH_SPAN = "fetch_transactions"
SETTLE_SPAN = "settle"
STEP_SPAN = {
    "consumer": {
        "process": "process",
        "success": "handle_success",
        "exception": "handle_exception",
    },
    "producer": {
        "produce": "produce",
        "success": "handle_produce_success",
        "exception": "handle_produce_exception",
    },
}

_LOOP = (
    "concurrency",
    "batch_size",
    "limit",
    "timeout",
    "transaction_timeout",
    "streaming",
    "mode",
)
_STEP = ("max_attempts", "timeout", "backoff", "backoff_multiplier", "backoff_cap")
_COUNTS = (
    "succeeded",
    "failed",
    "timed_out",
    "discarded",
    "handler_failures",
    "aborted",
    "batches",
)
_CATEGORY = {Kind.REJECTED: "business", Kind.TIMEOUT: "timeout"}

Attributes = dict[str, Any]


def loop_attributes(call: Call) -> Attributes:
    """The call's identity and its limits."""
    return {
        **task_attributes(call),
        "ergon.role": call.role,
        "ergon.call_id": call.call_id,
        **_chosen(call.settings, _LOOP),
    }


def step_attributes(call: Call, step: str) -> Attributes:
    """What all attempts of one step share: made once per call."""
    policy = call.settings.get("steps", {}).get(step, {})
    return {**task_attributes(call), "step": step, **_chosen(policy, _STEP)}


def task_attributes(call: Call) -> Attributes:
    """What every span of a call says: made once per call."""
    return {"task": call.task, "ergon.task": call.task}


def failure_attributes(failure: Failure, exception: BaseException | None = None) -> Attributes:
    """The message (shortened), the type and the category of what went wrong."""
    category = _CATEGORY.get(failure.kind, "system")
    if isinstance(exception, TransactionException):
        category = exception.category.value
    return {
        "exception.message": failure_message(failure, exception),
        "exception.type": _type_name(failure, exception),
        "exception.category": category,
    }


def failure_message(failure: Failure, exception: BaseException | None = None) -> str:
    """A message that is never empty and never long."""
    text = failure.message
    if not text:
        text = failure.code if exception is None else describe(exception)
    return shorten(text)


def report_attributes(report: Any) -> Attributes:
    """How a call ended, in numbers."""
    if report is None:
        return {}
    attributes = {f"transactions.{name}": getattr(report, name, None) for name in _COUNTS}
    reason = getattr(report, "stop_reason", None)
    attributes["stop_reason"] = None if reason is None else str(reason)
    return {name: value for name, value in attributes.items() if value is not None}


def shorten(text: str) -> str:
    """The text, cut to :data:`MAX_TEXT` characters."""
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


def shown(value: Any) -> str:
    """The text of a value that the settings allow to be seen; a broken repr is no failure."""
    try:
        return shorten(repr(value))
    except Exception as error:
        return f"<{type(value).__name__}: repr failed with {type(error).__name__}>"


def _type_name(failure: Failure, exception: BaseException | None) -> str:
    if exception is None:
        return failure.code
    cause = exception.__cause__
    # The engine wraps what user code raised, and keeps its name as the failure's code.
    if cause is not None and type(cause).__name__ == failure.code:
        return type(cause).__qualname__
    return type(exception).__qualname__


def _chosen(settings: Mapping[str, Any], names: tuple[str, ...]) -> Attributes:
    return {name: settings[name] for name in names if settings.get(name) is not None}
