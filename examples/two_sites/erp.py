"""The enterprise's ERP: it books each order once, however often it is delivered."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Self

from mes import Order
from sites import Site, credentials

from ergon_framework.boundary import Consumer, Delivery, Inbox

SCHEMA = """
CREATE TABLE IF NOT EXISTS orders (number INTEGER NOT NULL, message_id TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS totals (pieces INTEGER NOT NULL, documents INTEGER NOT NULL);
INSERT INTO totals VALUES (0, 0);
"""


class Death(BaseException):
    """The ERP dies here."""


class Erp:
    """A consumer with a database of its own, in a thread that is started anew when it dies."""

    NAME = "erp"

    def __init__(self, enterprise: Site, folder: Path) -> None:
        self.deliveries = self.known = self.deaths = 0
        self._dies_after: int | None = None
        self._node = enterprise.url
        self._files = credentials(folder, "erp")
        self._database = folder / "erp.db"
        self._inbox = Inbox(self.NAME)
        self._stop = threading.Event()
        with closing(self._connect()) as connection:
            connection.executescript(SCHEMA)
            self._inbox.create_table(connection)
        self.start()

    def start(self) -> None:
        """Read on from where the cursor is."""
        self._stop.clear()
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Confirm what is booked, and leave."""
        self._stop.set()
        self._thread.join()

    def dies_after(self, count: int) -> None:
        """Let it die once, with so many orders booked."""
        self._dies_after = count

    def _live(self) -> None:
        while not self._stop.is_set():
            with Consumer(self._node, self.NAME, log="inbound:plant", **self._files) as consumer:  # type: ignore[arg-type]
                try:
                    consumer.run(lambda fact: self._handle(consumer, fact), stop=self._stop)
                except Death:
                    self.deaths += 1

    def _handle(self, consumer: Consumer, delivery: Delivery) -> None:
        self.deliveries += 1
        with (
            closing(self._connect()) as connection,
            self._inbox.once(connection, delivery) as is_new,  # one transaction: both or none
        ):
            if is_new:
                self._book(connection, consumer, delivery)
            else:
                self.known += 1
        if self._dies_after is not None and self.booked() >= self._dies_after:
            self._dies_after = None
            raise Death  # booked, and not confirmed: it will be delivered again

    def _book(self, connection: sqlite3.Connection, consumer: Consumer, delivery: Delivery) -> None:
        """What would be wrong if it happened twice: sums."""
        order = delivery.fact.object_json
        documents = [self._read(consumer, each) for each in order.get("attachments", ())]
        connection.execute(
            "INSERT INTO orders VALUES (?, ?)", (order["number"], delivery.envelope.message_id)
        )
        connection.execute(
            "UPDATE totals SET pieces = pieces + ?, documents = documents + ?",
            (order["pieces"], len(documents)),
        )

    def _read(self, consumer: Consumer, reference: dict[str, Any]) -> bytes:
        """A document, compared with its digest before anybody sees it."""
        return consumer.get_object(reference)

    # ---- the books ----

    def books(self) -> list[tuple[int, str]]:
        """What was booked, in the order it was."""
        return self._ask("SELECT number, message_id FROM orders ORDER BY rowid")

    def booked(self) -> int:
        """How many orders were booked."""
        return int(self._ask("SELECT count(*) FROM orders")[0][0])

    def pieces(self) -> int:
        """How many pieces they have."""
        return int(self._ask("SELECT pieces FROM totals")[0][0])

    def documents(self) -> int:
        """How many documents came with them."""
        return int(self._ask("SELECT documents FROM totals")[0][0])

    def order(self, told: Sequence[Order]) -> str:
        """Whether they were booked in the order they were told."""
        wanted = [(each.number, each.envelope["message_id"]) for each in told]
        return "yes" if self.books() == wanted else "no"

    def _ask(self, question: str) -> list[Any]:
        with closing(self._connect()) as connection:
            return connection.execute(question).fetchall()

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._database, timeout=10)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()
