"""Appends batches of facts, one for each line it reads, and writes down what was acknowledged.

    python -m tests.campaign.programs.appender URL ZONE BOOK

Started again, it goes on behind the last batch that was acknowledged.
"""

from __future__ import annotations

import sys
from contextlib import closing

from ergon_framework.ports.factstore import OUTBOUND, FactStore
from tests.campaign.event_file import Book, at_work
from tests.campaign.outage_retry import patiently
from tests.campaign.programs.facts import BATCH, artifact, fact, opened, places


def append(store: FactStore, zone: str, batch: int) -> str:
    """See that a batch is there; its offsets."""
    known = artifact(batch)
    patiently(lambda: store.bind(known.bucket, known.key, known.digest, known.size))
    first = batch * BATCH
    facts = [fact(zone, first, known)] + [fact(zone, first + n) for n in range(1, BATCH)]
    return places(patiently(lambda: store.append(OUTBOUND, facts)))


def main(url: str, zone: str, path: str) -> None:
    """One batch per line."""
    book = Book(path)
    batch = sum(words[0] == "appended" for words in book.lines())
    with closing(opened(url, zone)) as store:
        at_work()
        for _ in sys.stdin:
            book.write(f"appended {batch} {append(store, zone, batch)}")
            batch += 1


if __name__ == "__main__":
    main(*sys.argv[1:])
