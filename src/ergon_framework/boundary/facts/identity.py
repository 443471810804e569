"""What makes a fact the same fact: the digest of its content, and the key of its id."""

from __future__ import annotations

import re
from hashlib import sha256

import msgspec

from ergon_framework.boundary.facts.fields import Problem, refusal
from ergon_framework.boundary.model import Envelope, Fact

_DIGEST = re.compile(r"sha256:([0-9a-f]{64})", re.IGNORECASE)
_UNSET = msgspec.UNSET
_encode = msgspec.json.Encoder().encode


class _Content(msgspec.Struct):
    """What two facts of one id must agree upon; the fields are in canonical order."""

    from_zone: str
    object_json: msgspec.Raw
    object_media_type: str | msgspec.UnsetType
    object_schema: str | msgspec.UnsetType
    predicate: str
    subject: str
    to_zone: str


def identity_digest(envelope: Envelope, fact: Fact, canonical_object: bytes) -> bytes:
    """SHA-256 over the canonical form of the content, 32 bytes.

    The object is canonical already and is put in as it is. Times, labels and lineage do not count:
    a retry may have others.
    """
    media_type, schema = envelope.object_media_type, envelope.object_schema
    return sha256(
        _encode(
            _Content(
                envelope.from_zone,
                msgspec.Raw(canonical_object),
                _UNSET if media_type is None else media_type,
                _UNSET if schema is None else schema,
                fact.predicate,
                fact.subject,
                envelope.to_zone,
            )
        )
    ).digest()


def spelled(digest: bytes) -> str:
    """A digest as it travels."""
    return f"sha256:{digest.hex()}"


def parsed(text: object, field: str) -> bytes:
    """The 32 bytes of a digest as it travels; ``FactInvalidError`` names the field."""
    found = _DIGEST.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        remedy = "write sha256: and 64 hexadecimal digits"
        raise refusal(Problem(field, "pattern", "is not a digest", remedy))
    return bytes.fromhex(found[1])
