"""Consumers as they are kept, and as everybody sees them."""

from __future__ import annotations

from dataclasses import fields

from ergon_framework.boundary.logs.nats import pages
from ergon_framework.boundary.logs.nats.books import Books
from ergon_framework.boundary.logs.nats.coding import Reader
from ergon_framework.boundary.logs.refusing import unknown
from ergon_framework.ports.factstore import ConsumerInfo

_SHARED = {each.name for each in fields(ConsumerInfo)} & {each.name for each in fields(Reader)}


def reader_named(books: Books, name: str) -> Reader:
    """A consumer that must be there."""
    found = books.get(Reader, books.subjects.consumer(name))
    if found is None or found.is_gone:
        raise unknown(name)
    return found


def info_of(one: Reader) -> ConsumerInfo:
    """A consumer without what is worked out."""
    return ConsumerInfo(**{name: getattr(one, name) for name in _SHARED})


def given(books: Books, one: Reader) -> ConsumerInfo:
    """A consumer with what is worked out."""
    info, shelf = info_of(one), books.shelf(one.log)
    if shelf is not None:
        info.lag, info.waiting_since = pages.waiting(books, shelf, one.cursor, one.to_zone)
    return info
