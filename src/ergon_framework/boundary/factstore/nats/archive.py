"""Copies of a zone, out of a stream and into it."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from functools import partial
from itertools import islice
from typing import Any, cast

from ergon_framework.boundary.factstore.archive import (
    bounded,
    corrupted,
    dump_books,
    refuse_hole,
    refuse_other_chain,
    refuse_other_log,
)
from ergon_framework.boundary.factstore.hashchain import new_of, prepare
from ergon_framework.boundary.factstore.nats import pages, schema
from ergon_framework.boundary.factstore.nats.append import StreamPlacement
from ergon_framework.boundary.factstore.nats.consumers import items_of, quarantined, whole_mark
from ergon_framework.boundary.factstore.nats.database import NatsDatabase
from ergon_framework.boundary.factstore.nats.log import NatsLog
from ergon_framework.boundary.factstore.nats.registry import drop_name, put_name
from ergon_framework.boundary.factstore.nats.schema import (
    LAST,
    ConsumerRecord,
    Item,
    Known,
    LogState,
    Mark,
    Note,
    ObjectRecord,
    ZoneRecord,
)
from ergon_framework.boundary.factstore.nats.session import StreamTransaction
from ergon_framework.boundary.factstore.parts import StoreParts
from ergon_framework.ports.copies import (
    AwaitedCopy,
    ConsumerCopy,
    Copy,
    FactCopy,
    GapCopy,
    IdCopy,
    ItemCopy,
    LinkCopy,
    LogCopy,
    NameCopy,
    NoteCopy,
    ZoneCopy,
)
from ergon_framework.ports.factstore import ConsumerInfo, Gap, Quarantined
from ergon_framework.ports.moving import C


def put(copies: Sequence[Copy], books: StreamTransaction) -> None:
    """Put copies of one kind in, in order."""
    if isinstance(copies[0], IdCopy):
        _put_ids(books, cast("Sequence[IdCopy]", copies))
        return
    books.is_moving = isinstance(copies[0], FactCopy)
    for copy in copies:
        _LOADS[type(copy)](books, copy)


def drop(copies: Sequence[Copy], books: StreamTransaction) -> None:
    """Take copies of one kind out; those that are not there are fine."""
    for copy in copies:
        _DISCARDS[type(copy)](books, copy)


def refuse_log(copy: LogCopy, books: StreamTransaction) -> None:
    """A log that is there must be an earlier state of the copy."""
    shelf = books.shelf(copy.log)
    if shelf is not None:
        refuse_other_log(copy, shelf.number, shelf.first)


# ---- in -----------------------------------------------------------------------------------------


def _put_log(books: StreamTransaction, copy: LogCopy) -> None:
    refuse_log(copy, books)
    shelf = books.shelf(copy.log)
    if shelf is not None and shelf.head >= shelf.first:
        return
    new = LogState(copy.log, copy.number, copy.first, 0, copy.chain, copy.total)
    new.cut_at, new.cut_latest = copy.last_at, dict(copy.latest)
    new.head, new.chain, new.total = copy.first - 1, copy.chain, copy.total
    new.last_at, new.latest = copy.last_at, dict(copy.latest)
    if shelf is not None:
        new.first_seq, new.gaps = shelf.first_seq, shelf.gaps
    books.replace_shelf(new)
    tally = books.tally
    tally.logs = max(tally.logs, copy.number)
    books.put(books.subjects.tally, tally)


def _put_fact(books: StreamTransaction, copy: FactCopy) -> None:
    shelf = books.shelf_or_new(copy.log)
    if copy.fact.offset > shelf.head:
        refuse_hole(copy, shelf.head)
        fact = prepare(copy.log, new_of(copy.fact))
        StreamPlacement(books, copy.fact.recorded_at, {}).place(copy.log, fact)
        refuse_other_chain(copy, shelf.chain)


def _put_ids(books: StreamTransaction, copies: Sequence[IdCopy]) -> None:
    logs = [shelf.name for shelf in books.shelves()]
    known = books.known([copy.key for copy in copies], logs)
    for copy in copies:
        if copy.key not in known:
            books.add_id(copy.key, Known(copy.offset, copy.digest))


def _put_gap(books: StreamTransaction, copy: GapCopy) -> None:
    gap = copy.gap
    books.shelf_or_new(gap.log).gaps += 1
    books.put(_gap_subject(books, gap), gap)


def _put_consumer(books: StreamTransaction, copy: ConsumerCopy) -> None:
    subject = books.subjects.consumer(copy.consumer.name)
    kept = books.get(ConsumerRecord, subject)
    names = {each.name for each in fields(ConsumerRecord)} & {
        each.name for each in fields(ConsumerInfo)
    }
    one = ConsumerRecord(**{name: getattr(copy.consumer, name) for name in names})
    one.items_above = 0 if kept is None else kept.items_above
    books.put(subject, one)


def _put_item(books: StreamTransaction, copy: ItemCopy) -> None:
    values = {each.name: getattr(copy.item, each.name) for each in fields(Quarantined)}
    item = Item(**values, is_served=copy.is_served)
    books.put(books.subjects.item(item.consumer, item.id), item)
    if item.envelope or item.fact:
        books.put(whole_mark(books, item), Item(item.id, "", "", 0, "", "", 0, item.at))
    one = books.get(ConsumerRecord, books.subjects.consumer(item.consumer))
    if one is not None:
        one.nothing_released, one.aside_through = -1, LAST
        books.put(books.subjects.consumer(item.consumer), one)
    tally = books.tally
    tally.items = max(tally.items, item.id)
    books.put(books.subjects.tally, tally)


def _put_name(books: StreamTransaction, copy: NameCopy) -> None:
    new, kept = copy.object, books.get(ObjectRecord, books.subjects.object(*copy.place))
    if kept is not None and kept.digest and (kept.digest, kept.size) != (new.digest, new.size):
        drop_name(books, kept)
        kept = None
    name = ObjectRecord(new.bucket, new.key, new.digest, new.size, new.at, new.is_referenced)
    put_name(books, name, is_new=kept is None or not kept.digest)


def _put_awaited(books: StreamTransaction, copy: AwaitedCopy) -> None:
    subject = books.subjects.object(copy.bucket, copy.key)
    name = books.get(ObjectRecord, subject) or ObjectRecord(copy.bucket, copy.key)
    name.is_referenced = True
    books.put(subject, name)


def _put_link(books: StreamTransaction, copy: LinkCopy) -> None:
    books.put(books.subjects.link(copy.link.peer), copy.link)


def _put_note(books: StreamTransaction, copy: NoteCopy) -> None:
    tally = books.tally
    if copy.position > tally.notes:
        tally.notes = copy.position
        books.put(books.subjects.tally, tally)
        note = Note(copy.at, copy.action, copy.details)
        books.put(books.subjects.note(copy.position), note)


def _put_zone(books: StreamTransaction, copy: ZoneCopy) -> None:
    info = copy.info
    books.put(books.subjects.zone, ZoneRecord(info.zone, info.epoch, info.created_at))


_LOADS: dict[type[Copy], Callable[[StreamTransaction, Any], None]] = {
    LogCopy: _put_log,
    FactCopy: _put_fact,
    GapCopy: _put_gap,
    ConsumerCopy: _put_consumer,
    ItemCopy: _put_item,
    NameCopy: _put_name,
    AwaitedCopy: _put_awaited,
    LinkCopy: _put_link,
    NoteCopy: _put_note,
    ZoneCopy: _put_zone,
}


# ---- away ---------------------------------------------------------------------------------------


def _gap_subject(books: StreamTransaction, gap: Gap) -> str:
    return books.subjects.gap(gap.log, gap.first, is_ours=gap.source_first is None)


def _drop_gap(books: StreamTransaction, copy: GapCopy) -> None:
    subject = _gap_subject(books, copy.gap)
    if books.get(Gap, subject) == copy.gap:
        books.put(subject, None)


def _drop_consumer(books: StreamTransaction, copy: ConsumerCopy) -> None:
    subject = books.subjects.consumer(copy.consumer.name)
    one = books.get(ConsumerRecord, subject)
    if one is not None and not one.is_gone:
        one.is_gone = True
        books.put(subject, one)


def _drop_item(books: StreamTransaction, copy: ItemCopy) -> None:
    subject = books.subjects.item(copy.item.consumer, copy.item.id)
    item = books.get(Item, subject)
    if item is not None:
        books.put(subject, None)
        if item.envelope or item.fact:
            books.put(whole_mark(books, item), None)


def _drop_name(books: StreamTransaction, copy: NameCopy) -> None:
    name = books.get(ObjectRecord, books.subjects.object(*copy.place))
    if name is not None and name.digest:
        drop_name(books, name)


def _drop_awaited(books: StreamTransaction, copy: AwaitedCopy) -> None:
    subject = books.subjects.object(*copy.place)
    name = books.get(ObjectRecord, subject)
    if name is not None and not name.digest:
        books.put(subject, None)


def _drop_link(books: StreamTransaction, copy: LinkCopy) -> None:
    subject = books.subjects.link(copy.link.peer)
    if books.get(type(copy.link), subject) is not None:
        books.put(subject, None)


_DISCARDS: dict[type[Copy], Callable[[StreamTransaction, Any], None]] = {
    GapCopy: _drop_gap,
    ConsumerCopy: _drop_consumer,
    ItemCopy: _drop_item,
    NameCopy: _drop_name,
    AwaitedCopy: _drop_awaited,
    LinkCopy: _drop_link,
}


_DIGEST = 16
MOST_COPIES = 300
"""Of one commit: each is a few messages, and a batch has an end."""


class NatsArchive:
    """The part of the store that is copied: all that it holds, as records."""

    def __init__(self, database: NatsDatabase, log: NatsLog, parts: StoreParts) -> None:
        self._database = database
        self._log = log
        self._parts = parts

    def dump(self, kind: type[C], after: Any, limit: int) -> list[C]:
        """The copies of a kind after a place, in order."""
        if kind is IdCopy:
            found = self._database.read(
                lambda books: list(islice(_ids(books, after or b""), limit))
            )
            return cast("list[C]", found)
        read = partial(_facts, self._database.url) if kind is FactCopy else _DUMPS.get(kind)
        if read is None:
            return dump_books(self._parts, kind, after, limit)
        return self._database.read(lambda books: list(bounded(read(books, after), limit)))

    def load(self, copies: Sequence[Copy]) -> None:
        """Put copies of one kind in, in order; many in several commits, if all of them fit."""
        for copy in copies:
            if isinstance(copy, LogCopy):
                self._database.read(partial(refuse_log, copy))
                self._log.drop(copy.log, partial(_up_to, copy.first - 1))
        if len(copies) > MOST_COPIES and isinstance(copies[0], FactCopy):
            self._database.read(partial(put, copies))  # which writes nothing, but refuses
        for start in range(0, len(copies), MOST_COPIES):
            self._database.transaction(partial(put, copies[start : start + MOST_COPIES]), "move")

    def discard(self, copies: Sequence[Copy]) -> None:
        """Take copies of one kind out; those that are not there are fine."""
        for start in range(0, len(copies), MOST_COPIES):
            self._database.transaction(partial(drop, copies[start : start + MOST_COPIES]), "move")

    def mark(self) -> bytes | None:
        """What was written down about a move into this store."""
        found = self._database.read(lambda books: books.get(Mark, books.subjects.mark))
        return None if found is None else found.data

    def set_mark(self, mark: bytes | None) -> None:
        """Write something down about a move into this store, or forget it."""
        record = None if mark is None else Mark(mark)
        self._database.transaction(lambda books: books.put(books.subjects.mark, record), "move")

    def bar(self, place: str | None) -> None:
        """Refuse whatever is written, or let it in again.

        Setting the mark makes others look. Who is about to write one consumer, and looks at nothing
        else, is overtaken there.
        """
        self._database.refuse_reader()
        self._database.opening.bar(place)
        names = self._database.read(
            lambda books: sorted(books.all(ConsumerRecord, books.subjects.consumers))
        )
        for start in range(0, len(names), MOST_COPIES):
            self._database.transaction(
                partial(_rewrite, names[start : start + MOST_COPIES]), "move"
            )


def _rewrite(consumers: Sequence[str], books: StreamTransaction) -> None:
    for subject in consumers:
        books.put(subject, books.get(ConsumerRecord, subject))


def _up_to(last: int, _: StreamTransaction) -> int:
    return last


def _ids(books: StreamTransaction, after: bytes) -> Iterator[IdCopy]:
    """Ids in the order of their keys.

    The ledger is read as it is now: what was young when the books were opened may be there, too.
    """
    young = [
        _id_copy(key, known) for shelf in books.shelves() for key, known in shelf.young.items()
    ]
    for copy in heapq.merge(_sealed(books, after), sorted(young, key=_key), key=_key):
        if copy.key > after:
            after = copy.key
            yield copy


def _key(copy: IdCopy) -> bytes:
    return copy.key


def _sealed(books: StreamTransaction, after: bytes) -> Iterator[IdCopy]:
    """Ids of the ledger in the order of their keys, gathered a stretch at a time."""
    for first in range(after[0] if after else 0, 256):
        digits = f"{first:02x}"
        parts = [(digits,)] if books.stream.has_few(books.subjects.ids(digits)) else _finer(digits)
        for part in parts:
            found = books.stream.latest([books.subjects.ids(*part)])
            keys = (bytes.fromhex("".join(each.subject.split(".")[-3:])) for each in found)
            copies = (
                _id_copy(key, schema.read_id(each.data))
                for key, each in zip(keys, found, strict=True)
            )
            yield from sorted(copies, key=_key)


def _finer(digits: str) -> list[tuple[str, ...]]:
    return [(digits, f"{second:02x}") for second in range(256)]


def _id_copy(key: bytes, known: Known) -> IdCopy:
    return IdCopy(key, known.digest[:_DIGEST], known.offset)


def _logs(books: StreamTransaction, after: int | None) -> Iterator[LogCopy]:
    for shelf in sorted(books.shelves(), key=lambda each: each.number):
        if shelf.number > (after or 0):
            yield LogCopy(
                shelf.number,
                shelf.name,
                shelf.first,
                shelf.cut_chain,
                shelf.cut_total,
                None if shelf.head >= shelf.first else shelf.last_at,
                shelf.cut_latest,
            )


def _facts(
    place: str, books: StreamTransaction, after: tuple[int, int] | None
) -> Iterator[FactCopy]:
    number, offset = after or (0, 0)
    for shelf in sorted(books.shelves(), key=lambda each: each.number):
        if shelf.number < number:
            continue
        start = offset if shelf.number == number else 0
        for each in pages.all_after(books, shelf, start):
            if isinstance(each, pages.Hole):
                raise corrupted(shelf.name, each.offset, place)
            yield FactCopy(shelf.number, shelf.name, each.seen(None), each.chain)


def _items(books: StreamTransaction, after: int | None) -> Iterator[ItemCopy]:
    found = items_of(books, None)
    return (ItemCopy(quarantined(each), each.is_served) for each in found if each.id > (after or 0))


def _awaited(books: StreamTransaction, after: tuple[str, str] | None) -> Iterator[AwaitedCopy]:
    found = books.all(ObjectRecord, books.subjects.objects).values()
    names = sorted((each.bucket, each.key) for each in found if not each.digest)
    return (AwaitedCopy(*name) for name in names if after is None or name > after)


def _notes(books: StreamTransaction, after: int | None) -> Iterator[NoteCopy]:
    for number in range((after or 0) + 1, books.tally.notes + 1):
        note = books.get(Note, books.subjects.note(number))
        if note is not None:
            yield NoteCopy(number, note.at, note.action, note.details)


_DUMPS: dict[type[Copy], Callable[[StreamTransaction, Any], Iterator[Any]]] = {
    LogCopy: _logs,
    ItemCopy: _items,
    AwaitedCopy: _awaited,
    NoteCopy: _notes,
}
