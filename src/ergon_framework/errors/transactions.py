"""Errors of transactions, fetches and whole calls, as the RFCs name them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from ergon_framework.errors.base import ErgonError, describe


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
