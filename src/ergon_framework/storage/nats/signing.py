"""Who we are to a NATS server that knows us by a key: nkeys, and credentials with a JWT.

The key itself never leaves this machine: the server sends some bytes, and gets them back signed.
Read anew for each connection, so that credentials can be renewed while programs run.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from dataclasses import dataclass
from pathlib import Path

from ergon_framework.errors import ConfigurationError

_SEED, _USER = 18 << 3, 20 << 3  # the letters S and U
_LENGTH = 2 + 32 + 2  # what it is, the key, a checksum
_JWT = re.compile(r"-+BEGIN NATS USER JWT-+\s+(\S+)\s+-+END NATS USER JWT-+")
_SECRET = re.compile(r"-+BEGIN USER NKEY SEED-+\s+(\S+)\s+-+END USER NKEY SEED-+")
_BARE = re.compile(r"^\s*(SU[A-Z2-7]+)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Signer:
    """A user's key and, when the server goes by JWTs, what says whose it is."""

    key: bytes
    jwt: str | None = None

    def sign(self, nonce: str) -> bytes:
        """What the server wants to have signed."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        key = Ed25519PrivateKey.from_private_bytes(self.key)
        return base64.b64encode(key.sign(nonce.encode()))

    def public(self) -> str:
        """The name under which the server knows the key."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        key = Ed25519PrivateKey.from_private_bytes(self.key).public_key().public_bytes_raw()
        return _spelt(bytes([_USER]) + key)

    def has_expired(self, now: float) -> bool:
        """Whether the JWT says that it counts no more: only to explain why nobody was let in."""
        try:
            claims = json.loads(_decoded((self.jwt or "").split(".")[1]))
            return bool(0 < float(claims.get("exp") or 0) < now)
        except (IndexError, ValueError, AttributeError):
            return False

    def __repr__(self) -> str:
        return "Signer()"


def signer_of(creds: str | None, nkey: str | None) -> Signer | None:
    """By the file that a URL names; None when it names none."""
    if creds is not None:
        text = _read(creds, "creds")
        jwt, seed = _JWT.search(text), _SECRET.search(text)
        if jwt is None or seed is None:
            raise ConfigurationError(
                "the file that creds names in the URL has no JWT and seed of a user",
                remedy="take the .creds file of the user: nsc generate creds",
            )
        return Signer(_key_in(seed[1], "creds"), jwt[1])
    if nkey is not None:
        seed = _BARE.search(_read(nkey, "nkey"))
        if seed is None:
            raise ConfigurationError(
                "the file that nkey names in the URL has no seed of a user, which begins with SU",
                remedy="put the seed there, and the key that begins with U into the server's"
                " configuration: nsc generate nkey --user",
            )
        return Signer(_key_in(seed[1], "nkey"))
    return None


def _read(path: str, option: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a text of ASCII"
        raise ConfigurationError(
            f"the file that {option} names in the URL cannot be read: {reason}",
            remedy="name a file that is there and that this user may read",
        ) from None  # its text may hold the key


def _key_in(seed: str, option: str) -> bytes:
    """The key that a seed spells out."""
    try:
        raw = base64.b32decode(seed + "=" * (-len(seed) % 8))
    except binascii.Error:
        raw = b""
    is_whole = len(raw) == _LENGTH and _checksum(raw[:-2]) == raw[-2:]
    if not is_whole or (raw[0] & 0xF8, (raw[0] & 7) << 5 | raw[1] >> 3) != (_SEED, _USER):
        raise ConfigurationError(
            f"the seed in the file that {option} names in the URL is damaged, or not one of a user",
            remedy="copy the file again",
        )
    return raw[2:-2]


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _spelt(raw: bytes) -> str:
    return base64.b32encode(raw + _checksum(raw)).decode().rstrip("=")


def _checksum(raw: bytes) -> bytes:
    return binascii.crc_hqx(raw, 0).to_bytes(2, "little")
