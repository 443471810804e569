"""What one attempt is: the provider's code, with all it is given but the context."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from ergon_framework.providers.execution import ProviderExecutionContext


class Body(partial[Any]):
    """One attempt. Each is given the payload as the caller gave it, whatever the one before did.

    The first gets a copy of the dict alone, which costs next to nothing. What lies deeper is looked
    at when there is a second one.
    """

    __slots__ = ("given",)
    given: tuple[dict[str, Any], bytes]
    """The caller's payload, and how it read when the call began."""

    def again(self, context: ProviderExecutionContext) -> Body:
        """The attempt of this context."""
        if context.attempt <= context.attempt_offset + 1:
            return self
        payload, text = self.given
        body = Body(self.func, **{**self.keywords, "payload": _as_given(payload, text)})
        body.given = self.given
        return body


def body_of(
    implementation: Callable[..., Any],
    tenant_id: str,
    campaign_id: str | None,
    operation: str,
    payload: dict[str, Any],
    text: bytes,
) -> Body:
    """The first attempt of a call; ``text`` is its payload as JSON."""
    body = Body(
        implementation,
        tenant_id=tenant_id,
        campaign_id=campaign_id,
        operation=operation,
        payload=payload.copy() if type(payload) is dict else copy.copy(payload),
    )
    body.given = (payload, text)
    return body


def _as_given(payload: dict[str, Any], text: bytes) -> dict[str, Any]:
    try:
        is_untouched = msgspec.json.encode(payload) == text
    except (TypeError, ValueError, RecursionError, OverflowError):
        is_untouched = False
    if is_untouched:  # as JSON has it, some values would be of another type
        return copy.copy(payload)
    read: dict[str, Any] = msgspec.json.decode(text)
    return read
