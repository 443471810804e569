"""Copies of a zone, out of memory and into it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ergon_framework.boundary.factstore.hashchain import NOBODY, new_of
from ergon_framework.boundary.factstore.memory.state import MemoryDatabase, MemoryLog, ZoneState
from ergon_framework.boundary.factstore.parts import StoreParts
from ergon_framework.boundary.factstore.records import (
    bounded,
    corrupted,
    dump_books,
    refuse_hole,
    refuse_other_chain,
    refuse_other_log,
)
from ergon_framework.ports.transfer import (
    AwaitedObjectRecord,
    C,
    ConsumerCursorRecord,
    FactIdRecord,
    FactRecord,
    Fence,
    GapRecord,
    JournalRecord,
    LinkRecord,
    LogRecord,
    ObjectNameRecord,
    QuarantineRecord,
    TransferRecord,
    ZoneEpochRecord,
)


class MemoryFactRecords:
    """The part of the store that is copied: all that it holds, as records."""

    def __init__(self, database: MemoryDatabase, parts: StoreParts) -> None:
        self._database = database
        self._parts = parts
        self._mark: bytes | None = None

    def dump(self, kind: type[C], after: Any, limit: int) -> list[C]:
        """The records of a kind after a place, in order."""
        read = _DUMPS.get(kind)
        if read is None:
            return dump_books(self._parts, kind, after, limit)
        with self._database.step() as state:
            records = (copy for copy in read(state) if after is None or copy.sort_key > after)
            return list(bounded(records, limit))

    def load(self, records: Sequence[TransferRecord], fence: Fence | None = None) -> None:
        """Write records of one kind, in order."""
        with self._database.step() as state:
            self._check(fence)
            for copy in records:
                _LOADS[type(copy)](state, copy)

    def discard(self, records: Sequence[TransferRecord], fence: Fence | None = None) -> None:
        """Delete records of one kind, those of them that are there."""
        with self._database.step() as state:
            self._check(fence)
            for copy in records:
                _DISCARDS[type(copy)](state, copy)

    def move_state(self) -> bytes | None:
        """The state of a move into this store, as last written."""
        with self._database.step():
            return self._mark

    def set_move_state(self, state: bytes | None, fence: Fence | None = None) -> None:
        """Write something down about a move into this store, or forget it."""
        with self._database.step():
            if fence is not None:
                fence.check_change(self._mark, state)
            self._mark = state

    def _check(self, fence: Fence | None) -> None:
        if fence is not None:
            fence.check(self._mark)


# ---- out ----------------------------------------------------------------------------------------


def _logs(state: ZoneState) -> Iterator[LogRecord]:
    for memory_log in sorted(state.logs.values(), key=lambda each: each.number):
        yield LogRecord(
            memory_log.number,
            memory_log.name,
            memory_log.first,
            memory_log.chain,
            memory_log.base,
            None if memory_log.rows else memory_log.last_at,
            _latest_below(memory_log),
        )


def _latest_below(memory_log: MemoryLog) -> dict[str, int]:
    """The last fact to each zone below the first row."""
    latest = dict(memory_log.latest)
    # Backwards: of each zone the first kept row has the last word.
    for row in reversed(memory_log.rows):
        latest[row.fact.to_zone] = row.previous_alike
    return {zone: offset for zone, offset in latest.items() if offset and zone != NOBODY}


def _facts(state: ZoneState) -> Iterator[FactRecord]:
    for memory_log in sorted(state.logs.values(), key=lambda each: each.number):
        for row in memory_log.rows:
            if not memory_log.is_intact(row):
                raise corrupted(memory_log.name, row.fact.offset, "memory")
            yield FactRecord(memory_log.number, memory_log.name, row.seen(None), row.chain)


def _ids(state: ZoneState) -> Iterator[FactIdRecord]:
    for key in sorted(state.ledger):
        offset, digest = state.ledger[key]
        yield FactIdRecord(key, digest[:16], offset)


def _items(state: ZoneState) -> Iterator[QuarantineRecord]:
    for number in sorted(state.items):
        yield QuarantineRecord(state.items[number], number in state.served)


def _awaited(state: ZoneState) -> Iterator[AwaitedObjectRecord]:
    for name in sorted(state.referenced - set(state.objects)):
        yield AwaitedObjectRecord(*name)


def _notes(state: ZoneState) -> Iterator[JournalRecord]:
    for position, note in enumerate(state.journal, 1):
        yield JournalRecord(position, *note)


_DUMPS: dict[type[TransferRecord], Callable[[ZoneState], Iterator[Any]]] = {
    LogRecord: _logs,
    FactRecord: _facts,
    FactIdRecord: _ids,
    QuarantineRecord: _items,
    AwaitedObjectRecord: _awaited,
    JournalRecord: _notes,
}


# ---- in -----------------------------------------------------------------------------------------


def _put_log(state: ZoneState, copy: LogRecord) -> None:
    memory_log = state.logs.get(copy.log)
    if memory_log is None:
        memory_log = state.logs[copy.log] = MemoryLog(copy.log, copy.number, ledger=state.ledger)
    refuse_other_log(copy, memory_log.number, memory_log.first)
    memory_log.drop(copy.first - 1)
    if not memory_log.rows:
        memory_log.first, memory_log.chain, memory_log.base = copy.first, copy.chain, copy.total
        memory_log.last_at, memory_log.latest = copy.last_at, dict(copy.latest)


def _put_fact(state: ZoneState, copy: FactRecord) -> None:
    memory_log = state.logs[copy.log]
    if copy.fact.offset > memory_log.head:
        refuse_hole(copy, memory_log.head)
        refuse_other_chain(copy, memory_log.link(copy.fact))
        memory_log.add(new_of(copy.fact), copy.fact.recorded_at)


def _put_id(state: ZoneState, copy: FactIdRecord) -> None:
    state.ledger.setdefault(copy.key, (copy.offset, copy.digest))


def _put_gap(state: ZoneState, copy: GapRecord) -> None:
    gaps = state.memory_log(copy.gap.log).gaps
    if copy.gap not in gaps:
        gaps.append(copy.gap)
        gaps.sort(key=lambda gap: gap.first)


def _put_consumer(state: ZoneState, copy: ConsumerCursorRecord) -> None:
    state.consumers[copy.consumer.name] = replace(copy.consumer)


def _put_item(state: ZoneState, copy: QuarantineRecord) -> None:
    state.items[copy.item.id] = copy.item
    state.items_made = max(state.items_made, copy.item.id)
    (state.served.add if copy.is_served else state.served.discard)(copy.item.id)


def _put_name(state: ZoneState, copy: ObjectNameRecord) -> None:
    state.objects[copy.sort_key] = replace(copy.object, is_referenced=False)
    (state.referenced.add if copy.object.is_referenced else state.referenced.discard)(copy.sort_key)


def _put_awaited(state: ZoneState, copy: AwaitedObjectRecord) -> None:
    state.referenced.add(copy.sort_key)


def _put_link(state: ZoneState, copy: LinkRecord) -> None:
    state.links[copy.link.peer] = copy.link


def _put_note(state: ZoneState, copy: JournalRecord) -> None:
    if copy.position > len(state.journal):
        state.journal.append((copy.at, copy.action, copy.details))


def _put_zone(state: ZoneState, copy: ZoneEpochRecord) -> None:
    state.info = copy.info


_LOADS: dict[type[TransferRecord], Callable[[ZoneState, Any], None]] = {
    LogRecord: _put_log,
    FactRecord: _put_fact,
    FactIdRecord: _put_id,
    GapRecord: _put_gap,
    ConsumerCursorRecord: _put_consumer,
    QuarantineRecord: _put_item,
    ObjectNameRecord: _put_name,
    AwaitedObjectRecord: _put_awaited,
    LinkRecord: _put_link,
    JournalRecord: _put_note,
    ZoneEpochRecord: _put_zone,
}


# ---- away ---------------------------------------------------------------------------------------


def _drop_gap(state: ZoneState, copy: GapRecord) -> None:
    memory_log = state.memory_log(copy.gap.log)
    memory_log.gaps = [gap for gap in memory_log.gaps if gap != copy.gap]


def _drop_consumer(state: ZoneState, copy: ConsumerCursorRecord) -> None:
    state.consumers.pop(copy.consumer.name, None)


def _drop_item(state: ZoneState, copy: QuarantineRecord) -> None:
    state.items.pop(copy.item.id, None)
    state.served.discard(copy.item.id)


def _drop_name(state: ZoneState, copy: ObjectNameRecord) -> None:
    state.objects.pop(copy.sort_key, None)
    state.referenced.discard(copy.sort_key)


def _drop_awaited(state: ZoneState, copy: AwaitedObjectRecord) -> None:
    if copy.sort_key not in state.objects:
        state.referenced.discard(copy.sort_key)


def _drop_link(state: ZoneState, copy: LinkRecord) -> None:
    state.links.pop(copy.link.peer, None)


_DISCARDS: dict[type[TransferRecord], Callable[[ZoneState, Any], None]] = {
    GapRecord: _drop_gap,
    ConsumerCursorRecord: _drop_consumer,
    QuarantineRecord: _drop_item,
    ObjectNameRecord: _drop_name,
    AwaitedObjectRecord: _drop_awaited,
    LinkRecord: _drop_link,
}
