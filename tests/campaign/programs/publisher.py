"""Publishes batches of facts through the node, one for each line it reads.

    python -m tests.campaign.programs.publisher URL ZONE BOOK PORT

Started again, it goes on behind the last batch that was acknowledged. While there is no node, it
tries again.
"""

from __future__ import annotations

import sys

from ergon_framework.boundary.client.producer import Producer
from ergon_framework.boundary.model import Envelope, Fact, Receipt
from ergon_framework.errors import NodeUnavailableError
from tests.campaign.event_file import Book, at_work
from tests.campaign.outage_retry import pause
from tests.campaign.programs.facts import BATCH, WEB, ZONES, name


def publish(producer: Producer, zone: str, batch: int) -> str:
    """See that a batch is there; its offsets."""
    items = [_message(zone, batch * BATCH + n) for n in range(BATCH)]
    while True:
        try:
            told = producer.append_facts(items)
        except NodeUnavailableError:
            pause(0.05)
            continue
        receipts = [each for each in told if isinstance(each, Receipt)]
        if len(receipts) == BATCH:
            return " ".join(str(each.offset) for each in receipts)
        if not all(isinstance(each, Receipt | NodeUnavailableError) for each in told):
            sys.exit(f"batch {batch} was refused: {told}")


def _message(zone: str, number: int) -> tuple[Envelope, Fact]:
    envelope = Envelope(
        message_id=name(WEB, number),
        from_zone=zone,
        to_zone=ZONES[number % len(ZONES)],
        produced_at_unix_ms=1_741_248_600_000,
    )
    return envelope, Fact(subject=f"unit:{number}", predicate="was_made", object_json={"n": number})


def main(url: str, zone: str, path: str, port: str) -> None:
    """One batch per line."""
    book = Book(path)
    batch = sum(words[0] == "published" for words in book.lines())
    with Producer(f"http://127.0.0.1:{port}", from_zone=zone, to_zone=ZONES[0]) as producer:
        at_work()
        for _ in sys.stdin:
            book.write(f"published {batch} {publish(producer, zone, batch)}")
            batch += 1


if __name__ == "__main__":
    main(*sys.argv[1:])
