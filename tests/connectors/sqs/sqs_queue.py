"""What tests of the SQS connector share."""

from __future__ import annotations

from typing import Any

from ergon_framework.connector.broker.message import REASON, TRANSACTION_ID, decoded
from ergon_framework.connector.sqs import SqsConnector
from ergon_framework.connector.sqs.wire import incoming
from ergon_framework.ports.transaction import Transaction
from ergon_framework.testing.link import CuttableLink
from tests.servers.s3 import REGION
from tests.servers.sqs import SqsServer
from tests.waiting import until


def connect(
    sqs: SqsServer, queue: str, link: CuttableLink | None = None, **options: Any
) -> SqsConnector:
    """A connector to the queue, perhaps through a link."""
    endpoint = sqs.endpoint if link is None else f"http://127.0.0.1:{link.port}"
    options = {"wait": 0, "endpoint": endpoint, **options}
    return SqsConnector(f"sqs://{REGION}/{queue}", **options)


def dead_letters(sqs: SqsServer, queue: str) -> list[tuple[str, str]]:
    """The id and the reason of each dead letter."""
    name, dot, fifo = queue.partition(".")
    letters = [incoming(each)[1] for each in sqs.read(f"{name}-dlq{dot}{fifo}")]
    return [
        (decoded(each.get(TRANSACTION_ID)) or "", decoded(each[REASON]) or "") for each in letters
    ]


def numbered(count: int, **fields: Any) -> list[Transaction]:
    """So many transactions with telling ids."""
    return [Transaction(f"t{n}", {"n": n}, **fields) for n in range(count)]


def take(connector: SqsConnector, count: int) -> list[Transaction]:
    """Exactly so many deliveries, in as many fetches as it takes."""
    taken: list[Transaction] = []

    def are_there() -> bool:
        taken.extend(connector.fetch_transactions(count - len(taken)))
        return len(taken) == count

    until(are_there, f"{count} deliveries")
    return taken


def ids(transactions: list[Transaction]) -> list[str]:
    """Their ids, in order."""
    return [each.transaction_id for each in transactions]
