"""Copies of a zone, out of a stream and into it."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from functools import partial
from itertools import islice
from typing import Any, cast

from ergon_framework.boundary.factstore.hashchain import new_of, prepare
from ergon_framework.boundary.factstore.nats.append import StreamPlacement
from ergon_framework.boundary.factstore.nats.consumers import items_of, quarantined, whole_mark
from ergon_framework.boundary.factstore.nats.database import NatsDatabase
from ergon_framework.boundary.factstore.nats.log import NatsLog
from ergon_framework.boundary.factstore.nats.objects_and_links import drop_name, put_name
from ergon_framework.boundary.factstore.nats.pages import all_after
from ergon_framework.boundary.factstore.nats.schema import (
    LAST,
    Attribute,
    ConsumerRecord,
    JournalNote,
    Known,
    LogState,
    Mark,
    ObjectRecord,
    QuarantineMessage,
    ZoneRecord,
    read_id,
)
from ergon_framework.boundary.factstore.nats.session import StreamTransaction
from ergon_framework.boundary.factstore.nats.setup import MOVED_TO
from ergon_framework.boundary.factstore.page_plan import Hole
from ergon_framework.boundary.factstore.parts import StoreParts
from ergon_framework.boundary.factstore.records import (
    bounded,
    corrupted,
    dump_books,
    refuse_hole,
    refuse_other_chain,
    refuse_other_log,
)
from ergon_framework.ports.factstore import ConsumerInfo, Gap, Quarantined
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


def put(records: Sequence[TransferRecord], transaction: StreamTransaction) -> None:
    """Write records of one kind, in order."""
    if isinstance(records[0], FactIdRecord):
        _put_ids(transaction, cast("Sequence[FactIdRecord]", records))
        return
    transaction.is_moving = isinstance(records[0], FactRecord)
    for copy in records:
        _LOADS[type(copy)](transaction, copy)


def drop(records: Sequence[TransferRecord], transaction: StreamTransaction) -> None:
    """Delete records of one kind, those of them that are there."""
    for copy in records:
        _DISCARDS[type(copy)](transaction, copy)


def refuse_log(copy: LogRecord, transaction: StreamTransaction) -> None:
    """Refuse a log unless the store has none of that name, or an earlier state of it."""
    log_state = transaction.log_state(copy.log)
    if log_state is not None:
        refuse_other_log(copy, log_state.number, log_state.first)


# ---- in -----------------------------------------------------------------------------------------


def _put_log(transaction: StreamTransaction, copy: LogRecord) -> None:
    refuse_log(copy, transaction)
    log_state = transaction.log_state(copy.log)
    if log_state is not None and log_state.head >= log_state.first:
        return
    new = LogState(copy.log, copy.number, copy.first, 0, copy.chain, copy.total)
    new.cut_at, new.cut_latest = copy.last_at, dict(copy.latest)
    new.head, new.chain, new.total = copy.first - 1, copy.chain, copy.total
    new.last_at, new.latest = copy.last_at, dict(copy.latest)
    if log_state is not None:
        new.first_seq, new.gaps = log_state.first_seq, log_state.gaps
    transaction.replace_log_state(new)
    tally = transaction.tally
    tally.logs = max(tally.logs, copy.number)
    transaction.put(transaction.subjects.tally, tally)


def _put_fact(transaction: StreamTransaction, copy: FactRecord) -> None:
    log_state = transaction.log_state_or_new(copy.log)
    if copy.fact.offset > log_state.head:
        refuse_hole(copy, log_state.head)
        fact = prepare(copy.log, new_of(copy.fact))
        StreamPlacement(transaction, copy.fact.recorded_at, {}).place(copy.log, fact)
        refuse_other_chain(copy, log_state.chain)


def _put_ids(transaction: StreamTransaction, records: Sequence[FactIdRecord]) -> None:
    logs = [log_state.name for log_state in transaction.log_states()]
    known = transaction.known([copy.key for copy in records], logs)
    for copy in records:
        if copy.key not in known:
            transaction.add_id(copy.key, Known(copy.offset, copy.digest))


def _put_gap(transaction: StreamTransaction, copy: GapRecord) -> None:
    gap = copy.gap
    transaction.log_state_or_new(gap.log).gaps += 1
    transaction.put(_gap_subject(transaction, gap), gap)


def _put_consumer(transaction: StreamTransaction, copy: ConsumerCursorRecord) -> None:
    subject = transaction.subjects.consumer(copy.consumer.name)
    kept = transaction.get(ConsumerRecord, subject)
    names = {each.name for each in fields(ConsumerRecord)} & {
        each.name for each in fields(ConsumerInfo)
    }
    one = ConsumerRecord(**{name: getattr(copy.consumer, name) for name in names})
    one.items_above = 0 if kept is None else kept.items_above
    transaction.put(subject, one)


def _put_item(transaction: StreamTransaction, copy: QuarantineRecord) -> None:
    values = {each.name: getattr(copy.item, each.name) for each in fields(Quarantined)}
    item = QuarantineMessage(**values, is_served=copy.is_served)
    transaction.put(transaction.subjects.item(item.consumer, item.id), item)
    if item.envelope or item.fact:
        transaction.put(
            whole_mark(transaction, item), QuarantineMessage(item.id, "", "", 0, "", "", 0, item.at)
        )
    one = transaction.get(ConsumerRecord, transaction.subjects.consumer(item.consumer))
    if one is not None:
        one.nothing_released, one.aside_through = -1, LAST
        transaction.put(transaction.subjects.consumer(item.consumer), one)
    tally = transaction.tally
    tally.items = max(tally.items, item.id)
    transaction.put(transaction.subjects.tally, tally)


def _put_name(transaction: StreamTransaction, copy: ObjectNameRecord) -> None:
    new, kept = (
        copy.object,
        transaction.get(ObjectRecord, transaction.subjects.object(*copy.sort_key)),
    )
    if kept is not None and kept.digest and (kept.digest, kept.size) != (new.digest, new.size):
        drop_name(transaction, kept)
        kept = None
    name = ObjectRecord(new.bucket, new.key, new.digest, new.size, new.at, new.is_referenced)
    put_name(transaction, name, is_new=kept is None or not kept.digest)


def _put_awaited(transaction: StreamTransaction, copy: AwaitedObjectRecord) -> None:
    subject = transaction.subjects.object(copy.bucket, copy.key)
    name = transaction.get(ObjectRecord, subject) or ObjectRecord(copy.bucket, copy.key)
    name.is_referenced = True
    transaction.put(subject, name)


def _put_link(transaction: StreamTransaction, copy: LinkRecord) -> None:
    transaction.put(transaction.subjects.link(copy.link.peer), copy.link)


def _put_note(transaction: StreamTransaction, copy: JournalRecord) -> None:
    tally = transaction.tally
    if copy.position > tally.notes:
        tally.notes = copy.position
        transaction.put(transaction.subjects.tally, tally)
        note = JournalNote(copy.at, copy.action, copy.details)
        transaction.put(transaction.subjects.note(copy.position), note)


def _put_zone(transaction: StreamTransaction, copy: ZoneEpochRecord) -> None:
    info = copy.info
    transaction.put(transaction.subjects.zone, ZoneRecord(info.zone, info.epoch, info.created_at))


_LOADS: dict[type[TransferRecord], Callable[[StreamTransaction, Any], None]] = {
    LogRecord: _put_log,
    FactRecord: _put_fact,
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


def _gap_subject(transaction: StreamTransaction, gap: Gap) -> str:
    return transaction.subjects.gap(gap.log, gap.first, is_ours=gap.source_first is None)


def _drop_gap(transaction: StreamTransaction, copy: GapRecord) -> None:
    subject = _gap_subject(transaction, copy.gap)
    if transaction.get(Gap, subject) == copy.gap:
        transaction.put(subject, None)


def _drop_consumer(transaction: StreamTransaction, copy: ConsumerCursorRecord) -> None:
    subject = transaction.subjects.consumer(copy.consumer.name)
    one = transaction.get(ConsumerRecord, subject)
    if one is not None and not one.is_gone:
        one.is_gone = True
        transaction.put(subject, one)


def _drop_item(transaction: StreamTransaction, copy: QuarantineRecord) -> None:
    subject = transaction.subjects.item(copy.item.consumer, copy.item.id)
    item = transaction.get(QuarantineMessage, subject)
    if item is not None:
        transaction.put(subject, None)
        if item.envelope or item.fact:
            transaction.put(whole_mark(transaction, item), None)


def _drop_name(transaction: StreamTransaction, copy: ObjectNameRecord) -> None:
    name = transaction.get(ObjectRecord, transaction.subjects.object(*copy.sort_key))
    if name is not None and name.digest:
        drop_name(transaction, name)


def _drop_awaited(transaction: StreamTransaction, copy: AwaitedObjectRecord) -> None:
    subject = transaction.subjects.object(*copy.sort_key)
    name = transaction.get(ObjectRecord, subject)
    if name is not None and not name.digest:
        transaction.put(subject, None)


def _drop_link(transaction: StreamTransaction, copy: LinkRecord) -> None:
    subject = transaction.subjects.link(copy.link.peer)
    if transaction.get(type(copy.link), subject) is not None:
        transaction.put(subject, None)


_DISCARDS: dict[type[TransferRecord], Callable[[StreamTransaction, Any], None]] = {
    GapRecord: _drop_gap,
    ConsumerCursorRecord: _drop_consumer,
    QuarantineRecord: _drop_item,
    ObjectNameRecord: _drop_name,
    AwaitedObjectRecord: _drop_awaited,
    LinkRecord: _drop_link,
}


_DIGEST = 16
_MOVING = "moving"
"""The attribute of the store that says which move has it, and until when."""
MAX_RECORDS = 300
"""The most records in one commit: each is a few messages, and a batch takes only so many."""


class NatsFactRecords:
    """The part of the store that is copied: all that it holds, as records."""

    def __init__(self, database: NatsDatabase, log: NatsLog, parts: StoreParts) -> None:
        self._database = database
        self._log = log
        self._parts = parts

    def dump(self, kind: type[C], after: Any, limit: int) -> list[C]:
        """The records of a kind after a place, in order."""
        if kind is FactIdRecord:
            found = self._database.read(
                lambda transaction: list(islice(ids_after(transaction, after or b""), limit))
            )
            return cast("list[C]", found)
        read = partial(_facts, self._database.url) if kind is FactRecord else _DUMPS.get(kind)
        if read is None:
            return dump_books(self._parts, kind, after, limit)
        return self._database.read(
            lambda transaction: list(bounded(read(transaction, after), limit))
        )

    def load(self, records: Sequence[TransferRecord], fence: Fence | None = None) -> None:
        """Write records of one kind in order; many of them in several commits, if all fit."""
        with self._database.guard.set(_check_of(fence)):
            for copy in records:
                if isinstance(copy, LogRecord):
                    # Before anything is dropped: a log that is no earlier copy of this one has to
                    # stay as it is.
                    self._database.read(partial(refuse_log, copy))
                    self._log.drop(copy.log, partial(_up_to, copy.first - 1))
            if len(records) > MAX_RECORDS and isinstance(records[0], FactRecord):
                self._database.read(partial(put, records))  # which writes nothing, but refuses
            self._in_parts(put, records)

    def discard(self, records: Sequence[TransferRecord], fence: Fence | None = None) -> None:
        """Delete records of one kind, those of them that are there."""
        with self._database.guard.set(_check_of(fence)):
            self._in_parts(drop, records)

    def _in_parts(
        self, work: Callable[[Sequence[Any], StreamTransaction], None], things: Sequence[Any]
    ) -> None:
        for start in range(0, len(things), MAX_RECORDS):
            part = things[start : start + MAX_RECORDS]
            self._database.transaction(partial(work, part), "move")

    def move_state(self) -> bytes | None:
        """What was written down about a move into this store."""
        return self._database.read(_mark)

    def set_move_state(self, state: bytes | None, fence: Fence | None = None) -> None:
        """Write something down about a move into this store, or forget it."""
        record = None if state is None else Mark(state)

        def work(transaction: StreamTransaction) -> None:
            if fence is not None:
                fence.check_change(_mark(transaction), state)
            transaction.put(transaction.subjects.mark, record)

        self._database.transaction(work, "move")

    def lease_move(self, token: str, seconds: float, *, renews: bool = False) -> bool:
        """Take, renew or give back the lease of the one move that may shut or open the store."""

        def work(transaction: StreamTransaction) -> bool:
            subject = transaction.subjects.attribute(_MOVING)
            found = transaction.get(Attribute, subject)
            holder, _, until = ("" if found is None else found.value).partition(" ")
            now = self._database.opening.server_time()
            if holder != token and (renews or (holder and float(until) > now)):
                return False
            transaction.put(subject, Attribute(f"{token} {now + seconds}"))
            return True

        return self._database.transaction(work, "move")

    def freeze(self, place: str | None, fence: Fence | None = None) -> None:
        """Refuse every write, or allow writes again. Writing the attribute makes other clients read
        it. A client that writes only one consumer does not read it, so its write is made to
        conflict.
        """
        self._database.refuse_reader()
        opening = self._database.opening

        def say(transaction: StreamTransaction) -> None:
            record = None if place is None else Attribute(place)
            transaction.put(transaction.subjects.attribute(MOVED_TO), record)

        with self._database.guard.set(_check_of(fence)):
            self._database.transaction(say, "move")
            if not opening.is_moving:
                opening.look_at_the_attribute()
                self._database.transaction(say, "move")
            names = self._database.read(
                lambda transaction: sorted(
                    transaction.all(ConsumerRecord, transaction.subjects.consumers)
                )
            )
            self._in_parts(_rewrite, names)
        self._database.moved_to = place or ""
        opening.tell_earlier_versions(place)


def _check_of(fence: Fence | None) -> Callable[[StreamTransaction], None] | None:
    """What each transaction of a move looks at first; its commit depends on what it read."""
    return None if fence is None else lambda transaction: fence.check(_mark(transaction))


def _mark(transaction: StreamTransaction) -> bytes | None:
    found = transaction.get(Mark, transaction.subjects.mark)
    return None if found is None else found.data


def _rewrite(consumers: Sequence[str], transaction: StreamTransaction) -> None:
    for subject in consumers:
        transaction.put(subject, transaction.get(ConsumerRecord, subject))


def _up_to(last: int, _: StreamTransaction) -> int:
    return last


def ids_after(transaction: StreamTransaction, after: bytes) -> Iterator[FactIdRecord]:
    """Ids in the order of their keys.

    The ledger is read as it is now: what was young when the books were opened may be there, too.
    """
    young = [
        _id_copy(key, known)
        for log_state in transaction.log_states()
        for key, known in log_state.young.items()
    ]
    for copy in heapq.merge(_sealed(transaction, after), sorted(young, key=_key), key=_key):
        if copy.key > after:
            after = copy.key
            yield copy


def _key(copy: FactIdRecord) -> bytes:
    return copy.key


def _sealed(transaction: StreamTransaction, after: bytes) -> Iterator[FactIdRecord]:
    """Ids of the ledger in the order of their keys, gathered a stretch at a time."""
    for first in range(after[0] if after else 0, 256):
        digits = f"{first:02x}"
        parts = (
            [(digits,)]
            if transaction.stream.has_few(transaction.subjects.ids(digits))
            else _longer_prefixes(digits)
        )
        for part in parts:
            found = transaction.stream.latest([transaction.subjects.ids(*part)])
            keys = (bytes.fromhex("".join(each.subject.split(".")[-3:])) for each in found)
            records = (
                _id_copy(key, read_id(each.data)) for key, each in zip(keys, found, strict=True)
            )
            yield from sorted(records, key=_key)


def _longer_prefixes(digits: str) -> list[tuple[str, ...]]:
    return [(digits, f"{second:02x}") for second in range(256)]


def _id_copy(key: bytes, known: Known) -> FactIdRecord:
    return FactIdRecord(key, known.digest[:_DIGEST], known.offset)


def _logs(transaction: StreamTransaction, after: int | None) -> Iterator[LogRecord]:
    for log_state in sorted(transaction.log_states(), key=lambda each: each.number):
        if log_state.number > (after or 0):
            yield LogRecord(
                log_state.number,
                log_state.name,
                log_state.first,
                log_state.cut_chain,
                log_state.cut_total,
                None if log_state.head >= log_state.first else log_state.last_at,
                log_state.cut_latest,
            )


def _facts(
    place: str, transaction: StreamTransaction, after: tuple[int, int] | None
) -> Iterator[FactRecord]:
    number, offset = after or (0, 0)
    for log_state in sorted(transaction.log_states(), key=lambda each: each.number):
        if log_state.number < number:
            continue
        start = offset if log_state.number == number else 0
        for each in all_after(transaction, log_state, start):
            if isinstance(each, Hole):
                raise corrupted(log_state.name, each.offset, place)
            yield FactRecord(log_state.number, log_state.name, each.seen(None), each.chain)


def _items(transaction: StreamTransaction, after: int | None) -> Iterator[QuarantineRecord]:
    found = items_of(transaction, None)
    return (
        QuarantineRecord(quarantined(each), each.is_served)
        for each in found
        if each.id > (after or 0)
    )


def _awaited(
    transaction: StreamTransaction, after: tuple[str, str] | None
) -> Iterator[AwaitedObjectRecord]:
    found = transaction.all(ObjectRecord, transaction.subjects.objects).values()
    names = sorted((each.bucket, each.key) for each in found if not each.digest)
    return (AwaitedObjectRecord(*name) for name in names if after is None or name > after)


def _notes(transaction: StreamTransaction, after: int | None) -> Iterator[JournalRecord]:
    for number in range((after or 0) + 1, transaction.tally.notes + 1):
        note = transaction.get(JournalNote, transaction.subjects.note(number))
        if note is not None:
            yield JournalRecord(number, note.at, note.action, note.details)


_DUMPS: dict[type[TransferRecord], Callable[[StreamTransaction, Any], Iterator[Any]]] = {
    LogRecord: _logs,
    QuarantineRecord: _items,
    AwaitedObjectRecord: _awaited,
    JournalRecord: _notes,
}
