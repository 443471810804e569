"""Everything a memory store holds, and the lock it is held under.

A log has its facts, its ledger and its hash chain, as every other store has them.
"""

from __future__ import annotations

import secrets
import threading
from bisect import insort
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import takewhile

from ergon_framework.boundary.factstore.consumers import OPEN, unknown
from ergon_framework.boundary.factstore.hashchain import (
    NOBODY,
    OFFSET_BITS,
    contents,
    key_of,
    linked,
    marker,
    new_of,
    prepare,
    recorded,
)
from ergon_framework.errors import StoreUnavailableError
from ergon_framework.ports.factstore import (
    OUTBOUND,
    ConsumerInfo,
    Gap,
    LedgerEntry,
    Link,
    LogInfo,
    LogPage,
    NewFact,
    Quarantined,
    StoredFact,
    StoredObject,
    StoreInfo,
)

NO_CHAIN = bytes(32)
"""What the first link of a chain hangs on."""


@dataclass(slots=True)
class MemoryRow:
    """A fact, what the chain is after it, and which fact before it went to the same zone."""

    fact: StoredFact
    chain: bytes
    total: int
    """Bytes of the log up to here."""
    previous_alike: int

    @property
    def is_marker(self) -> bool:
        """Whether the row only stands for a loss at this offset."""
        return self.fact.to_zone == NOBODY

    @property
    def size(self) -> int:
        """The bytes that count."""
        return size_of(self.fact)

    def seen(self, to_zone: str | None) -> StoredFact:
        """The fact as it is given out through a view."""
        previous = self.fact.offset - 1 if to_zone is None else self.previous_alike
        return replace(self.fact, previous=previous)


@dataclass(slots=True)
class MemoryLog:
    """A log. The ledger and ``latest`` outlive the rows."""

    name: str
    number: int = 0
    """Which log it is; part of the chain, as in every store."""
    rows: list[MemoryRow] = field(default_factory=list)
    first: int = 1
    """The offset of the first row."""
    chain: bytes = NO_CHAIN
    """The chain before the first row."""
    base: int = 0
    """Bytes of all facts before the first row."""
    last_at: float | None = None
    ledger: dict[bytes, tuple[int, bytes]] = field(default_factory=dict)
    """Offset and digest, or half of it, by the key of an id; one for all logs of a store."""
    latest: dict[str, int] = field(default_factory=dict)
    """The last offset of a fact to each zone."""
    gaps: list[Gap] = field(default_factory=list)
    """Gaps in the order of their first offsets."""

    @property
    def head(self) -> int:
        """The highest offset."""
        return self.first + len(self.rows) - 1

    @property
    def size(self) -> int:
        """Bytes of the facts that are kept."""
        return self.total - self.base

    @property
    def total(self) -> int:
        """Bytes of all facts there have been."""
        return self.rows[-1].total if self.rows else self.base

    def info(self) -> LogInfo:
        """The log in figures."""
        return LogInfo(self.name, self.head, self.first, self.size, self.last_at)

    def find(self, from_zone: str, message_id: str) -> LedgerEntry | None:
        """What the ledger knows about an id."""
        known = self.ledger.get(key_of(self.name, from_zone, message_id))
        if known is None:
            return None
        offset, digest = known
        return LedgerEntry(self.name, offset, digest, is_retained=offset >= self.first)

    def row(self, offset: int) -> MemoryRow | None:
        """The row at an offset, if it is kept."""
        return self.rows[offset - self.first] if self.first <= offset <= self.head else None

    def after(self, offset: int, to_zone: str | None = None) -> Iterator[MemoryRow]:
        """The facts above an offset that lie in a view."""
        for row in self.rows[max(0, offset + 1 - self.first) :]:
            if not row.is_marker and to_zone in {None, row.fact.to_zone}:
                yield row

    def add(self, new: NewFact, now: float) -> int:
        """Append a fact; returns its offset."""
        offset = self.head + 1
        fact = StoredFact(
            offset,
            offset - 1,
            new.from_zone,
            new.message_id,
            new.to_zone,
            new.digest,
            new.envelope,
            new.fact,
            now,
            new.source_offset,
        )
        total = self.total + size_of(fact)
        self.rows.append(MemoryRow(fact, self.link(fact), total, self.latest.get(new.to_zone, 0)))
        self.last_at = now
        self.ledger[key_of(self.name, new.from_zone, new.message_id)] = offset, new.digest
        self.latest[new.to_zone] = offset
        return offset

    def drop(self, through: int) -> int:
        """Drop the rows up to an offset; returns how many."""
        count = max(0, min(through, self.head) + 1 - self.first)
        if count:
            gone, self.rows = self.rows[:count], self.rows[count:]
            self.first += count
            self.chain, self.base = gone[-1].chain, gone[-1].total
        return count

    def lose(self, first: int, reason: str, now: float) -> None:
        """Record that what was dropped from an offset on is lost; a loss that goes on is one."""
        for gap in self.gaps:
            is_ours = gap.source_first is None
            if is_ours and (gap.last + 1, gap.reason) == (first, reason):
                self.gaps.remove(gap)
                first = gap.first
                break
        self._record(Gap(self.name, first, self.first - 1, reason, now))

    def lose_at_peer(self, gap: Gap, now: float) -> bool:
        """Append a loss of the peer; False if it is known already."""
        new = marker(gap)
        if self.find(new.from_zone, new.message_id) is not None:
            return False
        self._record(recorded(gap, self.name, self.add(new, now)))
        return True

    def _record(self, gap: Gap) -> None:
        insort(self.gaps, gap, key=lambda each: each.first)

    def gaps_within(self, after: int, through: int) -> list[Gap]:
        """Recorded losses that reach into a stretch."""
        return [gap for gap in self.gaps if gap.last > after and gap.first <= through]

    def chain_at(self, offset: int) -> bytes:
        """The chain after an offset; empty when it is no longer known."""
        if offset == self.first - 1:
            return self.chain
        row = self.row(offset)
        return b"" if row is None else row.chain

    def is_intact(self, row: MemoryRow) -> bool:
        """Whether a row is still what was put there."""
        return row.chain == self._link(self.chain_at(row.fact.offset - 1), row.total, row.fact)

    def is_repaired(self, row: MemoryRow, duplicate: NewFact) -> bool:
        """Make a damaged row what it was by a duplicate of its fact; whether that could be."""
        stored = row.fact.envelope, row.fact.fact
        for envelope, fact in contents(stored, prepare(self.name, duplicate)):
            whole = replace(row, fact=replace(row.fact, envelope=envelope, fact=fact))
            if self.is_intact(whole):
                row.fact = whole.fact
                return True
        return False

    def link(self, fact: StoredFact) -> bytes:
        """The chain with one more fact at the end."""
        return self._link(self.chain_at(self.head), self.total + size_of(fact), fact)

    def _link(self, previous: bytes, total: int, fact: StoredFact) -> bytes:
        """The next link of the chain."""
        number = (self.number << OFFSET_BITS) + fact.offset
        prepared = prepare(self.name, new_of(fact))
        return linked(number, total, fact.recorded_at, prepared, previous)[1]

    def page(self, after: int, limit: int, max_bytes: int, to_zone: str | None) -> LogPage:
        """A stretch that ends at a limit, before a corrupted row, or at the head."""
        rows = list(self.after(after, to_zone))
        # Nothing behind a corrupted row: facts are given out in order, and none is passed over.
        given = fitting(takewhile(self.is_intact, rows), limit, max_bytes)
        through = self.head
        if len(given) < len(rows):
            through = given[-1].fact.offset if given else rows[0].fact.offset - 1
        facts = [row.seen(to_zone) for row in given]
        chains = self.chain_at(after), self.chain_at(through)
        return LogPage(facts, through, self.head, *chains, self.gaps_within(after, through))

    def aged(self, before: float) -> int:
        """The offset up to which everything was recorded before an instant."""
        # No filter: the clock may have been set back, and a log is dropped from its beginning only.
        old = takewhile(lambda row: row.fact.recorded_at < before, self.rows)
        return self.first - 1 + sum(1 for _ in old)

    def unexplained(self, cursor: int) -> tuple[int, int] | None:
        """The first and the last offset above a cursor that are gone and that no gap explains."""
        lost = [
            offset
            for offset in range(cursor + 1, self.first)
            if not any(gap.first <= offset <= gap.last for gap in self.gaps)
        ]
        return (lost[0], lost[-1]) if lost else None


def fitting(rows: Iterable[MemoryRow], limit: int, max_bytes: int) -> list[MemoryRow]:
    """The first rows that fit into a page: at least one if there is any."""
    given: list[MemoryRow] = []
    size = 0
    for row in rows:
        size += row.size
        if given and (len(given) >= limit or size > max_bytes):
            break
        given.append(row)
    return given


def size_of(fact: StoredFact) -> int:
    """The bytes of a fact that count."""
    return len(fact.envelope) + len(fact.fact)


@dataclass(slots=True)
class ZoneState:
    """The books of one zone."""

    info: StoreInfo
    logs: dict[str, MemoryLog] = field(default_factory=dict)
    ledger: dict[bytes, tuple[int, bytes]] = field(default_factory=dict)
    """The offsets and digests of all facts. A key includes the log."""
    consumers: dict[str, ConsumerInfo] = field(default_factory=dict)
    """Without ``lag`` and ``waiting_since``, which are computed when they are read."""
    items: dict[int, Quarantined] = field(default_factory=dict)
    items_made: int = 0
    served: set[int] = field(default_factory=set)
    """Released items that went out since."""
    objects: dict[tuple[str, str], StoredObject] = field(default_factory=dict)
    """Without ``is_referenced``: a fact may be here before its object."""
    referenced: set[tuple[str, str]] = field(default_factory=set)
    links: dict[str, Link] = field(default_factory=dict)
    journal: list[tuple[float, str, str]] = field(default_factory=list)
    attributes: dict[str, str] = field(default_factory=dict)
    """Texts about this very store."""
    is_longer: bool = False
    """Whether this step added facts."""

    def __post_init__(self) -> None:
        """Create the ``outbound`` log, which always exists."""
        self.memory_log(OUTBOUND)

    def memory_log(self, log: str) -> MemoryLog:
        """A log, created if it does not exist."""
        if log not in self.logs:
            number = max((memory_log.number for memory_log in self.logs.values()), default=0) + 1
            self.logs[log] = MemoryLog(log, number, ledger=self.ledger)
        return self.logs[log]

    def consumer(self, name: str) -> ConsumerInfo:
        """A consumer that must be there."""
        found = self.consumers.get(name)
        if found is None:
            raise unknown(name)
        return found

    def set_aside(self, item: Quarantined) -> Quarantined:
        """Keep an item; when its fact lies in quarantine already, it is the same item."""
        for known in self.open_items(item.consumer):
            if (known.log, known.offset) == (item.log, item.offset):
                self.served.discard(known.id)
                self.items[known.id] = replace(item, id=known.id, at=known.at)
                return self.items[known.id]
        return self._keep(item)

    def set_aside_whole(self, item: Quarantined) -> None:
        """Keep an item with its payload, unless it is there, whatever became of it."""
        whole = (item.consumer, item.log, item.offset, item.envelope, item.fact)
        for known in self.items.values():
            if (known.consumer, known.log, known.offset, known.envelope, known.fact) == whole:
                return
        self._keep(item)

    def _keep(self, item: Quarantined) -> Quarantined:
        self.items_made += 1
        self.items[self.items_made] = replace(item, id=self.items_made)
        return self.items[self.items_made]

    def open_items(self, consumer: str) -> list[Quarantined]:
        """What was set aside for a consumer and not dealt with."""
        mine = (item for item in self.items.values() if item.consumer == consumer)
        return [item for item in mine if item.state in OPEN]

    def released_to(self, consumer: str) -> list[Quarantined]:
        """What is to be delivered to a consumer again."""
        return [item for item in self.open_items(consumer) if item.state == "released"]


class MemoryDatabase:
    """A state that one caller at a time sees and changes, and callbacks for new facts."""

    def __init__(self, zone: str, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.state = ZoneState(StoreInfo(zone, secrets.token_hex(8), clock()))
        self._lock = threading.Lock()
        self._is_closed = False
        self.wakes: list[Callable[[], None]] = []

    @contextmanager
    def step(self) -> Iterator[ZoneState]:
        """The state for one step of one caller; subscribers are woken afterwards."""
        with self._lock:
            if self._is_closed:
                raise StoreUnavailableError(
                    "the memory store is closed", remedy="open a new one; what it held is gone"
                )
            state = self.state
            state.is_longer = False
            yield state
            wakes = tuple(self.wakes) if state.is_longer else ()
        # Without the lock: a subscriber may call the store.
        for wake in wakes:
            wake()

    def add(self, wake: Callable[[], None]) -> None:
        """Call ``wake()`` after each step that added facts, in the thread that added them."""
        with self.step():
            self.wakes.append(wake)

    def remove(self, wake: Callable[[], None]) -> None:
        """Call it no longer. Does nothing if it was never added."""
        with self._lock:
            if wake in self.wakes:
                self.wakes.remove(wake)

    def close(self) -> None:
        """Refuse further calls. May be called twice."""
        with self._lock:
            self._is_closed = True
            self.wakes.clear()
