"""One log as a step sees it: where it begins and ends, and what hangs on that."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ergon_framework.boundary.logs.nats.coding import Base
from ergon_framework.boundary.logs.nats.entries import Entry, Place
from ergon_framework.ports.factstore import LogInfo


@dataclass(slots=True)
class Shelf:
    """A log."""

    base: Base
    head: int = 0
    head_seq: int = 0
    """The sequence of the last entry; 0 when none is kept."""
    chain: bytes = b""
    total: int = 0
    risen_at: float = 0.0
    last_at: float | None = None
    latest: dict[str, int] = field(default_factory=dict)
    """The last offset of a fact to each zone, as far as anybody asked."""

    def __post_init__(self) -> None:
        if not self.head:
            base = self.base
            self.head, self.chain, self.total = base.first - 1, base.chain, base.total
            self.risen_at, self.last_at = base.risen_at, base.last_at

    @classmethod
    def standing(cls, base: Base, newest: Entry | None) -> Shelf:
        """A log by what is written about it and its newest entry."""
        if newest is None or newest.offset < base.first:
            return cls(base)
        return cls(
            base,
            newest.offset,
            newest.seq,
            newest.chain,
            newest.total,
            newest.risen_at,
            newest.recorded_at,
        )

    @property
    def name(self) -> str:
        """Its name."""
        return self.base.name

    @property
    def number(self) -> int:
        """Its number, which is part of the hash chain."""
        return self.base.number

    @property
    def first(self) -> int:
        """The lowest offset that is kept."""
        return self.base.first

    @property
    def size(self) -> int:
        """Bytes that are kept."""
        return self.total - self.base.total

    def copy(self) -> Shelf:
        """One for a step that may fail."""
        base = replace(self.base, latest=dict(self.base.latest))
        return replace(self, base=base, latest=dict(self.latest))

    def info(self) -> LogInfo:
        """The log in figures."""
        return LogInfo(self.name, self.head, self.first, self.size, self.last_at)

    def edge(self, offset: int) -> Place | None:
        """Where an offset is, if it is one of the two ends."""
        if offset == self.head and self.head_seq:
            return Place(self.head_seq, self.chain)
        if offset == self.first - 1:
            return Place(max(0, self.base.first_seq - 1), self.base.chain)
        return None
