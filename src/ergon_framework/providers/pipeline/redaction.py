"""What must not be kept or told: which parts of a payload are secret, and how they are left out.

A name says what its value is: ``password``, ``apiKey``, ``x-auth-token``. Some values give
themselves away as well, such as a URL with a password in it: of these only that part is left out,
because a key made of the rest must still tell two requests apart. Keys, logs and dead letters all
ask here.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache
from typing import Any

import msgspec

from ergon_framework.providers.errors import ProviderBadRequestError, ProviderError
from ergon_framework.providers.mapping.text import QUOTED, veiled, without_secrets

SECRET_ENDINGS = (
    *("password", "passwd", "passphrase", "passcode", "pwd", "secret", "token", "apikey"),
    *("accesskey", "secretkey", "privatekey", "signingkey", "encryptionkey", "credential"),
    *("authorization", "cookie", "bearer", "cvv", "cvc"),
)
"""What a secret's name ends with, its words written together in lower case; plurals as well."""

SECRET_NAMES = frozenset({"auth", "pin", "otp", "sig", "sessionid", "jwt", "accesskeyid"})
"""Names that are too short, or too common in others, to be looked for at an end."""

TRAILING_WORDS = frozenset(
    {"value", "values", "text", "string", "raw", "plain", "hash", "header", "encoded", "encrypted"}
    | {"old", "new", "current", "confirm", "confirmation", "repeat", "again", "base64", "b64"}
)
"""What may follow in a name without making another thing of it; numbers may as well."""

READING_WORDS = frozenset(
    {"page", "nextpage", "next", "continuation", "pagination", "sync", "cancel", "cursor"}
    | {"start", "end"}
)
"""Before ``token``: where to go on reading. Without them two requests would look like one."""

COUNTING_WORDS = frozenset(
    {"max", "min", "total", "prompt", "completion", "input", "output", "num", "cached", "reasoning"}
)
"""Before ``tokens``: how many a text has or may have."""

DEEPEST = 100
"""Levels of a payload: what is nested deeper, JSON can say, but few can read."""

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_NAME = r"([\w.-]{1,60})"
_ASSIGNED = re.compile(
    rf"(?<![\w.-]){_NAME}(\]?\\?['\"]?\s{{0,3}}=\s{{0,3}})(?:\*{{3}}|{QUOTED}|[^\s&;]+)"
)
"""As in URLs, forms and the like: up to the next parameter."""
_SAID = re.compile(
    rf"(?:(?<=['\"])|^[ \t-]{{0,40}}){_NAME}(\\?['\"]?\s{{0,3}}:\s{{0,3}})(?:\*{{3}}|{QUOTED}|\S+)",
    re.MULTILINE,
)
"""As in headers, YAML and JSON; elsewhere a colon says nothing: "our secret: good bread"."""
_NOT_A_LETTER = re.compile(r"[^a-z0-9]")


@lru_cache(maxsize=4096)
def is_secret(name: str, more: frozenset[str] = frozenset()) -> bool:
    """Whether a field's name says that its value is a secret; ``more`` are names of your own."""
    words = [each.lower() for each in _WORDS.findall(name)]
    while len(words) > 1 and (words[-1].isdigit() or words[-1] in TRAILING_WORDS):
        words.pop()
    whole = "".join(words)
    if squeezed(name) in more or whole in SECRET_NAMES:
        return True
    return whole.removesuffix("s").endswith(SECRET_ENDINGS) and not _is_plain_token(words)


def _is_plain_token(words: list[str]) -> bool:
    last = words[-1]
    before = words[-2] if last in {"token", "tokens"} and len(words) > 1 else None
    if before is None:  # written together, perhaps
        before = last.removesuffix("s").removesuffix("token")
    return before in READING_WORDS or (before in COUNTING_WORDS and last.endswith("s"))


def squeezed(name: str) -> str:
    """A name in lower case, its words written together."""
    return _NOT_A_LETTER.sub("", name.lower())


def squeezed_names(names: Collection[str]) -> frozenset[str]:
    """Names as :func:`is_secret` compares them."""
    return frozenset(squeezed(name) for name in names)


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
    payload: dict[str, Any], more: frozenset[str] = frozenset()
) -> tuple[dict[str, Any], bool]:
    """The payload without its secrets, at any depth, and whether there were any.

    Under a name that says so everything is left out; in other texts only what looks like a secret.
    ``more`` are further names, as :func:`squeezed_names` gives them. ``RecursionError`` when it is
    nested too deeply.
    """
    found: list[str] = []
    kept: dict[str, Any] = _stripped(payload, more, found, 0)
    return kept, bool(found)


def _stripped(value: Any, more: frozenset[str], found: list[str], depth: int) -> Any:
    if isinstance(value, str):
        plain = _without_named(without_secrets(value), more)
        if plain != value:
            found.append("")
        return plain
    if not isinstance(value, dict | list | tuple):
        return value
    if depth >= DEEPEST:
        raise RecursionError(f"nested in more than {DEEPEST} levels")
    if not isinstance(value, dict):
        return [_stripped(each, more, found, depth + 1) for each in value]
    kept = {}
    for name, each in value.items():
        if is_secret(str(name), more) and not _is_count(str(name), each):
            found.append(str(name))
        else:
            kept[name] = _stripped(each, more, found, depth + 1)
    return kept


def _without_named(text: str, more: frozenset[str]) -> str:
    """A text without what it calls a secret itself."""

    def veil(found: re.Match[str]) -> str:
        whole, name = found[0], found[1]
        if not is_secret(name, more):
            return whole
        return whole[: found.end(2) - found.start()] + "***"

    for mark, pattern in (("=", _ASSIGNED), (":", _SAID)):
        if mark in text:
            text = pattern.sub(veil, text)
    return text


def _is_count(name: str, value: Any) -> bool:
    """Whether so many tokens are meant, and not the tokens themselves."""
    return type(value) is int and name.lower().endswith("tokens")


def message_of(error: ProviderError) -> str:
    """What an error says, short and without what looks like a secret."""
    # A class of somebody else's may have an __init__ that never called ours.
    return veiled(str(getattr(error, "message", "") or type(error).__name__))
