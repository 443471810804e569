"""RabbitMQ: our consumer, and the loops of aio-pika and pika, each on a quorum queue.

No wheel has the server, and a node takes long to start. So the cases use a broker that runs, whose
URL is in RABBITMQ_URL (amqp://user:password@host:port), and delete the queues that they have made.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterator
from typing import Any

from comparison import Contestant, ContestantError, Record, RunOptions, Turn, race

from connector_parts.turns import BARE, BODY, PREFETCH, Countdown, timed, timed_async, told
from ergon_framework import AsyncConsumerTask, ConsumerTask, Transaction
from ergon_framework.connector.rabbitmq import RabbitConnector

RATE = 2000
"""Messages of a turn, for each second that it should take."""
LOOP = {"loop": {"batch": {"size": PREFETCH}}}
_NUMBERS = itertools.count()


class FilledQueue:
    """A fresh quorum queue with so many messages for each turn."""

    def __init__(self, options: RunOptions) -> None:
        url = os.environ.get("RABBITMQ_URL", "")
        if not url:
            raise ContestantError("no broker: set RABBITMQ_URL to that of one without other work")
        self.url, self.count = url.rstrip("/"), round(RATE * options.seconds)
        self.names: list[str] = []

    def queue(self) -> str:
        """The name of a queue that is full."""
        name = f"ergon-race-{os.getpid()}-{int(time.time())}-{next(_NUMBERS)}"
        self.names += [name, f"{name}.dead"]
        with RabbitConnector(f"{self.url}/{name}") as orders:
            payload = json.loads(BODY)
            orders.dispatch_transactions(Transaction(str(n), payload) for n in range(self.count))
        return name

    def remove(self) -> None:
        """Delete what was made."""
        channel = self.connect()
        for name in self.names:
            channel.queue_delete(name)
        channel.connection.close()

    def connect(self) -> Any:
        """A channel of pika's blocking connection."""
        import pika

        return pika.BlockingConnection(pika.URLParameters(f"{self.url}/%2F")).channel()


def rabbitmq(options: RunOptions) -> Iterator[Record]:
    """With asyncio."""
    filled = FilledQueue(options)
    try:
        ours = Contestant("ergon", lambda: _ours_async(filled))
        bare = Contestant("aio-pika", lambda: _bare_async(filled))
        race([ours, bare], options.rounds)
        yield from told("rabbitmq", ours, (bare, BARE))
    finally:
        filled.remove()


def rabbitmq_threads(options: RunOptions) -> Iterator[Record]:
    """With a thread."""
    filled = FilledQueue(options)
    try:
        ours = Contestant("ergon", lambda: _ours(filled))
        bare = Contestant("pika", lambda: _bare(filled))
        race([ours, bare], options.rounds)
        yield from told("rabbitmq-threads", ours, (bare, BARE))
    finally:
        filled.remove()


def _ours(filled: FilledQueue) -> Turn:
    countdown, queue = Countdown(filled.count), filled.queue()

    class Orders(ConsumerTask):
        def process_transaction(self, transaction: Transaction) -> None:
            countdown.handle(transaction.payload)

    def consume() -> None:
        with RabbitConnector(f"{filled.url}/{queue}", prefetch=PREFETCH, wait=0.0) as source:
            Orders({"in": source}).consume_transactions(LOOP)

    return _whole(timed(filled.count, consume), countdown)


def _ours_async(filled: FilledQueue) -> Turn:
    countdown, queue = Countdown(filled.count), filled.queue()

    class Orders(AsyncConsumerTask):
        async def process_transaction(self, transaction: Transaction) -> None:
            countdown.handle(transaction.payload)

    async def consume() -> None:
        source = RabbitConnector(f"{filled.url}/{queue}", prefetch=PREFETCH, wait=0.0)
        await Orders({"in": source}).consume_transactions(LOOP)
        await source.aclose()

    return _whole(timed_async(filled.count, consume), countdown)


def _bare(filled: FilledQueue) -> Turn:
    countdown, queue = Countdown(filled.count), filled.queue()

    def consume() -> None:
        channel = filled.connect()
        channel.basic_qos(prefetch_count=PREFETCH)
        for method, _, body in channel.consume(queue):
            is_last = countdown.handle(json.loads(body))
            channel.basic_ack(method.delivery_tag)
            if is_last:
                break
        channel.cancel()
        channel.connection.close()

    return _whole(timed(filled.count, consume), countdown)


def _bare_async(filled: FilledQueue) -> Turn:
    countdown, queue = Countdown(filled.count), filled.queue()

    async def consume() -> None:
        import aio_pika

        async with await aio_pika.connect(f"{filled.url}/%2F") as connection:
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=PREFETCH)
            source = await channel.get_queue(queue)
            async with source.iterator() as messages:
                async for message in messages:
                    is_last = countdown.handle(json.loads(message.body))
                    await message.ack()
                    if is_last:
                        break

    return _whole(timed_async(filled.count, consume), countdown)


def _whole(turn: Turn, countdown: Countdown) -> Turn:
    if countdown.left:
        raise ContestantError(f"{countdown.left} messages were not handled")
    return turn
