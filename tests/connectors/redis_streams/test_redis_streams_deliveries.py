"""How often an entry of a Redis stream is delivered before it is set aside."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ergon_framework import Transaction
from ergon_framework.connector.redis_streams import RedisStreamsConnector
from tests.connectors.in_colour import COLOURS, driven
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.slow
LONG_AGO = 10**9


@pytest.fixture
def client(durable_redis: RedisServer, redis_url: str) -> Iterator[Any]:
    """What another program uses."""
    with durable_redis.connect() as found:
        yield found


def orders(url: str, **options: Any) -> RedisStreamsConnector:
    """A consumer of the stream."""
    return RedisStreamsConnector(url, **{"stream": "orders", "wait": 0.0, **options})


def die_with_all(client: Any) -> None:
    """Let what is in hand be that of a consumer which died long ago."""
    for found in client.xpending_range("orders", "ergon", "-", "+", 100):
        client.xclaim(
            *("orders", "ergon", "dead", 0, [found["message_id"]]), idle=LONG_AGO, justid=True
        )


@pytest.mark.parametrize("colour", COLOURS)
def test_what_kills_its_consumer_is_set_aside(redis_url: str, client: Any, colour: str) -> None:
    """Delivered more often than max_deliveries without an outcome; the others are delivered."""
    with orders(redis_url) as source:
        source.dispatch_transactions([Transaction("poison", 1, correlation_id="cart-7")])
    for _ in range(2):
        with driven(colour, orders(redis_url, max_deliveries=2)) as source:
            assert len(source("fetch", 1)) == 1
            die_with_all(client)
    with driven(colour, orders(redis_url, max_deliveries=2)) as source:
        source("dispatch", [Transaction("fine", 2)])
        (found,) = source("fetch", 10)
        assert found.transaction_id == "fine"
        source("ack", found)
        assert source.connector.malformed == 0
    ((_, letter),) = client.xrange("orders:dead")
    assert letter["ergon-reason"].replace("%20", " ") == "delivered 2 times without an outcome"
    assert (letter["ergon-transaction-id"], letter["body"]) == ("poison", "1")
    assert letter["ergon-correlation-id"] == "cart-7"
    assert client.xpending("orders", "ergon")["pending"] == 0


@pytest.mark.parametrize("colour", COLOURS)
def test_a_delivery_that_was_given_back_does_not_count(
    redis_url: str, client: Any, colour: str
) -> None:
    """Released, parked for a short while or a long one, or in hand when its consumer closed."""
    options = {"max_deliveries": 1, "claim_idle": 0.3, "wait": 60.0}
    with orders(redis_url) as source:
        source.dispatch_transactions([Transaction("patient", 1)])
    with driven(colour, orders(redis_url, **options)) as source:
        for _ in range(3):
            (found,) = source("fetch", 1)
            source("release", found)
        for seconds in (0.05, 0.6):
            (found,) = source("fetch", 1)
            source("release_after", found, seconds)
        assert len(source("fetch", 1)) == 1
    with driven(colour, orders(redis_url, **options)) as source:
        (found,) = source("fetch", 1)
        assert found.transaction_id == "patient"
        die_with_all(client)
    with driven(colour, orders(redis_url, **{**options, "wait": 0.0})) as source:
        assert source("fetch", 1) == []
    assert client.xlen("orders:dead") == 1


@pytest.mark.parametrize("colour", COLOURS)
def test_a_close_does_not_change_the_count_of_what_is_parked(
    redis_url: str, client: Any, colour: str
) -> None:
    """The delivery of a parked entry was taken back when it was parked, and is not a second time.

    The two that came before, of consumers that died, still count when its consumer closes.
    """
    options = {"max_deliveries": 3, "claim_idle": 30.0}
    with orders(redis_url) as source:
        source.dispatch_transactions([Transaction("parked", 1), Transaction("held", 2)])
    for _ in range(2):
        with driven(colour, orders(redis_url, **options)) as source:
            assert len(source("fetch", 2)) == 2
            die_with_all(client)
    with driven(colour, orders(redis_url, **options)) as source:
        found = {each.transaction_id: each for each in source("fetch", 2)}
        source("release_after", found["parked"], 3600.0)
    pending = client.xpending_range("orders", "ergon", "-", "+", 2)
    assert [each["times_delivered"] for each in pending] == [2, 2]


def test_without_a_bound_it_is_delivered_for_ever(redis_url: str, client: Any) -> None:
    """With 0."""
    with orders(redis_url) as source:
        source.dispatch_transactions([Transaction("poison", 1)])
    for _ in range(30):
        with orders(redis_url, max_deliveries=0) as source:
            assert len(source.fetch_transactions(1)) == 1
            die_with_all(client)
    assert client.xlen("orders:dead") == 0


@pytest.mark.parametrize(("bound", "delivered"), [(None, 0), (0, 1)])
def test_a_count_from_before_there_was_a_bound(
    redis_url: str, client: Any, bound: int | None, delivered: int
) -> None:
    """Its releases counted. An entry above the bound is set aside, unless there is none."""
    with orders(redis_url) as source:
        source.dispatch_transactions([Transaction("patient", 1)])
        assert len(source.fetch_transactions(1)) == 1
        (found,) = client.xpending_range("orders", "ergon", "-", "+", 1)
        client.xclaim(
            *("orders", "ergon", "before", 0, [found["message_id"]]),
            idle=LONG_AGO,
            retrycount=21,
            justid=True,
        )
    options = {} if bound is None else {"max_deliveries": bound}
    with orders(redis_url, **options) as source:
        assert len(source.fetch_transactions(1)) == delivered
    assert client.xlen("orders:dead") == 1 - delivered


def test_many_that_are_set_aside_do_not_look_like_the_end(redis_url: str, client: Any) -> None:
    """An empty fetch would end a consumer that works until nothing is left."""
    with orders(redis_url, max_deliveries=1) as source:
        source.dispatch_transactions([Transaction(f"t{n}", n) for n in range(5)])
        assert len(source.fetch_transactions(5)) == 5
        die_with_all(client)
    with orders(redis_url, max_deliveries=1) as source:
        assert source.fetch_transactions(2) == []
    assert client.xlen("orders:dead") == 5
