"""Which HTTP status goes with which code of the wire."""

from __future__ import annotations

from collections.abc import Sequence

Headers = Sequence[tuple[str, str]]

STATUS = {
    "invalid_argument": 400,
    "failed_precondition": 400,
    "out_of_range": 400,
    "unauthenticated": 401,
    "permission_denied": 403,
    "not_found": 404,
    "unimplemented": 404,
    "already_exists": 409,
    "aborted": 409,
    "resource_exhausted": 429,
    "canceled": 499,
    "unknown": 500,
    "internal": 500,
    "data_loss": 500,
    "unavailable": 503,
    "deadline_exceeded": 504,
}
"""The names and numbers of the Connect protocol."""
