"""Hashes: the ledger's keys, the checksum of a row, and the chain that holds a log together.

A fact's ``record`` stands for all that its author and its sender gave; it is worked out before a
transaction begins. Its ``seal`` adds what the log gave: number, size, instant. The row keeps a
checksum of the seal as its ``mark``, and the chain is the hash over all seals.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from hashlib import blake2b, sha256
from zlib import crc32

from ergon_framework.ports.factstore import NewFact

OFFSET_BITS = 40
"""Bits of a fact's number that are its offset; the others are its log."""

_SEAL = struct.Struct(">qqd32s")


@dataclass(slots=True)
class Prepared:
    """A fact and all that can be known about it without looking into the store."""

    new: NewFact
    from_zone: bytes
    message_id: bytes
    key: bytes
    record: bytes
    size: int


def prepare(log: str, new: NewFact) -> Prepared:
    """Work out what needs no transaction."""
    from_zone, message_id = new.from_zone, new.message_id
    envelope, fact = new.envelope, new.fact
    return Prepared(
        new,
        from_zone.encode(),
        message_id.encode(),
        key_of(log, from_zone, message_id),
        record_of(
            *(new.digest, new.source_offset, from_zone, message_id, new.to_zone, envelope, fact)
        ),
        len(envelope) + len(fact),
    )


# In what is hashed each part's length comes first, so that no two sets of parts read alike.


def key_of(log: str, from_zone: str, message_id: str) -> bytes:
    """Under what the ledger knows an id."""
    text = f"{len(log)}:{len(from_zone)}:{log}{from_zone}{message_id}"
    return blake2b(text.encode(), digest_size=16).digest()


def record_of(
    digest: bytes,
    source_offset: int | None,
    from_zone: str,
    message_id: str,
    to_zone: str,
    envelope: bytes,
    fact: bytes,
) -> bytes:
    """The hash of what was given."""
    lengths = f"{len(digest)}:{len(from_zone)}:{len(message_id)}:{len(to_zone)}:{len(envelope)}"
    head = f"{source_offset}:{lengths}:{from_zone}{message_id}{to_zone}"
    return sha256(b"".join((head.encode(), digest, envelope, fact))).digest()


def seal_of(number: int, total: int, recorded_at: float, record: bytes) -> bytes:
    """All that is in a row."""
    return _SEAL.pack(number, total, recorded_at, record)


def mark_of(seal: bytes) -> int:
    """The checksum of a row: it tells a changed one, and is quickly worked out."""
    return crc32(seal)


def next_chain(chain: bytes, seal: bytes) -> bytes:
    """The chain, one link longer."""
    return sha256(chain + seal).digest()
