"""Facts on their way into logs, within one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ergon_framework.boundary.factstore.hashchain import NOBODY, Prepared
from ergon_framework.boundary.factstore.nats import schema
from ergon_framework.boundary.factstore.nats.schema import Known, LogState, ObjectRecord
from ergon_framework.boundary.factstore.nats.session import StreamTransaction
from ergon_framework.ports.factstore import (
    Appended,
    Conflict,
    Full,
    Outcome,
    Reference,
    Unfounded,
)
from ergon_framework.storage.nats import Message

MANY = 300
"""References of one fact, above which they are marked ahead of it."""


class Entering:
    """Decides fact by fact what becomes of it."""

    def __init__(self, books: StreamTransaction, now: float, known: Mapping[bytes, Known]) -> None:
        self._books = books
        self._now = now
        self._known = known
        self._fresh: dict[bytes, Known] = {}

    def append(self, log: str, facts: Sequence[Prepared], capacity: int | None) -> list[Outcome]:
        """Take in what is new, founded and fits."""
        outcomes: list[Outcome] = []
        for fact in facts:
            outcome = self._seen(log, fact) or self._refused(log, fact, capacity)
            if isinstance(outcome, Full):
                capacity = 0  # a smaller one behind it would change the order
            outcomes.append(outcome or self.add(log, fact))
        return outcomes

    def receive(self, log: str, fact: Prepared) -> Outcome:
        """Take in what is new."""
        return self._seen(log, fact) or self.add(log, fact)

    def add(self, log: str, fact: Prepared, recorded_at: float | None = None) -> Appended:
        """Put a fact at the end."""
        books, new = self._books, fact.new
        shelf = books.shelf_or_new(log)
        if new.references:
            refer([(each.bucket, each.key) for each in new.references], books)
        alike = shelf.latest.get(new.to_zone, 0)
        now = self._now if recorded_at is None else recorded_at
        offset, total = shelf.head + 1, shelf.total + fact.size
        shelf.risen_at = max(shelf.risen_at, now)
        data, shelf.chain = schema.written(
            shelf.number, offset, alike, total, shelf.risen_at, now, fact, shelf.chain
        )
        shelf.head, shelf.total, shelf.last_at = offset, total, now
        shelf.head_seq = books.next_seq
        if new.to_zone != NOBODY:
            shelf.latest[new.to_zone] = offset
        known = Known(offset, new.digest, shelf.head_seq, new.envelope)
        books.add(shelf, Message(books.subjects.entry(log, new.to_zone), data), fact.key, known)
        self._fresh[fact.key] = known
        return Appended(offset)

    def _seen(self, log: str, fact: Prepared) -> Appended | Conflict | None:
        """What the ledger has to say about it, if anything."""
        fresh = self._fresh.get(fact.key)
        known = fresh or self._known.get(fact.key)
        if known is None:
            return None
        if fact.new.digest[: len(known.digest)] != known.digest:
            return Conflict(known.offset, known.digest)
        shelf = self._books.shelf(log)
        if shelf is None or known.offset < shelf.first:
            return Appended(known.offset, True)
        entry = None if fresh else self._books.known_entry(shelf, known)
        if entry is None or entry.seal is not None:
            envelope = known.envelope if entry is None else entry.envelope
            return Appended(known.offset, True, envelope)
        entry = self._books.repair(shelf, known, fact)
        if entry is None:
            return Appended(known.offset, True, is_damaged=True)
        return Appended(known.offset, True, entry.envelope, is_repaired=True)

    def _refused(self, log: str, fact: Prepared, capacity: int | None) -> Outcome | None:
        for reference in fact.new.references if fact.new.needs_artifacts else ():
            found = self._bound(reference)
            if found != reference:
                return Unfounded(reference, found)
        shelf: LogState | None = None if capacity is None else self._books.shelf(log)
        size = 0 if shelf is None else shelf.size
        if capacity is not None and size + fact.size > capacity:
            return Full(size)
        return None

    def _bound(self, wanted: Reference) -> Reference | None:
        """What the name that a fact mentions stands for."""
        found = self._books.get(
            ObjectRecord, self._books.subjects.object(wanted.bucket, wanted.key)
        )
        if found is None or not found.digest:
            return None
        return Reference(found.bucket, found.key, found.digest, found.size)


def refer(
    names: Sequence[tuple[str, str]], books: StreamTransaction, *, is_awaited: bool = True
) -> None:
    """Mark names as referenced; those that stand for nothing yet only if they are awaited."""
    for bucket, key in names:
        subject = books.subjects.object(bucket, key)
        found = books.get(ObjectRecord, subject)
        if found is None and is_awaited:
            found = ObjectRecord(bucket, key)
        if found is not None and not found.is_referenced:
            found.is_referenced = True
            books.put(subject, found)
