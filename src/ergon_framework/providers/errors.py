"""The canonical errors of provider calls: eleven classes, ten reason codes.

Whatever a provider raises becomes one of these, once, where it is caught. A class stands for one
reason code; what follows from a reason is decided in ``decisions.py`` and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from ergon_framework.errors import ErgonError
from ergon_framework.providers.decisions import Reason, kind_around

__all__ = [
    "ERROR_OF",
    "ProviderAuthError",
    "ProviderBadRequestError",
    "ProviderCircuitOpenError",
    "ProviderConnectionError",
    "ProviderDependencyError",
    "ProviderError",
    "ProviderInternalError",
    "ProviderQuotaExceededError",
    "ProviderRateLimitError",
    "ProviderResponseFormatError",
    "ProviderTimeoutError",
    "Reason",
]


class ProviderError(ErgonError):
    """A provider call failed. Raised as it is, it stands for ``internal_error``."""

    reason_code: str = Reason.INTERNAL_ERROR.value
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str = "",
        *,
        http_status: int | None = None,
        retry_after_seconds: float | None = None,
        never_sent: bool = False,
        remedy: str = "",
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message, remedy=remedy, details=details)
        self.http_status = http_status
        self.retry_after_seconds = retry_after_seconds
        self.never_sent = never_sent
        """Whether the request certainly never reached the provider."""

    @property
    def code(self) -> str:  # type: ignore[override]
        """The reason code, under the name that every Ergon error has."""
        return self.reason_code

    @property
    def failure_kind(self) -> str | None:  # type: ignore[override]
        """What it means to a job or transaction around the call; None: an error like any other.

        ``held`` where one of our gates was closed, so that nothing was attempted.
        """
        return kind_around(self.reason_code, never_sent=self.never_sent)

    def __reduce__(self) -> tuple[Any, ...]:
        """Errors travel between processes of a pool; keyword arguments must not get lost."""
        return type(self), (self.message,), self.__dict__


class ProviderTimeoutError(ProviderError, TimeoutError):
    """No answer in time; the request may have been served."""

    reason_code = Reason.TIMEOUT.value
    retryable = True


class ProviderConnectionError(ProviderError, ConnectionError):
    """The connection could not be made, or broke."""

    reason_code = Reason.CONNECTION_ERROR.value
    retryable = True


class ProviderRateLimitError(ProviderError):
    """The provider asks for a pause."""

    reason_code = Reason.RATE_LIMITED.value
    retryable = True


class ProviderAuthError(ProviderError):
    """The provider does not accept our credentials."""

    reason_code = Reason.AUTH_FAILED.value


class ProviderQuotaExceededError(ProviderError):
    """The budget of this window is used up, ours or the provider's."""

    reason_code = Reason.QUOTA_EXHAUSTED.value


class ProviderBadRequestError(ProviderError, ValueError):
    """The request is wrong; the same one will always be refused."""

    reason_code = Reason.BAD_REQUEST.value


class ProviderResponseFormatError(ProviderError):
    """The answer is not what was agreed."""

    reason_code = Reason.RESPONSE_INVALID.value


class ProviderDependencyError(ProviderError):
    """The provider, or something it depends on, is down for now."""

    reason_code = Reason.DEPENDENCY_UNAVAILABLE.value
    retryable = True


class ProviderInternalError(ProviderError):
    """An error without a rule: a bug of the provider, or ours."""

    reason_code = Reason.INTERNAL_ERROR.value


class ProviderCircuitOpenError(ProviderError):
    """The circuit is open; the provider was not called."""

    reason_code = Reason.CIRCUIT_OPEN.value


_Refusal = TypeVar(
    "_Refusal", ProviderCircuitOpenError, ProviderQuotaExceededError, ProviderRateLimitError
)


def refused_by_gate(kind: type[_Refusal], message: str, seconds: float) -> _Refusal:
    """The error of a gate that is shut for so long, as its constructor would make it.

    A shut gate refuses thousands of calls a second, and three constructors, each with its keywords,
    would take half of such a call's time.
    """
    error = kind.__new__(kind, message)
    error.message = message
    error.remedy = ""
    error.details = {}
    error.http_status = None
    error.retry_after_seconds = seconds
    error.never_sent = True
    return error


ERROR_OF: dict[str, type[ProviderError]] = {
    kind.reason_code: kind
    for kind in (
        ProviderTimeoutError,
        ProviderConnectionError,
        ProviderRateLimitError,
        ProviderAuthError,
        ProviderQuotaExceededError,
        ProviderBadRequestError,
        ProviderResponseFormatError,
        ProviderDependencyError,
        ProviderInternalError,
        ProviderCircuitOpenError,
    )
}
"""The class that stands for a reason code."""
