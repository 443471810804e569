"""One log: where it begins and ends, and what hangs on that.

It is kept as one record, which a commit of a single entry leaves as it is: then a message is all
that has to be written. The record tells how the log was some entries ago, and they tell the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ergon_framework.boundary.logs.nats.coding import UNWRITTEN
from ergon_framework.boundary.logs.nats.entries import NO_CHAIN, Entry, Known, Place
from ergon_framework.boundary.logs.records import key_of
from ergon_framework.ports.factstore import LogInfo


@dataclass(slots=True)
class Shelf:
    """A log. What begins with ``cut`` is about everything below the first entry that is kept."""

    name: str
    number: int
    """It is part of the hash chain."""
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
    """For each zone, the last offset of a fact to it."""
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
    """For each zone, the last offset of a fact to it."""
    gaps: int = 0
    """How many losses were ever recorded."""
    young: dict[bytes, Known] = field(default_factory=dict, metadata=UNWRITTEN)
    """The last entries, by the key of their ids, which the ledger does not know yet."""

    @property
    def size(self) -> int:
        """Bytes that are kept."""
        return self.total - self.cut_total

    def grow(self, entry: Entry) -> None:
        """Take in an entry behind those that the record tells of."""
        proof = entry.proof
        self.head, self.head_seq, self.chain = entry.offset, entry.seq, entry.chain
        self.total, self.risen_at, self.last_at = entry.total, entry.risen_at, entry.recorded_at
        if not entry.is_marker:
            self.latest[entry.to_zone] = entry.offset
        key = key_of(self.name, proof.from_zone, proof.message_id)
        self.young[key] = Known(entry.offset, proof.digest, entry.seq, entry.envelope)

    def copy(self) -> Shelf:
        """One for a step that may fail."""
        return replace(
            self,
            cut_latest=dict(self.cut_latest),
            latest=dict(self.latest),
            young=dict(self.young),
        )

    def info(self) -> LogInfo:
        """The log in figures."""
        return LogInfo(self.name, self.head, self.first, self.size, self.last_at)

    def edge(self, offset: int) -> Place | None:
        """Where an offset is, if it is one of the two ends."""
        if offset == self.head and self.head_seq:
            return Place(self.head_seq, self.chain)
        if offset == self.first - 1:
            return Place(max(0, self.first_seq - 1), self.cut_chain)
        return None
