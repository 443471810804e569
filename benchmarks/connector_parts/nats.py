"""NATS JetStream: our consumer, and nats-py's own loop. Both wait until an ack was heard."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator

from comparison import Contestant, ContestantError, Record, RunOptions, Turn, race
from jobs_parts.servers import MissingServerError, Servers

from connector_parts.turns import BARE, BODY, PREFETCH, Countdown, timed_async, told
from ergon_framework import AsyncConsumerTask, Transaction
from ergon_framework.connector.nats import NatsConnector

RATE = 1500
"""Messages of a turn, for each second that it should take."""
LOOP = {"loop": {"batch": {"size": PREFETCH}}}
_NUMBERS = itertools.count()


def nats(options: RunOptions) -> Iterator[Record]:
    """With asyncio."""
    servers = Servers(options.folder)
    try:
        url, count = servers.url("nats"), round(RATE * options.seconds)
        ours = Contestant("ergon", lambda: _ours(url, count))
        bare = Contestant("nats-py", lambda: _bare(url, count))
        race([ours, bare], options.rounds)
        yield from told("nats", ours, (bare, BARE))
    except MissingServerError as error:
        raise ContestantError(str(error)) from error
    finally:
        servers.stop()


def _filled(url: str, count: int) -> str:
    """A stream with so many messages, and a durable consumer that has read none of them."""
    name = f"ORDERS{next(_NUMBERS)}"

    async def fill() -> None:
        import nats as library
        from nats.js.api import ConsumerConfig

        client = await library.connect(url)
        stream = client.jetstream()
        await stream.add_stream(name=name, subjects=[f"{name}.>"])
        await stream.add_consumer(name, ConsumerConfig(durable_name="billing"))
        for _ in range(count):
            await client.publish(f"{name}.new", BODY.encode())
        await client.flush()
        await client.close()

    asyncio.run(fill())
    return name


def _ours(url: str, count: int) -> Turn:
    countdown, stream = Countdown(count), _filled(url, count)

    class Orders(AsyncConsumerTask):
        async def process_transaction(self, transaction: Transaction) -> None:
            countdown.handle(transaction.payload)

    async def consume() -> None:
        source = NatsConnector(url, stream=stream, consumer="billing", wait=0.0)
        await Orders({"in": source}).consume_transactions(LOOP)
        await source.aclose()

    return _whole(timed_async(count, consume), countdown)


def _bare(url: str, count: int) -> Turn:
    countdown, stream = Countdown(count), _filled(url, count)

    async def consume() -> None:
        import nats as library

        client = await library.connect(url)
        source = await client.jetstream().pull_subscribe_bind("billing", stream)
        while countdown.left:
            for message in await source.fetch(PREFETCH):
                countdown.handle(json.loads(message.data))
                await message.ack_sync()
        await client.close()

    return _whole(timed_async(count, consume), countdown)


def _whole(turn: Turn, countdown: Countdown) -> Turn:
    if countdown.left:
        raise ContestantError(f"{countdown.left} messages were not handled")
    return turn
