"""Copies of a zone, out of a stream and into it."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, cast

from ergon_framework.boundary.logs.moving import bounded, corrupted, dump_books
from ergon_framework.boundary.logs.nats import entries, pages, placing
from ergon_framework.boundary.logs.nats.books import Books
from ergon_framework.boundary.logs.nats.coding import Mark, Name, Note, Reader
from ergon_framework.boundary.logs.nats.entries import Known
from ergon_framework.boundary.logs.nats.quarantine import given, items_of
from ergon_framework.boundary.logs.nats.retention import NatsRetention
from ergon_framework.ports.copies import (
    AwaitedCopy,
    Copy,
    FactCopy,
    IdCopy,
    ItemCopy,
    LogCopy,
    NoteCopy,
)
from ergon_framework.ports.moving import C

_DIGEST = 16
MOST_COPIES = 300
"""Of one commit: each is a few messages, and a batch has an end."""


class NatsMoving(NatsRetention):
    """What a move needs."""

    def dump(self, kind: type[C], after: Any, limit: int) -> list[C]:
        """The copies of a kind after a place, in order."""
        if kind is IdCopy:
            found = self._look(lambda books: list(islice(_ids(books, after or b""), limit)))
            return cast("list[C]", found)
        read = partial(_facts, self.url) if kind is FactCopy else _DUMPS.get(kind)
        if read is None:
            return dump_books(cast("Any", self), kind, after, limit)
        return self._look(lambda books: list(bounded(read(books, after), limit)))

    def load(self, copies: Sequence[Copy]) -> None:
        """Put copies of one kind in, in order; many in several commits, if all of them fit."""
        for copy in copies:
            if isinstance(copy, LogCopy):
                self._look(partial(placing.refuse_log, copy))
                self._drop(copy.log, partial(_up_to, copy.first - 1))
        if len(copies) > MOST_COPIES and isinstance(copies[0], FactCopy):
            self._look(partial(placing.put, copies))  # which writes nothing, but refuses
        for start in range(0, len(copies), MOST_COPIES):
            self._step(partial(placing.put, copies[start : start + MOST_COPIES]), "move")

    def discard(self, copies: Sequence[Copy]) -> None:
        """Take copies of one kind out; those that are not there are fine."""
        for start in range(0, len(copies), MOST_COPIES):
            self._step(partial(placing.drop, copies[start : start + MOST_COPIES]), "move")

    def mark(self) -> bytes | None:
        """What was written down about a move into this store."""
        found = self._look(lambda books: books.get(Mark, books.subjects.mark))
        return None if found is None else found.data

    def set_mark(self, mark: bytes | None) -> None:
        """Write something down about a move into this store, or forget it."""
        record = None if mark is None else Mark(mark)
        self._step(lambda books: books.put(books.subjects.mark, record), "move")

    def bar(self, place: str | None) -> None:
        """Refuse whatever is written, or let it in again.

        Setting the mark makes others look. Who is about to write one consumer, and looks at nothing
        else, is overtaken there.
        """
        self._refuse_reader()
        self._opening.bar(place)
        names = self._look(lambda books: sorted(books.all(Reader, books.subjects.consumers)))
        for start in range(0, len(names), MOST_COPIES):
            self._step(partial(_rewrite, names[start : start + MOST_COPIES]), "move")


def _rewrite(consumers: Sequence[str], books: Books) -> None:
    for subject in consumers:
        books.put(subject, books.get(Reader, subject))


def _up_to(last: int, _: Books) -> int:
    return last


def _ids(books: Books, after: bytes) -> Iterator[IdCopy]:
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


def _sealed(books: Books, after: bytes) -> Iterator[IdCopy]:
    """Ids of the ledger in the order of their keys, gathered a stretch at a time."""
    for first in range(after[0] if after else 0, 256):
        digits = f"{first:02x}"
        parts = [(digits,)] if books.stream.has_few(books.subjects.ids(digits)) else _finer(digits)
        for part in parts:
            found = books.stream.latest([books.subjects.ids(*part)])
            keys = (bytes.fromhex("".join(each.subject.split(".")[-3:])) for each in found)
            copies = (
                _id_copy(key, entries.read_id(each.data))
                for key, each in zip(keys, found, strict=True)
            )
            yield from sorted(copies, key=_key)


def _finer(digits: str) -> list[tuple[str, ...]]:
    return [(digits, f"{second:02x}") for second in range(256)]


def _id_copy(key: bytes, known: Known) -> IdCopy:
    return IdCopy(key, known.digest[:_DIGEST], known.offset)


def _logs(books: Books, after: int | None) -> Iterator[LogCopy]:
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


def _facts(place: str, books: Books, after: tuple[int, int] | None) -> Iterator[FactCopy]:
    number, offset = after or (0, 0)
    for shelf in sorted(books.shelves(), key=lambda each: each.number):
        if shelf.number < number:
            continue
        start = offset if shelf.number == number else 0
        for each in pages.all_after(books, shelf, start):
            if isinstance(each, pages.Hole):
                raise corrupted(shelf.name, each.offset, place)
            yield FactCopy(shelf.number, shelf.name, each.seen(None), each.chain)


def _items(books: Books, after: int | None) -> Iterator[ItemCopy]:
    found = items_of(books, None)
    return (ItemCopy(given(each), each.is_served) for each in found if each.id > (after or 0))


def _awaited(books: Books, after: tuple[str, str] | None) -> Iterator[AwaitedCopy]:
    found = books.all(Name, books.subjects.objects).values()
    names = sorted((each.bucket, each.key) for each in found if not each.digest)
    return (AwaitedCopy(*name) for name in names if after is None or name > after)


def _notes(books: Books, after: int | None) -> Iterator[NoteCopy]:
    for number in range((after or 0) + 1, books.tally.notes + 1):
        note = books.get(Note, books.subjects.note(number))
        if note is not None:
            yield NoteCopy(number, note.at, note.action, note.details)


_DUMPS: dict[type[Copy], Callable[[Books, Any], Iterator[Any]]] = {
    LogCopy: _logs,
    ItemCopy: _items,
    AwaitedCopy: _awaited,
    NoteCopy: _notes,
}
