"""Every error Ergon raises, in one tree.

::

    ErgonError
    ├── ConfigurationError (ValueError)      refused before anything was started
    │   ├── SettingsError                    a settings file or an environment variable
    │   ├── WiringError                      parts that do not fit together
    │   │   └── HookError (TypeError)        a hook that is missing or of the wrong colour
    │   ├── UsageError (TypeError)           a call with arguments that it does not take
    │   └── MissingExtraError (ImportError)  an optional dependency is not installed
    ├── LifespanTimeoutError (TimeoutError)  a lifespan took longer to open or to close than it may
    ├── ExecutorError                        an executor does not start, or did not end well
    ├── EnvelopeError (ValueError)           a transaction with an invalid field
    │   └── FrozenError (AttributeError)     … or an attempt to change one
    ├── PayloadError (ValueError)            a payload the connector cannot serialise
    ├── ConnectorError                       a connector refuses: closed, full, locked, …
    │   └── ChannelLostError                 … to settle on a channel that is gone
    ├── TransactionException                 one transaction failed, with its category
    │   ├── NonRetryableException            … and trying again is useless
    │   │   └── Business                     … raised by a handler: the request itself is refused
    │   └── TransactionTimeoutException      … because an engine deadline passed
    ├── FetchException                       the connector could not be read
    │   └── FetchTimeoutException (TimeoutError)
    ├── Retry                                raised by a handler: try this unit again
    ├── Snooze                               raised by a handler: not now, and this was no attempt
    ├── Discard                              raised by a handler: done with, without a result
    ├── InputException                       the iterable given to a producer raised
    ├── StoreError                           a store refuses, or cannot do what it was asked
    │   ├── StoreUnavailableError            … for now: locked, unreachable, closed
    │   ├── StoreFullError                   … because its disk is full
    │   ├── StoreReadOnlyError               … because it may only be read
    │   ├── StoreUnsafeError                 … because another user may have put its file there
    │   ├── StoreBrokenError                 … because a write may not have reached the disk
    │   ├── StoreSchemaError                 … because its tables are foreign, too old or too new
    │   └── UnreadableJobError               … because the row of a job cannot be read
    │       ├── PayloadKeyError              … without the key that its payload names
    │       └── PayloadObjectError           … without the object that its payload is in
    ├── JobError (ValueError)                a job, queue or schedule that is refused at the edge
    │   ├── DuplicateJobError                its id or its unique key is taken
    │   ├── JobStateError                    its state does not allow what was asked
    │   ├── FlowPartError (UsageError)       what a chain or a group was given is no step
    │   └── JobNotFoundError (LookupError)   there is no such job, queue or schedule
    ├── JobFailedError                       the job whose result was asked for did not complete
    ├── ResultTimeoutError (TimeoutError)    no result within the time given; the job goes on
    ├── BoundaryError                        a zone's node refuses, with a code and a reason
    │   ├── FactInvalidError (ValueError)    … a field, whose path it names
    │   ├── ConflictingDuplicateError        … an id that stands for other content already
    │   ├── ObjectConflictError              … a key that stands for other bytes already
    │   ├── ArtifactError                    … a fact whose artifact is not there or is another one
    │   ├── NotPermittedError                … a caller it does not know, or who may not do this
    │   ├── BoundaryNotFoundError (LookupError)  there is no such fact, consumer, object or log
    │   ├── ConsumerHeldError                another process runs under this consumer's name
    │   ├── BufferFullError                  … because its log may not grow further for now
    │   ├── DataLossError                    what was stored is not what was acknowledged
    │   ├── ZoneMovedError (StoreReadOnlyError)  … because everything in it was moved elsewhere
    │   └── NodeUnavailableError             … for now: stopping, sealed, unreachable, disk trouble
    └── LoopTimeoutException (TimeoutError)  a whole call ran out of time
        ├── ConsumerLoopTimeoutException
        └── ProducerLoopTimeoutException

A message says what was wrong and where; ``remedy`` says what to do. ``code`` is stable and may be
matched by programs; the text may not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

__all__ = [
    "ArtifactError",
    "BoundaryError",
    "BoundaryNotFoundError",
    "BufferFullError",
    "Business",
    "ChannelLostError",
    "ConfigurationError",
    "ConflictingDuplicateError",
    "ConnectorError",
    "ConsumerHeldError",
    "ConsumerLoopTimeoutException",
    "DataLossError",
    "Discard",
    "DuplicateJobError",
    "EnvelopeError",
    "ErgonError",
    "ExceptionCategory",
    "ExceptionType",
    "ExecutorError",
    "FactInvalidError",
    "FetchException",
    "FetchTimeoutException",
    "FlowPartError",
    "FrozenError",
    "HookError",
    "InputException",
    "JobError",
    "JobFailedError",
    "JobNotFoundError",
    "JobStateError",
    "LifespanTimeoutError",
    "LoopTimeoutException",
    "MissingExtraError",
    "NodeUnavailableError",
    "NonRetryableException",
    "NotPermittedError",
    "ObjectConflictError",
    "PayloadError",
    "PayloadKeyError",
    "PayloadObjectError",
    "ProducerLoopTimeoutException",
    "ResultTimeoutError",
    "Retry",
    "SettingsError",
    "Snooze",
    "StoreBrokenError",
    "StoreError",
    "StoreFullError",
    "StoreReadOnlyError",
    "StoreSchemaError",
    "StoreUnavailableError",
    "StoreUnsafeError",
    "TransactionException",
    "TransactionTimeoutException",
    "UnreadableJobError",
    "UsageError",
    "WiringError",
    "ZoneMovedError",
    "describe",
    "name_of",
    "plain",
    "text_of",
]


LONGEST_TEXT = 16 * 1024
"""Characters of an exception's text that are kept."""
_BEYOND = 1024  # read as well, so that no secret is cut in two and then not known for one
_NO_DETAILS: Mapping[str, Any] = MappingProxyType({})


# ---- configuration, envelopes and connectors ----------------------------------------------------


class ErgonError(Exception):
    """Base of everything Ergon raises on purpose."""

    code = "error"
    failure_kind: str | None = None
    """The kind of failure it stands for, where the error itself knows (see ``core.failure``)."""
    retry_after_seconds: float | None = None
    """Seconds after which a retry may help, where that is known."""
    message = ""
    remedy = ""
    # A subclass of the user's may forget super().__init__(): it reads like one without a text.
    if TYPE_CHECKING:
        details: dict[str, Any]
    else:
        details = _NO_DETAILS

    def __init__(
        self, message: str = "", *, remedy: str = "", details: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.details = dict(details or {})

    def __str__(self) -> str:
        text = self.message or super().__str__()
        return f"{text} ({self.remedy})" if self.remedy else text

    def to_dict(self) -> dict[str, Any]:
        """The one shape in which errors leave the process: code, message, details."""
        details = dict(self.details)
        if self.remedy:
            details["remedy"] = self.remedy
        return {"code": self.code, "message": _redacted(self, self.message), "details": details}


class ConfigurationError(ErgonError, ValueError):
    """Something is configured wrongly; nothing was started."""

    code = "configuration"


class SettingsError(ConfigurationError):
    """A settings file or environment variable is wrong."""

    code = "settings"


class WiringError(ConfigurationError):
    """Tasks, connectors, services and policies do not fit together."""

    code = "wiring"


class HookError(WiringError, TypeError):
    """A hook is missing, cannot be called, or has the wrong colour."""

    code = "hook"


class UsageError(ConfigurationError, TypeError):
    """A function of Ergon was called with arguments that it does not take; nothing was done."""

    code = "usage"


class LifespanTimeoutError(ErgonError, TimeoutError):
    """A lifespan did not come to its yield, or to its end, in the time that it has for it."""

    code = "lifespan_timeout"


class ExecutorError(ErgonError):
    """An executor does not start, or did not end well when it was asked to."""

    code = "executor"


class MissingExtraError(ConfigurationError, ImportError):
    """An optional dependency is not installed."""

    code = "missing_extra"


class EnvelopeError(ErgonError, ValueError):
    """A transaction's envelope has an invalid field."""

    code = "envelope"


class FrozenError(EnvelopeError, AttributeError, TypeError):
    """A transaction cannot be changed; whichever of these an immutable object raises, it is one."""

    code = "frozen"


class PayloadError(ErgonError, ValueError):
    """A payload cannot be serialised by the connector that should carry it."""

    code = "payload"


class ConnectorError(ErgonError):
    """A connector refuses to do what it was asked; each connector has subclasses of its own."""

    code = "connector"


class ChannelLostError(ConnectorError):
    """The channel that deliveries came through is gone: nothing can be settled on it any more."""

    code = "channel_lost"
    failure_kind = "lost"


# ---- transactions, fetches and whole calls, as the RFCs name them -------------------------------


class ExceptionType(StrEnum):
    """The three categories of RFC-004 section 11."""

    BUSINESS = "business"
    SYSTEM = "system"
    TIMEOUT = "timeout"

    @classmethod
    def _missing_(cls, value: object) -> ExceptionType:
        found = cls.__members__.get(value.upper()) if isinstance(value, str) else None
        if found is None:
            raise ValueError(f"{value!r} is no category; use business, system or timeout")
        return found


ExceptionCategory = ExceptionType


class TransactionException(ErgonError):
    """One transaction failed. The category decides whether trying again makes sense.

    The category alone may be given as the only positional argument:
    ``raise TransactionException(ExceptionType.BUSINESS)``.
    """

    code = "transaction"
    # What a subclass has that forgets super().__init__(); it may also set them for all its errors.
    category: ExceptionType = ExceptionType.SYSTEM
    transaction_id: str | None = None

    def __init__(
        self,
        message: str | ExceptionType | None = None,
        category: ExceptionType | str | None = None,
        transaction_id: str | None = None,
        cause: BaseException | None = None,
        *,
        remedy: str = "",
    ) -> None:
        if isinstance(message, ExceptionType) and not isinstance(category, ExceptionType):
            message, category = category, message  # the category may come first, or alone
        text = "" if message is None else str(message)
        if not text and cause is not None:
            text = describe(cause)
        super().__init__(text, remedy=remedy)
        if category is not None:
            self.category = ExceptionType(category)
        self.transaction_id = transaction_id
        if cause is not None:
            self.__cause__ = cause

    @property
    def cause(self) -> BaseException | None:
        """The exception that led to this one, if any."""
        return self.__cause__

    def __str__(self) -> str:
        return super().__str__() or f"transaction failed ({self.category})"

    def __reduce__(self) -> tuple[Any, ...]:
        # The cause is left behind: it may not be picklable, and pickling must never lose the error.
        # The constructor is not called: a subclass may have another one.
        return (_restored, (type(self), self.args, self.__dict__))

    def to_dict(self) -> dict[str, Any]:
        """Code, message and details, with the category and the transaction's id."""
        shape = super().to_dict()
        shape["details"]["category"] = str(self.category)
        if self.transaction_id is not None:
            shape["details"]["transaction_id"] = self.transaction_id
        return shape


def _restored(
    kind: type[TransactionException], args: tuple[Any, ...], state: dict[str, Any]
) -> TransactionException:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class NonRetryableException(TransactionException):
    """Failed in a way that no further attempt can fix, whatever its category says."""

    code = "non_retryable"


class TransactionTimeoutException(TransactionException):
    """An engine deadline passed: a step's or the whole lifecycle's."""

    code = "timeout"

    def __init__(
        self,
        message: str | ExceptionType | None = None,
        category: ExceptionType | str | None = None,
        transaction_id: str | None = None,
        cause: BaseException | None = None,
        *,
        remedy: str = "",
    ) -> None:
        super().__init__(
            message, category or ExceptionType.TIMEOUT, transaction_id, cause, remedy=remedy
        )


# ---- what a handler raises to say how its unit goes on, the same for every kind of work ----------


class Duration(Protocol):
    """A ``timedelta``, or what can be asked like one."""

    def total_seconds(self) -> float:
        """How long it is."""


class Business(NonRetryableException):
    """The unit is refused for what it is: a final failure, never tried again.

    Of a transaction it is the category BUSINESS; a job is dead-lettered at once; a provider call
    ends with this attempt.
    """

    code = "business"
    category = ExceptionType.BUSINESS

    def __init__(
        self, message: str = "", *, cause: BaseException | None = None, remedy: str = ""
    ) -> None:
        super().__init__(message, cause=cause, remedy=remedy)

    def __str__(self) -> str:
        return ErgonError.__str__(self) or "refused by the handler"


class Retry(ErgonError):
    """Asks for another attempt, ``after`` seconds from now; without it the policy decides when.

    This attempt counts: when it was the last, the unit has failed.
    """

    code = "retry"
    failure_kind = "transient"

    def __init__(self, message: str = "", after: float | Duration | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = None if after is None else _delay(after)

    def __str__(self) -> str:
        return super().__str__() or "the handler asks for another attempt"


class Snooze(ErgonError):
    """Says that the work cannot begin before ``seconds`` have passed; this was no attempt.

    For a resource that is known to be away: a quota that is used up, a service that asks to wait.
    """

    code = "held"
    failure_kind = "held"

    def __init__(self, seconds: float | Duration, message: str = "") -> None:
        super().__init__(message)
        self.retry_after_seconds = _delay(seconds)

    def __str__(self) -> str:
        return super().__str__() or "the work is held"


class Discard(ErgonError):
    """Says that the unit is done with: there is no result, and nothing has failed.

    For work that has become pointless: the order was cancelled, a newer file has come.
    """

    code = "discarded"

    def __str__(self) -> str:
        return super().__str__() or "discarded by the handler"


class JobCancelled(ErgonError):
    """Ends a handler whose job was cancelled while it ran; ``raise_if_cancelled`` raises it."""

    code = "cancelled"
    failure_kind = "cancelled"

    def __str__(self) -> str:
        return super().__str__() or "the job was cancelled"


def _delay(delay: float | Duration) -> float:
    if isinstance(delay, int | float):
        seconds = float(delay)
    elif hasattr(delay, "total_seconds"):
        seconds = delay.total_seconds()
    else:
        raise ValueError(
            "a delay is a number of seconds or a timedelta, for example 30 or"
            f" timedelta(minutes=5), not {delay!r:.100}"
        )
    if not math.isfinite(seconds) or seconds < 0:
        raise ValueError(f"a delay is a number of seconds from 0 on, not {seconds}")
    return seconds


class _Reported(ErgonError):
    """An error that ends a whole call and carries its report."""

    def __init__(
        self,
        message: str = "",
        *,
        remedy: str = "",
        details: Mapping[str, Any] | None = None,
        report: Any = None,
    ) -> None:
        super().__init__(message, remedy=remedy, details=details)
        self.report = report


class FetchException(_Reported):
    """The connector could not be read, after every attempt the policy allows."""

    code = "fetch"
    category = ExceptionType.SYSTEM


class FetchTimeoutException(FetchException, TimeoutError):
    """The connector did not answer in time, after every attempt the policy allows."""

    code = "fetch_timeout"
    category = ExceptionType.TIMEOUT


class InputException(_Reported):
    """The iterable given to a producer raised while it was read."""

    code = "input"


class LoopTimeoutException(_Reported, TimeoutError):
    """A whole consume or produce call ran out of its time."""

    code = "loop_timeout"
    category = ExceptionType.TIMEOUT


class ConsumerLoopTimeoutException(LoopTimeoutException):
    """``consume_transactions`` ran out of its ``loop.timeout``."""


class ProducerLoopTimeoutException(LoopTimeoutException):
    """``produce_transactions`` ran out of its ``loop.timeout``."""


# ---- stores, and the jobs in them ---------------------------------------------------------------


class StoreError(ErgonError):
    """A store refuses, or cannot do what it was asked; nothing was changed."""

    code = "store"


class StoreUnavailableError(StoreError):
    """The store cannot be used for now; the same call may succeed later."""

    code = "store_unavailable"


class StoreFullError(StoreError):
    """There is no room left on the store's disk."""

    code = "store_full"


class StoreReadOnlyError(StoreError):
    """The store may be read but not written."""

    code = "store_read_only"


class StoreUnsafeError(StoreError):
    """Another local user may have put the store's file there: it was not opened."""

    code = "store_unsafe"


class StoreBrokenError(StoreError):
    """A write may not have reached the disk: the store takes no more of them."""

    code = "store_broken"


class StoreSchemaError(StoreError):
    """The store's tables are not those this version works with."""

    code = "store_schema"


class UnreadableJobError(StoreError):
    """The row of a job cannot be read: it was damaged, or written by a newer version."""

    code = "unreadable_job"


class PayloadKeyError(UnreadableJobError):
    """A payload is encrypted, and the key that it names is missing or is another one."""

    code = "payload_key"


class PayloadObjectError(UnreadableJobError):
    """A payload is in an object store that is away or not set, or its object is gone."""

    code = "payload_object"


class JobError(ErgonError, ValueError):
    """A job, a queue or a schedule is refused; nothing was stored."""

    code = "job"


class DuplicateJobError(JobError):
    """There is a job with this id, or one that holds this unique key."""

    code = "duplicate_job"


class JobStateError(JobError):
    """The job's state does not allow what was asked."""

    code = "job_state"


class FlowPartError(JobError, UsageError):
    """What a chain or a group was given is no step; nothing was stored."""

    code = "flow_part"


class JobNotFoundError(JobError, LookupError):
    """There is no job, queue or schedule of that name."""

    code = "not_found"


class JobFailedError(ErgonError):
    """The job whose result was asked for ended without one; ``details`` says why."""

    code = "job_failed"


class ResultTimeoutError(ErgonError, TimeoutError):
    """The job had not ended within the time given; it goes on."""

    code = "result_timeout"


# ---- nodes of a zone; they also travel over the wire --------------------------------------------


class BoundaryError(ErgonError):
    """A zone's node refuses. ``code`` is one of the wire's codes, ``reason`` says it finer.

    ``is_retryable`` tells whether the same call may succeed later, and ``retry_after`` when.
    """

    code = "internal"
    reason = ""
    is_retryable = False

    def __init__(
        self,
        message: str = "",
        *,
        code: str = "",
        reason: str = "",
        remedy: str = "",
        details: Mapping[str, Any] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message, remedy=remedy, details=details)
        self.code = code or self.code
        self.reason = reason or self.reason
        self.retry_after = retry_after

    def to_dict(self) -> dict[str, Any]:
        """Code, message and details, with the reason and when to come back."""
        shape = super().to_dict()
        if self.reason:
            shape["details"] = {"reason": self.reason, **shape["details"]}
        if self.retry_after is not None:
            shape["details"]["retry_after_ms"] = round(self.retry_after * 1000)
        return shape


class FactInvalidError(BoundaryError, ValueError):
    """A field is missing or wrong; ``details["field"]`` is its path. Nothing was stored."""

    code = "invalid_argument"


class ConflictingDuplicateError(BoundaryError):
    """The message id stands for other content already. Nothing was stored."""

    code = "already_exists"
    reason = "conflicting_duplicate"


class ObjectConflictError(BoundaryError):
    """The bucket and key stand for other bytes already. Nothing was stored."""

    code = "already_exists"
    reason = "object_conflict"


class ArtifactError(BoundaryError):
    """The artifact a fact refers to is not durably there, or has another digest or size."""

    code = "failed_precondition"
    reason = "artifact_missing"


class NotPermittedError(BoundaryError):
    """The caller is unknown (``unauthenticated``), or known and not allowed to do this."""

    code = "permission_denied"


class BoundaryNotFoundError(BoundaryError, LookupError):
    """There is no such fact, consumer, object, log or quarantined item."""

    code = "not_found"


class ConsumerHeldError(BoundaryError):
    """Another process holds this consumer's name."""

    code = "aborted"
    reason = "consumer_held"
    is_retryable = True


class BufferFullError(BoundaryError):
    """The log may not grow further for now; nothing was stored, nothing was dropped."""

    code = "resource_exhausted"
    reason = "buffer_full"
    is_retryable = True


class DataLossError(BoundaryError):
    """What was stored is not what was acknowledged: a corrupted row or object."""

    code = "data_loss"


class NodeUnavailableError(BoundaryError):
    """The node cannot do it for now, or did not answer: the outcome may be unknown."""

    code = "unavailable"
    is_retryable = True


class ZoneMovedError(BoundaryError, StoreReadOnlyError):
    """What the zone held was moved; ``details["moved_to"]`` says where. Nothing was stored here.

    Waiting does not help: the program has to be configured for the new store. Publishing the same
    fact there is safe: one that was stored before the move is recognised by its id.
    """

    code = "unavailable"
    reason = "moved"


# ---- the text of any exception, without secrets -------------------------------------------------


def describe(error: BaseException) -> str:
    """A short text that is never empty, even for exceptions without one or with a broken one."""
    name, text = name_of(error), text_of(error)
    return f"{name}: {text}" if text else name


def text_of(error: BaseException) -> str:
    """The exception's own text as a plain string, without what looks like a secret.

    Empty where it has none or a broken one. A very long one is cut.
    """
    text = whole_text_of(error)
    return _redacted(error, text) if text else ""


def whole_text_of(error: BaseException) -> str:
    """The exception's own text with secrets in it, for callers that redact it themselves."""
    try:
        return plain(str(error))
    except BaseException:  # a broken __str__ must not hide the failure it describes
        return ""


def _redacted(error: BaseException, text: str) -> str:
    """Ergon's own errors show URL options as a remedy; query strings in other errors are left
    out.
    """
    from ergon_framework.redaction import (  # late: it takes its time, and few need it
        redacted_message,
        redacted_text,
    )

    is_ours = issubclass(type(error), ErgonError)
    found = (redacted_text if is_ours else redacted_message)(text[: LONGEST_TEXT + _BEYOND])
    return found if len(found) <= LONGEST_TEXT else found[:LONGEST_TEXT] + "…"


def name_of(error: BaseException) -> str:
    """The name of the exception's class, whatever its metaclass answers."""
    name: str = _class_name(type(error))
    return name


def plain(text: str) -> str:
    """The same characters without the methods of a subclass of ``str``.

    A lone surrogate, as in the name of a file that is not UTF-8, is escaped: no store has room for
    it, nor has an answer.
    """
    same = str.__str__(text)
    if same.isascii():
        return same
    return same.encode("utf-8", "backslashreplace").decode("utf-8")


_class_name: Any = type.__dict__["__name__"].__get__
