"""What a zone keeps: logs of facts, the ledger of ids, consumers, object names, links to peers.

A zone has one log ``outbound`` and one log ``inbound:<peer>`` for each zone it pulls from; a log
comes into being with its first fact or its first consumer. Offsets of a log start at 1 and are
dense; a reader that has seen n never later finds a fact below n. In an inbound log a loss of the
peer takes an offset too, between the facts before and after it. Every method may be called by any
thread, answers when what it did is on disk unless it says otherwise, and raises ``StoreError`` when
the store itself is in trouble. Refusals that the caller can act upon are ``BoundaryError``.

The objects that are built for each appended fact are msgspec structs, which take a third of the
time of a dataclass. They hold only text, bytes and numbers, so the garbage collector need not track
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

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
    """In an inbound log: the offset of the fact in the peer's outbound log."""
    needs_artifacts: bool = True
    """Whether an artifact that is not there refuses it. What it refers to is recorded anyway."""


class Appended(msgspec.Struct, frozen=True, gc=False):
    """The fact is in the log, now or since an earlier append of the same content."""

    offset: int
    is_duplicate: bool = False
    envelope: bytes | None = None
    """For a duplicate whose payload is kept: the envelope of the first append."""
    is_repaired: bool = False
    """Whether the stored fact was damaged, and this duplicate repaired it."""
    is_damaged: bool = False
    """Whether the stored fact is damaged, and this duplicate could not repair it."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """The id stands for other content. Nothing was stored."""

    offset: int
    digest: bytes
    """The digest of the fact: 32 bytes, or the first 16 if the payload was dropped."""


@dataclass(frozen=True, slots=True)
class MissingReference:
    """An artifact is missing (``found`` is None) or differs. Nothing was stored."""

    reference: Reference
    found: Reference | None


@dataclass(frozen=True, slots=True)
class CapacityExceeded:
    """The log has reached its capacity. Nothing was stored."""

    size: int


AppendOutcome: TypeAlias = Appended | Conflict | MissingReference | CapacityExceeded


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
class LogPage:
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
class LedgerEntry:
    """What the ledger knows about an id, for ever."""

    log: str
    offset: int
    digest: bytes
    """32 bytes, or the first 16 when the payload is gone."""
    is_retained: bool
    """Whether the payload is still in the log."""


@dataclass(frozen=True, slots=True)
class LogInfo:
    """Figures of one log."""

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
    """How many holders in a row were served the fact after the cursor."""
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
        """Whether a holder has leased the name."""
        return self.holder is not None and self.held_until > now

    def is_overlong(self, now: float) -> bool:
        """Whether the lease ends later than it can: the clock has gone back since."""
        return self.held_until > now + self.lease + 1.0


@dataclass(slots=True)
class Fetched:
    """A page for a consumer."""

    consumer: ConsumerInfo
    page: LogPage
    is_released: bool = False
    """Whether the facts were released from quarantine: their offsets may lie below the cursor."""


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
    """The epoch of the peer's store at the last pull; None before the first page."""
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
class Corruption:
    """A flaw that verification found."""

    log: str
    offset: int
    what: str


NEW_EPOCH = "new_epoch"
"""The attribute that says when and why a store began its epoch: instant, blank, text."""


class FactLog(Protocol):
    """Logs and their ledger."""

    def append(
        self, log: str, facts: Sequence[NewFact], *, capacity: int | None = None
    ) -> list[AppendOutcome]:
        """Append in order in one commit, each with an outcome of its own.

        The ledger is asked first: what is there already is answered even when the log is full. Then
        every reference must name an object of that digest and size, unless the fact says that it
        needs none; names that are referred to are marked in the same commit, also those that stand
        for nothing yet. ``capacity`` is the number of bytes the log may keep; in a batch nothing
        new enters behind a fact for which there was no room, so that the order stays.
        """

    def append_soon(
        self,
        log: str,
        facts: Sequence[NewFact],
        done: Callable[[list[AppendOutcome] | BaseException], None],
        *,
        capacity: int | None = None,
    ) -> None:
        """The same without waiting: ``done`` is called, in any thread, when all is on disk.

        It gets the error instead when that failed. Calls that come together share a commit.
        """

    def find(self, from_zone: str, message_id: str, log: str | None = None) -> LedgerEntry | None:
        """Find a fact by its id in one log, or in all logs, ``outbound`` first."""

    def page(
        self, log: str, after: int, limit: int, max_bytes: int, to_zone: str | None = None
    ) -> LogPage:
        """Read facts without a consumer: at least one, however large, if there is any."""

    def logs(self) -> list[LogInfo]:
        """Every log, ``outbound`` first and always."""

    def truncate(self, log: str, through: int, *, loss_reason: str | None = None) -> int:
        """Drop payloads up to ``through``; how many were dropped. The ledger keeps their ids.

        Never above the cursor of a required consumer, and not at all when the log has none: then
        ``NodeUnavailableError`` is not raised, there is just less to drop. With ``loss_reason`` the
        cursors are overridden, and what any consumer had not confirmed becomes a recorded gap.
        """

    def aged(self, log: str, before: float) -> int:
        """The highest offset such that it and all below it were recorded before an instant."""

    def gaps(self, log: str | None = None) -> list[Gap]:
        """Every recorded loss, of each log in order of offsets."""

    def verify(self, log: str, after: int = 0) -> Iterator[Corruption | int]:
        """Walk the hash chain: flaws as they are found, and now and then the offset reached."""

    def receive(
        self,
        peer: str,
        facts: Sequence[NewFact],
        link: Link,
        refused: Sequence[Quarantined] = (),
        gaps: Sequence[Gap] = (),
    ) -> list[AppendOutcome]:
        """Insert what a peer sent where it is absent, and move the link to ``link``: one commit.

        A conflicting fact is put into quarantine under ``pull:<peer>``, and the link passes it; so
        is what the caller ``refused``. ``gaps`` are losses of the peer, in offsets of its log and
        in order: each takes the next offset of the inbound log, before the facts that come after
        it at the peer, and becomes a gap there; the same one again, of the same instant, is known.
        The outcomes are those of the facts. References are marked but not checked: the artifacts
        were fetched before. ``is_sealed`` and ``reason`` of the link are left as they are in the
        store, and so is a link that does not lead there (``core.zone_link.leads_to``).
        """


class ConsumerStore(Protocol):
    """Consumers, their cursors and what was set aside for them."""

    def create_consumer(
        self,
        name: str,
        log: str,
        *,
        from_end: bool = False,
        to_zone: str | None = None,
        is_required: bool = True,
    ) -> ConsumerInfo:
        """Create one at the start (the first kept fact) or the end of its log.

        The same again answers the one there is; another log or view is refused with
        ``BoundaryError`` code ``already_exists``, reason ``consumer_exists``.
        """

    def consumers(self) -> list[ConsumerInfo]:
        """Every consumer, by name."""

    def consumer(self, name: str) -> ConsumerInfo:
        """The consumer of this name. ``BoundaryNotFoundError`` if there is none."""

    def delete_consumer(self, name: str) -> None:
        """Delete a consumer and its quarantine. Retention then no longer waits for it."""

    def serve(
        self,
        name: str,
        limit: int,
        max_bytes: int,
        *,
        holder: str | None = None,
        lease: float = 30.0,
    ) -> Fetched:
        """The page after the cursor; the same one until it is confirmed.

        With a ``holder`` the name is leased to it, and ``deliveries`` counts the holders to whom
        the fact after the cursor went out since one let go of the name. Who does not hold a leased
        name gets ``ConsumerHeldError``. Released facts come first, in a page of their own. Facts
        below the kept ones that no gap explains raise ``BoundaryError`` code ``out_of_range``,
        reason ``truncated``, with ``first_lost`` and ``last_lost`` in its details. A corrupted row
        ends the page before it; when it is the first, it is put into quarantine with the reason
        ``corrupted`` and passed, and the page tells of it as a gap; other gaps before it come
        first, in a page of their own. What this method notes survives the process, not a power
        cut.
        """

    def confirm(self, name: str, offset: int, *, holder: str | None = None) -> int:
        """Move the cursor up to ``offset``, never down; the cursor then.

        The ``holder`` of the name has its lease anew from then on, for as long as it was given.
        Released facts that were served and lie at or below ``offset`` become settled. Above what
        was ever served: ``BoundaryError`` code ``failed_precondition``, reason ``not_served``.
        """

    def release_lease(self, name: str, holder: str) -> None:
        """The holder lets go of the name; nothing happens when it does not hold it."""

    def seek(self, name: str, offset: int, *, reason: str) -> ConsumerInfo:
        """Set the cursor, also backwards, and write down that it was done and why.

        Above the head is ``BoundaryError`` ``out_of_range`` reason ``beyond_head``;
        below what is kept is ``out_of_range`` reason ``truncated``. The lease is dropped.
        """

    def set_aside(
        self,
        name: str,
        offset: int,
        *,
        reason: str,
        message: str,
        attempts: int,
        holder: str | None = None,
    ) -> Quarantined:
        """Quarantine the next fact of the view and move the cursor past it, in one commit.

        Also a released fact that failed again. Any other offset is ``failed_precondition``, reason
        ``not_next``.
        """

    def quarantine(
        self, consumer: str | None = None, state: str | None = "quarantined"
    ) -> list[Quarantined]:
        """What was set aside, oldest first; ``state=None`` for all."""

    def settle(self, quarantine_id: int, state: str, *, reason: str = "") -> Quarantined:
        """Release, discard or settle an item; ``BoundaryNotFoundError`` when there is none.

        Only ``quarantined`` may be released and ``released`` put back as ``quarantined``; both may
        be discarded or settled; the same again is fine; anything else is ``failed_precondition``,
        reason ``wrong_state``.
        """


class ObjectIndex(Protocol):
    """Which name stands for which bytes. The bytes themselves are in an object store."""

    def bind(self, bucket: str, key: str, digest: bytes, size: int) -> StoredObject:
        """Give bytes that are on disk a name; other bytes under it: ``ObjectConflictError``.

        The same again makes a name young to which no fact refers.
        """

    def object(self, bucket: str, key: str) -> StoredObject | None:
        """What a name stands for."""

    def objects(
        self, bucket: str | None = None, *, after: tuple[str, str] = ("", ""), limit: int = 1000
    ) -> list[StoredObject]:
        """Names in order of bucket and key."""

    def orphans(self, before: float, limit: int = 1000) -> list[StoredObject]:
        """Names given before an instant to which no fact has ever referred."""

    def unbind(self, bucket: str, key: str, *, before: float | None = None) -> StoredObject | None:
        """Take the name away; a referenced one is ``failed_precondition``, reason ``referenced``.

        With ``before``, only a name that was given before that instant. Answers the object when no
        other name stands for its bytes any more, so that they may go.
        """

    def refer(self, names: Sequence[tuple[str, str]]) -> None:
        """Mark names (bucket and key) as referenced, also those that stand for nothing yet."""

    def object_totals(self) -> tuple[int, int]:
        """The number of names, and of the bytes that they stand for."""

    def is_bound(self, digest: bytes) -> bool:
        """Whether any name stands for these bytes."""


class LinkStore(Protocol):
    """The zone's own standing and that of its links."""

    def info(self) -> StoreInfo:
        """Which store this is."""

    def links(self) -> list[Link]:
        """Every link ever used or sealed, by peer; ``""`` is the seal of the whole zone."""

    def link(self, peer: str) -> Link:
        """The link to this peer; a new one if none is stored."""

    def seal(self, peer: str, reason: str) -> Link:
        """Seal the link (``""``: all links) until it is opened. May be called twice."""

    def open(self, peer: str) -> Link:
        """Open a sealed link again."""

    def accept_epoch(self, peer: str, epoch: str | None) -> Link:
        """Trust the peer's store from now on, although it changed: its frontier starts anew at 0.

        Nothing is doubled by that: what is already here is known by its id.
        """

    def renew_epoch(self, epoch: str, why: str) -> StoreInfo:
        """Begin a new epoch, unless the store has another one than ``epoch`` already.

        It is written down in the journal, and as the attribute :data:`NEW_EPOCH`.
        """

    def attribute(self, name: str) -> str | None:
        """A text that was written down about this store; None when there is none."""

    def set_attribute(self, name: str, value: str) -> None:
        """Store a text about this store itself, for the next process that opens it; no move copies
        it.
        """

    def journal(self, limit: int = 100) -> list[tuple[float, str, str]]:
        """What operators did, newest first: instant, action, details as text."""


class BeforeWait(Protocol):
    """What is called by a store that is about to wait."""

    def __call__(self, is_over: Callable[[], bool] | None = None, /) -> None:
        """``is_over`` says whether there is nothing to wait for any more, and lets others run.

        With it, something may be done meanwhile that ends soon after.
        """


class FactStore(FactLog, ConsumerStore, ObjectIndex, LinkStore, Protocol):
    """A store of facts, consumers, objects and links, so that one commit can span them."""

    @property
    def acknowledgement(self) -> str:
        """One sentence that says what an acknowledged append survives."""

    @property
    def is_synced(self) -> bool:
        """Whether an acknowledged append is on disk, or on those of several servers."""

    @property
    def largest(self) -> int | None:
        """Bytes that envelope and fact may take together; None where no server says so."""

    def subscribe(self, wake: Callable[[], None]) -> None:
        """Call ``wake()``, from any thread, after each commit of this object that added facts.

        A loss of a peer counts as one.
        """

    def unsubscribe(self, wake: Callable[[], None]) -> None:
        """Unsubscribe. Does nothing if the listener was never subscribed."""

    def watch_waits(self, seen: BeforeWait) -> None:
        """Call back, in any thread, when an append is about to wait: for its commit, or for others.

        One listener at a time; the last one counts. What it raises is logged, and harms no append.
        """

    def watch_heads(self, seen: Callable[[str, int], None]) -> None:
        """Call back, in any thread, with the offset up to which a log has grown, before it is
        acknowledged.
        """

    def watch_commits(self, seen: Callable[[int, float], None]) -> None:
        """Call back for each group of appends, from any thread: how many facts, and the seconds it
        took.

        One listener at a time; the last one counts. What it raises is logged, and harms no append.
        """

    def backup(self, folder: str) -> None:
        """Write a consistent copy that, when opened, begins a new epoch."""

    def close(self) -> None:
        """Close the store. May be called twice."""
