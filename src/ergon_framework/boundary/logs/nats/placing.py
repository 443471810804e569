"""Copies of one kind on their way into a stream, and out of it again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, cast

from ergon_framework.boundary.logs.moving import (
    refuse_hole,
    refuse_other_chain,
    refuse_other_log,
)
from ergon_framework.boundary.logs.nats.books import Books
from ergon_framework.boundary.logs.nats.coding import LAST, Item, Name, Note, Reader, ZoneRecord
from ergon_framework.boundary.logs.nats.entering import Entering
from ergon_framework.boundary.logs.nats.entries import Known
from ergon_framework.boundary.logs.nats.objects import drop_name, put_name
from ergon_framework.boundary.logs.nats.quarantine import whole_mark
from ergon_framework.boundary.logs.nats.shelves import Shelf
from ergon_framework.boundary.logs.records import new_of, prepare
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


def put(copies: Sequence[Copy], books: Books) -> None:
    """Put copies of one kind in, in order."""
    if isinstance(copies[0], IdCopy):
        _put_ids(books, cast("Sequence[IdCopy]", copies))
        return
    books.is_moving = isinstance(copies[0], FactCopy)
    for copy in copies:
        _LOADS[type(copy)](books, copy)


def drop(copies: Sequence[Copy], books: Books) -> None:
    """Take copies of one kind out; those that are not there are fine."""
    for copy in copies:
        _DISCARDS[type(copy)](books, copy)


def refuse_log(copy: LogCopy, books: Books) -> None:
    """A log that is there must be an earlier state of the copy."""
    shelf = books.shelf(copy.log)
    if shelf is not None:
        refuse_other_log(copy, shelf.number, shelf.first)


# ---- in -----------------------------------------------------------------------------------------


def _put_log(books: Books, copy: LogCopy) -> None:
    refuse_log(copy, books)
    shelf = books.shelf(copy.log)
    if shelf is not None and shelf.head >= shelf.first:
        return
    new = Shelf(copy.log, copy.number, copy.first, 0, copy.chain, copy.total)
    new.cut_at, new.cut_latest = copy.last_at, dict(copy.latest)
    new.head, new.chain, new.total = copy.first - 1, copy.chain, copy.total
    new.last_at, new.latest = copy.last_at, dict(copy.latest)
    if shelf is not None:
        new.first_seq, new.gaps = shelf.first_seq, shelf.gaps
    books.replace_shelf(new)
    tally = books.tally
    tally.logs = max(tally.logs, copy.number)
    books.put(books.subjects.tally, tally)


def _put_fact(books: Books, copy: FactCopy) -> None:
    shelf = books.shelf_or_new(copy.log)
    if copy.fact.offset > shelf.head:
        refuse_hole(copy, shelf.head)
        fact = prepare(copy.log, new_of(copy.fact))
        Entering(books, copy.fact.recorded_at, {}).add(copy.log, fact)
        refuse_other_chain(copy, shelf.chain)


def _put_ids(books: Books, copies: Sequence[IdCopy]) -> None:
    logs = [shelf.name for shelf in books.shelves()]
    known = books.known([copy.key for copy in copies], logs)
    for copy in copies:
        if copy.key not in known:
            books.add_id(copy.key, Known(copy.offset, copy.digest))


def _put_gap(books: Books, copy: GapCopy) -> None:
    gap = copy.gap
    books.shelf_or_new(gap.log).gaps += 1
    books.put(_gap_subject(books, gap), gap)


def _put_consumer(books: Books, copy: ConsumerCopy) -> None:
    subject = books.subjects.consumer(copy.consumer.name)
    kept = books.get(Reader, subject)
    names = {each.name for each in fields(Reader)} & {each.name for each in fields(ConsumerInfo)}
    one = Reader(**{name: getattr(copy.consumer, name) for name in names})
    one.items_above = 0 if kept is None else kept.items_above
    books.put(subject, one)


def _put_item(books: Books, copy: ItemCopy) -> None:
    values = {each.name: getattr(copy.item, each.name) for each in fields(Quarantined)}
    item = Item(**values, is_served=copy.is_served)
    books.put(books.subjects.item(item.consumer, item.id), item)
    if item.envelope or item.fact:
        books.put(whole_mark(books, item), Item(item.id, "", "", 0, "", "", 0, item.at))
    one = books.get(Reader, books.subjects.consumer(item.consumer))
    if one is not None:
        one.nothing_released, one.aside_through = -1, LAST
        books.put(books.subjects.consumer(item.consumer), one)
    tally = books.tally
    tally.items = max(tally.items, item.id)
    books.put(books.subjects.tally, tally)


def _put_name(books: Books, copy: NameCopy) -> None:
    new, kept = copy.object, books.get(Name, books.subjects.object(*copy.place))
    if kept is not None and kept.digest and (kept.digest, kept.size) != (new.digest, new.size):
        drop_name(books, kept)
        kept = None
    name = Name(new.bucket, new.key, new.digest, new.size, new.at, new.is_referenced)
    put_name(books, name, is_new=kept is None or not kept.digest)


def _put_awaited(books: Books, copy: AwaitedCopy) -> None:
    subject = books.subjects.object(copy.bucket, copy.key)
    name = books.get(Name, subject) or Name(copy.bucket, copy.key)
    name.is_referenced = True
    books.put(subject, name)


def _put_link(books: Books, copy: LinkCopy) -> None:
    books.put(books.subjects.link(copy.link.peer), copy.link)


def _put_note(books: Books, copy: NoteCopy) -> None:
    tally = books.tally
    if copy.position > tally.notes:
        tally.notes = copy.position
        books.put(books.subjects.tally, tally)
        note = Note(copy.at, copy.action, copy.details)
        books.put(books.subjects.note(copy.position), note)


def _put_zone(books: Books, copy: ZoneCopy) -> None:
    info = copy.info
    books.put(books.subjects.zone, ZoneRecord(info.zone, info.epoch, info.created_at))


_LOADS: dict[type[Copy], Callable[[Books, Any], None]] = {
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


def _gap_subject(books: Books, gap: Gap) -> str:
    return books.subjects.gap(gap.log, gap.first, is_ours=gap.source_first is None)


def _drop_gap(books: Books, copy: GapCopy) -> None:
    subject = _gap_subject(books, copy.gap)
    if books.get(Gap, subject) == copy.gap:
        books.put(subject, None)


def _drop_consumer(books: Books, copy: ConsumerCopy) -> None:
    subject = books.subjects.consumer(copy.consumer.name)
    one = books.get(Reader, subject)
    if one is not None and not one.is_gone:
        one.is_gone = True
        books.put(subject, one)


def _drop_item(books: Books, copy: ItemCopy) -> None:
    subject = books.subjects.item(copy.item.consumer, copy.item.id)
    item = books.get(Item, subject)
    if item is not None:
        books.put(subject, None)
        if item.envelope or item.fact:
            books.put(whole_mark(books, item), None)


def _drop_name(books: Books, copy: NameCopy) -> None:
    name = books.get(Name, books.subjects.object(*copy.place))
    if name is not None and name.digest:
        drop_name(books, name)


def _drop_awaited(books: Books, copy: AwaitedCopy) -> None:
    subject = books.subjects.object(*copy.place)
    name = books.get(Name, subject)
    if name is not None and not name.digest:
        books.put(subject, None)


def _drop_link(books: Books, copy: LinkCopy) -> None:
    subject = books.subjects.link(copy.link.peer)
    if books.get(type(copy.link), subject) is not None:
        books.put(subject, None)


_DISCARDS: dict[type[Copy], Callable[[Books, Any], None]] = {
    GapCopy: _drop_gap,
    ConsumerCopy: _drop_consumer,
    ItemCopy: _drop_item,
    NameCopy: _drop_name,
    AwaitedCopy: _drop_awaited,
    LinkCopy: _drop_link,
}
