"""Turns exceptions of user code into failures, and into the exceptions that handlers are given.

One ordered table: errors that know their kind, business and non-retryable refusals, timeouts the
user declares, everything else.
A success handler's errors are all SYSTEM (RFC-005 section 8), whatever they say of themselves.

An exception is an object of the user's: reading an attribute of it, comparing it or asking for its
text may run code that raises. It is classified whatever it does: an attribute that cannot be read
counts as absent, and where the exception itself cannot be handed on, the handler is given one of
Ergon's with the original as its cause.
"""

from __future__ import annotations

import errno
import sys
from threading import current_thread, main_thread
from types import CoroutineType
from typing import Any

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.option_values import is_number
from ergon_framework.core.transaction_lifecycle import LifecycleStep
from ergon_framework.errors import (
    ConnectorError,
    ErgonError,
    ExceptionType,
    NonRetryableException,
    TransactionException,
    TransactionTimeoutException,
    describe,
    name_of,
    plain,
    text_of,
)

KIND_OF_CATEGORY = {
    ExceptionType.BUSINESS: Kind.REJECTED,
    ExceptionType.SYSTEM: Kind.TRANSIENT,
    ExceptionType.TIMEOUT: Kind.TIMEOUT,
}
_DEFECTS = (TypeError, AttributeError, NameError, NotImplementedError, AssertionError)
_NO_CONNECTION = frozenset({errno.ENOTCONN, errno.EBADF})  # these have no class of their own
_number_of: Any = OSError.__dict__["errno"].__get__  # a subclass may have a property in its place


def _cancellation() -> tuple[type[BaseException], ...]:
    """The class of asyncio's cancellation; none where asyncio is not loaded, so none was raised.

    Executors ask for failures here, and loading asyncio would take most of their start-up time.
    """
    asyncio = sys.modules.get("asyncio")
    return () if asyncio is None else (asyncio.CancelledError,)


def classify(
    error: BaseException, step: LifecycleStep, transaction_id: str
) -> tuple[Failure, TransactionException]:
    """The failure as data, and the exception the handler will be given. Never raises."""
    known = known_failure(error)
    # A gate that is closed says nothing about the handler, so HELD holds in a success handler,
    # where every other error counts as SYSTEM.
    if known is not None and (known.kind is Kind.HELD or step is not LifecycleStep.ON_SUCCESS):
        is_refusal = known.kind is Kind.REJECTED
        category = ExceptionType.BUSINESS if is_refusal else ExceptionType.SYSTEM
        return known, _wrap(error, category, transaction_id)
    if step is LifecycleStep.ON_SUCCESS:
        wrapped = _wrap(error, ExceptionType.SYSTEM, transaction_id)
        return Failure(Kind.TRANSIENT, name_of(error), wrapped.message), wrapped
    if is_a(error, TransactionException):
        category = _category(error)
        bound = _bind(error, category, transaction_id)
        return _declared(error, category), bound
    kind = Kind.CANCELLED if is_fatal(error) else Kind.TRANSIENT
    wrapped = _wrap(error, ExceptionType.SYSTEM, transaction_id)
    return Failure(kind, name_of(error), wrapped.message), wrapped


def unclassified(transaction_id: str) -> tuple[Failure, TransactionException]:
    """The failure of an exception that made the classifier itself raise."""
    text = "an exception that could not be classified"
    wrapped = TransactionException(text, ExceptionType.SYSTEM, transaction_id)
    return Failure(Kind.TRANSIENT, "unclassified", text), wrapped


def is_a(error: BaseException, *kinds: type[BaseException]) -> bool:
    """``isinstance`` without asking the object: ``__class__`` may be a property that raises."""
    return issubclass(type(error), kinds)


def is_fatal(error: BaseException) -> bool:
    """Whether it must leave the call: KeyboardInterrupt, SystemExit and the like.

    User code may raise CancelledError without anybody cancelling; that is an error like any other.
    """
    return not is_a(error, Exception, *_cancellation())


def is_ctrl_c(error: BaseException) -> bool:
    """Whether it is a KeyboardInterrupt that somebody at the keyboard may have caused.

    Python raises it in the main thread. In any other one the code of a hook has raised it: handed
    back, its transaction would come again and do the same, for ever.
    """
    return is_a(error, KeyboardInterrupt) and current_thread() is main_thread()


def never_awaited(result: CoroutineType[Any, Any, Any], phase: str) -> TransactionException:
    """A hook answered with a coroutine: its work was not done, and never will be."""
    name = result.__qualname__
    result.close()
    return NonRetryableException(
        f"the {phase} hook returned a coroutine, {name}, which nobody awaits",
        remedy="await it inside the hook; a synchronous task needs the asynchronous mixin for that",
    )


def unawaited_settlement(answer: object, verb: str) -> ConnectorError | None:
    """What is wrong with a settlement that returned: a coroutine has not told the source yet."""
    if type(answer) is not CoroutineType:
        return None
    name = answer.__qualname__
    answer.close()
    return ConnectorError(
        f"{verb} returned a coroutine, {name}, which nobody awaits: the source was not told",
        remedy=f"await it inside of async def {verb}_async, and use an asynchronous task",
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
    if is_a(error, TransactionException):
        kind = KIND_OF_CATEGORY[_category(error)]
        return Failure(kind, _code(error), text_of(error) or name_of(error))
    return Failure(Kind.TRANSIENT, name_of(error), describe(error))


def settlement_failure(error: BaseException) -> Failure:
    """An ack, nack or release that raised. Never raises.

    What a broker's library raises is unknown, so it counts as passing unless it says otherwise.
    """
    known = known_failure(error)
    if known is not None:
        return known
    if is_a(error, TransactionException):
        return _declared(error, _category(error))
    return Failure(_settlement_kind(error), name_of(error), describe(error))


def _settlement_kind(error: BaseException) -> Kind:
    if is_fatal(error) or is_a(error, *_cancellation()):
        return Kind.CANCELLED
    if is_a(error, TimeoutError):
        return Kind.TIMEOUT
    if is_a(error, ConnectionError, EOFError) or _errno(error) in _NO_CONNECTION:
        return Kind.LOST
    if is_a(error, ConnectorError):
        return Kind.REJECTED
    return Kind.DEFECT if is_a(error, *_DEFECTS) else Kind.TRANSIENT


def _errno(error: Any) -> int | None:
    number = _number_of(error) if is_a(error, OSError) else None
    return number if type(number) is int else None


def _declared(error: BaseException, category: ExceptionType) -> Failure:
    """The failure of an exception that says its category itself."""
    is_final = is_a(error, NonRetryableException)
    kind = Kind.REJECTED if is_final else KIND_OF_CATEGORY[category]
    return Failure(kind, _code(error), text_of(error) or name_of(error))


def _category(error: Any) -> ExceptionType:
    """What the exception says of itself; SYSTEM where it says nothing that can be understood."""
    try:
        return ExceptionType(error.category)
    except BaseException:  # the attribute may be a property of the user's
        return ExceptionType.SYSTEM


def _code(error: Any) -> str:
    try:
        return plain(error.code)
    except BaseException:  # not a string, or a property that raises
        return TransactionException.code


def _wrap(
    error: BaseException, category: ExceptionType, transaction_id: str
) -> TransactionException:
    return TransactionException(describe(error), category, transaction_id, error)


def _bind(error: Any, category: ExceptionType, transaction_id: str) -> TransactionException:
    """Put the id on the user's exception, unless that instance already belongs to another one.

    A handler can rely on what it is given: where the id or the category cannot be put right, or the
    text cannot be had, it is given an exception of ours with the user's as its cause.
    """
    message = ""
    try:
        if type(error.category) is not ExceptionType:
            error.category = category
        if error.transaction_id is None:
            error.transaction_id = transaction_id
        is_fit = error.category is category and error.transaction_id == transaction_id
        # Asked once here: otherwise a text that cannot be made would raise in the handler's log
        # line.
        str(error)
        # ``is True``: an ``__eq__`` of the user's may answer with any object.
        if is_fit is True:
            fit: TransactionException = error
            return fit
        message = plain(error.message)
    except BaseException:  # a class of the user's may answer anything, or raise
        message = ""
    return TransactionException(message or describe(error), category, transaction_id, error)


def known_failure(error: BaseException) -> Failure | None:
    """The failure of such an error; None for all others, and for one that says nonsense.

    The caller is handling another failure, so nothing here raises.
    """
    if not issubclass(type(error), ErgonError):
        return None
    asked: Any = error
    try:
        if asked.failure_kind is None:
            return None
        gate, text = asked.details.get("gate"), plain(str(error))
        text = f"{gate}: {text}" if gate else text
        return Failure(Kind(asked.failure_kind), plain(str(asked.code)), text, _seconds(asked))
    except BaseException:  # a class of the user's may answer anything, or raise
        return None


def _seconds(error: ErgonError) -> float | None:
    asked = error.retry_after_seconds
    return max(0.0, float(asked)) if asked is not None and is_number(asked) else None
