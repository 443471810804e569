"""A fact as a message of the stream, and what the ledger keeps of one that was cut."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ergon_framework.boundary.logs.losses import NOBODY
from ergon_framework.boundary.logs.records import (
    OFFSET_BITS,
    Prepared,
    Proof,
    checked_seal,
    linked,
    mended,
    next_chain,
    read_proof,
)
from ergon_framework.ports.factstore import StoredFact

_HEAD = struct.Struct(">BQQQddHII")
_ID = struct.Struct(">BQQ")
_FORM = 1
NO_CHAIN = bytes(32)
"""What the first link of a chain hangs on."""


@dataclass(slots=True)
class Entry:
    """A fact or a marker, as it was found."""

    seq: int
    offset: int
    alike: int
    """The fact before it to the same zone."""
    total: int
    """Bytes of the log up to it, also of what was cut."""
    recorded_at: float
    risen_at: float
    """The latest instant at which any entry up to it was recorded."""
    to_zone: str
    proof: Proof
    chain: bytes
    envelope: bytes
    fact: bytes
    seal: bytes | None
    """None when it is not what was put there."""

    @property
    def is_marker(self) -> bool:
        """Whether it only takes the offset of a loss."""
        return self.to_zone == NOBODY

    @property
    def size(self) -> int:
        """The bytes that count."""
        return len(self.envelope) + len(self.fact)

    def follows(self, chain: bytes) -> bool:
        """Whether it is sound and the next link of a chain."""
        return self.seal is not None and next_chain(chain, self.seal) == self.chain

    def seen(self, to_zone: str | None) -> StoredFact:
        """The fact as it is given out through a view."""
        return StoredFact(
            self.offset,
            self.offset - 1 if to_zone is None else self.alike,
            self.proof.from_zone,
            self.proof.message_id,
            self.to_zone,
            self.proof.digest,
            self.envelope,
            self.fact,
            self.recorded_at,
            self.proof.source_offset,
        )


@dataclass(frozen=True, slots=True)
class Place:
    """Where an entry of the log is: all after it have higher sequences."""

    seq: int
    chain: bytes
    """The chain after it; empty when it is not known."""


@dataclass(frozen=True, slots=True)
class Known:
    """What the ledger says about an id."""

    offset: int
    digest: bytes
    """32 bytes, or the first 16 of one that was moved here after its fact was cut."""
    seq: int = 0
    """Where the fact was put; 0 when it came here without one."""
    envelope: bytes | None = None
    """Of a fact that is kept."""


def written(
    log: int,
    offset: int,
    alike: int,
    total: int,
    risen_at: float,
    now: float,
    fact: Prepared,
    chain: bytes,
) -> tuple[bytes, bytes]:
    """The message of a new entry, and the chain after it."""
    new = fact.new
    proof, chain = linked((log << OFFSET_BITS) + offset, total, now, fact, chain)
    zone = new.to_zone.encode()
    head = _HEAD.pack(
        _FORM, offset, alike, total, now, risen_at, len(zone), len(proof), len(new.envelope)
    )
    return b"".join((head, zone, proof, new.envelope, new.fact)), chain


@dataclass(slots=True)
class _Parts:
    """A message in pieces."""

    head: tuple[int, int, int, float, float]
    """Offset, the one alike, total, instant, the latest instant."""
    zone: bytes
    proof: bytes
    envelope: bytes
    fact: bytes


def _parts(data: bytes) -> _Parts | None:
    try:
        form, *head, zone_end, proof_end, end = _HEAD.unpack_from(data)
    except struct.error:
        return None
    zone_end += _HEAD.size
    proof_end += zone_end
    end += proof_end
    if form != _FORM:
        return None
    offset, alike, total, now, risen = head
    zone, proof = data[_HEAD.size : zone_end], data[zone_end:proof_end]
    return _Parts((offset, alike, total, now, risen), zone, proof, data[proof_end:end], data[end:])


def repaired(log: int, data: bytes, told: Prepared) -> bytes | None:
    """The message of a damaged entry as it was, by a duplicate of its fact; None if not known."""
    parts = _parts(data)
    if parts is None:
        return None
    offset, _, total, now, _ = parts.head
    number, stored = (log << OFFSET_BITS) + offset, (parts.envelope, parts.fact)
    pair = mended(number, total, now, parts.proof, stored, told)
    if pair is None:
        return None
    zone = told.new.to_zone.encode()
    head = _HEAD.pack(_FORM, *parts.head, len(zone), len(parts.proof), len(pair[0]))
    return b"".join((head, zone, parts.proof, *pair))


def read(log: int, seq: int, data: bytes) -> Entry | None:
    """An entry out of its message; None when nothing of it can be read."""
    parts = _parts(data)
    proof = None if parts is None else read_proof(parts.proof)
    if parts is None or proof is None:
        return None
    try:
        to_zone = parts.zone.decode()
    except UnicodeDecodeError:
        return None
    offset, alike, total, now, risen = parts.head
    raw, envelope, fact = parts.proof, parts.envelope, parts.fact
    number = (log << OFFSET_BITS) + offset
    seal = checked_seal(number, total, now, raw, to_zone, envelope, fact)
    return Entry(
        seq, offset, alike, total, now, risen, to_zone, proof, proof.chain, envelope, fact, seal
    )


def id_record(known: Known) -> bytes:
    """What is kept of an id for ever."""
    return _ID.pack(_FORM, known.offset, known.seq) + known.digest


def read_id(data: bytes) -> Known:
    """The same, read again."""
    _, offset, seq = _ID.unpack_from(data)
    return Known(offset, data[_ID.size :], seq)
