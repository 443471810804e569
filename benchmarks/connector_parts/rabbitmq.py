"""RabbitMQ: a quorum queue, a fixed prefetch, and an acknowledgement of each message by itself."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

from comparison import Record, RunOptions, Turn

from connector_parts import turns
from connector_parts.brokers import broker
from connector_parts.turns import BARE, BODY, FASTSTREAM, PREFETCH, Countdown, Entrant, Heat
from ergon_framework import Transaction
from ergon_framework.connector.rabbitmq import RabbitConnector

RATE = 2000
"""Messages of a turn, for each second that it should take."""
_NUMBERS = itertools.count()


def rabbitmq(options: RunOptions) -> Iterator[Record]:
    """With asyncio and with threads."""
    with broker("rabbitmq") as server:
        count = round(RATE * options.seconds)
        yield from turns.run_heats(heats(server.url()), options.rounds, count)


def heats(url: str) -> list[Heat]:
    """The contestants on the broker there; the URL names no queue and ends with a slash."""
    ours = Entrant("ergon", lambda count: turns.ours_async(count, _connector(url, count)))
    bare = Entrant("aio-pika", lambda count: _bare_async(url, count), BARE)
    peer = Entrant("faststream", lambda count: _faststream(url, count), FASTSTREAM)
    ours_threads = Entrant("ergon threads", lambda count: turns.ours(count, _connector(url, count)))
    bare_threads = Entrant("pika", lambda count: _bare(url, count), BARE)
    return [
        Heat("rabbitmq", ours, [bare, peer]),
        Heat("rabbitmq-threads", ours_threads, [bare_threads]),
    ]


def filled(url: str, count: int) -> str:
    """The name of a queue with so many messages."""
    name = f"race-{next(_NUMBERS)}"
    payload = json.loads(BODY)
    with RabbitConnector(f"{url}{name}") as orders:
        for start in range(0, count, 1000):
            numbers = range(start, min(count, start + 1000))
            orders.dispatch_transactions(Transaction(str(n), payload) for n in numbers)
    return name


def _connector(url: str, count: int) -> Any:
    queue = filled(url, count)
    return lambda: RabbitConnector(f"{url}{queue}", prefetch=PREFETCH)


def _bare(url: str, count: int) -> Turn:
    import pika

    countdown, queue = Countdown(count), filled(url, count)

    def consume() -> None:
        connection = pika.BlockingConnection(pika.URLParameters(f"{url}%2F"))
        channel = connection.channel()
        channel.basic_qos(prefetch_count=PREFETCH)
        for method, _, body in channel.consume(queue):
            is_last = countdown.handle(json.loads(body))
            channel.basic_ack(method.delivery_tag)
            if is_last:
                break
        channel.cancel()
        connection.close()

    return countdown.timed(consume)


def _bare_async(url: str, count: int) -> Turn:
    import aio_pika

    countdown, queue = Countdown(count), filled(url, count)

    async def consume() -> None:
        async with await aio_pika.connect(f"{url}%2F") as connection:
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=PREFETCH)
            source = await channel.get_queue(queue)
            async with source.iterator() as messages:
                async for message in messages:
                    is_last = countdown.handle(json.loads(message.body))
                    await message.ack()
                    if is_last:
                        break

    return countdown.timed_async(consume)


def _faststream(url: str, count: int) -> Turn:
    library, queue = turns.imported("faststream.rabbit"), filled(url, count)

    def declare(handle: Any, end: Any) -> Any:
        channel = library.Channel(prefetch_count=PREFETCH)
        made = library.RabbitBroker(
            f"{url}%2F", default_channel=channel, logger=None, apply_types=False
        )

        @made.subscriber(library.RabbitQueue(queue, declare=False))
        async def orders(body: Any) -> None:
            if handle(body):
                end()

        return made

    return turns.faststream(count, declare)
