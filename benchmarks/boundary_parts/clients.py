"""The same over the Python client that users of each server have, one connection per producer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeAlias

from comparison import ContestantError, Turn

from boundary_parts.messages import Message
from boundary_parts.wire_protocols import APPEND, STREAM, SUBJECT

Append: TypeAlias = Callable[[bytes], Awaitable[Any]]
Connect: TypeAlias = Callable[[int, AsyncExitStack], Awaitable[Append]]


async def ours(port: int, stack: AsyncExitStack) -> Append:
    """The transport under ``AsyncProducer``."""
    from ergon_framework.boundary.http.async_client import AsyncHttpTransport

    connection = AsyncHttpTransport(f"http://127.0.0.1:{port}", connections=1)
    stack.push_async_callback(connection.close)
    path = APPEND.removeprefix("/")
    return lambda body: connection.call(path, body)


async def redis(port: int, stack: AsyncExitStack) -> Append:
    """redis-py."""
    try:
        from redis.asyncio import Redis
    except ImportError as error:
        raise ContestantError(f"redis-py is not installed: {error}") from None
    connection = Redis(host="127.0.0.1", port=port, single_connection_client=True)
    stack.push_async_callback(connection.aclose)
    return lambda body: connection.xadd(STREAM, {"fact": body})


async def nats(port: int, stack: AsyncExitStack) -> Append:
    """nats-py."""
    try:
        from nats import connect
    except ImportError as error:
        raise ContestantError(f"nats-py is not installed: {error}") from None
    connection = await connect(f"nats://127.0.0.1:{port}")
    stack.push_async_callback(connection.close)
    stream = connection.jetstream()
    return lambda body: stream.publish(SUBJECT, body)


def run(port: int, connect: Connect, parts: Sequence[Sequence[Message]]) -> Turn:
    """One task for each part, all of them in one event loop."""
    return asyncio.run(_run(port, connect, parts))


async def _run(port: int, connect: Connect, parts: Sequence[Sequence[Message]]) -> Turn:
    async with _connected(port, connect, len(parts)) as appends:
        began = time.perf_counter()
        pairs = zip(appends, parts, strict=True)
        latencies = await asyncio.gather(*(_produce(append, part) for append, part in pairs))
        seconds = time.perf_counter() - began
    every = [each for times in latencies for each in times]
    return Turn(len(every), seconds, every)


@asynccontextmanager
async def _connected(port: int, connect: Connect, number: int) -> AsyncIterator[list[Append]]:
    async with AsyncExitStack() as stack:
        yield [await connect(port, stack) for _ in range(number)]


async def _produce(append: Append, part: Sequence[Message]) -> list[float]:
    latencies: list[float] = []
    for message in part:
        began = time.perf_counter()
        await append(message.body)
        latencies.append(time.perf_counter() - began)
    return latencies
