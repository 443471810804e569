"""Reads facts as whichever consumer is free, and writes down what the store accepted.

    python -m tests.campaign.programs.reader URL ZONE BOOK

Now and then a fact is set aside. What was confirmed without our hearing of it is not written down;
what was refused, or lost on the way, is fetched again.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import closing
from itertools import cycle

from ergon_framework.errors import ConsumerHeldError, StoreError
from ergon_framework.ports.factstore import FactStore
from tests.campaign.event_file import Book, at_work
from tests.campaign.outage_retry import pause
from tests.campaign.programs.facts import CONSUMERS, opened

LEASE = 1.0
PAGE = 7
FAILS = 13
"""Every fact whose offset is a multiple of it is set aside."""


def read(store: FactStore, name: str, holder: str, book: Book) -> bool:
    """Deal with one page; whether there was anything on it."""
    served = store.serve(name, PAGE, 1 << 20, holder=holder, lease=LEASE)
    cursor, page = served.consumer.cursor, served.page
    book.write(*(f"read {name} {fact.offset} {fact.message_id}" for fact in page.facts))
    for fact in page.facts:
        if fact.offset % FAILS == 0:
            cursor = _confirm(store, name, cursor, fact.offset - 1, holder, book)
            store.set_aside(
                name, fact.offset, reason="handler_failed", message="", attempts=1, holder=holder
            )
            book.write(f"aside {name} {fact.offset}")
            cursor = fact.offset
    _confirm(store, name, cursor, page.through, holder, book)
    return bool(page.facts)


def _confirm(
    store: FactStore, name: str, cursor: int, through: int, holder: str, book: Book
) -> int:
    if through > cursor:
        store.confirm(name, through, holder=holder)
        book.write(f"confirmed {name} {cursor} {through}")
    return max(cursor, through)


def main(url: str, zone: str, path: str) -> None:
    """One page after another, until told to stop."""
    book, holder = Book(path), f"reader-{os.getpid()}"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with closing(opened(url, zone)) as store:
        at_work()
        for name in cycle(CONSUMERS):
            try:
                if not read(store, name, holder, book):
                    store.release_lease(name, holder)
                    pause(0.01)
            except (ConsumerHeldError, StoreError):
                pause(0.01)


if __name__ == "__main__":
    main(*sys.argv[1:])
