"""What a Redis server and its connector refuse: nothing is lost, and no payload is shown."""

from __future__ import annotations

import asyncio
import json
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ergon_framework import Transaction
from ergon_framework.connector.redis_streams import RedisStreamsConnector
from ergon_framework.errors import ConfigurationError, ConnectorError, PayloadError
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.slow
SECRET = "hunter" + "2"
"""In two parts: a traceback shows the lines of this file."""


@pytest.fixture
def client(durable_redis: RedisServer, redis_url: str) -> Iterator[Any]:
    """What another program uses."""
    with durable_redis.connect() as found:
        yield found


@contextmanager
def a_full_server(client: Any) -> Iterator[None]:
    """It has no memory left."""
    client.config_set("maxmemory", "1mb")
    try:
        yield
    finally:
        client.config_set("maxmemory", "0")


def orders(url: str, **options: Any) -> RedisStreamsConnector:
    """A consumer of the stream."""
    return RedisStreamsConnector(url, **{"stream": "orders", **options})


def said(error: BaseException) -> str:
    """All that a log shows of an error."""
    return "".join(traceback.format_exception(error))


def test_a_refused_dispatch_shows_no_payload(redis_url: str, client: Any) -> None:
    """Neither in its own message nor in that of its cause."""
    client.set("orders", "text")
    source = orders(redis_url)
    with source, pytest.raises(ConfigurationError, match="WRONGTYPE") as caught:
        source.dispatch_transactions([Transaction("t1", SECRET)])
    assert SECRET not in said(caught.value)


def test_a_refused_dispatch_shows_no_payload_in_asyncio(redis_url: str, client: Any) -> None:
    """The other driver says no more."""
    client.set("orders", "text")

    async def dispatch() -> None:
        source = orders(redis_url)
        try:
            await source.dispatch_transactions_async([Transaction("t1", SECRET)])
        finally:
            await source.aclose()

    with pytest.raises(ConfigurationError, match="WRONGTYPE") as caught:
        asyncio.run(dispatch())
    assert SECRET not in said(caught.value)


@pytest.mark.parametrize("command", ["xreadgroup", "xack", "xadd"])
def test_rights_that_are_taken_away_are_told_as_such(
    redis_url: str, client: Any, command: str
) -> None:
    """By every call that needs them, inside of a script or not: no repeat would bring them back."""
    client.execute_command("ACL", "SETUSER", "clerk", "on", f">{SECRET}", "~*", "&*", "+@all")
    try:
        with orders(redis_url.replace("redis://", f"redis://clerk:{SECRET}@")) as source:
            source.dispatch_transactions([Transaction("t1", 1)])
            (order,) = source.fetch_transactions(1)
            client.execute_command("ACL", "SETUSER", "clerk", f"-{command}")
            calls: dict[str, list[Callable[[], object]]] = {
                "xreadgroup": [lambda: source.fetch_transactions(1)],
                "xack": [lambda: source.ack(order), lambda: source.nack(order, ValueError("no"))],
                "xadd": [lambda: source.dispatch_transactions([Transaction("t2", 2)])],
            }
            for call in calls[command]:
                with pytest.raises(ConfigurationError, match="forbids something") as caught:
                    call()
                assert SECRET not in said(caught.value)
                assert not source.health()
            client.execute_command("ACL", "SETUSER", "clerk", "+@all")
            source.ack(order)
            source.dispatch_transactions([Transaction("t3", 3)])
            (last,) = source.fetch_transactions(1)
            source.nack(last, ValueError("no"))
            assert source.health()
    finally:
        client.execute_command("ACL", "DELUSER", "clerk")


def test_a_full_server_is_tried_again(redis_url: str, client: Any) -> None:
    """What it cannot write now it may write later: the engine repeats a dispatch and a nack."""
    with orders(redis_url) as source:
        source.dispatch_transactions([Transaction("t1", 1)])
        (order,) = source.fetch_transactions(1)
        with a_full_server(client):
            with pytest.raises(ConnectorError, match="writes nothing") as caught:
                source.dispatch_transactions([Transaction("t2", SECRET)])
            assert caught.value.failure_kind == "transient"
            assert SECRET not in said(caught.value)
            with pytest.raises(ConnectorError, match="writes nothing") as caught:
                source.nack(order, ValueError("no"))
            assert caught.value.failure_kind == "transient"
        source.nack(order, ValueError("no"))
    assert client.xlen("orders:dead") == 1


def test_a_header_does_not_replace_the_body(redis_url: str, client: Any) -> None:
    """A header in the field of the body is refused, before anything is sent."""
    bad = Transaction("t2", 2, {"headers": {"body": "hello"}})
    source = orders(redis_url)
    with source, pytest.raises(PayloadError, match="'t2' has a header body"):
        source.dispatch_transactions([Transaction("t1", 1), bad])
    assert client.xlen("orders") == 0
    with orders(redis_url, body_field="data") as source:
        source.dispatch_transactions([bad])
        (order,) = source.fetch_transactions(1)
        assert (order.payload, dict(order.metadata)["headers"]) == (2, {"body": "hello"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"body_field": "content-type"}, "body_field"),
        ({"dead_letters": "orders"}, "dead_letters"),
        ({"claim_idle": float("nan")}, "claim_idle"),
        ({"claim_idle": float("inf")}, "claim_idle"),
        ({"claim_idle": 1e9}, "claim_idle"),
        ({"wait": float("nan")}, "wait"),
    ],
)
def test_an_option_that_cannot_work_is_refused(options: dict[str, Any], message: str) -> None:
    """A body among the headers, dead letters that would come again, times without end."""
    with pytest.raises(ConfigurationError, match=message):
        orders("redis://127.0.0.1:1/0", **options)


@pytest.mark.parametrize("body", [{}, {"body": "{"}], ids=["a transaction", "malformed"])
def test_an_entry_of_thousands_of_fields_is_set_aside(
    redis_url: str, client: Any, body: dict[str, str]
) -> None:
    """Whole, with what is too much for a script in one field; it blocks nothing behind it."""
    client.xadd("orders", {**{f"f{n}": str(n) for n in range(5000)}, **body})
    client.xadd("orders", {"body": "1"})
    with orders(redis_url) as source:
        found = source.fetch_transactions(5)
        assert found[-1].payload == 1
        for each in found[:-1]:
            source.nack(each, ValueError("no"))
    ((_, fields),) = client.xrange("orders:dead")
    rest = json.loads(fields["ergon-more-fields"])
    assert fields["f3499"] == "3499"
    assert dict(zip(rest[::2], rest[1::2], strict=True))["f3500"] == "3500"
    assert fields["ergon-transaction-id"].startswith("orders:")


def test_a_value_is_not_taken_for_the_name_of_a_field(redis_url: str, client: Any) -> None:
    """A dead letter has an id, whatever stood in the entry."""
    entry = client.xadd("orders", {"sku": "ergon-transaction-id"})
    with orders(redis_url) as source:
        source.nack(source.fetch_transactions(1)[0], ValueError("no"))
    ((_, fields),) = client.xrange("orders:dead")
    assert fields["ergon-transaction-id"] == f"orders:{entry}"
