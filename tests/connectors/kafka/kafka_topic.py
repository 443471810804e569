"""What tests of the Kafka connector share: connectors that notice soon, and a look at a topic."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any

from ergon_framework.connector.broker.message import (
    REASON,
    TRANSACTION_ID,
    MessageCodec,
    decoded,
)
from ergon_framework.connector.kafka import KafkaConnector
from ergon_framework.ports.transaction import Transaction
from tests.servers.kafka import FAST, KafkaCluster, KafkaLink
from tests.waiting import until


def connect(
    where: KafkaCluster | KafkaLink, topic: str, *, group: str = "", **options: Any
) -> KafkaConnector:
    """A connector to the topic, in a group of its name."""
    client = {**FAST, **options.pop("client", {})}
    options = {"wait": 0.2, **options}
    return KafkaConnector(
        f"kafka://{where.server}/{topic}", group=group or topic, client=client, **options
    )


@contextmanager
def made_ahead(
    make: Callable[[], KafkaConnector], count: int = 4
) -> Iterator[Callable[[], AbstractContextManager[KafkaConnector]]]:
    """A factory of connectors whose producers have their id already, and that closes them later.

    The client library asks for that id half a second after it found no broker connected, so each
    new connector's first dispatch waits as long; joining and leaving a group take their time as
    well. Here all that happens beside the checks.
    """

    def prepared() -> KafkaConnector:
        connector = make()
        connector.health()  # it makes the producer, which then asks for its id
        connector.get_transactions_count()  # it joins the group
        return connector

    with ThreadPoolExecutor() as pool:
        ahead = deque(pool.submit(prepared) for _ in range(count))
        closed: list[Future[None]] = []

        @contextmanager
        def the_next() -> Iterator[KafkaConnector]:
            connector = ahead.popleft().result()
            ahead.append(pool.submit(prepared))
            try:
                yield connector
            finally:
                closed.append(pool.submit(connector.close))

        try:
            yield the_next
        finally:
            closed += [pool.submit(each.result().close) for each in ahead]
            for each in closed:
                each.result()


def numbered(count: int, prefix: str = "t", **fields: Any) -> list[Transaction]:
    """So many transactions with telling ids."""
    return [Transaction(f"{prefix}{n}", {"n": n}, **fields) for n in range(count)]


def ids(transactions: Iterable[Transaction]) -> list[str]:
    """Their ids, in order."""
    return [each.transaction_id for each in transactions]


def take(connector: KafkaConnector, count: int) -> list[Any]:
    """Exactly so many deliveries, in as many fetches as it takes."""
    taken: list[Any] = []

    def are_there() -> bool:
        taken.extend(connector.fetch_transactions(count - len(taken)))
        return len(taken) == count

    until(are_there, f"{count} deliveries")
    return taken


def put(kafka: KafkaCluster, topic: str, transactions: list[Transaction]) -> None:
    """Put transactions into a topic, each under its id as the key, without a wait.

    A connector's first dispatch waits for the id of its producer.
    """
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": kafka.server, "linger.ms": 0})
    messages = MessageCodec("json", 1 << 20, None).encode_all(transactions)
    for transaction, message in zip(transactions, messages, strict=True):
        key = transaction.transaction_id
        producer.produce(topic, message.body, key=key, headers={**message.headers})
    assert producer.flush(10) == 0


def send(kafka: KafkaCluster, topic: str, value: bytes | None, **fields: Any) -> None:
    """Put a message into a topic as another program would."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": kafka.server, "linger.ms": 0})
    producer.produce(topic, value, **fields)
    assert producer.flush(10) == 0


def read(kafka: KafkaCluster, topic: str) -> list[Any]:
    """Everything that a topic of one partition holds, as the client library has it."""
    from confluent_kafka import Consumer, TopicPartition

    settings = {"bootstrap.servers": kafka.server, "group.id": "reader", **FAST}
    with closing(Consumer({**settings, "enable.partition.eof": True})) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        found = []
        while (message := consumer.poll(10)) is not None and not message.error():
            found.append(message)
        return found


def headers(message: Any) -> dict[str, str]:
    """The headers of a message as texts."""
    return {name: value.decode() for name, value in message.headers()}


def dead_letters(kafka: KafkaCluster, topic: str) -> list[tuple[str, str]]:
    """The id and the reason of each dead letter."""
    letters = [headers(each) for each in read(kafka, f"{topic}.dlq")]
    return [
        (decoded(each.get(TRANSACTION_ID)) or "", decoded(each[REASON]) or "") for each in letters
    ]
