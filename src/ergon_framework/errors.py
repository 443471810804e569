"""Every error Ergon raises, in one tree.

::

    ErgonError
    ├── ConfigurationError (ValueError)      refused before anything was started
    │   ├── SettingsError                    a settings file or an environment variable
    │   ├── WiringError                      parts that do not fit together
    │   │   └── HookError (TypeError)        a hook that is missing or of the wrong colour
    │   └── MissingExtraError (ImportError)  an optional dependency is not installed
    ├── EnvelopeError (ValueError)           a transaction with an invalid field
    │   └── FrozenError (AttributeError)     … or an attempt to change one
    ├── PayloadError (ValueError)            a payload the connector cannot serialise
    ├── ConnectorError                       a connector refuses: closed, full, locked, …
    ├── TransactionException                 one transaction failed, with its category
    │   ├── NonRetryableException            … and trying again is useless
    │   └── TransactionTimeoutException      … because an engine deadline passed
    ├── FetchException                       the connector could not be read
    │   └── FetchTimeoutException (TimeoutError)
    ├── InputException                       the iterable given to a producer raised
    ├── StoreError                           a store refuses, or cannot do what it was asked
    │   ├── StoreUnavailableError            … for now: locked, unreachable, closed
    │   ├── StoreFullError                   … because its disk is full
    │   ├── StoreReadOnlyError               … because it may only be read
    │   ├── StoreBrokenError                 … because a write may not have reached the disk
    │   └── StoreSchemaError                 … because its tables are foreign, too old or too new
    ├── JobError (ValueError)                a job, queue or schedule that is refused at the edge
    │   ├── DuplicateJobError                its id or its unique key is taken
    │   ├── JobStateError                    its state does not allow what was asked
    │   └── JobNotFoundError (LookupError)   there is no such job, queue or schedule
    ├── JobFailedError                       the job whose result was asked for did not complete
    ├── ResultTimeoutError (TimeoutError)    no result within the time given; the job goes on
    └── LoopTimeoutException (TimeoutError)  a whole call ran out of time
        ├── ConsumerLoopTimeoutException
        └── ProducerLoopTimeoutException

A message says what was wrong and where; ``remedy`` says what to do. ``code`` is stable and may be
matched by programs; the text may not.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class ErgonError(Exception):
    """Base of everything Ergon raises on purpose."""

    code = "error"

    def __init__(
        self, message: str = "", *, remedy: str = "", details: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.details: dict[str, Any] = dict(details or {})

    def __str__(self) -> str:
        return f"{self.message} ({self.remedy})" if self.remedy else self.message

    def to_dict(self) -> dict[str, Any]:
        """The one shape in which errors leave the process: code, message, details."""
        details = dict(self.details)
        if self.remedy:
            details["remedy"] = self.remedy
        return {"code": self.code, "message": self.message, "details": details}


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
        self.category = ExceptionType.SYSTEM if category is None else ExceptionType(category)
        self.transaction_id = transaction_id
        if cause is not None:
            self.__cause__ = cause

    @property
    def cause(self) -> BaseException | None:
        """The exception that led to this one, if any."""
        return self.__cause__

    def __str__(self) -> str:
        return super().__str__() or f"transaction failed ({self.category.value})"

    def __reduce__(self) -> tuple[Any, ...]:
        # The cause is left behind: it may not be picklable, and pickling must never lose the error.
        # The constructor is not called: a subclass may have another one.
        return (_restored, (type(self), self.args, self.__dict__))

    def to_dict(self) -> dict[str, Any]:
        """Code, message and details, with the category and the transaction's id."""
        shape = super().to_dict()
        shape["details"]["category"] = self.category.value
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
    """Failed in a way that no further attempt can mend, whatever its category says."""

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


class StoreBrokenError(StoreError):
    """A write may not have reached the disk: the store takes no more of them."""

    code = "store_broken"


class StoreSchemaError(StoreError):
    """The store's tables are not those this version works with."""

    code = "store_schema"


class JobError(ErgonError, ValueError):
    """A job, a queue or a schedule is refused; nothing was stored."""

    code = "job"


class DuplicateJobError(JobError):
    """There is a job with this id, or one that holds this unique key."""

    code = "duplicate_job"


class JobStateError(JobError):
    """The job's state does not allow what was asked."""

    code = "job_state"


class JobNotFoundError(JobError, LookupError):
    """There is no job, queue or schedule of that name."""

    code = "not_found"


class JobFailedError(ErgonError):
    """The job whose result was asked for ended without one; ``details`` says why."""

    code = "job_failed"


class ResultTimeoutError(ErgonError, TimeoutError):
    """The job had not ended within the time given; it goes on."""

    code = "result_timeout"


def describe(error: BaseException) -> str:
    """A short text that is never empty, even for exceptions without one or with a broken one."""
    try:
        text = str(error)
    except Exception:  # a broken __str__ must not hide the failure it describes
        text = ""
    name = type(error).__name__
    return f"{name}: {text}" if text else name
