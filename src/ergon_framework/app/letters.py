"""A dead letter of a provider call as plain values: the one shape in which operators see it."""

from __future__ import annotations

from typing import Any

from ergon_framework.core.rfc3339 import format_instant
from ergon_framework.ports.providerstore import StoredLetter
from ergon_framework.providers.tasking.letters import letter_message, why_not_sendable


def letter_shape(stored: StoredLetter, *, shows_payload: bool = False) -> dict[str, Any]:
    """A letter, what has become of it, and whether its call could be made again."""
    shape = {
        "kind": "provider",
        "id": stored.letter.dead_letter_id,
        "status": stored.status.value,
        **letter_message(stored.letter),
        "published_at": _moment(stored.published_at),
        "redriven_at": _moment(stored.redriven_at),
        "why_not_sendable": why_not_sendable(stored.letter),
    }
    return {**shape, "payload": stored.letter.payload} if shows_payload else shape


def _moment(at: float | None) -> str | None:
    return None if at is None else format_instant(at)
