"""A fact store made of parts: its log, its consumers, names of objects, and links to peers.

Each engine builds the parts; here is how the flat port finds them. A part knows the database of its
engine, and no other part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from ergon_framework.ports.factstore import (
    AppendOutcome,
    BeforeWait,
    ConsumerInfo,
    ConsumerStore,
    Corruption,
    FactLog,
    Fetched,
    Gap,
    LedgerEntry,
    Link,
    LinkStore,
    LogInfo,
    LogPage,
    NewFact,
    ObjectIndex,
    Quarantined,
    StoredObject,
    StoreInfo,
)


class WatchedLog(FactLog, Protocol):
    """Logs and their ledger, with callbacks about appends."""

    def watch_waits(self, seen: BeforeWait) -> None:
        """Call ``seen`` when an append is about to wait."""

    def watch_heads(self, seen: Callable[[str, int], None]) -> None:
        """Call ``seen`` with the new head of a log."""

    def watch_commits(self, seen: Callable[[int, float], None]) -> None:
        """Call ``seen`` for each group of appends, with its number of facts and its seconds."""


class Subscriptions(Protocol):
    """Callbacks that are called after each commit that added facts."""

    def add(self, wake: Callable[[], None]) -> None:
        """Call ``wake()`` from now on, from any thread."""

    def remove(self, wake: Callable[[], None]) -> None:
        """Call it no longer. Does nothing if it was never added."""


@dataclass(frozen=True, slots=True)
class StoreParts:
    """The parts that every fact store has."""

    log: WatchedLog
    consumers: ConsumerStore
    objects: ObjectIndex
    links: LinkStore


class FactStoreOfParts:
    """Every call of the port, handed to the part of the store that does it.

    An engine adds what is its own: what an acknowledgement means, its backup, how it is closed.
    """

    def __init__(self, parts: StoreParts, subscriptions: Subscriptions) -> None:
        self.log = parts.log
        self._consumers = parts.consumers
        self._objects = parts.objects
        self._links = parts.links
        self._subscriptions = subscriptions

    def subscribe(self, wake: Callable[[], None]) -> None:
        """Call ``wake()``, from any thread, after each commit that added facts."""
        self._subscriptions.add(wake)

    def unsubscribe(self, wake: Callable[[], None]) -> None:
        """Call it no longer. Does nothing if it was never subscribed."""
        self._subscriptions.remove(wake)

    def watch_waits(self, seen: BeforeWait) -> None:
        """Call ``seen`` when an append is about to wait."""
        self.log.watch_waits(seen)

    def watch_heads(self, seen: Callable[[str, int], None]) -> None:
        """Call ``seen`` with the new head of a log."""
        self.log.watch_heads(seen)

    def watch_commits(self, seen: Callable[[int, float], None]) -> None:
        """Call ``seen`` for each group of appends, with its number of facts and its seconds."""
        self.log.watch_commits(seen)

    # ---- logs and their ledger ------------------------------------------------------------------

    def append(
        self, log: str, facts: Sequence[NewFact], *, capacity: int | None = None
    ) -> list[AppendOutcome]:
        """Append facts in order in one commit, each with its own outcome."""
        return self.log.append(log, facts, capacity=capacity)

    def append_soon(
        self,
        log: str,
        facts: Sequence[NewFact],
        done: Callable[[list[AppendOutcome] | BaseException], None],
        *,
        capacity: int | None = None,
    ) -> None:
        """Append without waiting. ``done`` is called, in any thread, when all facts are on disk."""
        self.log.append_soon(log, facts, done, capacity=capacity)

    def find(self, from_zone: str, message_id: str, log: str | None = None) -> LedgerEntry | None:
        """Find a fact by its id in one log, or in all logs, ``outbound`` first."""
        return self.log.find(from_zone, message_id, log)

    def page(
        self, log: str, after: int, limit: int, max_bytes: int, to_zone: str | None = None
    ) -> LogPage:
        """Read facts without a consumer: at least one, however large, if there is any."""
        return self.log.page(log, after, limit, max_bytes, to_zone)

    def logs(self) -> list[LogInfo]:
        """Every log, ``outbound`` first and always."""
        return self.log.logs()

    def truncate(self, log: str, through: int, *, loss_reason: str | None = None) -> int:
        """Drop payloads up to ``through``; how many were dropped. The ledger keeps their ids."""
        return self.log.truncate(log, through, loss_reason=loss_reason)

    def aged(self, log: str, before: float) -> int:
        """The highest offset such that it and all below it were recorded before an instant."""
        return self.log.aged(log, before)

    def gaps(self, log: str | None = None) -> list[Gap]:
        """Every recorded loss, of each log in order of offsets."""
        return self.log.gaps(log)

    def verify(self, log: str, after: int = 0) -> Iterator[Corruption | int]:
        """Walk the hash chain: flaws as they are found, and now and then the offset reached."""
        return self.log.verify(log, after)

    def receive(
        self,
        peer: str,
        facts: Sequence[NewFact],
        link: Link,
        refused: Sequence[Quarantined] = (),
        gaps: Sequence[Gap] = (),
    ) -> list[AppendOutcome]:
        """Insert what a peer sent where it is absent, and move the link to ``link``: one commit."""
        return self.log.receive(peer, facts, link, refused, gaps)

    # ---- consumers ------------------------------------------------------------------------------

    def create_consumer(
        self,
        name: str,
        log: str,
        *,
        from_end: bool = False,
        to_zone: str | None = None,
        is_required: bool = True,
    ) -> ConsumerInfo:
        """Create one at the start (the first kept fact) or the end of its log."""
        return self._consumers.create_consumer(
            name, log, from_end=from_end, to_zone=to_zone, is_required=is_required
        )

    def consumers(self) -> list[ConsumerInfo]:
        """Every consumer, by name."""
        return self._consumers.consumers()

    def consumer(self, name: str) -> ConsumerInfo:
        """The consumer of this name. ``BoundaryNotFoundError`` if there is none."""
        return self._consumers.consumer(name)

    def delete_consumer(self, name: str) -> None:
        """Delete a consumer and its quarantine. Retention then no longer waits for it."""
        self._consumers.delete_consumer(name)

    def serve(
        self,
        name: str,
        limit: int,
        max_bytes: int,
        *,
        holder: str | None = None,
        lease: float = 30.0,
    ) -> Fetched:
        """The page after the cursor; the same one until it is confirmed."""
        return self._consumers.serve(name, limit, max_bytes, holder=holder, lease=lease)

    def confirm(self, name: str, offset: int, *, holder: str | None = None) -> int:
        """Move the cursor up to ``offset``, never down; the cursor then."""
        return self._consumers.confirm(name, offset, holder=holder)

    def release_lease(self, name: str, holder: str) -> None:
        """The holder lets go of the name; nothing happens when it does not hold it."""
        self._consumers.release_lease(name, holder)

    def seek(self, name: str, offset: int, *, reason: str) -> ConsumerInfo:
        """Set the cursor, also backwards, and write down that it was done and why."""
        return self._consumers.seek(name, offset, reason=reason)

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
        """Quarantine the next fact of the view and move the cursor past it, in one commit."""
        return self._consumers.set_aside(
            name, offset, reason=reason, message=message, attempts=attempts, holder=holder
        )

    def quarantine(
        self, consumer: str | None = None, state: str | None = "quarantined"
    ) -> list[Quarantined]:
        """What was set aside, oldest first; ``state=None`` for all."""
        return self._consumers.quarantine(consumer, state)

    def settle(self, quarantine_id: int, state: str, *, reason: str = "") -> Quarantined:
        """Release, discard or settle an item; ``BoundaryNotFoundError`` when there is none."""
        return self._consumers.settle(quarantine_id, state, reason=reason)

    # ---- names of objects -----------------------------------------------------------------------

    def bind(self, bucket: str, key: str, digest: bytes, size: int) -> StoredObject:
        """Name a stored blob. ``ObjectConflictError`` if the name stands for other bytes."""
        return self._objects.bind(bucket, key, digest, size)

    def object(self, bucket: str, key: str) -> StoredObject | None:
        """What a name stands for."""
        return self._objects.object(bucket, key)

    def objects(
        self, bucket: str | None = None, *, after: tuple[str, str] = ("", ""), limit: int = 1000
    ) -> list[StoredObject]:
        """Names in order of bucket and key."""
        return self._objects.objects(bucket, after=after, limit=limit)

    def orphans(self, before: float, limit: int = 1000) -> list[StoredObject]:
        """Names given before an instant to which no fact has ever referred."""
        return self._objects.orphans(before, limit)

    def unbind(self, bucket: str, key: str, *, before: float | None = None) -> StoredObject | None:
        """Remove the name; returns the object if no other name stands for its bytes."""
        return self._objects.unbind(bucket, key, before=before)

    def refer(self, names: Sequence[tuple[str, str]]) -> None:
        """Mark names (bucket and key) as referenced, also those that stand for nothing yet."""
        self._objects.refer(names)

    def object_totals(self) -> tuple[int, int]:
        """How many names there are, and how many bytes they stand for."""
        return self._objects.object_totals()

    def is_bound(self, digest: bytes) -> bool:
        """Whether any name stands for these bytes."""
        return self._objects.is_bound(digest)

    # ---- the zone and its links -----------------------------------------------------------------

    def info(self) -> StoreInfo:
        """Which store this is."""
        return self._links.info()

    def links(self) -> list[Link]:
        """Every link ever used or sealed, by peer; ``""`` is the seal of the whole zone."""
        return self._links.links()

    def link(self, peer: str) -> Link:
        """The link to this peer; a new one if none is stored."""
        return self._links.link(peer)

    def seal(self, peer: str, reason: str) -> Link:
        """Seal the link (``""``: all links) until it is opened. May be called twice."""
        return self._links.seal(peer, reason)

    def open(self, peer: str) -> Link:
        """Open a sealed link again."""
        return self._links.open(peer)

    def accept_epoch(self, peer: str, epoch: str | None) -> Link:
        """Trust the peer's store from now on, although it changed: its frontier starts anew."""
        return self._links.accept_epoch(peer, epoch)

    def renew_epoch(self, epoch: str, why: str) -> StoreInfo:
        """Begin a new epoch, if ``epoch`` is still the current one."""
        return self._links.renew_epoch(epoch, why)

    def attribute(self, name: str) -> str | None:
        """A text that was written down about this store; None when there is none."""
        return self._links.attribute(name)

    def set_attribute(self, name: str, value: str) -> None:
        """Write an attribute of this very store, for the next process; no move copies it."""
        self._links.set_attribute(name, value)

    def journal(self, limit: int = 100) -> list[tuple[float, str, str]]:
        """What operators did, newest first: instant, action, details as text."""
        return self._links.journal(limit)
