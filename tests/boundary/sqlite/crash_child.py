"""Uses a store until it dies at a failpoint, and says on standard output what was acknowledged.

    ERGON_FAILPOINTS=boundary.append.before=kill@7 python crash_child.py URL

Run again on what is left, it does the same from the start and goes on where it got to.
"""

from __future__ import annotations

import hashlib
import os
import sys

from ergon_framework.boundary.factstore.sqlite import SqliteFactStore
from ergon_framework.boundary.factstore.sqlite.ledger import LedgerTuning
from ergon_framework.boundary.store_urls import open_fact_store
from ergon_framework.ports.factstore import (
    OUTBOUND,
    Appended,
    FactStore,
    Gap,
    Link,
    NewFact,
    Reference,
)

ROUNDS = 12
PEER = "plant-b"
INBOX = f"inbound:{PEER}"
FILE = "sqlite:///"
LEDGER = LedgerTuning(memtable_limit=8, fanout=3, appends_per_slice=2)
"""Writes segments and merges them often enough to die in the middle of it."""


def say(*words: object) -> None:
    """One line, written with one call."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def fact(message_id: str, source_offset: int | None = None, *refs: Reference) -> NewFact:
    """A fact whose content follows from its id."""
    body = f'{{"of":"{message_id}"}}'.encode()
    to_zone = f"zone-{len(message_id) % 2}"
    digest = hashlib.sha256(body).digest()
    return NewFact("plant-a", message_id, to_zone, digest, b"{}", body, tuple(refs), source_offset)


def objects(store: FactStore, number: int) -> Reference:
    """Bind an object, and one that nobody will refer to."""
    digest = hashlib.sha256(str(number).encode()).digest()
    store.bind("files", f"key-{number}", digest, number)
    say("bound", f"key-{number}")
    return Reference("files", f"key-{number}", digest, number)


def append(store: FactStore, number: int, reference: Reference) -> None:
    """Append a few facts, one with a reference."""
    ids = [f"out-{number}-{n}" for n in range(3)]
    new = [fact(ids[0]), fact(ids[1], None, reference), fact(ids[2])]
    answers = [*store.append(OUTBOUND, new[:2]), *store.append(OUTBOUND, new[2:])]
    for each, answer in zip(ids, answers, strict=True):
        assert isinstance(answer, Appended)
        say("appended", each, answer.offset)


def receive(store: FactStore, number: int) -> None:
    """Take what a peer sends, and hear what it lost in between."""
    offsets = [number * 5 + 1, number * 5 + 5]
    new = [fact(f"in-{offset}", offset) for offset in offsets]
    lost = [Gap(OUTBOUND, offsets[0] + 1, offsets[1] - 1, "retention", 1.0)]
    link = Link(PEER, "e", offsets[-1])
    for each, answer in zip(new, store.receive(PEER, new, link, (), lost), strict=True):
        assert isinstance(answer, Appended)
        say("received", each.message_id, answer.offset)
    say("pulled", offsets[-1])


def read(store: FactStore) -> None:
    """Set the first fact aside, and confirm the others."""
    facts = store.serve("reader", 3, 1 << 20, holder="child").page.facts
    if not facts:
        return
    failed = facts[0].offset
    item = store.set_aside(
        "reader", failed, reason="handler_failed", message="", attempts=1, holder="child"
    )
    say("aside", failed)
    store.settle(item.id, "discarded")
    say("discarded", failed)
    last = facts[-1].offset
    say("confirmed", store.confirm("reader", last, holder="child"))
    if last > 8:
        store.truncate(OUTBOUND, last - 8)
        say("truncated", last - 8)


def open_store(url: str) -> FactStore:
    """The store that is used; one in a file has a small ledger."""
    if url.startswith(FILE):
        return SqliteFactStore(url.removeprefix(FILE), zone="plant-a", ledger_tuning=LEDGER)
    return open_fact_store(url, zone="plant-a")


def main(url: str) -> None:
    """Everything, several times."""
    store = open_store(url)
    store.create_consumer("reader", OUTBOUND)
    for number in range(ROUNDS):
        append(store, number, objects(store, number))
        receive(store, number)
        read(store)
    store.close()
    say("end")


if __name__ == "__main__":
    main(sys.argv[1])
