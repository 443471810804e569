"""From an answer that is a refusal to the error it stands for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ergon_framework.errors import (
    ArtifactError,
    BoundaryError,
    BoundaryNotFoundError,
    BufferFullError,
    ConflictingDuplicateError,
    ConsumerHeldError,
    DataLossError,
    FactInvalidError,
    NodeUnavailableError,
    NotPermittedError,
    ObjectConflictError,
)

OF_REASON: dict[tuple[str, str], type[BoundaryError]] = {
    ("already_exists", "conflicting_duplicate"): ConflictingDuplicateError,
    ("already_exists", "object_conflict"): ObjectConflictError,
    ("failed_precondition", "artifact_missing"): ArtifactError,
    ("failed_precondition", "artifact_mismatch"): ArtifactError,
}
OF_CODE: dict[str, type[BoundaryError]] = {
    "invalid_argument": FactInvalidError,
    "unauthenticated": NotPermittedError,
    "permission_denied": NotPermittedError,
    "not_found": BoundaryNotFoundError,
    "aborted": ConsumerHeldError,
    "resource_exhausted": BufferFullError,
    "data_loss": DataLossError,
    "unavailable": NodeUnavailableError,
    "deadline_exceeded": NodeUnavailableError,
}
OF_NODE = frozenset({"internal", "unknown"})
"""Codes of a node that stumbled."""
CODE_OF_STATUS = {
    400: "invalid_argument",
    401: "unauthenticated",
    403: "permission_denied",
    408: "deadline_exceeded",
    413: "invalid_argument",
    429: "resource_exhausted",
    502: "unavailable",
    503: "unavailable",
    504: "deadline_exceeded",
}
"""For answers that are no node's, such as a proxy's. Its 404 says nothing about facts."""
_ASK = "get the object itself: that answer says why"
_ELSEWHERE = "check the URL, and the proxy if there is one between here and the node"


def error_of_answer(status: int, headers: Mapping[str, str], body: bytes) -> BoundaryError:
    """The error in an answer whose status is no success."""
    return _completed(error_of_shape(_shape(body) or _elsewhere(status)), status, headers)


def error_of_head(status: int, headers: Mapping[str, str]) -> BoundaryError:
    """The same for an answer to HEAD, in which nobody can say more."""
    told = f"the answer has the HTTP status {status}"
    shape = {"code": _code(status), "message": told, "details": {"remedy": _ASK}}
    return _completed(error_of_shape(shape), status, headers)


def _elsewhere(status: int) -> dict[str, Any]:
    told = f"what answers with the HTTP status {status} is no node of a zone"
    details = {"reason": "bad_answer", "remedy": _ELSEWHERE}
    return {"code": _code(status), "message": told, "details": details}


def _code(status: int) -> str:
    return CODE_OF_STATUS.get(status, "unimplemented" if status in {404, 405} else "unknown")


def _completed(error: BoundaryError, status: int, headers: Mapping[str, str]) -> BoundaryError:
    if status < 500 and error.code in OF_NODE:
        error.is_retryable = False  # a redirection, say: no node stumbled
    if error.retry_after is None:
        error.retry_after = _seconds(headers.get("retry-after"))
    return error


def error_of_shape(shape: Mapping[str, Any]) -> BoundaryError:
    """The error that ``{code, message, details}`` stands for."""
    code, given = str(shape.get("code") or "unknown"), shape.get("details")
    details = dict(given) if isinstance(given, Mapping) else {}
    reason = str(details.pop("reason", ""))
    remedy = str(details.pop("remedy", ""))
    wait = details.pop("retry_after_ms", None)
    kind = OF_REASON.get((code, reason)) or OF_CODE.get(code, BoundaryError)
    error = kind(
        str(shape.get("message") or "the node refused"),
        code=code,
        reason=reason,
        remedy=remedy,
        details=details,
        retry_after=wait / 1000 if isinstance(wait, int | float) else None,
    )
    if code in OF_NODE:  # it says nothing about the request, and the outcome is unknown
        error.is_retryable = True
    return error


def _shape(body: bytes) -> dict[str, Any] | None:
    try:
        shape = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return shape if isinstance(shape, dict) and isinstance(shape.get("code"), str) else None


def _seconds(text: str | None) -> float | None:
    """A ``Retry-After`` in seconds; one that is a date is left aside."""
    return float(text) if text and text.isascii() and text.isdigit() and len(text) < 9 else None
