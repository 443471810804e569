"""The seam where exceptions of user code become failures, and the exceptions handlers are given.

One ordered table: errors that know their kind, business and non-retryable refusals, timeouts the
user declares, everything else.
A success handler's errors are all SYSTEM (RFC-005 section 8), whatever they say of themselves.
"""

from __future__ import annotations

import asyncio
from types import CoroutineType
from typing import Any

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.lifecycle import Step
from ergon_framework.engine.known import known_failure
from ergon_framework.errors import (
    ExceptionType,
    NonRetryableException,
    TransactionException,
    TransactionTimeoutException,
    describe,
)

KIND_OF_CATEGORY = {
    ExceptionType.BUSINESS: Kind.REJECTED,
    ExceptionType.SYSTEM: Kind.TRANSIENT,
    ExceptionType.TIMEOUT: Kind.TIMEOUT,
}


def classify(
    error: BaseException, step: Step, transaction_id: str
) -> tuple[Failure, TransactionException]:
    """The failure as data, and the exception the handler will be given."""
    known = known_failure(error)
    if known is not None and (known.kind is Kind.HELD or step is not Step.ON_SUCCESS):
        is_refusal = known.kind is Kind.REJECTED
        category = ExceptionType.BUSINESS if is_refusal else ExceptionType.SYSTEM
        return known, _wrap(error, category, transaction_id)
    if step is Step.ON_SUCCESS:
        wrapped = _wrap(error, ExceptionType.SYSTEM, transaction_id)
        return Failure(Kind.TRANSIENT, _code(error), wrapped.message), wrapped
    if isinstance(error, TransactionException):
        kind = KIND_OF_CATEGORY[error.category]
        if isinstance(error, NonRetryableException):
            kind = Kind.REJECTED
        return Failure(kind, error.code, str(error)), _bind(error, transaction_id)
    kind = Kind.CANCELLED if is_outbreak(error) else Kind.TRANSIENT
    wrapped = _wrap(error, ExceptionType.SYSTEM, transaction_id)
    return Failure(kind, _code(error), wrapped.message), wrapped


def is_outbreak(error: BaseException) -> bool:
    """Whether it must leave the call: KeyboardInterrupt, SystemExit and the like.

    User code may raise CancelledError without anybody cancelling; that is an error like any other.
    """
    return not isinstance(error, Exception | asyncio.CancelledError)


def never_awaited(result: CoroutineType[Any, Any, Any], phase: str) -> TransactionException:
    """A synchronous hook answered with a coroutine: its work was not done, and never will be."""
    result.close()
    return NonRetryableException(
        f"the {phase} hook returned a coroutine, which nobody awaits",
        remedy="use the asynchronous mixin, or run the coroutine inside the hook",
    )


def timeout_exception(failure: Failure, transaction_id: str) -> TransactionException:
    """The exception of an engine deadline."""
    is_step = failure.code == "step_timeout"
    setting = "the step's retry.timeout" if is_step else "loop.transaction_timeout"
    return TransactionTimeoutException(
        failure.message, transaction_id=transaction_id, remedy=f"see {setting}"
    )


def fetch_failure(error: BaseException) -> Failure:
    """A fetch that raised. A business refusal is not repeated; anything else may be."""
    if isinstance(error, TransactionException):
        kind = KIND_OF_CATEGORY[error.category]
        return Failure(kind, error.code, str(error))
    return Failure(Kind.TRANSIENT, _code(error), describe(error))


def _wrap(
    error: BaseException, category: ExceptionType, transaction_id: str
) -> TransactionException:
    return TransactionException(describe(error), category, transaction_id, error)


def _bind(error: TransactionException, transaction_id: str) -> TransactionException:
    """Put the id on the user's exception, unless that instance already belongs to another one."""
    if error.transaction_id is None:
        error.transaction_id = transaction_id
    if error.transaction_id == transaction_id:
        return error
    return TransactionException(error.message, error.category, transaction_id, error)


def _code(error: BaseException) -> str:
    return type(error).__name__
