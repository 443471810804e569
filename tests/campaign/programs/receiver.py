"""Receives batches of a peer's facts, one for each line it reads, as a puller would.

    python -m tests.campaign.programs.receiver URL ZONE BOOK

Started again, it goes on where the link in the store says that it was.
"""

from __future__ import annotations

import sys
from contextlib import closing

from ergon_framework.ports.factstore import FactStore, Link
from tests.campaign.event_file import Book, at_work
from tests.campaign.outage_retry import patiently
from tests.campaign.programs.facts import BATCH, PEER, fact, opened, places


def receive(store: FactStore, done: int) -> str:
    """Take what comes after an offset of the peer; where it lies here."""
    offsets = range(done + 1, done + BATCH + 1)
    facts = [fact(PEER, offset, source=offset) for offset in offsets]
    link = Link(PEER, "epoch", offsets[-1])
    return places(patiently(lambda: store.receive(PEER, facts, link)))


def main(url: str, zone: str, path: str) -> None:
    """One batch per line."""
    book = Book(path)
    with closing(opened(url, zone)) as store:
        at_work()
        for _ in sys.stdin:
            done = patiently(lambda: store.link(PEER)).offset
            book.write(f"received {done // BATCH} {receive(store, done)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
