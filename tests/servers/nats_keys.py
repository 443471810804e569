"""Keys, accounts and users of NATS as ``nsc`` makes them, for servers that go by signed JWTs."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_SEED = 18 << 3
_KINDS = {"O": 14 << 3, "A": 0, "U": 20 << 3}
_UNLIMITED = {
    **dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1),
    **dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), -1),
    "wildcards": True,
}

_USER = {"type": "user", "subs": -1, "data": -1, "payload": -1}


@dataclass(frozen=True)
class Key:
    """The key of an operator, an account or a user."""

    kind: str
    private: Ed25519PrivateKey

    @property
    def public(self) -> str:
        """As the server's configuration has it."""
        return _spelt(bytes([_KINDS[self.kind]]) + self.private.public_key().public_bytes_raw())

    @property
    def seed(self) -> str:
        """As its owner keeps it."""
        kind = _KINDS[self.kind]
        return _spelt(
            bytes([_SEED | kind >> 5, kind << 3 & 0xFF]) + self.private.private_bytes_raw()
        )

    def signed(self, subject: str, name: str, claims: dict[str, Any], **more: Any) -> str:
        """A JWT about somebody, signed by this one."""
        body = {"iss": self.public, "sub": subject, "name": name, "iat": int(time.time()), **more}
        body["nats"] = {**claims, "version": 2}
        body["jti"] = base64.b32encode(hashlib.sha256(json.dumps(body).encode()).digest()).decode()
        parts = [_coded(each) for each in ({"typ": "JWT", "alg": "ed25519-nkey"}, body)]
        signature = self.private.sign(".".join(parts).encode())
        return ".".join((*parts, _bare(signature)))


def new_key(kind: str) -> Key:
    """One that nobody has."""
    return Key(kind, Ed25519PrivateKey.generate())


class Realm:
    """An operator with a system account and one for us; users are signed in by it."""

    def __init__(self) -> None:
        self._operator, self._system, self._account = new_key("O"), new_key("A"), new_key("A")

    @property
    def config(self) -> str:
        """What the server has to have in its configuration."""
        operator = self._operator
        claims = {"type": "operator", "system_account": self._system.public}
        told = operator.signed(operator.public, "operator", claims)
        system = operator.signed(self._system.public, "SYS", {"type": "account"})
        limits = {"type": "account", "limits": _UNLIMITED}
        ours = operator.signed(self._account.public, "ours", limits)
        return (
            f"operator: {told}\nresolver: MEMORY\nsystem_account: {self._system.public}\n"
            f"resolver_preload: {{ {self._system.public}: {system}\n"
            f"{self._account.public}: {ours} }}"
        )

    def creds(self, path: Path, **more: Any) -> Path:
        """The credentials of a new user, written to a file; ``exp`` says when they end."""
        user = new_key("U")
        jwt = self._account.signed(user.public, "ergon", _USER, **more)
        path.write_text(
            f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
            "************************* IMPORTANT *************************\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
        )
        return path


def _spelt(raw: bytes) -> str:
    checksum = binascii.crc_hqx(raw, 0).to_bytes(2, "little")
    return base64.b32encode(raw + checksum).decode().rstrip("=")


def _coded(value: object) -> str:
    return _bare(json.dumps(value).encode())


def _bare(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
