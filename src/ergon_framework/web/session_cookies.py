"""Signed cookies that say who has signed in, for several processes that share a key.

Nobody without the key can make one. A cookie that was begun with a token is signed with the hash of
that token, too, so it is worthless once the token is revoked, and contains no part of it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from ergon_framework.app.settings.tokens import MIN_TOKEN
from ergon_framework.errors import ConfigurationError

MAX_COOKIE = 1024
"""How many characters a cookie may have to be read."""


class SignedIn(NamedTuple):
    """The content of a cookie."""

    name: str
    is_by_token: bool
    until: float
    """The end of the session, by the wall clock, which processes share."""
    nonce: str


class SessionKey:
    """Signs cookies, and reads those that other processes have signed."""

    def __init__(self, text: str, clock: Callable[[], float] = time.time) -> None:
        if len(text) < MIN_TOKEN:
            raise ConfigurationError(
                f"session_key under [server] has fewer than {MIN_TOKEN} characters",
                remedy="make one with: openssl rand -hex 32",
            )
        self._key = hashlib.sha256(b"ergon sessions " + text.encode()).digest()
        self._clock = clock

    def cookie(self, name: str, mark: bytes | None, seconds: float) -> str:
        """A cookie for a person. ``mark``: the hash of the token that was shown, if
        there was one.
        """
        nonce = secrets.token_urlsafe(12)
        found = SignedIn(name, mark is not None, self._clock() + seconds, nonce)
        told = base64.urlsafe_b64encode(msgspec.json.encode(found)).decode().rstrip("=")
        return f"{told}.{self._signature(told, mark)}"

    def read(self, cookie: str, mark_of: Callable[[str], bytes | None]) -> SignedIn | None:
        """The content of a cookie. None if it was signed by others, is over, or its token was
        revoked.
        """
        told, _, signature = cookie.partition(".")
        found = _decoded(told) if len(cookie) <= MAX_COOKIE else None
        if found is None:
            return None
        mark = mark_of(found.name) if found.is_by_token else None
        if found.is_by_token and mark is None:
            return None
        is_ours = hmac.compare_digest(self._signature(told, mark).encode(), signature.encode())
        return found if is_ours and self._clock() < found.until else None

    def form_secret(self, of_whom: str) -> str:
        """The secret that the forms of one session contain."""
        return hmac.new(self._key, f"form {of_whom}".encode(), "sha256").hexdigest()

    def _signature(self, told: str, mark: bytes | None) -> str:
        signed = b"cookie " + told.encode() + b" " + (b"" if mark is None else mark)
        return hmac.new(self._key, signed, "sha256").hexdigest()


def _decoded(told: str) -> SignedIn | None:
    try:
        padded = told.encode("ascii") + b"=" * (-len(told) % 4)
        return msgspec.json.decode(base64.b64decode(padded, b"-_", validate=True), type=SignedIn)
    except (UnicodeEncodeError, binascii.Error, msgspec.DecodeError, msgspec.ValidationError):
        return None
