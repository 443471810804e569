"""How a body is signed, so that its receiver knows who sent it."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable

from ergon_framework.errors import ConfigurationError

Signer = Callable[[str, bytes, float], dict[str, str]]
"""Given the id, the body and the time, the headers with the signature."""
STANDARD, GITHUB = "standard", "github"
_PREFIX = "whsec_"


def signer_of(secret: object, scheme: str) -> Signer | None:
    """Signs as the scheme says; None when there is no secret."""
    if secret is None:
        return None
    if not isinstance(secret, str) or not secret.strip():
        raise ConfigurationError(
            "secret is empty, or no text", remedy="see that the variable is set"
        )
    if scheme == GITHUB:
        key = secret.encode()
        return lambda _id, body, _now: {"x-hub-signature-256": f"sha256={_hex(key, body)}"}
    if scheme != STANDARD:
        raise ConfigurationError(
            "signature is standard or github", remedy="leave it out for Standard Webhooks"
        )
    return _standard(_decoded(secret))


def _standard(key: bytes) -> Signer:
    def sign(identity: str, body: bytes, now: float) -> dict[str, str]:
        instant = str(int(now))
        content = f"{identity}.{instant}.".encode() + body
        found = base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
        return {
            "webhook-id": identity,
            "webhook-timestamp": instant,
            "webhook-signature": f"v1,{found}",
        }

    return sign


def _hex(key: bytes, body: bytes) -> str:
    return hmac.new(key, body, hashlib.sha256).hexdigest()


def _decoded(secret: str) -> bytes:
    """The key: what follows ``whsec_`` is base64, as Standard Webhooks have it."""
    if not secret.startswith(_PREFIX):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ConfigurationError(
            "what follows whsec_ in secret is no base64", remedy="copy the whole secret again"
        ) from None
