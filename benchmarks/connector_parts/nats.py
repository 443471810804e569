"""NATS JetStream: a durable pull consumer, and acknowledgements that the server has confirmed.

FastStream's usual acknowledgement does not wait for that, so its handler acknowledges by itself, as
is documented for the policy "manual". It handles all messages of a pull at once. Beside it we race
with as many at once.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Iterator
from typing import Any

from comparison import Record, RunOptions, Turn

from connector_parts import turns
from connector_parts.brokers import broker
from connector_parts.turns import BARE, BODY, FASTSTREAM, PREFETCH, Countdown, Entrant, Heat
from ergon_framework.connector.nats import NatsConnector

RATE = 2000
"""Messages of a turn, for each second that it should take."""
_NUMBERS = itertools.count()


def nats(options: RunOptions) -> Iterator[Record]:
    """With asyncio, one and a hundred at once, and with threads."""
    with broker("nats") as server:
        count = round(RATE * options.seconds)
        yield from turns.run_heats(heats(server.url()), options.rounds, count)


def heats(url: str) -> list[Heat]:
    """The contestants on the server there."""
    ours = Entrant("ergon", lambda count: turns.ours_async(count, _connector(url, count)))
    bare = Entrant("nats-py", lambda count: _bare(url, count), BARE)
    peer = Entrant("faststream", lambda count: _faststream(url, count), FASTSTREAM)
    threads = Entrant("ergon threads", lambda count: turns.ours(count, _connector(url, count)))
    from_thread = Entrant("nats-py from a thread", lambda count: _bare_threads(url, count), BARE)
    at_once = Entrant(
        "ergon at once", lambda count: turns.ours_async(count, _connector(url, count), PREFETCH)
    )
    return [
        Heat("nats", ours, [bare]),
        Heat("nats-at-once", at_once, [peer]),
        Heat("nats-threads", threads, [from_thread]),
    ]


def filled(url: str, count: int) -> str:
    """A stream with so many messages, and a durable consumer that has read none of them."""
    name = f"RACE{next(_NUMBERS)}"

    async def fill() -> None:
        import nats as library
        from nats.js.api import ConsumerConfig

        client = await library.connect(url)
        stream = client.jetstream()
        await stream.add_stream(name=name, subjects=[f"{name}.>"])
        await stream.add_consumer(name, ConsumerConfig(durable_name="billing"))
        for _ in range(count - 1):
            await client.publish(f"{name}.new", BODY.encode())
        await stream.publish(f"{name}.new", BODY.encode())  # stored after all the others
        await client.close()

    asyncio.run(fill())
    return name


def _connector(url: str, count: int) -> Any:
    stream = filled(url, count)
    return lambda: NatsConnector(url, stream=stream, consumer="billing")


def _bare(url: str, count: int) -> Turn:
    import nats as library

    countdown, stream = Countdown(count), filled(url, count)

    async def consume() -> None:
        client = await library.connect(url)
        source = await client.jetstream().pull_subscribe_bind("billing", stream)
        while countdown.left:
            for message in await source.fetch(PREFETCH):
                countdown.handle(json.loads(message.data))
                await message.ack_sync()
        await client.close()

    return countdown.timed_async(consume)


def _bare_threads(url: str, count: int) -> Turn:
    """The library has no other way for threads than a loop in another one."""
    import nats as library

    countdown, stream = Countdown(count), filled(url, count)

    def consume() -> None:
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()

        def called(work: Any) -> Any:
            return asyncio.run_coroutine_threadsafe(work, loop).result()

        client = called(library.connect(url))
        source = called(client.jetstream().pull_subscribe_bind("billing", stream))
        while countdown.left:
            for message in called(source.fetch(PREFETCH)):
                countdown.handle(json.loads(message.data))
                called(message.ack_sync())
        called(client.close())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    return countdown.timed(consume)


def _faststream(url: str, count: int) -> Turn:
    library = turns.imported("faststream.nats")
    policy = turns.imported("faststream").AckPolicy.MANUAL
    stream = filled(url, count)

    def declare(handle: Any, end: Any) -> Any:
        made = library.NatsBroker(url, logger=None, apply_types=False)

        @made.subscriber(
            f"{stream}.>",
            durable="billing",
            stream=library.JStream(stream, declare=False),
            pull_sub=library.PullSub(batch_size=PREFETCH),
            ack_policy=policy,
        )
        async def orders(body: Any) -> None:
            is_last = handle(body)
            await made.context.get_local("message").ack_sync()
            if is_last:
                end()

        return made

    return turns.faststream(count, declare)
