"""Publishes, consumes or saves over HTTP until it dies at a failpoint.

    ERGON_FAILPOINTS=boundary.confirming.before=kill python client_child.py WHAT URL FOLDER

A handler's effect is a line in ``FOLDER/effects``, which is there when it returns.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ergon_framework.boundary.client.consumer import Consumer
from ergon_framework.boundary.client.producer import Producer
from ergon_framework.boundary.model import Delivery

ENVELOPE = {
    "message_id": "WO:1:attached",
    "from_zone": "a",
    "to_zone": "b",
    "produced_at_unix_ms": 1741248600000,
}
FACT = {"subject": "work_order:1", "predicate": "has_attachment"}


def publish(url: str, folder: Path) -> None:
    """One fact with one file."""
    with Producer(url) as producer:
        producer.publish(FACT, [folder / "file.txt"], envelope=ENVELOPE)


def consume(url: str, folder: Path) -> None:
    """All there is, three facts to a page."""
    with open(folder / "effects", "ab", buffering=0) as effects:

        def handle(delivery: Delivery) -> None:
            effects.write(b"%d\n" % delivery.offset)
            os.fsync(effects.fileno())

        with Consumer(url, "c", log="outbound", limit=3) as consumer:
            consumer.run(handle, until_empty=True)


def save(url: str, folder: Path) -> None:
    """The artifact of the first fact, into a file."""
    with Consumer(url, "c", log="outbound") as consumer:
        reference = consumer.fetch().facts[0].fact.object_json
        consumer.save_object(reference, folder / "saved.txt")


if __name__ == "__main__":
    what, url, folder = sys.argv[1:]
    {"publish": publish, "consume": consume, "save": save}[what](url, Path(folder))
