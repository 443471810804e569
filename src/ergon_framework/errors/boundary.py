"""Errors of a zone's node, as they also travel over the wire."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ergon_framework.errors.base import ErgonError


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
