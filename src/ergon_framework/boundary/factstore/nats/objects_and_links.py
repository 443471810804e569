"""Names of objects, the zone's own standing and that of its links, in a stream.

A stream gives its messages in the order in which they were written, and an older message of a name
comes before the newer one that replaces it. All of them are read in passing; only so many are kept.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from ergon_framework.boundary.factstore import page_plan
from ergon_framework.boundary.factstore.nats.append import MAX_REFERENCES_PER_COMMIT, refer
from ergon_framework.boundary.factstore.nats.database import NatsDatabase
from ergon_framework.boundary.factstore.nats.schema import (
    Attribute,
    JournalNote,
    ObjectRecord,
    ZoneRecord,
    decode,
)
from ergon_framework.boundary.factstore.nats.session import GONE, StreamTransaction
from ergon_framework.boundary.factstore.nats.setup import renew
from ergon_framework.errors import BoundaryError, ObjectConflictError
from ergon_framework.ports.factstore import Link, StoredObject, StoreInfo
from ergon_framework.storage.nats import Stored

MAX_NAMES = 5_000
"""Names in memory at once, or as many as are asked for; twice as many for a moment."""

NamePlace: TypeAlias = tuple[Any, ...]
"""Where a name is in the order; no two are at the same."""
NameOrder: TypeAlias = Callable[[ObjectRecord], NamePlace | None]
"""Says where a name is; None when it does not belong into the order at all."""


@dataclass(frozen=True, slots=True)
class NameScan:
    """A part of the order, without any gap."""

    names: list[ObjectRecord]
    is_last: bool
    """Whether nothing comes after it."""


def scan_names(
    read: Callable[[], Iterable[Stored]],
    order: NameOrder,
    after: NamePlace,
    limit: int,
    *,
    max_names: int = MAX_NAMES,
) -> NameScan:
    """At least ``limit`` names after a place, if there are so many.

    ``read`` goes through all messages of the names, in the order of the stream: once, unless very
    many names are taken away meanwhile.
    """
    names: list[ObjectRecord] = []
    start, is_after = after, True
    while True:
        first = FirstNames(order, start, is_after=is_after, limit=max(limit, max_names))
        for message in read():
            first.take(message)
        names += first.names()
        if first.end is None or len(names) >= limit:
            return NameScan(names, first.end is None)
        # So many names were taken away while this read that too few are left: the next read begins
        # where some were left out.
        start, is_after = first.end, False


class FirstNames:
    """Keeps the first ``limit`` names in an order, of all messages that it is given.

    Twice as many are kept for a moment, so that not every message needs them to be sorted.
    """

    def __init__(self, order: NameOrder, start: NamePlace, *, is_after: bool, limit: int) -> None:
        self._order = order
        self._start = start
        self._is_after = is_after
        self._limit = limit
        self._kept: dict[str, tuple[NamePlace, ObjectRecord]] = {}
        self.end: NamePlace | None = None
        """The first name that was dropped; None if none was."""

    def __len__(self) -> int:
        return len(self._kept)

    def take(self, message: Stored) -> None:
        """Add the message of a name, replacing an earlier one."""
        self._kept.pop(message.subject, None)
        if message.data == GONE:
            return
        name = decode(ObjectRecord, message.data)
        place = self._order(name)
        if place is not None and self._is_wanted(place):
            self._kept[message.subject] = place, name
            if len(self._kept) >= 2 * self._limit:
                self._cut()

    def names(self) -> list[ObjectRecord]:
        """The names that are kept, in order."""
        self._cut()
        return [name for _, name in sorted(self._kept.values(), key=lambda kept: kept[0])]

    def _is_wanted(self, place: NamePlace) -> bool:
        if place < self._start or (self._is_after and place == self._start):
            return False
        return self.end is None or place < self.end

    def _cut(self) -> None:
        """Keep only the first names, and from now on none that sorts after them.

        If one of those is removed later, fewer are kept. It cannot be replaced: a name that was
        dropped here may sort before the next one that comes.
        """
        if len(self._kept) > self._limit:
            ordered = sorted(self._kept.items(), key=lambda item: item[1][0])
            self.end = ordered[self._limit][1][0]
            self._kept = dict(ordered[: self._limit])


@dataclass(frozen=True, slots=True)
class _LastScan:
    """The last scan of names, kept for callers that go through them page by page."""

    bucket: str | None
    version: tuple[int, ...]
    start: tuple[str, str]
    scan: NameScan

    def is_of(self, bucket: str | None, version: tuple[int, ...]) -> bool:
        """Whether these are names of that bucket, and still what they were."""
        return (self.bucket, self.version) == (bucket, version)

    def after(self, place: tuple[str, str], limit: int) -> list[ObjectRecord] | None:
        """The names after a place; None when not all of them are here."""
        names = self.scan.names
        first = bisect_right(names, place, key=lambda name: (name.bucket, name.key))
        is_whole = self.scan.is_last or len(names) - first >= limit
        return names[first : first + limit] if is_whole and place >= self.start else None


class NatsObjects:
    """The object index of the store: which name stands for which bytes."""

    def __init__(self, database: NatsDatabase, *, max_names: int = MAX_NAMES) -> None:
        self._database = database
        self._max_names = max_names
        self._last_scan: _LastScan | None = None

    def bind(self, bucket: str, key: str, digest: bytes, size: int) -> StoredObject:
        """Name a stored blob. ``ObjectConflictError`` if the name stands for other bytes."""

        def work(transaction: StreamTransaction) -> StoredObject:
            kept = transaction.get(
                ObjectRecord, transaction.subjects.object(bucket, key)
            ) or ObjectRecord(bucket, key)
            if kept.digest and (kept.digest, kept.size) != (digest, size):
                raise ObjectConflictError(
                    f"{bucket}/{key} stands for other bytes already",
                    remedy="put them under another key",
                    details={"bucket": bucket, "key": key, "digest": f"sha256:{kept.digest.hex()}"},
                )
            is_new = not kept.digest
            # Given again, a name without a fact is young again: retention takes the old ones, and
            # the fact of this one may be about to come.
            if is_new or not kept.is_referenced:
                kept.digest, kept.size, kept.at = digest, size, self._database.clock()
                put_name(transaction, kept, is_new=is_new)
            return stored_object(kept)

        return self._database.transaction(work, "bind")

    def object(self, bucket: str, key: str) -> StoredObject | None:
        """What a name stands for."""

        def work(transaction: StreamTransaction) -> StoredObject | None:
            kept = transaction.get(ObjectRecord, transaction.subjects.object(bucket, key))
            return None if kept is None or not kept.digest else stored_object(kept)

        return self._database.read(work)

    def objects(
        self, bucket: str | None = None, *, after: tuple[str, str] = ("", ""), limit: int = 1000
    ) -> list[StoredObject]:
        """Names in order of bucket and key."""
        version = self._version_of_names()
        last = self._last_scan
        found = last.after(after, limit) if last and last.is_of(bucket, version) else None
        if found is None:
            scan = self._database.read(
                lambda transaction: self._scan(transaction, bucket, _by_name, after, limit)
            )
            found = scan.names[:limit]
            # Without a lock: of two callers either may be remembered, as each scan is whole.
            self._last_scan = _LastScan(bucket, version, after, scan)
        return [stored_object(each) for each in found]

    def _version_of_names(self) -> tuple[int, ...]:
        """A value that changes with every change of a name: additions and removals are counted, and
        any other change writes a message.
        """
        counted, written = (
            self._database.stream.last(each)
            for each in (self._database.subjects.tally, self._database.subjects.objects)
        )
        seqs = (0 if each is None else each.seq for each in (counted, written))
        # With the connection: a server that came back with less gives the same sequences out again.
        return (self._database.stream.client.connections, *seqs)

    def orphans(self, before: float, limit: int = 1000) -> list[StoredObject]:
        """Names given before an instant to which no fact has ever referred, the oldest first."""

        def by_age(name: ObjectRecord) -> NamePlace | None:
            is_orphan = name.digest and name.at < before and not name.is_referenced
            return (name.at, name.bucket, name.key) if is_orphan else None

        found = self._database.read(
            lambda transaction: self._scan(transaction, None, by_age, (), limit)
        )
        return [stored_object(each) for each in found.names[:limit]]

    def _scan(
        self,
        transaction: StreamTransaction,
        bucket: str | None,
        order: NameOrder,
        after: NamePlace,
        limit: int,
    ) -> NameScan:
        read = _reader(transaction, bucket)
        return scan_names(read, order, after, limit, max_names=self._max_names)

    def unbind(self, bucket: str, key: str, *, before: float | None = None) -> StoredObject | None:
        """Remove the name; returns the object if no other name stands for its bytes."""

        def work(transaction: StreamTransaction) -> tuple[StoredObject, bool] | None:
            kept = transaction.get(ObjectRecord, transaction.subjects.object(bucket, key))
            if kept is None or not kept.digest or (before is not None and kept.at >= before):
                return None
            if kept.is_referenced:
                raise BoundaryError(
                    f"a fact refers to {bucket}/{key}",
                    code="failed_precondition",
                    reason="referenced",
                    remedy="keep it: what a fact refers to is never deleted",
                    details={"bucket": bucket, "key": key},
                )
            drop_name(transaction, kept)
            return stored_object(kept), _is_bound(transaction, kept.digest)

        gone, below = self._database.transaction_and_end(work, "bind")
        if gone is None:
            return None
        found, is_bound = gone
        names = (
            self._database.subjects.object(bucket, key),
            self._database.subjects.content(found.digest, bucket, key),
        )
        self._database.clear(below, *names)  # the tally lies behind them, and stays
        return None if is_bound else found

    def refer(self, names: Sequence[tuple[str, str]]) -> None:
        """Mark names as referenced, also those that stand for nothing yet."""
        for start in range(0, len(names), MAX_REFERENCES_PER_COMMIT):
            self._database.transaction(
                partial(refer, names[start : start + MAX_REFERENCES_PER_COMMIT]), "bind"
            )

    def object_totals(self) -> tuple[int, int]:
        """How many names there are, and how many bytes they stand for."""

        def work(transaction: StreamTransaction) -> tuple[int, int]:
            tally = transaction.tally
            return tally.objects, tally.object_bytes

        return self._database.read(work)

    def is_bound(self, digest: bytes) -> bool:
        """Whether any name stands for these bytes."""
        return self._database.read(lambda transaction: _is_bound(transaction, digest))


def stored_object(kept: ObjectRecord) -> StoredObject:
    """A name as everybody sees it."""
    return StoredObject(kept.bucket, kept.key, kept.digest, kept.size, kept.at, kept.is_referenced)


def put_name(transaction: StreamTransaction, name: ObjectRecord, *, is_new: bool) -> None:
    """Write a name; a new one is counted."""
    transaction.put(transaction.subjects.object(name.bucket, name.key), name)
    if is_new:
        transaction.put(transaction.subjects.content(name.digest, name.bucket, name.key), name)
        tally = transaction.tally
        tally.objects, tally.object_bytes = tally.objects + 1, tally.object_bytes + name.size
        transaction.put(transaction.subjects.tally, tally)


def drop_name(transaction: StreamTransaction, name: ObjectRecord) -> None:
    """Remove a name."""
    transaction.put(transaction.subjects.object(name.bucket, name.key), None)
    transaction.put(transaction.subjects.content(name.digest, name.bucket, name.key), None)
    tally = transaction.tally
    tally.objects, tally.object_bytes = tally.objects - 1, tally.object_bytes - name.size
    transaction.put(transaction.subjects.tally, tally)


def _reader(
    transaction: StreamTransaction, bucket: str | None = None
) -> Callable[[], Iterable[Stored]]:
    subjects = transaction.subjects
    wanted = subjects.objects if bucket is None else subjects.objects_in(bucket)
    return lambda: transaction.stream.walk(wanted)


def _by_name(name: ObjectRecord) -> NamePlace | None:
    return (name.bucket, name.key) if name.digest else None


def _is_bound(transaction: StreamTransaction, digest: bytes) -> bool:
    return bool(transaction.all(ObjectRecord, transaction.subjects.names_of(digest)))


class NatsLinks:
    """The part of the store that knows its peers, and which store it is itself."""

    def __init__(self, database: NatsDatabase) -> None:
        self._database = database

    def info(self) -> StoreInfo:
        """Which store this is."""
        return self._database.read(self._database.opening.read_info)

    def links(self) -> list[Link]:
        """Every link ever used or sealed, by peer; ``""`` is the seal of the whole zone."""

        def work(transaction: StreamTransaction) -> list[Link]:
            found = transaction.all(Link, transaction.subjects.links).values()
            return sorted(found, key=lambda link: link.peer)

        return self._database.read(work)

    def link(self, peer: str) -> Link:
        """The link to this peer; a new one if none is stored."""
        return self._database.read(lambda transaction: _link(transaction, peer))

    def seal(self, peer: str, reason: str) -> Link:
        """Seal the link (``""``: all links) until it is opened. May be called twice."""
        return self._change(
            peer,
            "seal",
            f"{page_plan.link_name(peer)}: {reason}",
            lambda link: page_plan.sealed(link, reason, self._database.clock()),
        )

    def open(self, peer: str) -> Link:
        """Open it again."""
        return self._change(
            peer,
            "open",
            page_plan.link_name(peer),
            lambda link: page_plan.opened(link, self._database.clock()),
        )

    def accept_epoch(self, peer: str, epoch: str | None) -> Link:
        """Trust the peer's store from now on, although it changed."""
        return self._change(
            peer,
            "accept_epoch",
            f"{peer}: {epoch}",
            lambda link: page_plan.with_epoch(link, epoch, self._database.clock()),
        )

    def renew_epoch(self, epoch: str, why: str) -> StoreInfo:
        """Begin a new epoch, if ``epoch`` is still the current one."""

        def work(transaction: StreamTransaction) -> None:
            found = transaction.get(ZoneRecord, transaction.subjects.zone)
            if found is not None and found.epoch == epoch:
                renew(transaction, found, self._database.clock(), why)

        self._database.transaction(work, "desk")
        return self.info()

    def attribute(self, name: str) -> str | None:
        """A text that was written down about this store; None when there is none."""
        found = self._database.read(
            lambda transaction: transaction.get(Attribute, transaction.subjects.attribute(name))
        )
        return None if found is None else found.value

    def set_attribute(self, name: str, value: str) -> None:
        """Write an attribute of this very store, for the process that opens it next."""
        self._database.transaction(
            lambda transaction: transaction.put(
                transaction.subjects.attribute(name), Attribute(value)
            ),
            "desk",
        )

    def journal(self, limit: int = 100) -> list[tuple[float, str, str]]:
        """What operators did, newest first: instant, action, details as text."""

        def work(transaction: StreamTransaction) -> list[tuple[float, str, str]]:
            last = transaction.tally.notes
            wanted = range(last, max(0, last - limit), -1)
            transaction.fetch([transaction.subjects.note(number) for number in wanted])
            found = (
                transaction.get(JournalNote, transaction.subjects.note(number)) for number in wanted
            )
            return [(each.at, each.action, each.details) for each in found if each is not None]

        return self._database.read(work)

    def _change(
        self, peer: str, action: str, details: str, changed: Callable[[Link], Link]
    ) -> Link:
        def work(transaction: StreamTransaction) -> Link:
            transaction.note(self._database.clock(), action, details)
            link = _link(transaction, peer)
            new = changed(link)
            if new != link or action != "open":
                transaction.put(transaction.subjects.link(peer), new)
            return new

        return self._database.transaction(work, "desk")


def _link(transaction: StreamTransaction, peer: str) -> Link:
    return transaction.get(Link, transaction.subjects.link(peer)) or Link(peer)
