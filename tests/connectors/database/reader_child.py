"""Does orders until it is killed: ``python reader_child.py URL [STATUSES]``."""

from __future__ import annotations

import sys
import threading
from typing import Any

import sqlalchemy as sa

from ergon_framework.connector.database import DatabaseConnector

EFFECT = sa.text("insert into effects values (:order_id)")


def main(url: str, statuses: str = "") -> None:
    """Write the effect of each in the transaction in which its row is done."""
    options: dict[str, Any] = {"status": "status", "statuses": statuses} if statuses else {}
    with DatabaseConnector(url, table="orders", **options) as orders:
        while batch := orders.fetch_transactions(5):
            for order in batch:
                with orders.transaction(order) as connection:
                    connection.execute(EFFECT, {"order_id": order.payload["id"]})
                    sys.stdout.write("x\n")
                    sys.stdout.flush()
                    threading.Event().wait(0.005)  # killed here more often than elsewhere


if __name__ == "__main__":
    main(*sys.argv[1:])
