"""Adds batches of jobs, one for each line it reads, and writes down what was acknowledged.

    python -m tests.campaign.programs.producer URL ZONE BOOK

Started again, it goes on behind the last batch that was acknowledged. A batch that was added
without our hearing of it is known by its ids, and must be there whole.
"""

from __future__ import annotations

import sys
from contextlib import closing

from ergon_framework.errors import DuplicateJobError
from ergon_framework.ports.jobstore import FullJobStore, NewJob
from tests.campaign.event_file import Book, at_work
from tests.campaign.outage_retry import patiently
from tests.differential.places import Place, open_jobs

BATCH = 10
SLOW = 50
"""One job of so many takes long."""


def ids(batch: int) -> list[str]:
    """The ids of a batch."""
    return [f"job-{batch * BATCH + n}" for n in range(BATCH)]


def jobs(batch: int) -> list[NewJob]:
    """The jobs of a batch."""
    numbers = range(batch * BATCH, (batch + 1) * BATCH)
    return [NewJob(id=f"job-{n}", handler="any" if n % SLOW else "slow") for n in numbers]


def add(store: FullJobStore, batch: int) -> None:
    """See that it is there; half of it must never be."""
    try:
        patiently(lambda: store.add(jobs(batch)))
    except DuplicateJobError:
        found = [patiently(lambda each=each: store.find(each)) for each in ids(batch)]  # type: ignore[misc]
        if None in found:
            sys.exit(f"batch {batch} is there, but not all of it")


def main(url: str, zone: str, path: str) -> None:
    """One batch per line."""
    book = Book(path)
    batch = sum(words[0] == "added" for words in book.lines())
    with closing(patiently(lambda: open_jobs(Place(url, zone)))) as store:
        at_work()
        for _ in sys.stdin:
            add(store, batch)
            book.write(f"added {batch}")
            batch += 1


if __name__ == "__main__":
    main(*sys.argv[1:])
