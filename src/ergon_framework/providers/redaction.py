"""Payloads and messages without their secrets, as keys, logs, rows and dead letters have them.

What is a secret is decided by :mod:`ergon_framework.redaction`. A key made of a payload leaves out
less than a dead letter: it must still distinguish two requests.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from ergon_framework.errors import describe
from ergon_framework.providers.errors import ProviderBadRequestError, ProviderError
from ergon_framework.redaction import (
    is_credential,
    is_secret,
    normalised_name,
    redacted_message,
    redacted_text,
)

MAX_MESSAGE = 500
"""Characters of a message; the raw exception, which is kept as the cause, has the rest."""

_MAX_READ = 4000


def describe_safely(error: BaseException) -> str:
    """The name of an exception and what it says, fit for logs, rows and dead letters.

    Only the first line: what follows is detail, such as the parameters of an SQL statement.
    """
    name, _, text = describe(error).partition(": ")
    line = text.strip().partition("\n")[0]
    return redact_text(line, f"{name}: ") if line else name


def redact_text(text: str, title: str = "") -> str:
    """A text without what looks like a secret, and not longer than a message may be."""
    text = title + redacted_message(text[:_MAX_READ])
    if not text.isprintable():  # databases refuse some of these, and terminals obey others
        text = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)
    return text if len(text) <= MAX_MESSAGE else text[: MAX_MESSAGE - 1] + "…"


MAX_DEPTH = 100
"""Levels of a payload: what is nested deeper, JSON can say, but few can read."""


def normalised_names(names: Collection[str]) -> frozenset[str]:
    """Names as :func:`is_secret` compares them."""
    return frozenset(normalised_name(name) for name in names)


def plain_json(payload: dict[str, Any]) -> dict[str, Any]:
    """The payload as JSON has it: dicts with texts as keys, lists, texts, numbers, true and null.

    A payload that JSON cannot say is a bad request, as for the call itself.
    """
    try:
        return msgspec.json.decode(msgspec.json.encode(payload), type=dict[str, Any])
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise ProviderBadRequestError(
            f"payload cannot be written as JSON: {type(error).__name__}",
            never_sent=True,
            details={"path": "payload"},
        ) from error


def strip_secrets(
    payload: dict[str, Any], more: frozenset[str] = frozenset(), *, is_for_key: bool = False
) -> tuple[dict[str, Any], bool]:
    """The payload without its secrets, at any depth, and whether there were any.

    Under a name that says so everything is left out; in other texts only what looks like a secret.
    ``more`` are further names, as :func:`normalised_names` gives them. With ``is_for_key`` only
    what grants access is left out. ``RecursionError`` when it is nested too deeply.
    """
    found: list[str] = []
    kept: dict[str, Any] = _stripped(payload, more, found, is_for_key, 0)
    return kept, bool(found)


def _stripped(
    value: Any, more: frozenset[str], found: list[str], is_for_key: bool, depth: int
) -> Any:
    if isinstance(value, str):
        plain = redacted_text(value, more, is_for_key=is_for_key)
        if plain != value:
            found.append("")
        return plain
    if not isinstance(value, dict | list | tuple):
        return value
    if depth >= MAX_DEPTH:
        raise RecursionError(f"nested in more than {MAX_DEPTH} levels")
    if not isinstance(value, dict):
        return [_stripped(each, more, found, is_for_key, depth + 1) for each in value]
    is_left_out = is_credential if is_for_key else is_secret
    kept = {}
    for name, each in value.items():
        if is_left_out(str(name), more) and not _is_count(str(name), each):
            found.append(str(name))
        else:
            kept[name] = _stripped(each, more, found, is_for_key, depth + 1)
    return kept


def _is_count(name: str, value: Any) -> bool:
    """Whether so many tokens are meant, or whether something passed, and no secret itself."""
    if isinstance(value, bool | int) and name.lower() == "pass":
        return True
    return type(value) is int and name.lower().endswith("tokens")


def safe_message(error: ProviderError) -> str:
    """What an error says, short and without what looks like a secret."""
    # A user's subclass may have an __init__ that never called ours.
    return redact_text(str(getattr(error, "message", "") or type(error).__name__))
