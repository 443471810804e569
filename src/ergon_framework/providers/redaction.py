"""What must not be kept or told: which parts of a payload are secret, and how they are left out.

A name says what its value is: ``password``, ``apiKey``, ``x-auth-token``. Some values give
themselves away as well, such as a URL with a password in it. Keys, logs and dead letters all ask
here.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache
from typing import Any

import msgspec

from ergon_framework.providers.errors import ProviderBadRequestError, ProviderError
from ergon_framework.providers.mapping_text import veiled

SECRET_ENDINGS = (
    *("password", "passwd", "passphrase", "passcode", "pwd", "secret", "secrets", "token"),
    *("apikey", "accesskey", "secretkey", "privatekey", "signingkey", "encryptionkey"),
    *("credential", "credentials", "authorization", "cookie", "cookies", "bearer", "cvv", "cvc"),
)
"""What a secret's name ends with, its words written together in lower case."""

SECRET_NAMES = frozenset({"auth", "pin", "otp", "sig", "sessionid", "jwt", "accesskeyid"})
"""Names that are too short, or too common in others, to be looked for at an end."""

PLAIN_ENDINGS = (
    *("pagetoken", "nexttoken", "continuationtoken", "paginationtoken", "synctoken"),
    *("canceltoken", "cursortoken", "starttoken", "endtoken"),
)
"""Tokens that say where to go on reading: without them two requests would look like one."""

_GIVEAWAY = re.compile(r"\w://[^/\s@:]*:[^/\s@]+@|^\s*(?:bearer|basic)\s+\S{6,}", re.IGNORECASE)
_NOT_A_LETTER = re.compile(r"[^a-z0-9]")
_LEFT_OUT = object()


@lru_cache(maxsize=4096)
def is_secret(name: str, more: frozenset[str] = frozenset()) -> bool:
    """Whether a field's name says that its value is a secret; ``more`` are names of your own."""
    plain = squeezed(name)
    if plain in more or plain in SECRET_NAMES:
        return True
    return plain.endswith(SECRET_ENDINGS) and not plain.endswith(PLAIN_ENDINGS)


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

    ``more`` are further names, as :func:`squeezed_names` gives them.
    """
    found: list[str] = []
    kept: dict[str, Any] = _stripped(payload, more, found)
    return kept, bool(found)


def _stripped(value: Any, more: frozenset[str], found: list[str]) -> Any:
    if isinstance(value, dict):
        kept = {}
        for name, each in value.items():
            rest = _LEFT_OUT if is_secret(str(name), more) else _stripped(each, more, found)
            if rest is _LEFT_OUT:
                found.append(str(name))
            else:
                kept[name] = rest
        return kept
    if isinstance(value, list | tuple):
        rest_of_all = [_stripped(each, more, found) for each in value]
        if any(each is _LEFT_OUT for each in rest_of_all):
            found.append("[]")
        return [each for each in rest_of_all if each is not _LEFT_OUT]
    if isinstance(value, str) and _GIVEAWAY.search(value):
        return _LEFT_OUT
    return value


def message_of(error: ProviderError) -> str:
    """What an error says, short and without what looks like a secret."""
    return veiled(error.message)
