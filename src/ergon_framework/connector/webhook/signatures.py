"""Checks who sent a request, by the schemes in which services sign the body of a webhook.

Each check compares every signature of the request with that of every secret, in constant time. So
the time that it takes tells nothing about a secret, and a secret can be changed while both are
valid.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from ergon_framework.errors import ConfigurationError, ErgonError

Secrets = str | bytes | Sequence[str | bytes]
TOLERANCE = 300.0
"""Seconds between the sender's clock and ours, both ways, and so how long a replay is taken."""
MAX_SIGNATURES = 16
"""Signatures of one request that are compared: a sender that changes its secret sends two."""
ALGORITHMS = ("sha256", "sha384", "sha512", "sha1")
_FIELD = re.compile(r"\{([^{}]*)\}")
_PREFIX = b"whsec_"
_INSTANT = re.compile(r"[0-9]{1,15}")


class SignatureError(ErgonError):
    """A request was not signed with a secret of this receiver, or its timestamp is too far off."""

    code = "unauthenticated"


class SignatureCheck(Protocol):
    """Decides whether a request was signed by the expected sender."""

    def verify(self, headers: Mapping[str, str], body: bytes, now: float) -> None:
        """Raise a :class:`SignatureError` unless it was. Names of headers are lower case."""


class HmacSignature:
    """An HMAC over the body, in a header.

    ``secrets`` is one secret or several, any of which fits. The header may hold several signatures
    with spaces or commas between them; ``prefix`` is what stands before each, as ``sha256=`` does.
    ``content`` says what is signed: ``{body}`` and names of headers in braces, and text between
    them. ``timestamp`` is the header with the instant of sending in seconds since 1970. It must be
    within ``tolerance`` seconds of now, and part of the content.
    """

    def __init__(
        self,
        secrets: Secrets,
        *,
        header: str,
        algorithm: str = "sha256",
        encoding: str = "hex",
        prefix: str = "",
        content: str = "{body}",
        timestamp: str | None = None,
        tolerance: float = TOLERANCE,
    ) -> None:
        self._secrets = checked_secrets(secrets)
        self._header = _header_name("header", header)
        self._timestamp = None if timestamp is None else _header_name("timestamp", timestamp)
        self._content = _parts(content)
        self._tolerance = _seconds(tolerance)
        self._prefix = prefix
        if algorithm not in ALGORITHMS:
            raise ConfigurationError(
                f"the algorithm {str(algorithm)[:32]!r} is not known",
                remedy=f"choose one of {', '.join(ALGORITHMS)}",
            )
        if encoding not in ("hex", "base64"):
            raise ConfigurationError(
                "the encoding of a signature is hex or base64", remedy="leave it out for hex"
            )
        if "body" not in self._content[1::2]:
            raise ConfigurationError(
                "the content of a signature must have {body} in it",
                remedy='content="{body}", or "{webhook-timestamp}.{body}"',
            )
        if self._timestamp is not None and self._timestamp not in self._content[1::2]:
            raise ConfigurationError(
                f"the timestamp {self._timestamp} is not part of the content that is signed, so"
                " that anybody could change it",
                remedy=f'content="{{{self._timestamp}}}.{{body}}", as your sender\'s manual says',
            )
        self._algorithm = algorithm
        self._decode = _unhex if encoding == "hex" else _unbase64

    def __repr__(self) -> str:
        return f"HmacSignature(header={self._header!r}, secrets={len(self._secrets)})"

    def verify(self, headers: Mapping[str, str], body: bytes, now: float) -> None:
        """Raise a :class:`SignatureError` unless one of the secrets made one of the signatures."""
        given = headers.get(self._header)
        if given is None:
            raise SignatureError(f"the request has no header {self._header}")
        words = [word for word in re.split(r"[\s,]+", self._plain(given)) if word]
        found = [self._decode(word) for word in words[:MAX_SIGNATURES]]
        content = self._signed(headers, body)
        if not matches(self._secrets, self._algorithm, content, found):
            raise SignatureError(f"no signature in the header {self._header} fits the body")
        if self._timestamp is not None:
            check_instant(headers.get(self._timestamp, ""), now, self._tolerance)

    def _plain(self, given: str) -> str:
        """The header without what stands before each signature; others are left out."""
        if not self._prefix:
            return given
        pattern = rf"(?:^|(?<=[\s,])){re.escape(self._prefix)}([^\s,]+)"
        return " ".join(re.findall(pattern, given))

    def _signed(self, headers: Mapping[str, str], body: bytes) -> bytes:
        parts: list[bytes] = []
        for place, part in enumerate(self._content):
            if place % 2 == 0:
                parts.append(part.encode())
            elif part == "body":
                parts.append(body)
            elif part in headers:
                parts.append(headers[part].encode("latin-1", "replace"))
            else:
                raise SignatureError(f"the request has no header {part}, which is signed")
        return b"".join(parts)


class StripeSignature:
    """Stripe's scheme: ``t=`` and one or more ``v1=`` in the header ``Stripe-Signature``.

    ``secrets`` are signing secrets of the endpoint (``whsec_…``), one or several.
    """

    _HEADER = "stripe-signature"

    def __init__(self, secrets: Secrets, *, tolerance: float = TOLERANCE) -> None:
        self._secrets = checked_secrets(secrets)
        self._tolerance = _seconds(tolerance)

    def __repr__(self) -> str:
        return f"StripeSignature(secrets={len(self._secrets)})"

    def verify(self, headers: Mapping[str, str], body: bytes, now: float) -> None:
        """Raise a :class:`SignatureError` unless one of the secrets made one of the signatures."""
        given = headers.get(self._HEADER)
        if given is None:
            raise SignatureError(f"the request has no header {self._HEADER}")
        items = [item.strip().partition("=") for item in given.split(",")]
        instants = [value for key, _, value in items if key == "t"]
        if len(instants) != 1:
            raise SignatureError(f"the header {self._HEADER} has no timestamp, or several")
        found = [_unhex(value) for key, _, value in items if key == "v1"][:MAX_SIGNATURES]
        content = instants[0].encode("latin-1", "replace") + b"." + body
        if not matches(self._secrets, "sha256", content, found):
            raise SignatureError(f"no v1 signature in the header {self._HEADER} fits the body")
        check_instant(instants[0], now, self._tolerance)


def github_signature(secrets: Secrets) -> HmacSignature:
    """GitHub's scheme: ``X-Hub-Signature-256``. It has no timestamp; old ``sha1`` is not read."""
    return HmacSignature(secrets, header="x-hub-signature-256", prefix="sha256=")


def standard_signature(secrets: Secrets, *, tolerance: float = TOLERANCE) -> HmacSignature:
    """The scheme of Standard Webhooks; what follows ``whsec_`` in a secret is base64."""
    return HmacSignature(
        [_of_standard(each) for each in checked_secrets(secrets)],
        header="webhook-signature",
        encoding="base64",
        prefix="v1,",
        content="{webhook-id}.{webhook-timestamp}.{body}",
        timestamp="webhook-timestamp",
        tolerance=tolerance,
    )


def _of_standard(secret: bytes) -> bytes:
    if not secret.startswith(_PREFIX):
        return secret
    try:
        return base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except ValueError:
        raise ConfigurationError(
            "what follows whsec_ in a secret is no base64", remedy="copy the whole secret again"
        ) from None


def matches(
    secrets: Iterable[bytes], algorithm: str, content: bytes, found: Iterable[bytes]
) -> bool:
    """Whether one of the secrets made one of the signatures. All are compared in any case."""
    is_known = False
    signatures = list(found)
    for secret in secrets:
        wanted = hmac.new(secret, content, algorithm).digest()
        for signature in signatures:
            is_known |= hmac.compare_digest(wanted, signature)
    return is_known


def check_instant(text: str, now: float, tolerance: float) -> None:
    """Refuse the instant of a request that was sent too long ago, or by a clock that is ahead.

    It is looked at when the signature is known to fit, so that strangers learn nothing of it.
    """
    if not _INSTANT.fullmatch(text):
        raise SignatureError("the timestamp of the request is no number of seconds")
    apart = now - float(text)
    if abs(apart) > tolerance:
        side = "behind" if apart > 0 else "ahead of"
        raise SignatureError(
            f"the timestamp of the request is {abs(apart):.0f} s {side} this server's clock;"
            f" at most {tolerance:g} are allowed",
            remedy="if it is no replay, set the clocks of both machines by NTP",
        )


def checked_secrets(given: Secrets) -> tuple[bytes, ...]:
    """The secrets as bytes; an empty one, of a variable that is not set, is refused."""
    each_given: Any = [given] if isinstance(given, str | bytes) else given
    found = [one.encode() if isinstance(one, str) else one for one in each_given or ()]
    if not found or not all(isinstance(one, bytes) and one.strip() for one in found):
        raise ConfigurationError(
            "a signature needs a secret, and each must be text or bytes that are not empty",
            remedy='set the variable, and give os.environ["WEBHOOK_SECRET"]',
        )
    return tuple(found)


def _header_name(what: str, given: Any) -> str:
    if not isinstance(given, str) or not re.fullmatch(r"[A-Za-z0-9_-]{1,100}", given):
        raise ConfigurationError(f"{what} is no name of an HTTP header")
    return given.lower()


def _parts(content: str) -> list[str]:
    """Text, field, text, field, …, text."""
    parts = _FIELD.split(content)
    return [part.lower() if place % 2 else part for place, part in enumerate(parts)]


def _seconds(given: float) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float):
        given = math.nan
    if not 0 < given < math.inf:
        raise ConfigurationError(
            "tolerance must be a number of seconds above 0", remedy="leave it out for 300"
        )
    return float(given)


def _unhex(text: str) -> bytes:
    try:
        return binascii.unhexlify(text)
    except ValueError:
        return b""  # fits nothing


def _unbase64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return b""


def digest(body: bytes) -> str:
    """An id of a delivery that has none."""
    return hashlib.sha256(body).hexdigest()
