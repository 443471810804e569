"""Redis Streams: our consumer, redis-py's own loop, and FastStream."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from comparison import Contestant, ContestantError, Record, RunOptions, Turn, race
from jobs_parts.servers import MissingServerError, Servers

from connector_parts.turns import (
    BARE,
    BODY,
    FASTSTREAM,
    PREFETCH,
    Countdown,
    timed,
    timed_async,
    told,
)
from ergon_framework import AsyncConsumerTask, ConsumerTask, Transaction
from ergon_framework.connector.redis_streams import RedisStreamsConnector

RATE = 4000
"""Messages of a turn, for each second that it should take."""
LOOP = {"loop": {"batch": {"size": PREFETCH}}}
_NUMBERS = itertools.count()


class Filled:
    """A server, and a fresh stream with so many messages for each turn."""

    def __init__(self, url: str, count: int) -> None:
        self.url, self.count = url, count

    def stream(self, field: str = "body") -> str:
        """The name of a stream that is full; bodies are in a field of that name."""
        import redis

        name = f"orders-{next(_NUMBERS)}"
        with redis.Redis.from_url(self.url) as client:
            client.xgroup_create(name, "billing", "0", mkstream=True)
            pipeline = client.pipeline(transaction=False)
            for _ in range(self.count):
                pipeline.xadd(name, {field: BODY})
            pipeline.execute()
        return name


def redis_streams(options: RunOptions) -> Iterator[Record]:
    """With asyncio."""
    with _filled(options) as filled:
        ours = Contestant("ergon", lambda: _ours_async(filled))
        bare = Contestant("redis-py", lambda: _bare_async(filled))
        peer = Contestant("faststream", lambda: _faststream(filled))
        race([ours, bare, peer], options.rounds)
        yield from told("redis-streams", ours, (bare, BARE), (peer, FASTSTREAM))


def redis_streams_threads(options: RunOptions) -> Iterator[Record]:
    """With a thread."""
    with _filled(options) as filled:
        ours = Contestant("ergon", lambda: _ours(filled))
        bare = Contestant("redis-py", lambda: _bare(filled))
        race([ours, bare], options.rounds)
        yield from told("redis-streams-threads", ours, (bare, BARE))


@contextmanager
def _filled(options: RunOptions) -> Iterator[Filled]:
    servers = Servers(options.folder)
    try:
        yield Filled(servers.url("redis"), round(RATE * options.seconds))
    except MissingServerError as error:
        raise ContestantError(str(error)) from error
    finally:
        servers.stop()


def _ours(filled: Filled) -> Turn:
    countdown = Countdown(filled.count)

    class Orders(ConsumerTask):
        def process_transaction(self, transaction: Transaction) -> None:
            countdown.handle(transaction.payload)

    with RedisStreamsConnector(filled.url, stream=filled.stream(), group="billing") as source:
        turn = timed(filled.count, lambda: Orders({"in": source}).consume_transactions(LOOP))
    return _whole(turn, countdown)


def _ours_async(filled: Filled) -> Turn:
    countdown, stream = Countdown(filled.count), filled.stream()

    class Orders(AsyncConsumerTask):
        async def process_transaction(self, transaction: Transaction) -> None:
            countdown.handle(transaction.payload)

    async def consume() -> None:
        source = RedisStreamsConnector(filled.url, stream=stream, group="billing")
        await Orders({"in": source}).consume_transactions(LOOP)
        await source.aclose()

    return _whole(timed_async(filled.count, consume), countdown)


def _bare(filled: Filled) -> Turn:
    import redis

    countdown, stream = Countdown(filled.count), filled.stream()

    def consume() -> None:
        with redis.Redis.from_url(filled.url) as client:
            while found := client.xreadgroup("billing", "one", {stream: ">"}, count=PREFETCH):
                for entry, fields in found[0][1]:
                    countdown.handle(json.loads(fields[b"body"]))
                    client.xack(stream, "billing", entry)

    return _whole(timed(filled.count, consume), countdown)


def _bare_async(filled: Filled) -> Turn:
    from redis import asyncio as redis

    countdown, stream = Countdown(filled.count), filled.stream()

    async def consume() -> None:
        client = redis.Redis.from_url(filled.url)
        while found := await client.xreadgroup("billing", "one", {stream: ">"}, count=PREFETCH):
            for entry, fields in found[0][1]:
                countdown.handle(json.loads(fields[b"body"]))
                await client.xack(stream, "billing", entry)
        await client.aclose()

    return _whole(timed_async(filled.count, consume), countdown)


def _faststream(filled: Filled) -> Turn:
    try:
        from faststream.redis import RedisBroker, StreamSub
    except ImportError as error:
        raise ContestantError(f"faststream is not installed: {error}") from error
    countdown, stream = Countdown(filled.count), filled.stream("__data__")

    async def consume() -> None:
        broker, done = RedisBroker(filled.url, logger=None), asyncio.Event()
        group = StreamSub(stream, group="billing", consumer="one", max_records=PREFETCH)

        @broker.subscriber(stream=group)
        async def orders(body: Any) -> None:
            if countdown.handle(body):
                done.set()

        await broker.start()
        await asyncio.wait_for(done.wait(), 120)
        await broker.stop()

    return _whole(timed_async(filled.count, consume), countdown)


def _whole(turn: Turn, countdown: Countdown) -> Turn:
    if countdown.left:
        raise ContestantError(f"{countdown.left} messages were not handled")
    return turn
