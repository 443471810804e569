"""Redis Streams where a process forks, closes, is cancelled, or finds what another one left."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ergon_framework import Transaction
from ergon_framework.connector.redis_streams import RedisStreamsConnector
from ergon_framework.engine.clocks import SYSTEM_CLOCK
from tests.servers.redis import RedisServer
from tests.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture
def client(durable_redis: RedisServer, redis_url: str) -> Iterator[Any]:
    """What another program uses."""
    with durable_redis.connect() as found:
        yield found


def orders(url: str, **options: Any) -> RedisStreamsConnector:
    """A consumer of the stream."""
    return RedisStreamsConnector(url, **{"stream": "orders", **options})


def consumers(client: Any) -> set[str]:
    """The names in the group, once there is one."""
    if not client.exists("orders"):
        return set()
    return {each["name"] for each in client.xinfo_consumers("orders", "ergon")}


def test_a_forked_child_is_a_consumer_of_its_own(redis_url: str, client: Any) -> None:
    """Also one that was forked while a thread of its parent waited in a fetch."""
    with orders(redis_url, wait=30.0) as source:
        waiting = threading.Thread(target=source.fetch_transactions, args=(1,))
        waiting.start()
        until(lambda: len(consumers(client)) == 1)
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            code = 1
            try:
                source.dispatch_transactions([Transaction("t1", 1), Transaction("t2", 2)])
                source.fetch_transactions(1)
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        waiting.join()
        assert len(consumers(client)) == 2


def test_a_connection_that_is_being_made_holds_up_no_close() -> None:
    """A server that accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        source = orders(f"redis://127.0.0.1:{deaf.getsockname()[1]}/0")
        waiting = threading.Thread(target=source.fetch_transactions, args=(1,), daemon=True)
        waiting.start()
        near, _ = deaf.accept()
        with near:
            begun = SYSTEM_CLOCK.now()
            source.stop_waiting()
            source.close()
            assert SYSTEM_CLOCK.now() - begun < 2
            waiting.join(timeout=10)
            assert not waiting.is_alive()


def test_a_cancelled_fetch_that_found_something_gives_it_back_at_close(
    redis_url: str, client: Any
) -> None:
    """The next consumer has it at once."""

    async def cancelled() -> None:
        source = orders(redis_url, wait=5.0)
        fetch = asyncio.ensure_future(source.fetch_transactions_async(1))
        await asyncio.to_thread(until, lambda: len(consumers(client)) == 1)
        fetch.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fetch
        client.xadd("orders", {"body": "1"})
        await asyncio.to_thread(until, lambda: client.xpending("orders", "ergon")["pending"] == 1)
        await asyncio.sleep(0.1)
        await source.aclose()

    asyncio.run(cancelled())
    with orders(redis_url) as source:
        assert [each.payload for each in source.fetch_transactions(1)] == [1]


def test_what_was_left_takes_turns_with_new_work(redis_url: str) -> None:
    """A busy stream does not keep what a dead consumer left waiting for long."""
    with orders(redis_url) as dead, orders(redis_url, claim_idle=0.3) as source:
        dead.dispatch_transactions([Transaction(f"old-{n}", n) for n in range(100)])
        left = dead.fetch_transactions(100)
        source.dispatch_transactions([Transaction(f"new-{n}", n) for n in range(1000)])
        for each in left:
            dead.release(each)
        found = [source.fetch_transactions(1)[0] for _ in range(250)]
        for each in found:
            source.ack(each)
    assert sum(each.transaction_id.startswith("old") for each in found) == 100
    assert sum(each.transaction_id.startswith("new") for each in found[:200]) >= 90
