"""What one attempt is: the provider's code, with all it is given but the context."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID

import msgspec

from ergon_framework.providers.execution import ProviderExecutionContext

_FIXED = frozenset(
    {str, int, float, bool, type(None), bytes, date, datetime, time, timedelta, Decimal, UUID}
)
"""What nobody can change."""


class Body(partial[Any]):
    """One attempt. Each is given the payload as the caller gave it, whatever the one before did.

    The first gets a copy of the dict alone, which costs next to nothing.
    """

    __slots__ = ("payload_again",)
    payload_again: Callable[[], dict[str, Any]]
    """Makes the payload of a further attempt."""

    def again(self, context: ProviderExecutionContext) -> Body:
        """The attempt of this context."""
        if context.attempt <= context.attempt_offset + 1:
            return self
        body = Body(self.func, **{**self.keywords, "payload": self.payload_again()})
        body.payload_again = self.payload_again
        return body


def body_of(
    implementation: Callable[..., Any],
    tenant_id: str,
    campaign_id: str | None,
    operation: str,
    payload: dict[str, Any],
    text: bytes,
    *,
    is_retried: bool,
) -> Body:
    """The first attempt of a call; ``text`` is its payload as JSON."""
    is_dict = type(payload) is dict
    body = Body(
        implementation,
        tenant_id=tenant_id,
        campaign_id=campaign_id,
        operation=operation,
        payload=payload.copy() if is_dict else copy.copy(payload),
    )
    if is_dict and _FIXED.issuperset(map(type, payload.values())):
        body.payload_again = payload.copy().copy
    elif is_retried:
        body.payload_again = _kept(payload, text)
    return body


def _kept(payload: dict[str, Any], text: bytes) -> Callable[[], dict[str, Any]]:
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
        return partial(_as_given, payload, text)


def _as_given(payload: dict[str, Any], text: bytes) -> dict[str, Any]:
    try:
        is_untouched = msgspec.json.encode(payload) == text
    except (TypeError, ValueError, RecursionError, OverflowError):
        is_untouched = False
    if is_untouched:  # as JSON has it, some values would be of another type
        return copy.copy(payload)
    read: dict[str, Any] = msgspec.json.decode(text)
    return read
