"""Every id that was ever appended, with the first half of its digest and its offset: an LSM tree.

Keys are random: in one B-tree each append would touch another page of the disk. So the youngest ids
are kept in memory, in a memtable that can be rebuilt from the rows of their facts. A full memtable
is frozen and written as a segment, in the order of its keys; each append writes a slice of it.
Until the last slice is written the rows stay the source of these ids. Segments of one level are
merged into one of the next level in the same way. The memory changes within a transaction; when
that transaction fails, all of it is forgotten and read again.

A segment is cut into parts of about five hundred ids by the first bits of the key, each with a
Bloom filter: keys are hashes, so they are spread evenly over their space. An id is written as its
key, half of its digest and its offset.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeAlias

from ergon_framework.boundary.factstore.hashchain import OFFSET_BITS, key_of, read_proof
from ergon_framework.boundary.factstore.sql.log import KnownId
from ergon_framework.boundary.factstore.sql.rows import LAST, LogRow, log_numbered, log_or_new
from ergon_framework.boundary.factstore.sqlite.session import SQL, SqliteSession
from ergon_framework.ports.factstore import NewFact
from ergon_framework.storage.sql_files import load

IDS_PER_PART = 512
"""The most ids of a part, on average."""
KEY, DIGEST, OFFSET = 16, 16, 5
ID = KEY + DIGEST + OFFSET
BLOOM = 1024
"""Bytes of a filter. Of 200 keys that are not in a full part, one passes the filter."""

_MASK = BLOOM * 8 - 1
_PROBES = struct.Struct(">8xHHHxx")
_ALL_PROBES = struct.Struct(f">8xHHHxx{ID - KEY}x")
_BIT = tuple(1 << n for n in range(8))
_ANY = b"\xff" * BLOOM


def packed(digest: bytes, offset: int) -> bytes:
    """Encode digest and offset of an id as they are written behind its key."""
    return digest[:DIGEST] + offset.to_bytes(OFFSET)


def unpacked(known: bytes) -> KnownId:
    """Decode digest and offset of an id."""
    return known[:DIGEST], int.from_bytes(known[DIGEST:])


def bits_for(count: int, ids_per_part: int = IDS_PER_PART) -> int:
    """The number of key bits that cut ``count`` ids into parts."""
    return max(0, (count - 1) // ids_per_part).bit_length()


def part_of(key: bytes, bits: int) -> int:
    """The part that a key lies in."""
    return int.from_bytes(key[:4]) >> (32 - bits)


def lowest(part: int, bits: int) -> bytes:
    """The lower bound of a part's keys; all keys of the parts before are below it."""
    return (part << (32 - bits)).to_bytes(5)[1:] if part < 1 << bits else b"\xff" * (KEY + 1)


def split(ids: bytes) -> list[bytes]:
    """The single ids of a part."""
    return [ids[at : at + ID] for at in range(0, len(ids), ID)]


def find(ids: bytes, key: bytes) -> KnownId | None:
    """The digest and the offset of a key in a part; None if the part does not have it."""
    count = len(ids) // ID
    at = bisect_left(range(count), key, key=lambda n: ids[n * ID : n * ID + KEY])
    found = ids[at * ID : (at + 1) * ID]
    return unpacked(found[KEY:]) if found[:KEY] == key else None


def bloom_of(ids: bytes) -> bytes:
    """The filter of a part."""
    bloom = bytearray(BLOOM)
    for one, two, three in _ALL_PROBES.iter_unpack(ids):
        bloom[(one & _MASK) >> 3] |= _BIT[one & 7]
        bloom[(two & _MASK) >> 3] |= _BIT[two & 7]
        bloom[(three & _MASK) >> 3] |= _BIT[three & 7]
    return bytes(bloom)


class Filter:
    """The Bloom filters of a segment, held in memory."""

    __slots__ = ("blooms", "shift")

    def __init__(self, bits: int, blooms: Iterable[tuple[int, bytes]] = ()) -> None:
        self.shift = 32 - bits
        # Safe by default: a missing filter costs a look into the part, a wrong one would let an id
        # in twice.
        self.blooms = [_ANY] * (1 << bits)  # a filter that is not there excludes nothing
        for part, bloom in blooms:
            self.blooms[part] = bloom


def candidates(filters: dict[int, Filter], key: bytes) -> list[int]:
    """The segments that may have a key."""
    prefix = int.from_bytes(key[:4])
    one, two, three = _PROBES.unpack(key)
    # Taken out of the loop: most filters say no at the first probe.
    byte, bit = (one & _MASK) >> 3, _BIT[one & 7]
    found = []
    for segment, each in filters.items():
        bloom = each.blooms[prefix >> each.shift]
        if (
            bloom[byte] & bit
            and bloom[(two & _MASK) >> 3] & _BIT[two & 7]
            and bloom[(three & _MASK) >> 3] & _BIT[three & 7]
        ):
            found.append(segment)
    return found


LedgerBuckets: TypeAlias = list[dict[bytes, bytes]]
"""Digests and offsets by key, in one dict for each first byte of the key."""

PART_BITS = 24
"""The low bits of a part's number, which hold its place in the segment; the others are the segment.
"""

_SQL = load(SQL, "ledger.sql")
_LOGS = load(SQL, "logs.sql")


@dataclass(slots=True)
class Segment:
    """A sorted run of ids in the file, cut into parts. Only ``live`` segments are searched."""

    id: int
    level: int
    bits: int
    count: int
    state: str = "growing"


@dataclass(slots=True)
class LedgerPosition:
    """The offset up to which a log's ids are in memory, and the log's hash chain at that offset."""

    head: int
    chain: bytes


@dataclass(slots=True)
class FrozenMemtable:
    """A memtable that is being written as a segment: ids of each log up to an offset."""

    buckets: LedgerBuckets
    count: int
    heads: dict[int, LedgerPosition]


@dataclass(slots=True)
class Ledger:
    """The ledger as one process has it in memory. Used within one transaction at a time."""

    memtable: LedgerBuckets = field(default_factory=lambda: [{} for _ in range(256)])
    memtable_count: int = 0
    frozen: FrozenMemtable | None = None
    segments: dict[int, Segment] = field(default_factory=dict)
    filters: dict[int, Filter] = field(default_factory=dict)
    """The filters of the live segments."""
    changes: int = -1
    """The change counter of the segments when they were last read; -1 before that."""
    loaded: int = 0
    """How often the ledger was loaded."""
    logs: dict[str, LogRow] = field(default_factory=dict)
    """The rows of logs, as of the last transaction that used them."""
    log_changes: int = -1
    """The change counter of the logs' rows when they were last read."""
    _reached: dict[int, LedgerPosition] = field(default_factory=dict)

    def forget(self) -> None:
        """Reload everything at the next use."""
        fresh = Ledger()
        self.memtable, self.memtable_count, self.frozen = fresh.memtable, 0, None
        self.segments, self.filters, self.changes = {}, {}, -1
        self._reached, self.logs = {}, {}

    def refresh(self, cursor: SqliteSession) -> None:
        """Reload if another process has changed the segments. Call it first in a transaction."""
        [changes] = cursor.execute(_SQL["changes"]).fetchone()
        # Another process has written or merged segments. Its filters are not ours, and an id that
        # we would not find could be appended again.
        if changes != self.changes:
            self.forget()
            self._load(cursor)
            self.changes = changes

    def log(self, cursor: SqliteSession, name: str) -> LogRow:
        """A log whose ids are all known; from memory, unless another process has changed it.

        The caller may change the row to what it will be after the transaction. If that fails, the
        row no longer agrees with the file, which the next transaction notices, and reads it again.
        """
        log = self.logs.get(name)
        if log is None or not self._is_current(cursor, log):
            self.refresh(cursor)
            log = self.logs[name] = log_or_new(cursor, name)
            self.follow(cursor, log)
        return log

    def _is_current(self, cursor: SqliteSession, log: LogRow) -> bool:
        bounds = (log.base, log.base + LAST)
        changes, log_changes, last, chain = cursor.execute(_LOGS["state"], bounds).fetchone()
        if log_changes != self.log_changes:
            self.logs, self.log_changes = {}, log_changes
            return False
        # The chain too: a file that was replaced by a backup may have a log of the same length with
        # other facts in it.
        return bool(changes == self.changes and last == log.base + log.head and chain == log.chain)

    def follow(self, cursor: SqliteSession, log: LogRow) -> None:
        """Read the ids that were added to a log since it was read last, by any process."""
        reached = self._reached.get(log.id)
        if reached is None:
            reached = self._reached[log.id] = LedgerPosition(log.sealed, b"")
        elif reached.head == log.head and reached.chain == log.chain:
            return
        elif reached.head >= log.head:  # the file was replaced, for example by a backup
            self.forget()
            self.refresh(cursor)
            reached = self._reached[log.id] = LedgerPosition(log.sealed, b"")
        bounds = (log.base + reached.head, log.base + log.head)
        for number, proof in cursor.execute(_LOGS["ids"], bounds):
            found = read_proof(proof)
            if found is not None:  # otherwise verification reports the row
                key = key_of(log.name, found.from_zone, found.message_id)
                self.add(key, found.digest, number & LAST)
        reached.head, reached.chain = log.head, log.chain

    def known(self, cursor: SqliteSession, key: bytes) -> KnownId | None:
        """The digest and offset of an id, if it was ever appended."""
        found = self.memtable[key[0]].get(key)
        # The frozen ids are in no live segment until the last part of theirs is written.
        if found is None and self.frozen is not None:
            found = self.frozen.buckets[key[0]].get(key)
        if found is not None:
            return unpacked(found)
        if not self.filters:
            return None
        for number in candidates(self.filters, key):
            segment = self.segments[number]
            known = find(ids_in(cursor, segment, part_of(key, segment.bits)), key)
            if known is not None:
                return known
        return None

    def add(self, key: bytes, digest: bytes, offset: int) -> None:
        """Remember an id whose fact is, or is about to be, in its log."""
        self.memtable[key[0]][key] = packed(digest, offset)
        self.memtable_count += 1

    def add_all(self, facts: Mapping[bytes, tuple[int, NewFact]]) -> None:
        """Remember many ids, with the offsets of their facts."""
        memtable = self.memtable
        for key, (offset, fact) in facts.items():
            memtable[key[0]][key] = packed(fact.digest, offset)
        self.memtable_count += len(facts)

    def reach(self, log: LogRow) -> None:
        """Note that all ids of a log up to its head were added."""
        self._reached[log.id] = LedgerPosition(log.head, log.chain)

    def freeze(self) -> FrozenMemtable:
        """Start a new memtable; returns the old one, which is to be written as a segment."""
        self.frozen = FrozenMemtable(self.memtable, self.memtable_count, self._reached)
        # Copies, because the frozen table keeps the places up to which its own ids go.
        self._reached = {log: replace(place) for log, place in self._reached.items()}
        self.memtable, self.memtable_count = [{} for _ in range(256)], 0
        return self.frozen

    def _load(self, cursor: SqliteSession) -> None:
        self.loaded += 1
        for row in cursor.execute(_SQL["generations"]).fetchall():
            segment = Segment(*row)
            self.segments[segment.id] = segment
            if segment.state == "live":
                self.filters[segment.id] = _filter(cursor, segment)


def ids_in(cursor: SqliteSession, segment: Segment, part: int) -> bytes:
    """The ids of one part of a segment."""
    row = cursor.execute(_SQL["ids"], ((segment.id << PART_BITS) + part,)).fetchone()
    return b"" if row is None else row[0]


def _filter(cursor: SqliteSession, segment: Segment) -> Filter:
    base = segment.id << PART_BITS
    bounds = (base, base + (1 << segment.bits) - 1)
    rows = cursor.execute(_SQL["blooms"], bounds)
    return Filter(segment.bits, ((number - base, bloom) for number, bloom in rows))


_BUCKET_BITS = 8  # of a key's first byte


@dataclass(frozen=True, slots=True)
class LedgerTuning:
    """When ids are written from memory to segments, and how much of that one append does."""

    memtable_limit: int = 1 << 15
    """The number of ids in memory from which they are written as a segment."""
    fanout: int = 16
    """Segments of a level that are merged into one of the next."""
    appends_per_slice: int = 64
    """Appends for each slice of compaction. A slice is a part of a segment, about five hundred ids.
    An id is written once, and merged once per level: a few times even among many millions.
    """
    parts_swept_per_slice: int = 4
    """Parts of a dead segment that one slice deletes."""
    ids_per_part: int = IDS_PER_PART
    """The most ids of a part, on average."""


@dataclass(slots=True)
class _Growth:
    """A segment that is being written, part by part, from a batch or from others."""

    target: Segment
    filter: Filter
    source: FrozenMemtable | list[Segment]
    part: int = 0
    ahead: dict[int, bytes] = field(default_factory=dict)
    """Ids of the next parts, which were read ahead."""


class Compactor:
    """Writes memtables as segments, and merges segments, a slice at a time.

    There is no background thread: each append pays for a slice, within its own transaction. A
    process that dies leaves a segment that is ``growing``; the next process that loads the ledger
    lets it die, for its ids are still in the rows or in the segments it was merged from.
    """

    def __init__(self, ledger: Ledger, tuning: LedgerTuning | None = None) -> None:
        self._ledger = ledger
        self._tuning = tuning or LedgerTuning()
        self._loaded = -1
        self._credit = 0
        self._growth: _Growth | None = None

    def step(self, cursor: SqliteSession, appended: int) -> None:
        """Do the share of compaction that belongs to ``appended`` facts."""
        self._look(cursor)
        tuning = self._tuning
        # One at a time: a second one waits in memory until the first is written.
        if self._ledger.memtable_count >= tuning.memtable_limit and self._ledger.frozen is None:
            self._ledger.freeze()
        self._credit += appended
        while self._credit >= tuning.appends_per_slice:
            self._credit -= tuning.appends_per_slice
            if not self._slice(cursor):
                # There is nothing to do. Credit that is saved up would make a later append pay for
                # many slices at once.
                self._credit = 0

    def flush(self, cursor: SqliteSession) -> None:
        """Freeze the memtable, however few ids it has, and write the next part of a segment."""
        self._look(cursor)
        if self._ledger.frozen is None:
            self._ledger.freeze()
        self._slice(cursor)

    def ingest(self, cursor: SqliteSession, ids: Mapping[bytes, bytes]) -> None:
        """Write ids without rows as one segment, all at once."""
        self._look(cursor)
        growth = self._new(cursor, Segment(0, 0, self._bits_for(len(ids)), len(ids)), [])
        entries = [key + ids[key] for key in sorted(ids)]
        bits = growth.target.bits
        edges = [bisect_left(entries, lowest(part, bits)) for part in range((1 << bits) + 1)]
        growth.ahead = {
            part: b"".join(entries[start:end]) for part, (start, end) in enumerate(pairwise(edges))
        }
        for _ in growth.ahead:
            self._grow(cursor, growth)

    def _bits_for(self, count: int) -> int:
        return bits_for(count, self._tuning.ids_per_part)

    def _look(self, cursor: SqliteSession) -> None:
        """Drop a segment that was begun, after the ledger was reloaded: another process may have
        done so, too.
        """
        if self._loaded == self._ledger.loaded:
            return
        self._loaded, self._growth = self._ledger.loaded, None
        for each in self._ledger.segments.values():
            if each.state == "growing":
                _mark_dying(cursor, each)

    def _slice(self, cursor: SqliteSession) -> bool:
        """Do one slice of the current work, or begin some; False when there is nothing to do. Ids
        in memory come first, then dead segments, then segments to merge.
        """
        ledger = self._ledger
        if self._growth is None and ledger.frozen is not None:
            # Not finer than the buckets in memory, which are by the first byte of a key: a part is
            # then a run of whole buckets.
            bits = min(self._bits_for(ledger.frozen.count), _BUCKET_BITS)
            target = Segment(0, 0, bits, ledger.frozen.count)
            self._growth = self._new(cursor, target, ledger.frozen)
        if self._growth is None:
            dying = [each for each in ledger.segments.values() if each.state == "dying"]
            if dying:
                self._sweep(cursor, dying[0])
                return True
            self._growth = self._next_merge(cursor)
        if self._growth is not None:
            self._grow(cursor, self._growth)
            return True
        return False

    def _next_merge(self, cursor: SqliteSession) -> _Growth | None:
        live = [each for each in self._ledger.segments.values() if each.state == "live"]
        for level in sorted({each.level for each in live}):
            # Merged only with its like: so an id is written once per level, and the number of
            # segments stays logarithmic.
            alike = [each for each in live if each.level == level][: self._tuning.fanout]
            if len(alike) == self._tuning.fanout:
                count = sum(each.count for each in alike)
                bits = max(self._bits_for(count), *(each.bits for each in alike))
                return self._new(cursor, Segment(0, level + 1, bits, count), alike)
        return None

    def _new(
        self, cursor: SqliteSession, target: Segment, source: FrozenMemtable | list[Segment]
    ) -> _Growth:
        cursor.execute(_SQL["grow"], (target.level, target.bits, target.count))
        target.id = cursor.lastrowid or 0
        self._ledger.segments[target.id] = target
        return _Growth(target, Filter(target.bits), source)

    def _grow(self, cursor: SqliteSession, growth: _Growth) -> None:
        """Write one part of a new segment. The segment is valid after its last part."""
        target, part = growth.target, growth.part
        if not cursor.execute(_SQL["grown"], (target.id, part)).rowcount:
            self._growth = None
            # The row of the segment is not as it was left: a commit failed, or another process
            # let the segment die.
            self._ledger.forget()
            return
        if isinstance(growth.source, FrozenMemtable):
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

    def _finish(self, cursor: SqliteSession, growth: _Growth) -> None:
        ledger, target = self._ledger, growth.target
        if isinstance(growth.source, FrozenMemtable):
            # The transaction that appended these facts may have been rolled back after its ids were
            # frozen. A segment with such ids would refuse facts that were never stored.
            if not _were_committed(cursor, growth.source):
                ledger.forget()
                return
            sealed = [(place.head, log) for log, place in growth.source.heads.items()]
            # In the same transaction as the segment: after a crash, ids are read from the rows
            # above this offset.
            cursor.executemany(_SQL["sealed"], sealed)
            ledger.frozen = None
        else:
            # They die in the transaction in which the merged one becomes live: no moment has both
            # or neither.
            for each in growth.source:
                del ledger.filters[each.id]
                _mark_dying(cursor, each)
        cursor.execute(_SQL["live"], (target.id,))
        target.state = "live"
        ledger.filters[target.id] = growth.filter
        # Makes other processes reload their filters.
        cursor.execute(_SQL["changed"])
        ledger.changes += 1

    def _sweep(self, cursor: SqliteSession, dying: Segment) -> None:
        """Delete some parts of a dead segment, and its row after the last ones."""
        first = dying.id << PART_BITS
        limit = self._tuning.parts_swept_per_slice
        bounds = (first, first + (1 << dying.bits) - 1, limit)
        if cursor.execute(_SQL["drop"], bounds).rowcount < limit:
            cursor.execute(_SQL["gone"], (dying.id,))
            del self._ledger.segments[dying.id]


def _mark_dying(cursor: SqliteSession, segment: Segment) -> None:
    cursor.execute(_SQL["die"], (segment.id,))
    segment.state = "dying"


def _were_committed(cursor: SqliteSession, frozen: FrozenMemtable) -> bool:
    """Whether the logs still hold the frozen ids: the commit that appended them may have failed."""
    for log, place in frozen.heads.items():
        number = (log << OFFSET_BITS) + place.head
        row = cursor.execute(_LOGS["chain"], (number,)).fetchone()
        if row is not None and row[0] != place.chain:
            return False
        if row is None and log_numbered(cursor, log).first <= place.head:
            return False
    return True


def _ids_in_memory(frozen: FrozenMemtable, bits: int, part: int) -> bytes:
    width = 1 << (_BUCKET_BITS - bits)
    buckets = frozen.buckets[part * width : (part + 1) * width]
    return b"".join(key + bucket[key] for bucket in buckets for key in sorted(bucket))


def _ids_of_others(cursor: SqliteSession, growth: _Growth, sources: list[Segment]) -> bytes:
    """The ids of a part. Ids that were read with them are kept for the next slices."""
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
