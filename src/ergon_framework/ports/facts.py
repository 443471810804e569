"""What a zone's store is given and gives back: facts, pages, consumers, objects, links.

What is made for each fact that is appended is a struct: to make one takes a third of the time. It
holds texts, bytes and figures only, so the garbage collector need not look for circles through it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

OUTBOUND = "outbound"
INBOUND = "inbound:"
"""What precedes the peer's zone in the name of an inbound log."""


@dataclass(frozen=True, slots=True)
class Reference:
    """What a fact says about an artifact: name, digest (32 bytes of SHA-256) and size."""

    bucket: str
    key: str
    digest: bytes
    size: int


class NewFact(msgspec.Struct, gc=False):
    """A validated fact on its way into a log. ``envelope`` and ``fact`` are JSON as given out."""

    from_zone: str
    message_id: str
    to_zone: str
    digest: bytes
    """The 32 bytes of the identity digest."""
    envelope: bytes
    fact: bytes
    references: tuple[Reference, ...] = ()
    source_offset: int | None = None
    """In an inbound log: its offset in the peer's outbound log."""
    needs_artifacts: bool = True
    """Whether an artifact that is not there refuses it. What it refers to is recorded anyway."""


class Appended(msgspec.Struct, frozen=True, gc=False):
    """It is in the log, now or since an earlier append of the same content."""

    offset: int
    is_duplicate: bool = False
    envelope: bytes | None = None
    """Of a duplicate whose payload is still there: the envelope that came first."""
    is_repaired: bool = False
    """A duplicate that was damaged in the store, and is what it was again."""
    is_damaged: bool = False
    """A duplicate that is damaged in the store, and could not be repaired by this one."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """The id stands for other content. Nothing was stored."""

    offset: int
    digest: bytes
    """What it stands for: 32 bytes, or the first 16 when the payload is gone."""


@dataclass(frozen=True, slots=True)
class Unfounded:
    """An artifact is missing (``found`` is None) or differs. Nothing was stored."""

    reference: Reference
    found: Reference | None


@dataclass(frozen=True, slots=True)
class Full:
    """The log has reached its capacity. Nothing was stored."""

    size: int


Outcome: TypeAlias = Appended | Conflict | Unfounded | Full


@dataclass(slots=True)
class StoredFact:
    """A fact as it lies in a log."""

    offset: int
    previous: int
    """The offset of the fact before it in the view it is read through; 0 for the first."""
    from_zone: str
    message_id: str
    to_zone: str
    digest: bytes
    envelope: bytes
    fact: bytes
    recorded_at: float
    """Unix seconds, by this store's clock."""
    source_offset: int | None = None


@dataclass(frozen=True, slots=True)
class Gap:
    """Facts that were given up before everybody had them, and the record of it."""

    log: str
    first: int
    last: int
    reason: str
    at: float
    source_first: int | None = None
    """In an inbound log: the loss is the peer's, and from here on in the peer's outbound log. The
    gap then takes one offset of the inbound log, in order with the facts around it."""
    source_last: int | None = None

    @property
    def count(self) -> int:
        """How many offsets were given up, where it happened."""
        if self.source_first is None or self.source_last is None:
            return self.last - self.first + 1
        return self.source_last - self.source_first + 1


@dataclass(slots=True)
class Page:
    """A stretch of a log. Nothing else lies in the reader's view at or below ``through``."""

    facts: list[StoredFact]
    through: int
    head: int
    """The highest offset of the log."""
    chain: bytes = b""
    """The hash chain at the cursor the page starts after; empty when no longer known."""
    end_chain: bytes = b""
    """The hash chain at ``through``; empty when no longer known."""
    gaps: list[Gap] = field(default_factory=list)
    """Recorded losses between the cursor and ``through``."""


@dataclass(frozen=True, slots=True)
class Found:
    """What the ledger knows about an id, for ever."""

    log: str
    offset: int
    digest: bytes
    """32 bytes, or the first 16 when the payload is gone."""
    is_retained: bool
    """Whether the payload is still in the log."""


@dataclass(frozen=True, slots=True)
class LogInfo:
    """One log in figures."""

    name: str
    head: int
    first: int
    """The lowest offset whose payload is kept; head + 1 when none is."""
    size: int
    """Bytes of envelope and fact kept."""
    last_at: float | None = None


@dataclass(slots=True)
class ConsumerInfo:
    """A durable named reader of one log."""

    name: str
    log: str
    cursor: int
    """Everything at or below it is confirmed."""
    to_zone: str | None = None
    """The view: only facts to this zone; None for all."""
    is_required: bool = True
    """Whether retention waits for it."""
    served: int = 0
    """The highest offset ever given to it."""
    deliveries: int = 0
    """To how many holders in a row the fact after the cursor has been given out."""
    holder: str | None = None
    held_until: float = 0.0
    lease: float = 0.0
    """Seconds for which its holder was given the name."""
    lag: int = 0
    """Facts in its view above the cursor."""
    waiting_since: float | None = None
    """When the oldest of them was recorded."""
    created_at: float = 0.0

    def is_held(self, now: float) -> bool:
        """Whether somebody holds the name."""
        return self.holder is not None and self.held_until > now

    def is_overlong(self, now: float) -> bool:
        """Whether the lease ends later than it can: the clock has gone back since."""
        return self.held_until > now + self.lease + 1.0


@dataclass(slots=True)
class Serving:
    """A page for a consumer."""

    consumer: ConsumerInfo
    page: Page
    is_released: bool = False
    """These facts come from quarantine: their offsets may lie below the cursor."""


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A fact set aside for one consumer, so that the others behind it can pass."""

    id: int
    consumer: str
    log: str
    offset: int
    reason: str
    """A word: handler_failed, crash_loop, corrupted, conflicting_duplicate, artifact_missing, …"""
    message: str
    attempts: int
    at: float
    state: str = "quarantined"
    """quarantined, released (to be delivered again), discarded or settled."""
    envelope: bytes = b""
    fact: bytes = b""
    """Kept for a fact that could not enter an inbound log; otherwise empty, it lies in the log."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """A name for bytes that are on disk."""

    bucket: str
    key: str
    digest: bytes
    size: int
    at: float
    is_referenced: bool = False


@dataclass(frozen=True, slots=True)
class Link:
    """What is known about a peer that this zone pulls from."""

    peer: str
    epoch: str | None = None
    """Of the peer's store when last pulled; None before the first page."""
    offset: int = 0
    """The frontier: everything of the peer's view at or below it lies in the inbound log."""
    chain: bytes = b""
    """The peer's hash chain at the frontier, to notice a peer that went back in time."""
    is_sealed: bool = False
    reason: str = ""
    """Why it was sealed."""
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """Which store this is."""

    zone: str
    epoch: str
    """A random word, renewed whenever the store may have gone back in time."""
    created_at: float


@dataclass(frozen=True, slots=True)
class Flaw:
    """Something that verification found."""

    log: str
    offset: int
    what: str
