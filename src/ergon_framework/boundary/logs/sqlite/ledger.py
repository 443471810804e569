"""Every id that was ever appended, with the first half of its digest and its offset.

Random keys in one tree would cost a page of the disk per append. So the youngest ids are kept in
memory, where they came from the rows of their facts and can be had from there again. When they are
many they are written down in the order of their keys as a generation, a slice at a time, by whoever
appends; until that is done the rows stay what counts. Generations of a kind are merged into a
larger one in the same way. What is in memory changes within a transaction; when that fails, all of
it is forgotten and read again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from ergon_framework.boundary.logs.records import key_of, read_proof
from ergon_framework.boundary.logs.sqlite.ground import SQL, SqliteBooks
from ergon_framework.boundary.logs.sqlite.parts import (
    Filter,
    Known,
    candidates,
    find,
    packed,
    part_of,
    unpacked,
)
from ergon_framework.boundary.logs.tables.rows import LAST, LogRow, log_or_new
from ergon_framework.ports.factstore import NewFact
from ergon_framework.storage.sql_files import load

Buckets: TypeAlias = list[dict[bytes, bytes]]
"""What keys stand for, by the first byte of the key."""

PART_BITS = 24
"""Bits of a part's number that are its place; the others are its generation."""

_SQL = load(SQL, "ledger.sql")
_LOGS = load(SQL, "logs.sql")


@dataclass(slots=True)
class Generation:
    """Ids that were written down together."""

    id: int
    level: int
    bits: int
    count: int
    state: str = "growing"


@dataclass(slots=True)
class Place:
    """Up to where a log's ids are known here, and what the chain was there."""

    head: int
    chain: bytes


@dataclass(slots=True)
class Batch:
    """Ids that are being written down: those of each log up to an offset."""

    buckets: Buckets
    count: int
    heads: dict[int, Place]


@dataclass(slots=True)
class Ledger:
    """What one process remembers of the ledger. Used within one transaction at a time."""

    young: Buckets = field(default_factory=lambda: [{} for _ in range(256)])
    young_count: int = 0
    batch: Batch | None = None
    generations: dict[int, Generation] = field(default_factory=dict)
    filters: dict[int, Filter] = field(default_factory=dict)
    """Of the live generations."""
    changes: int = -1
    """How often the set of live generations had changed when it was read; -1 before that."""
    loaded: int = 0
    """How often it was read."""
    logs: dict[str, LogRow] = field(default_factory=dict)
    """As they were after the last transaction that used them."""
    log_changes: int = -1
    """How often logs had been shortened when they were read."""
    _reached: dict[int, Place] = field(default_factory=dict)

    def forget(self) -> None:
        """Read everything anew at the next use."""
        fresh = Ledger()
        self.young, self.young_count, self.batch = fresh.young, 0, None
        self.generations, self.filters, self.changes = {}, {}, -1
        self._reached, self.logs = {}, {}

    def refresh(self, cursor: SqliteBooks) -> None:
        """Notice what other processes did to the generations. Call it first in a transaction."""
        [changes] = cursor.execute(_SQL["changes"]).fetchone()
        if changes != self.changes:
            self.forget()
            self._load(cursor)
            self.changes = changes

    def log(self, cursor: SqliteBooks, name: str) -> LogRow:
        """A log whose ids are all known: from memory, when nobody else has touched it.

        It may be changed to what it will be after this transaction. Should that fail, it is not
        what the next one finds, and is read again.
        """
        log = self.logs.get(name)
        if log is None or not self._is_current(cursor, log):
            self.refresh(cursor)
            log = self.logs[name] = log_or_new(cursor, name)
            self.follow(cursor, log)
        return log

    def _is_current(self, cursor: SqliteBooks, log: LogRow) -> bool:
        bounds = (log.base, log.base + LAST)
        changes, log_changes, last, chain = cursor.execute(_LOGS["state"], bounds).fetchone()
        if log_changes != self.log_changes:
            self.logs, self.log_changes = {}, log_changes
            return False
        return bool(changes == self.changes and last == log.base + log.head and chain == log.chain)

    def follow(self, cursor: SqliteBooks, log: LogRow) -> None:
        """Know every id of a log, also those that other processes have added."""
        reached = self._reached.get(log.id)
        if reached is None:
            reached = self._reached[log.id] = Place(log.sealed, b"")
        elif reached.head == log.head and reached.chain == log.chain:
            return
        elif reached.head >= log.head:  # the file is another one, or an older one
            self.forget()
            self.refresh(cursor)
            reached = self._reached[log.id] = Place(log.sealed, b"")
        bounds = (log.base + reached.head, log.base + log.head)
        for number, proof in cursor.execute(_LOGS["ids"], bounds):
            found = read_proof(proof)
            if found is not None:  # otherwise verification reports the row
                key = key_of(log.name, found.from_zone, found.message_id)
                self.add(key, found.digest, number & LAST)
        reached.head, reached.chain = log.head, log.chain

    def known(self, cursor: SqliteBooks, key: bytes) -> Known | None:
        """What an id stands for, if it was ever appended."""
        found = self.young[key[0]].get(key)
        if found is None and self.batch is not None:
            found = self.batch.buckets[key[0]].get(key)
        if found is not None:
            return unpacked(found)
        if not self.filters:
            return None
        for number in candidates(self.filters, key):
            generation = self.generations[number]
            known = find(ids_in(cursor, generation, part_of(key, generation.bits)), key)
            if known is not None:
                return known
        return None

    def add(self, key: bytes, digest: bytes, offset: int) -> None:
        """Remember an id whose fact is, or is about to be, in its log."""
        self.young[key[0]][key] = packed(digest, offset)
        self.young_count += 1

    def add_all(self, facts: Mapping[bytes, tuple[int, NewFact]]) -> None:
        """Remember many ids, with the offsets of their facts."""
        young = self.young
        for key, (offset, fact) in facts.items():
            young[key[0]][key] = packed(fact.digest, offset)
        self.young_count += len(facts)

    def reach(self, log: LogRow) -> None:
        """All ids of a log up to its head were added."""
        self._reached[log.id] = Place(log.head, log.chain)

    def set_apart(self) -> Batch:
        """Take the young ids apart, to be written down."""
        self.batch = Batch(self.young, self.young_count, self._reached)
        self._reached = {log: replace(place) for log, place in self._reached.items()}
        self.young, self.young_count = [{} for _ in range(256)], 0
        return self.batch

    def _load(self, cursor: SqliteBooks) -> None:
        self.loaded += 1
        for row in cursor.execute(_SQL["generations"]).fetchall():
            generation = Generation(*row)
            self.generations[generation.id] = generation
            if generation.state == "live":
                self.filters[generation.id] = _filter(cursor, generation)


def ids_in(cursor: SqliteBooks, generation: Generation, part: int) -> bytes:
    """The ids of one part of a generation."""
    row = cursor.execute(_SQL["ids"], ((generation.id << PART_BITS) + part,)).fetchone()
    return b"" if row is None else row[0]


def _filter(cursor: SqliteBooks, generation: Generation) -> Filter:
    base = generation.id << PART_BITS
    bounds = (base, base + (1 << generation.bits) - 1)
    rows = cursor.execute(_SQL["blooms"], bounds)
    return Filter(generation.bits, ((number - base, bloom) for number, bloom in rows))
