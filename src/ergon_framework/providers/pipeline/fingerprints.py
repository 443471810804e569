"""What tells one request from another: the same words for the same request, without its secrets."""

from __future__ import annotations

import hashlib
from typing import Any

import rfc8785

from ergon_framework.ports.providerstore import LaneKey
from ergon_framework.providers.errors import ProviderBadRequestError
from ergon_framework.providers.pipeline.redaction import plain_json, strip_secrets
from ergon_framework.redaction import squeezed

VERSION = 1
"""Of the way a key is made: with another one, no old key matches a new call."""

VOLATILE_NAMES = frozenset(
    squeezed(name)
    for name in ("correlation_id", "request_id", "trace_id", "span_id", "traceparent", "tracestate")
)
"""Fields that differ between two sendings of one request, and say nothing about it."""

_LARGEST_INTEGER = 2**53 - 1  # what RFC 8785 has a spelling for


def fingerprint(
    lane: LaneKey,
    campaign_id: str | None,
    operation: str,
    payload: dict[str, Any],
    *,
    secret_names: frozenset[str] = frozenset(),
    volatile_names: frozenset[str] = frozenset(),
) -> str:
    """What tells one request from another; also its key when the caller gives none.

    Secrets are not part of it: calls that differ in nothing else need a key of their own.
    """
    try:
        kept, _ = strip_secrets(plain_json(payload), secret_names, is_for_key=True)
    except RecursionError as error:
        raise ProviderBadRequestError(
            f"payload is {error}", never_sent=True, details={"path": "payload"}
        ) from error
    request = [
        VERSION,
        *lane,
        operation,
        campaign_id,
        _steady(kept, VOLATILE_NAMES | volatile_names),
    ]
    return hashlib.sha256(rfc8785.dumps(request)).hexdigest()


def _steady(value: Any, volatile: frozenset[str]) -> Any:
    """Without what changes from one sending to the next, and with numbers that can be spelled."""
    if isinstance(value, dict):
        return {
            name: _steady(each, volatile)
            for name, each in value.items()
            if squeezed(name) not in volatile
        }
    if isinstance(value, list):
        return [_steady(each, volatile) for each in value]
    if type(value) is int and abs(value) > _LARGEST_INTEGER:
        return {"": str(value)}  # not the text alone: that is another value
    return value
