"""The ledger's upkeep, a slice at a time: writing ids down, merging, removing what was merged."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from ergon_framework.boundary.logs.records import OFFSET_BITS
from ergon_framework.boundary.logs.sqlite.ground import SQL, SqliteBooks
from ergon_framework.boundary.logs.sqlite.ledger import (
    PART_BITS,
    Batch,
    Generation,
    Ledger,
    ids_in,
)
from ergon_framework.boundary.logs.sqlite.parts import Filter, bits_for, bloom_of, lowest, split
from ergon_framework.boundary.logs.tables.rows import log_numbered
from ergon_framework.storage.sql_files import load

YOUNG = 1 << 15
"""Ids in memory that are enough for a generation."""
FAN = 16
"""Generations of a level that are merged into one of the next."""
PACE = 64
"""Appends per slice of upkeep. A slice is a part of a generation, about five hundred ids; an id is
written down once, and merged once per level: few times even among many millions."""
SWEPT = 4
"""Parts removed by one slice."""
_BUCKET_BITS = 8  # of a key's first byte

_SQL = load(SQL, "ledger.sql")
_LOGS = load(SQL, "logs.sql")


@dataclass(slots=True)
class _Growth:
    """A generation that is being written, part by part, from a batch or from others."""

    target: Generation
    filter: Filter
    source: Batch | list[Generation]
    part: int = 0
    ahead: dict[int, bytes] = field(default_factory=dict)
    """Ids of the next parts that were read together."""


class Upkeep:
    """Does what is to be done, and remembers what it was doing."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._loaded = -1
        self._credit = 0
        self._growth: _Growth | None = None

    def pay(self, cursor: SqliteBooks, appended: int) -> None:
        """Do as much as so many appends call for."""
        self._look(cursor)
        if self._ledger.young_count >= YOUNG and self._ledger.batch is None:
            self._ledger.set_apart()
        self._credit += appended
        while self._credit >= PACE:
            self._credit -= PACE
            if not self._slice(cursor):
                self._credit = 0

    def press(self, cursor: SqliteBooks) -> None:
        """Write down some of the ids that are in memory, however few they are."""
        self._look(cursor)
        if self._ledger.batch is None:
            self._ledger.set_apart()
        self._slice(cursor)

    def write_down(self, cursor: SqliteBooks, ids: Mapping[bytes, bytes]) -> None:
        """Write ids down that no row has, as a generation of their own."""
        self._look(cursor)
        growth = self._new(cursor, Generation(0, 0, bits_for(len(ids)), len(ids)), [])
        entries = [key + ids[key] for key in sorted(ids)]
        bits = growth.target.bits
        edges = [bisect_left(entries, lowest(part, bits)) for part in range((1 << bits) + 1)]
        growth.ahead = {
            part: b"".join(entries[start:end]) for part, (start, end) in enumerate(pairwise(edges))
        }
        for _ in growth.ahead:
            self._grow(cursor, growth)

    def _look(self, cursor: SqliteBooks) -> None:
        """When the ledger was read anew, what somebody had begun is not continued."""
        if self._loaded == self._ledger.loaded:
            return
        self._loaded, self._growth = self._ledger.loaded, None
        for each in self._ledger.generations.values():
            if each.state == "growing":
                _let_die(cursor, each)

    def _slice(self, cursor: SqliteBooks) -> bool:
        """Go on with what was begun, or begin something; False when there is nothing to do.

        Ids in memory come first, then what is no longer needed, then what can be merged.
        """
        ledger = self._ledger
        if self._growth is None and ledger.batch is not None:
            bits = min(bits_for(ledger.batch.count), _BUCKET_BITS)
            target = Generation(0, 0, bits, ledger.batch.count)
            self._growth = self._new(cursor, target, ledger.batch)
        if self._growth is None:
            dying = [each for each in ledger.generations.values() if each.state == "dying"]
            if dying:
                self._sweep(cursor, dying[0])
                return True
            self._growth = self._next_merge(cursor)
        if self._growth is not None:
            self._grow(cursor, self._growth)
            return True
        return False

    def _next_merge(self, cursor: SqliteBooks) -> _Growth | None:
        live = [each for each in self._ledger.generations.values() if each.state == "live"]
        for level in sorted({each.level for each in live}):
            alike = [each for each in live if each.level == level][:FAN]
            if len(alike) == FAN:
                count = sum(each.count for each in alike)
                bits = max(bits_for(count), *(each.bits for each in alike))
                return self._new(cursor, Generation(0, level + 1, bits, count), alike)
        return None

    def _new(
        self, cursor: SqliteBooks, target: Generation, source: Batch | list[Generation]
    ) -> _Growth:
        cursor.execute(_SQL["grow"], (target.level, target.bits, target.count))
        target.id = cursor.lastrowid or 0
        self._ledger.generations[target.id] = target
        return _Growth(target, Filter(target.bits), source)

    def _grow(self, cursor: SqliteBooks, growth: _Growth) -> None:
        """Write one part; after the last one the generation counts."""
        target, part = growth.target, growth.part
        if not cursor.execute(_SQL["grown"], (target.id, part)).rowcount:
            self._growth = None
            self._ledger.forget()  # a commit failed, or another process decided otherwise
            return
        if isinstance(growth.source, Batch):
            ids = _ids_in_memory(growth.source, target.bits, part)
        else:
            ids = _ids_of_others(cursor, growth, growth.source)
        bloom = growth.filter.blooms[part] = bloom_of(ids)
        cursor.execute(_SQL["add"], ((target.id << PART_BITS) + part, bloom, ids))
        growth.part += 1
        if growth.part == 1 << target.bits:
            if self._growth is growth:
                self._growth = None
            self._finish(cursor, growth)

    def _finish(self, cursor: SqliteBooks, growth: _Growth) -> None:
        ledger, target = self._ledger, growth.target
        if isinstance(growth.source, Batch):
            if not _is_founded(cursor, growth.source):
                ledger.forget()
                return
            sealed = [(place.head, log) for log, place in growth.source.heads.items()]
            cursor.executemany(_SQL["sealed"], sealed)
            ledger.batch = None
        else:
            for each in growth.source:
                del ledger.filters[each.id]
                _let_die(cursor, each)
        cursor.execute(_SQL["live"], (target.id,))
        target.state = "live"
        ledger.filters[target.id] = growth.filter
        cursor.execute(_SQL["changed"])
        ledger.changes += 1

    def _sweep(self, cursor: SqliteBooks, dying: Generation) -> None:
        """Remove some parts of a generation; after the last ones, its name."""
        first = dying.id << PART_BITS
        bounds = (first, first + (1 << dying.bits) - 1, SWEPT)
        if cursor.execute(_SQL["drop"], bounds).rowcount < SWEPT:
            cursor.execute(_SQL["gone"], (dying.id,))
            del self._ledger.generations[dying.id]


def _let_die(cursor: SqliteBooks, generation: Generation) -> None:
    cursor.execute(_SQL["die"], (generation.id,))
    generation.state = "dying"


def _is_founded(cursor: SqliteBooks, batch: Batch) -> bool:
    """Whether the logs are what they were: the commit that set the batch apart may have failed."""
    for log, place in batch.heads.items():
        number = (log << OFFSET_BITS) + place.head
        row = cursor.execute(_LOGS["chain"], (number,)).fetchone()
        if row is not None and row[0] != place.chain:
            return False
        if row is None and log_numbered(cursor, log).first <= place.head:
            return False
    return True


def _ids_in_memory(batch: Batch, bits: int, part: int) -> bytes:
    width = 1 << (_BUCKET_BITS - bits)
    buckets = batch.buckets[part * width : (part + 1) * width]
    return b"".join(key + bucket[key] for bucket in buckets for key in sorted(bucket))


def _ids_of_others(cursor: SqliteBooks, growth: _Growth, sources: list[Generation]) -> bytes:
    """The ids of a part; those that lie beside them in the sources are kept for the next slices."""
    if growth.part not in growth.ahead:
        bits = max(each.bits for each in sources)
        fine = growth.target.bits - bits
        first, wanted = growth.part, growth.part >> fine
        ids = [ids_in(cursor, each, wanted >> (bits - each.bits)) for each in sources]
        entries = sorted({entry for each in ids for entry in split(each)})
        edges = [
            bisect_left(entries, lowest(part, growth.target.bits))
            for part in range(first, first + (1 << fine) + 1)
        ]
        growth.ahead = {
            first + n: b"".join(entries[start:end])
            for n, (start, end) in enumerate(pairwise(edges))
        }
    return growth.ahead[growth.part]
