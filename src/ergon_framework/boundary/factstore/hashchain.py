"""Hashes: the ledger's keys, the checksum of a row, and the chain that holds a log together.

A fact's ``record`` is the hash of all that its author and its sender gave; it is computed before a
transaction begins. Its ``seal`` adds what the log gave: number, size, instant. The row keeps a
checksum of the seal as its ``mark``, and the chain is the hash over all seals. Values that are
never searched for are packed into one column, ``proof``: few columns are written faster than many.

No text has a NUL in it, so NULs keep the parts apart in what is hashed.

A loss of a peer takes an offset of its own in an inbound log, like a fact: so it lies between the
facts before and after it, moves the head, wakes waiting readers, and can be confirmed. A marker
takes that offset. It is linked into the hash chain and known to the ledger, and is never delivered
as a fact.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b, sha256
from typing import TypeAlias
from zlib import crc32

import msgspec

from ergon_framework.ports.factstore import Gap, NewFact, StoredFact

OFFSET_BITS = 40
"""Bits of a fact's number that are its offset; the others are its log."""

_SEAL = struct.Struct(">qqd32s")
_TAIL = struct.Struct(">32sq")  # digest, source offset
_HEAD = struct.Struct(">I32s")  # mark, chain
_PROOF = struct.Struct(">I32s32sq")
_NO_SOURCE = -1


class PreparedFact(msgspec.Struct, gc=False):
    """A fact and all that can be known about it without looking into the store."""

    new: NewFact
    key: bytes
    tail: bytes
    """The end of its proof."""
    record: bytes
    size: int


@dataclass(slots=True)
class Proof:
    """What a row says about itself."""

    mark: int
    chain: bytes
    digest: bytes
    source_offset: int | None
    from_zone: str
    message_id: str


def prepare(log: str, new: NewFact) -> PreparedFact:
    """Work out what needs no transaction."""
    envelope, fact, source = new.envelope, new.fact, new.source_offset
    names = f"{new.from_zone}\0{new.message_id}".encode()
    key = blake2b(log.encode() + b"\0" + names, digest_size=16).digest()
    tail = _TAIL.pack(new.digest, _NO_SOURCE if source is None else source) + names
    record = sha256(b"\0".join((tail, new.to_zone.encode(), envelope, fact))).digest()
    return PreparedFact(new, key, tail, record, len(envelope) + len(fact))


def new_of(fact: StoredFact) -> NewFact:
    """A stored fact as it came in; what it referred to is no longer known."""
    return NewFact(
        fact.from_zone,
        fact.message_id,
        fact.to_zone,
        fact.digest,
        fact.envelope,
        fact.fact,
        source_offset=fact.source_offset,
    )


def key_of(log: str, from_zone: str, message_id: str) -> bytes:
    """Under what the ledger knows an id."""
    text = f"{log}\0{from_zone}\0{message_id}"
    return blake2b(text.encode(), digest_size=16).digest()


def next_chain(chain: bytes, seal: bytes) -> bytes:
    """The chain, one link longer."""
    return sha256(chain + seal).digest()


def linked(
    number: int, total: int, recorded_at: float, fact: PreparedFact, chain: bytes
) -> tuple[bytes, bytes]:
    """The proof of a new row, and the chain after it."""
    seal = _SEAL.pack(number, total, recorded_at, fact.record)
    chain = sha256(chain + seal).digest()
    return _HEAD.pack(crc32(seal), chain) + fact.tail, chain


def read_proof(proof: bytes) -> Proof | None:
    """What a row says about itself; None when it cannot be read."""
    try:
        mark, chain, digest, source = _PROOF.unpack_from(proof)
        from_zone, message_id = proof[_PROOF.size :].decode().split("\0")
    except (TypeError, ValueError, struct.error):
        return None
    return Proof(
        mark, chain, digest, None if source == _NO_SOURCE else source, from_zone, message_id
    )


def repaired_row(
    number: int,
    total: int,
    recorded_at: float,
    proof: bytes,
    stored: tuple[bytes, bytes],
    duplicate: PreparedFact,
) -> tuple[bytes, bytes] | None:
    """Envelope and fact as they were stored first, out of a damaged row and a duplicate of it.

    None when that cannot be shown: the duplicate has other content, or the row lost what a
    duplicate need not bring along. The envelope may differ each time a fact is appended.
    """
    found = read_proof(proof)
    if found is None or found.digest != duplicate.new.digest:
        return None
    to_zone = duplicate.new.to_zone
    for pair in contents(stored, duplicate):
        if checked_seal(number, total, recorded_at, proof, to_zone, *pair) is not None:
            return pair
    return None


def relinked(
    number: int,
    recorded_at: float,
    before: tuple[bytes, int],
    leads_on: Callable[[bytes], bool],
    stored: tuple[bytes, bytes],
    duplicate: PreparedFact,
) -> tuple[int, bytes, tuple[bytes, bytes]] | None:
    """The same for a row whose proof is damaged: it is known by the hash chain around it.

    ``before`` is the chain and the bytes of the log up to the row before, ``leads_on``
    says whether a chain is what it was after it. The bytes of the log, the proof, and the content.
    """
    chain, base = before
    for pair in contents(stored, duplicate):
        new = msgspec.structs.replace(duplicate.new, envelope=pair[0], fact=pair[1])
        total = base + len(pair[0]) + len(pair[1])
        try:
            record = sha256(b"\0".join((duplicate.tail, new.to_zone.encode(), *pair))).digest()
            fact = PreparedFact(
                new, duplicate.key, duplicate.tail, record, len(pair[0]) + len(pair[1])
            )
            proof, after = linked(number, total, recorded_at, fact, chain)
        except (TypeError, struct.error):  # a column is not even of its kind
            return None
        if leads_on(after):
            return total, proof, pair
    return None


def proof_chain(proof: bytes) -> bytes:
    """The hash chain as a row has it; empty when it cannot be read."""
    try:
        return bytes(_HEAD.unpack_from(proof)[1])
    except (TypeError, struct.error):
        return b""


def contents(stored: tuple[bytes, bytes], duplicate: PreparedFact) -> list[tuple[bytes, bytes]]:
    """What a damaged row may have held, by itself and by a duplicate of its fact."""
    (envelope, fact), new = stored, duplicate.new
    pairs = [(envelope, new.fact), (new.envelope, new.fact), (new.envelope, fact), stored]
    return [pair for pair in pairs if all(isinstance(each, bytes) for each in pair)]


def checked_seal(
    number: int,
    total: int,
    recorded_at: float,
    proof: bytes,
    to_zone: str,
    envelope: bytes,
    fact: bytes,
) -> bytes | None:
    """The seal of a stored row; None when the row is not what was put there."""
    try:
        tail = proof[_HEAD.size :]
        record = sha256(b"\0".join((tail, to_zone.encode(), envelope, fact))).digest()
        seal = _SEAL.pack(number, total, recorded_at, record)
        mark, _ = _HEAD.unpack_from(proof)
    except (TypeError, struct.error):  # a column is not even of its kind
        return None
    return seal if crc32(seal) == mark else None


NOBODY = ""
"""The zone that markers are from and go to: a zone of facts has a name."""

ChainEntry: TypeAlias = NewFact | Gap


def in_order(facts: Sequence[NewFact], gaps: Sequence[Gap]) -> list[ChainEntry]:
    """Facts and losses in the order of the peer's log."""
    entries: list[ChainEntry] = []
    waiting = deque(gaps)
    for fact in facts:
        while waiting and waiting[0].first < (fact.source_offset or 0):
            entries.append(waiting.popleft())
        entries.append(fact)
    return [*entries, *waiting]


def marker(gap: Gap) -> NewFact:
    """The entry at the offset of a loss. The same loss always has the same marker."""
    about = json.dumps([gap.first, gap.last, gap.reason, gap.at])
    digest = hashlib.sha256(about.encode()).digest()
    return NewFact(NOBODY, digest.hex(), NOBODY, digest, b"", b"", source_offset=gap.first)


def recorded(gap: Gap, log: str, offset: int) -> Gap:
    """A loss of a peer as a gap of the inbound log."""
    return replace(
        gap, log=log, first=offset, last=offset, source_first=gap.first, source_last=gap.last
    )
