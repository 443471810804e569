"""What a zone's stream holds: subjects, facts as messages, and small records as JSON.

``log.<log>.f.<zone>`` are the facts of a log to a zone and ``log.<log>.m`` the markers of a peer's
losses, in the order of their offsets; ``shelf.<log>`` is the state of the log. No message can be
replaced: ``repair.<log>.<sequence>`` is read instead of one that is damaged. ``id.…`` is what the
ledger knows of an id, for ever. The rest are small records, of which the newest counts.

The state of a log is kept as one record, which a commit of a single entry does not rewrite: then
one message is all that has to be written. The record has the state of some entries ago, and the
state now follows from it and those entries.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from base64 import b32encode
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from ergon_framework.boundary.factstore.hashchain import (
    NOBODY,
    OFFSET_BITS,
    PreparedFact,
    Proof,
    checked_seal,
    key_of,
    linked,
    next_chain,
    read_proof,
    repaired_row,
)
from ergon_framework.ports.factstore import LogInfo, StoredFact

_HEAD = struct.Struct(">BQQQddHII")
_ID = struct.Struct(">BQQ")
_FORM = 1
NO_CHAIN = bytes(32)
"""What the first link of a chain hangs on."""


@dataclass(slots=True)
class LogEntry:
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
        """Whether the entry only stands for a loss at this offset."""
        return self.to_zone == NOBODY

    @property
    def size(self) -> int:
        """The bytes that count."""
        return len(self.envelope) + len(self.fact)

    def follows(self, chain: bytes) -> bool:
        """Whether the entry is undamaged and the next link of the hash chain."""
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
class EntryPosition:
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
    """The sequence number at which the fact was written; 0 if it came here without one."""
    envelope: bytes | None = None
    """The envelope of the fact; None if its payload was dropped."""


def encode_entry(
    log: int,
    offset: int,
    alike: int,
    total: int,
    risen_at: float,
    now: float,
    fact: PreparedFact,
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


def repaired_entry(log: int, data: bytes, duplicate: PreparedFact) -> bytes | None:
    """The message of a damaged entry as it was, by a duplicate of its fact; None if not known."""
    parts = _parts(data)
    if parts is None:
        return None
    offset, _, total, now, _ = parts.head
    number, stored = (log << OFFSET_BITS) + offset, (parts.envelope, parts.fact)
    pair = repaired_row(number, total, now, parts.proof, stored, duplicate)
    if pair is None:
        return None
    zone = duplicate.new.to_zone.encode()
    head = _HEAD.pack(_FORM, *parts.head, len(zone), len(parts.proof), len(pair[0]))
    return b"".join((head, zone, parts.proof, *pair))


def read_entry(log: int, seq: int, data: bytes) -> LogEntry | None:
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
    return LogEntry(
        seq, offset, alike, total, now, risen, to_zone, proof, proof.chain, envelope, fact, seal
    )


def encode_id(known: Known) -> bytes:
    """What is kept of an id for ever."""
    return _ID.pack(_FORM, known.offset, known.seq) + known.digest


def read_id(data: bytes) -> Known:
    """Decode what the ledger has for an id."""
    _, offset, seq = _ID.unpack_from(data)
    return Known(offset, data[_ID.size :], seq)


T = TypeVar("T")

LAST = (1 << 63) - 1
"""An offset that no fact has."""
UNWRITTEN = {"is_written": False}
"""What marks a field that is worked out and not kept."""


@dataclass(slots=True)
class Counters:
    """What is counted in one place."""

    items: int = 0
    """The highest number of anything set aside."""
    notes: int = 0
    objects: int = 0
    object_bytes: int = 0
    logs: int = 0
    """The highest number of a log."""


@dataclass(slots=True)
class ConsumerRecord:
    """What is kept of a consumer beside what everybody may know."""

    name: str
    log: str
    cursor: int
    to_zone: str | None = None
    is_required: bool = True
    served: int = 0
    deliveries: int = 0
    holder: str | None = None
    held_until: float = 0.0
    lease: float = 0.0
    created_at: float = 0.0
    is_gone: bool = False
    """Whether the consumer was deleted. Its name is kept for the fields that follow."""
    items_above: int = 0
    """Items up to this number were forgotten with an earlier consumer of this name."""
    nothing_released: int = -1
    """How many notes there were when nothing was released: each release writes a note."""
    aside_through: int = LAST
    """No offset above this one was ever quarantined."""


@dataclass(slots=True)
class ObjectRecord:
    """A name of an object; without a digest, a fact refers to it and it is not there yet."""

    bucket: str
    key: str
    digest: bytes = b""
    size: int = 0
    at: float = 0.0
    is_referenced: bool = False


@dataclass(slots=True)
class QuarantineMessage:
    """A quarantined item."""

    id: int
    consumer: str
    log: str
    offset: int
    reason: str
    message: str
    attempts: int
    at: float
    state: str = "quarantined"
    envelope: bytes = b""
    fact: bytes = b""
    is_served: bool = False
    """Whether the item was released and has been served since."""


@dataclass(slots=True)
class ZoneRecord:
    """Which store it is."""

    zone: str
    epoch: str
    created_at: float


@dataclass(slots=True)
class Attribute:
    """A text that was written down about this very store."""

    value: str


@dataclass(slots=True)
class Mark:
    """What was written down about a move into this store."""

    data: bytes


@dataclass(slots=True)
class JournalNote:
    """An entry of the journal."""

    at: float
    action: str
    details: str


def encode(record: Any) -> bytes:
    """A dataclass as JSON; bytes as hexadecimal digits."""
    kept = (each for each in fields(record) if each.metadata.get("is_written", True))
    values = {each.name: getattr(record, each.name) for each in kept}
    return json.dumps(values, separators=(",", ":"), default=bytes.hex).encode()


def decode(kind: type[T], data: bytes) -> T:
    """The record again; what a later version has added is left out."""
    found: dict[str, Any] = json.loads(data)
    values = {}
    for each in fields(kind):  # type: ignore[arg-type]
        if each.name in found:
            values[each.name] = _typed(str(each.type), found[each.name])
    return kind(**values)


def _typed(kind: str, value: Any) -> Any:
    """A value of JSON as its field has it: JSON knows no bytes, and makes 1 of 1.0 for some."""
    if kind == "bytes" and isinstance(value, str):
        return bytes.fromhex(value)
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return float(value) if kind.startswith("float") and is_whole else value


@dataclass(slots=True)
class LogState:
    """A log. What begins with ``cut`` is about everything below the first entry that is kept."""

    name: str
    number: int
    """The number of the entry, which is part of the hash chain."""
    first: int = 1
    """The lowest offset that is kept."""
    first_seq: int = 0
    """All entries from this sequence on are kept ones."""
    cut_chain: bytes = NO_CHAIN
    cut_total: int = 0
    """Bytes."""
    cut_risen_at: float = 0.0
    """The latest instant."""
    cut_at: float | None = None
    """When the last one was recorded."""
    cut_latest: dict[str, int] = field(default_factory=dict)
    """The offset of the last fact to each zone."""
    head: int = 0
    head_seq: int = 0
    """The sequence of the last entry; 0 when none is kept."""
    chain: bytes = NO_CHAIN
    total: int = 0
    """Bytes of all entries ever."""
    risen_at: float = 0.0
    """The latest instant at which anything was recorded."""
    last_at: float | None = None
    latest: dict[str, int] = field(default_factory=dict)
    """The offset of the last fact to each zone."""
    gaps: int = 0
    """How many losses were ever recorded."""
    young: dict[bytes, Known] = field(default_factory=dict, metadata=UNWRITTEN)
    """The last entries, by the key of their ids, which the ledger does not know yet."""

    @property
    def size(self) -> int:
        """Bytes that are kept."""
        return self.total - self.cut_total

    def grow(self, entry: LogEntry) -> None:
        """Include the next entry in the record."""
        proof = entry.proof
        self.head, self.head_seq, self.chain = entry.offset, entry.seq, entry.chain
        self.total, self.risen_at, self.last_at = entry.total, entry.risen_at, entry.recorded_at
        if not entry.is_marker:
            self.latest[entry.to_zone] = entry.offset
        key = key_of(self.name, proof.from_zone, proof.message_id)
        self.young[key] = Known(entry.offset, proof.digest, entry.seq, entry.envelope)

    def copy(self) -> LogState:
        """A copy, for a step that may fail."""
        return replace(
            self,
            cut_latest=dict(self.cut_latest),
            latest=dict(self.latest),
            young=dict(self.young),
        )

    def info(self) -> LogInfo:
        """The log in figures."""
        return LogInfo(self.name, self.head, self.first, self.size, self.last_at)

    def edge(self, offset: int) -> EntryPosition | None:
        """Where an offset is, if it is one of the two ends."""
        if offset == self.head and self.head_seq:
            return EntryPosition(self.head_seq, self.chain)
        if offset == self.first - 1:
            return EntryPosition(max(0, self.first_seq - 1), self.cut_chain)
        return None


_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,48}")
_MAX_TOKEN = 64
NOT_A_PEER = "_"


def token(name: str) -> str:
    """A name as one token of a subject: as it is, escaped, or hashed when it is long."""
    if _PLAIN.fullmatch(name):
        return f"n{name}"
    data = name.encode()
    if len(data) <= _MAX_TOKEN:
        return "x" + b32encode(data).decode().rstrip("=").lower()
    return "h" + hashlib.sha256(data).hexdigest()


class Subjects:
    """The subjects of one zone."""

    def __init__(self, space: str, zone: str) -> None:
        self.root = f"{space}.{token(zone)}"
        self.stream = f"ERGON_{space}_{token(zone)}"
        self.everything = f"{self.root}.>"
        self.notifications = f"ergon-bell.{self.root}"
        self.zone = f"{self.root}.zone"
        self.tally = f"{self.root}.tally"
        self.fence = f"{self.root}.fence"
        self.mark = f"{self.root}.mark"
        # Streams keep their subjects: "shelf" stays, although we call it a log state now.
        self.log_states = f"{self.root}.shelf.*"
        self.consumers = f"{self.root}.consumer.*"
        self.items = f"{self.root}.item.*.*"
        self.links = f"{self.root}.link.*"
        self.objects = f"{self.root}.object.*.*"

    def attribute(self, name: str) -> str:
        """A text that was written down about the store."""
        return f"{self.root}.attribute.{token(name)}"

    def log_state(self, log: str) -> str:
        """How a log stands."""
        return f"{self.root}.shelf.{token(log)}"

    def entries(self, log: str) -> str:
        """Facts and markers of a log."""
        return f"{self.root}.log.{token(log)}.>"

    def facts(self, log: str, to_zone: str | None = None) -> str:
        """The subjects of the facts of a log, or of those to one zone."""
        zone = "*" if to_zone is None else token(to_zone)
        return f"{self.root}.log.{token(log)}.f.{zone}"

    def entry(self, log: str, to_zone: str) -> str:
        """The subject of a fact or, if it goes to no zone, of a marker."""
        kind = "m" if to_zone == NOBODY else f"f.{token(to_zone)}"
        return f"{self.root}.log.{token(log)}.{kind}"

    def repair(self, log: str, seq: int) -> str:
        """An entry as it was, in the place of the damaged one with a sequence."""
        return f"{self.root}.repair.{token(log)}.{seq}"

    def repairs(self, log: str) -> str:
        """All of those of a log."""
        return f"{self.root}.repair.{token(log)}.*"

    def id(self, key: bytes) -> str:
        """What the ledger knows of an id."""
        digits = key.hex()
        return f"{self.root}.id.{digits[:2]}.{digits[2:4]}.{digits[4:]}"

    def ids(self, *digits: str) -> str:
        """The subjects of ids whose keys begin with up to two pairs of digits."""
        return ".".join((self.root, "id", *digits, *("*" for _ in range(3 - len(digits)))))

    def gap(self, log: str, first: int, *, is_ours: bool) -> str:
        """A recorded loss."""
        return f"{self.root}.gap.{token(log)}.{first}.{'own' if is_ours else 'peer'}"

    def gaps(self, log: str) -> str:
        """Recorded losses of a log."""
        return f"{self.root}.gap.{token(log)}.*.*"

    def consumer(self, name: str) -> str:
        """A consumer."""
        return f"{self.root}.consumer.{token(name)}"

    def item(self, consumer: str, number: int) -> str:
        """The subject of a quarantined item."""
        return f"{self.root}.item.{token(consumer)}.{number}"

    def item_numbered(self, number: int) -> str:
        """The subject of a quarantined item, for any consumer."""
        return f"{self.root}.item.*.{number}"

    def items_of(self, consumer: str) -> str:
        """What was set aside for a consumer."""
        return f"{self.root}.item.{token(consumer)}.*"

    def whole(self, consumer: str, content: bytes) -> str:
        """The subject of a quarantined item with its payload."""
        return f"{self.root}.whole.{token(consumer)}.{hashlib.sha256(content).hexdigest()}"

    def wholes_of(self, consumer: str) -> str:
        """The subjects of all quarantined items with their payloads."""
        return f"{self.root}.whole.{token(consumer)}.*"

    def object(self, bucket: str, key: str) -> str:
        """A name of an object."""
        return f"{self.root}.object.{token(bucket)}.{token(key)}"

    def objects_in(self, bucket: str) -> str:
        """Names in a bucket."""
        return f"{self.root}.object.{token(bucket)}.*"

    def content(self, digest: bytes, bucket: str, key: str) -> str:
        """The subject that says that a name stands for these bytes."""
        return f"{self.root}.bytes.{digest.hex()}.{token(bucket)}.{token(key)}"

    def names_of(self, digest: bytes) -> str:
        """The subjects of all names of a blob."""
        return f"{self.root}.bytes.{digest.hex()}.*.*"

    def link(self, peer: str) -> str:
        """The subject of a link to a peer."""
        return f"{self.root}.link.{token(peer) if peer else NOT_A_PEER}"

    def note(self, number: int) -> str:
        """An entry of the journal."""
        return f"{self.root}.note.{number}"
