"""Kafka: a topic of four partitions; offsets are committed in the background after the handling.

We commit every 0.2 s what was handled, and so does the bare loop: it stores the offset of each
message after its handling, and the library commits what is stored. Both let the library fetch a
thousand messages ahead of a partition. FastStream has no such setting.
It commits each message after its handling, in the background, or each batch. Both are raced: its
batches are handed to the handler as a whole.

The cluster is librdkafka's own, which keeps messages in memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from comparison import Record, RunOptions, Turn

from connector_parts import turns
from connector_parts.brokers import broker
from connector_parts.turns import BARE, BODY, FASTSTREAM, PREFETCH, Countdown, Entrant, Heat
from ergon_framework.connector.broker.in_flight import MAX_IN_FLIGHT
from ergon_framework.connector.kafka import KafkaConnector
from ergon_framework.connector.kafka.client import FULL_QUEUE_BACKOFF

RATE = 8000
"""Messages of a turn, for each second that it should take."""
PARTITIONS = 4
COMMIT = 0.2
FETCH_WAIT = {"fetch.wait.max.ms": 20}
"""For everybody: the cluster answers a fetch that finds nothing only at its end."""
AHEAD = {"queued.min.messages": MAX_IN_FLIGHT, "fetch.queue.backoff.ms": FULL_QUEUE_BACKOFF}
"""For the bare loop, as our connector has it. With the default of the latter it would wait for a
second whenever that many are there."""


def kafka(options: RunOptions) -> Iterator[Record]:
    """With asyncio and with threads; the bare client has threads only."""
    with broker("kafka") as server:
        yield from turns.run_heats(heats(server), options.rounds, round(RATE * options.seconds))


def heats(cluster: Any) -> list[Heat]:
    """The contestants on a cluster."""
    ours = Entrant("ergon", lambda count: turns.ours_async(count, _connector(cluster, count)))
    bare = Entrant("confluent-kafka", lambda count: _bare(cluster, count), BARE)
    peer = Entrant("faststream", lambda count: _faststream(cluster, count), FASTSTREAM)
    batches = Entrant("faststream batches", lambda count: _faststream_batches(cluster, count))
    threads = Entrant("ergon threads", lambda count: turns.ours(count, _connector(cluster, count)))
    return [Heat("kafka", ours, [bare, peer, batches]), Heat("kafka-threads", threads, [bare])]


def filled(cluster: Any, count: int) -> str:
    """A topic with so many messages, without keys."""
    from confluent_kafka import Producer

    topic = str(cluster.new_topic(PARTITIONS))
    producer = Producer({"bootstrap.servers": cluster.server, "linger.ms": 5})
    for number in range(count):
        producer.produce(topic, BODY.encode(), partition=number % PARTITIONS)
        producer.poll(0)
    producer.flush()
    return topic


def _connector(cluster: Any, count: int) -> Any:
    topic = filled(cluster, count)
    url = f"kafka://{cluster.server}/{topic}"
    return lambda: KafkaConnector(url, group=topic, commit_interval=COMMIT, client=FETCH_WAIT)


def _bare(cluster: Any, count: int) -> Turn:
    from confluent_kafka import Consumer

    countdown, topic = Countdown(count), filled(cluster, count)

    def consume() -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": cluster.server,
                "group.id": topic,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": True,
                "auto.commit.interval.ms": round(COMMIT * 1000),
                "enable.auto.offset.store": False,
                **FETCH_WAIT,
                **AHEAD,
            }
        )
        consumer.subscribe([topic])
        while countdown.left:
            for message in consumer.consume(PREFETCH, 1.0):
                countdown.handle(json.loads(message.value()))
                consumer.store_offsets(message)
        consumer.close()  # which commits

    return countdown.timed(consume)


def _faststream(cluster: Any, count: int) -> Turn:
    topic, declared = filled(cluster, count), _subscription()

    def declare(handle: Any, end: Any) -> Any:
        made, about = declared(cluster, topic)

        @made.subscriber(topic, **about)
        async def orders(body: Any) -> None:
            if handle(body):
                end()

        return made

    return turns.faststream(count, declare)


def _faststream_batches(cluster: Any, count: int) -> Turn:
    topic, declared = filled(cluster, count), _subscription()

    def declare(handle: Any, end: Any) -> Any:
        made, about = declared(cluster, topic)

        @made.subscriber(topic, batch=True, max_records=PREFETCH, **about)
        async def orders(bodies: Any) -> None:
            if [handle(each) for each in bodies][-1]:
                end()

        return made

    return turns.faststream(count, declare)


def _subscription() -> Any:
    library = turns.imported("faststream.confluent")
    policy = turns.imported("faststream").AckPolicy.ACK

    def declared(cluster: Any, topic: str) -> tuple[Any, dict[str, Any]]:
        made = library.KafkaBroker(
            cluster.server, logger=None, apply_types=False, config=dict(FETCH_WAIT)
        )
        about = {"group_id": topic, "auto_offset_reset": "earliest", "ack_policy": policy}
        return made, about

    return declared
