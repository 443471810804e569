"""Adds flows, one for each line it reads, and writes down which of them were acknowledged.

    python -m tests.campaign.programs.flow_producer URL ZONE BOOK

A flow whose producer died, or whose store went away, may be there or not; it must not be there by
half. So each number is tried once: ``began N`` is followed by ``added N`` or by ``unsure N``.
"""

from __future__ import annotations

import sys

from ergon_framework.errors import StoreError
from ergon_framework.jobs.client import JobClient
from tests.campaign.event_file import Book, at_work
from tests.campaign.flow_forms import form_of
from tests.campaign.outage_retry import patiently
from tests.differential.places import Place, open_jobs


def flow_book(path: str) -> Book:
    """Where producers and operators write: apart from the steps, of which there are many."""
    return Book(f"{path}.flows")


def main(url: str, zone: str, path: str) -> None:
    """One flow per line."""
    book = flow_book(path)
    lines = list(book.lines())
    number = sum(words[0] == "began" for words in lines)
    if lines and number > sum(words[0] in {"added", "unsure"} for words in lines):
        book.write(f"unsure {number - 1}")  # the one before this one died
    with JobClient(store=patiently(lambda: open_jobs(Place(url, zone)))) as client:
        at_work()
        for _ in sys.stdin:
            book.write(f"began {number}")
            try:
                form_of(number).add(client, number)
            except StoreError:
                book.write(f"unsure {number}")
            else:
                book.write(f"added {number}")
            number += 1


if __name__ == "__main__":
    main(*sys.argv[1:])
