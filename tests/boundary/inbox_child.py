"""Handles facts through an inbox until it dies at a failpoint; the node gives them out again.

    ERGON_FAILPOINTS=boundary.inbox.commit.before=kill@2 python inbox_child.py FOLDER

The confirmed offset is in the file ``cursor``, as a node would keep it.
"""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

from ergon_framework.boundary.client.inbox import Inbox
from ergon_framework.boundary.model import Delivery, Envelope, Fact

FACTS = 4


def delivery(offset: int, value: object = None) -> Delivery:
    """A fact at an offset."""
    return Delivery(
        offset=offset,
        envelope=Envelope(
            message_id=f"e:{offset}",
            from_zone="plant-a",
            to_zone="enterprise",
            produced_at_unix_ms=1_741_248_600_000,
        ),
        fact=Fact(
            subject="work_order:WO-1",
            predicate="was_measured",
            object_json={"value": offset if value is None else value},
        ),
    )


def bill(connection: sqlite3.Connection, fact: Delivery) -> None:
    """The effect: one more line on the bill."""
    connection.execute("INSERT INTO bill VALUES (?)", (fact.envelope.message_id,))


def main(folder: Path) -> None:
    """Handle each fact after the cursor, then confirm it."""
    cursor = folder / "cursor"
    handle = Inbox("billing").handler(lambda: sqlite3.connect(folder / "billing.db"), bill)
    for offset in range(int(cursor.read_text()) + 1, FACTS + 1):
        handle(delivery(offset))
        cursor.write_text(str(offset))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
