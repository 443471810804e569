"""Redis Streams: a group, read with XREADGROUP, each entry acknowledged with an XACK of its own."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

from comparison import Record, RunOptions, Turn

from connector_parts import turns
from connector_parts.brokers import broker
from connector_parts.turns import BARE, BODY, FASTSTREAM, PREFETCH, Countdown, Entrant, Heat
from ergon_framework.connector.redis_streams import RedisStreamsConnector

RATE = 4000
"""Messages of a turn, for each second that it should take."""
_NUMBERS = itertools.count()


def redis_streams(options: RunOptions) -> Iterator[Record]:
    """With asyncio and with threads."""
    with broker("redis") as server:
        yield from turns.run_heats(heats(server.url), options.rounds, round(RATE * options.seconds))


def heats(url: str) -> list[Heat]:
    """The contestants on the server there."""
    ours = Entrant("ergon", lambda count: turns.ours_async(count, _connector(url, count)))
    bare = Entrant("redis-py asyncio", lambda count: _bare_async(url, count), BARE)
    peer = Entrant("faststream", lambda count: _faststream(url, count), FASTSTREAM)
    ours_threads = Entrant("ergon threads", lambda count: turns.ours(count, _connector(url, count)))
    bare_threads = Entrant("redis-py", lambda count: _bare(url, count), BARE)
    return [
        Heat("redis-streams", ours, [bare, peer]),
        Heat("redis-streams-threads", ours_threads, [bare_threads]),
    ]


def filled(url: str, count: int, field: str = "body") -> str:
    """The name of a stream that is full; bodies are in a field of that name."""
    import redis

    name = f"orders-{next(_NUMBERS)}"
    with redis.Redis.from_url(url) as client:
        client.xgroup_create(name, "billing", "0", mkstream=True)
        for start in range(0, count, 1000):
            pipeline = client.pipeline(transaction=False)
            for _ in range(start, min(count, start + 1000)):
                pipeline.xadd(name, {field: BODY})
            pipeline.execute()
    return name


def _connector(url: str, count: int) -> Any:
    stream = filled(url, count)
    return lambda: RedisStreamsConnector(url, stream=stream, group="billing")


def _bare(url: str, count: int) -> Turn:
    import redis

    countdown, stream = Countdown(count), filled(url, count)

    def consume() -> None:
        with redis.Redis.from_url(url) as client:
            while countdown.left:
                found = client.xreadgroup("billing", "one", {stream: ">"}, count=PREFETCH)
                for entry, fields in found[0][1]:
                    countdown.handle(json.loads(fields[b"body"]))
                    client.xack(stream, "billing", entry)

    return countdown.timed(consume)


def _bare_async(url: str, count: int) -> Turn:
    from redis import asyncio as redis

    countdown, stream = Countdown(count), filled(url, count)

    async def consume() -> None:
        client = redis.Redis.from_url(url)
        while countdown.left:
            found = await client.xreadgroup("billing", "one", {stream: ">"}, count=PREFETCH)
            for entry, fields in found[0][1]:
                countdown.handle(json.loads(fields[b"body"]))
                await client.xack(stream, "billing", entry)
        await client.aclose()

    return countdown.timed_async(consume)


def _faststream(url: str, count: int) -> Turn:
    library, stream = turns.imported("faststream.redis"), filled(url, count, "__data__")

    def declare(handle: Any, end: Any) -> Any:
        made = library.RedisBroker(url, logger=None, apply_types=False)
        group = library.StreamSub(stream, group="billing", consumer="one", max_records=PREFETCH)

        @made.subscriber(stream=group)
        async def orders(body: Any) -> None:
            if handle(body):
                end()

        return made

    return turns.faststream(count, declare)
