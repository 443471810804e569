"""A connector of your own: a table in SQLite as a queue, checked by the behaviour suite.

Run it with ``python examples/connector_of_your_own.py``.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterable
from typing import Any

from ergon_framework import ConsumerTask, Transaction
from ergon_framework.errors import PayloadError
from ergon_framework.testing import exercise_connector

SCHEMA = """
CREATE TABLE IF NOT EXISTS work (
    place INTEGER PRIMARY KEY AUTOINCREMENT,
    envelope TEXT NOT NULL,
    state TEXT NOT NULL DEFAULT 'waiting',
    reason TEXT
)
"""


class TableConnector:
    """Rows of a table. No base class: the engine finds the methods by their names."""

    def __init__(self, path: str = ":memory:") -> None:
        # Fetches and settlements come from several threads, so there is one lock around it all.
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._db.execute(SCHEMA)
        self._db.execute("UPDATE work SET state = 'waiting' WHERE state = 'in flight'")
        # Which row a delivered object stands for. The id would not do: it may be there twice.
        self._rows: dict[int, tuple[Transaction, int]] = {}

    def fetch_transactions(self, batch_size: int) -> list[Transaction]:
        """Claim the oldest rows that wait."""
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        with self._lock:
            rows = self._db.execute(
                "UPDATE work SET state = 'in flight' WHERE place IN (SELECT place FROM work "
                "WHERE state = 'waiting' ORDER BY place LIMIT ?) RETURNING place, envelope",
                (batch_size,),
            ).fetchall()
            batch = []
            for place, envelope in sorted(rows):
                transaction = Transaction.from_dict(json.loads(envelope))
                self._rows[id(transaction)] = (transaction, place)
                batch.append(transaction)
            return batch

    def dispatch_transactions(self, transactions: Iterable[Transaction]) -> None:
        """Add them all, or none when one cannot be written."""
        rows = [(_encoded(each),) for each in transactions]
        with self._lock, self._db:
            self._db.execute("BEGIN")
            self._db.executemany("INSERT INTO work (envelope) VALUES (?)", rows)

    def ack(self, transaction: Transaction) -> None:
        """Done: the row goes."""
        self._settle(transaction, "DELETE FROM work WHERE place = ?")

    def nack(self, transaction: Transaction, exc: Exception) -> None:
        """Failed for good: the row stays, with the reason."""
        statement = "UPDATE work SET state = 'dead', reason = ?2 WHERE place = ?1"
        self._settle(transaction, statement, str(exc))

    def release(self, transaction: Transaction) -> None:
        """Not worked to an end: the row waits again, in its old place."""
        self._settle(transaction, "UPDATE work SET state = 'waiting' WHERE place = ?")

    def dead_letters(self) -> list[tuple[str, str]]:
        """The ids and reasons of what failed for good."""
        with self._lock:
            rows = self._db.execute("SELECT envelope, reason FROM work WHERE state = 'dead'")
            return [(json.loads(text)["transaction_id"], reason) for text, reason in rows]

    def close(self) -> None:
        """Close the database; using the connector afterwards is an error."""
        self._db.close()

    def _settle(self, transaction: Transaction, statement: str, *values: Any) -> None:
        with self._lock:
            if id(transaction) not in self._rows:
                raise LookupError(f"{transaction!r} is not in flight here")
            place = self._rows[id(transaction)][1]
            self._db.execute(statement, (place, *values))
            del self._rows[id(transaction)]


def _encoded(transaction: Transaction) -> str:
    try:
        return json.dumps(transaction.to_dict(), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise PayloadError(
            f"transaction {transaction.transaction_id!r} cannot be written as JSON: {error}",
            remedy="use plain JSON values",
        ) from error


class Greeter(ConsumerTask):
    """Something to do with it."""

    def process_transaction(self, transaction: Transaction) -> None:
        """Say hello."""
        print(f"hello, {transaction.payload}")


def main() -> None:
    """Check the connector, then use it."""
    report = exercise_connector(
        TableConnector, order="strict", dead_letters=TableConnector.dead_letters
    )
    print(f"{report.subject}: {len(report.passed)} checks passed")
    for one in report.failures(recommended=True):
        print(f"  recommended: {one.sentence}")

    connector = TableConnector()
    connector.dispatch_transactions([Transaction("1", "world"), Transaction("2", "moon")])
    done = Greeter(connectors={"greetings": connector}).consume_transactions()
    print(f"{done.succeeded} greeted")


if __name__ == "__main__":
    main()
