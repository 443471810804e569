"""What an attempt is given: the payload, the context of a job around it, and the fingerprint."""

from __future__ import annotations

import copy
import hashlib
import pickle
from collections.abc import Callable
from dataclasses import replace
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, TypeAlias
from uuid import UUID

import msgspec
import rfc8785

from ergon_framework.ports.providerstore import LaneKey
from ergon_framework.ports.unit_of_work import UnitOfWork
from ergon_framework.providers.errors import ProviderBadRequestError
from ergon_framework.providers.execution import ProviderExecutionContext
from ergon_framework.providers.redaction import plain_json, strip_secrets
from ergon_framework.redaction import normalised_name

VERSION = 1
"""The version of how keys are computed. A change means that no old key matches a new call."""

VOLATILE_NAMES = frozenset(
    normalised_name(name)
    for name in ("correlation_id", "request_id", "trace_id", "span_id", "traceparent", "tracestate")
)
"""Fields that differ between two sendings of one request, and say nothing about it."""

_MAX_SAFE_INTEGER = 2**53 - 1  # what RFC 8785 has a spelling for


def fingerprint(
    lane: LaneKey,
    campaign_id: str | None,
    operation: str,
    payload: dict[str, Any],
    *,
    secret_names: frozenset[str] = frozenset(),
    volatile_names: frozenset[str] = frozenset(),
) -> str:
    """A digest that distinguishes requests; also the key when the caller gives none.

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
        _canonical(kept, VOLATILE_NAMES | volatile_names),
    ]
    return hashlib.sha256(rfc8785.dumps(request)).hexdigest()


def _canonical(value: Any, volatile: frozenset[str]) -> Any:
    """Without what changes from one sending to the next, and with numbers that can be spelled."""
    if isinstance(value, dict):
        return {
            name: _canonical(each, volatile)
            for name, each in value.items()
            if normalised_name(name) not in volatile
        }
    if isinstance(value, list):
        return [_canonical(each, volatile) for each in value]
    if type(value) is int and abs(value) > _MAX_SAFE_INTEGER:
        return {"": str(value)}  # not the text alone: that is another value
    return value


_FIXED = frozenset(
    {str, int, float, bool, type(None), bytes, date, datetime, time, timedelta, Decimal, UUID}
)
"""Fields that a caller cannot change."""


PayloadAgain = Callable[[], dict[str, Any]]
"""Makes the payload of a further attempt."""


class AttemptBody(partial[Any]):
    """One attempt. Each is given the payload as the caller gave it, whatever the one before did.

    The first gets a copy of the dict alone, which costs next to nothing.
    """

    __slots__ = ("payload_again",)
    payload_again: PayloadAgain

    def again(self, context: ProviderExecutionContext) -> AttemptBody:
        """The attempt of this context."""
        if context.attempt <= context.attempt_offset + 1:
            return self
        body = AttemptBody(self.func, **{**self.keywords, "payload": self.payload_again()})
        body.payload_again = self.payload_again
        return body


AttemptRequest: TypeAlias = tuple[Callable[..., Any], str, str | None, str, dict[str, Any]]
"""The function that makes an attempt, and what each attempt of a call is given beside its context:
tenant, campaign, operation and payload. That is the caller's own: each attempt gets a copy.
"""


def attempt_body(request: AttemptRequest, *, is_retried: bool) -> AttemptBody:
    """The first attempt of a call."""
    payload = request[-1]
    first = payload.copy() if type(payload) is dict else copy.copy(payload)
    return body_with(request, first, payload_again(payload, is_retried=is_retried))


def body_with(
    request: AttemptRequest, first: dict[str, Any] | None, again: PayloadAgain | None
) -> AttemptBody:
    """The first attempt, with its payload; without it, the attempt is made already."""
    implementation, tenant_id, campaign_id, operation, _ = request
    body = AttemptBody(
        implementation,
        tenant_id=tenant_id,
        campaign_id=campaign_id,
        operation=operation,
        payload=first,
    )
    if again is not None:
        body.payload_again = again
    return body


def payload_again(payload: dict[str, Any], *, is_retried: bool) -> PayloadAgain | None:
    """What makes the payload of further attempts; None when there will be none.

    To be called before the first attempt, which may change what it is given.
    """
    if not is_retried:
        return None
    if type(payload) is dict and _FIXED.issuperset(map(type, payload.values())):
        return payload.copy().copy  # of a copy of our own: the caller may change its dict meanwhile
    return _kept(payload)


def _kept(payload: dict[str, Any]) -> Callable[[], dict[str, Any]]:
    """A payload that the first attempt may change, so that it can be had again with its types.

    A pickle takes a fifth of the time of a copy; a class within a function has none.
    """
    try:
        return partial(pickle.loads, pickle.dumps(payload, pickle.HIGHEST_PROTOCOL))
    except Exception:  # noqa: S110 - as the class likes
        pass
    try:
        return partial(copy.deepcopy, copy.deepcopy(payload))
    except Exception:  # JSON can say it, at least
        return partial(_as_given, payload, msgspec.json.encode(payload))


def _as_given(payload: dict[str, Any], text: bytes) -> dict[str, Any]:
    try:
        is_untouched = msgspec.json.encode(payload) == text
    except (TypeError, ValueError, RecursionError, OverflowError):
        is_untouched = False
    if is_untouched:  # as JSON has it, some values would be of another type
        return copy.copy(payload)
    read: dict[str, Any] = msgspec.json.decode(text)
    return read


MAX_NAME = 255
MAX_EXECUTION_ID = 36
_FINGERPRINT_DIGITS = 16
"""Hexadecimal digits of a fingerprint: they have to distinguish the few requests of one job."""


def inherit_context(
    context: ProviderExecutionContext,
    around: UnitOfWork,
    lane: LaneKey,
    campaign_id: str | None,
    operation: str,
    payload: dict[str, Any],
) -> ProviderExecutionContext:
    """The context, completed. What the caller says counts; a deadline only ever gets earlier.

    One job may make several calls, so the idempotency key is the job's id and a mark of the
    request: the same at each attempt of the job, and another one for another request.
    """
    deadline = around.deadline
    if context.deadline is not None and (deadline is None or context.deadline < deadline):
        deadline = context.deadline
    key = context.idempotency_key
    if key is None:
        key = _key(around, fingerprint(lane, campaign_id, operation, payload))
    return replace(
        context,
        correlation_id=context.correlation_id or _name(around.correlation_id or around.id),
        idempotency_key=key,
        task_execution_id=context.task_execution_id or _name(around.id, MAX_EXECUTION_ID),
        task_name=context.task_name or _name(around.name),
        deadline=deadline,
        traceparent=context.traceparent or around.trace.get("traceparent"),
        max_attempts=_attempts(context, around),
    )


def _attempts(context: ProviderExecutionContext, around: UnitOfWork) -> int | None:
    """A call inside a unit makes one attempt: the runner of the unit retries the whole unit."""
    if context.max_attempts is not None or not around.is_retried:
        return context.max_attempts
    return 1


def _key(around: UnitOfWork, request: str) -> str:
    key = f"{around.id}/{request[:_FINGERPRINT_DIGITS]}"
    return key if len(key) <= MAX_NAME and key.isprintable() else request


def _name(text: str | None, longest: int = MAX_NAME) -> str | None:
    """A name that the provider's tables take, or none: a foreign one must not fail the call."""
    is_fine = text and len(text) <= longest and text.isprintable()
    return text if is_fine else None
