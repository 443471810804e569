"""How entries of a Redis stream become transactions, and how these are settled."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from ergon_framework import Transaction
from ergon_framework.connector.redis_streams import RedisStreamsConnector, RedisStreamsError
from ergon_framework.connector.redis_streams.connector import DeliveryLostError
from ergon_framework.engine.clocks import SYSTEM_CLOCK
from ergon_framework.errors import ConfigurationError, PayloadError
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


def test_the_fields_of_another_program_are_the_payload(redis_url: str, client: Any) -> None:
    """A plain entry needs no body: its fields are a payload of texts, its id that of the entry."""
    entry = client.xadd(
        "orders", {"sku": "a-1", "qty": "3", "traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}
    )
    with orders(redis_url) as source:
        (order,) = source.fetch_transactions(10)
        assert order.payload == {"sku": "a-1", "qty": "3"}
        assert order.transaction_id == f"orders:{entry}"
        assert order.trace_id == "1" * 32
        assert source.fetch_transaction_by_id(f"orders:{entry}") is not None
        source.ack(order)


def test_an_entry_that_is_no_transaction_is_kept_whole(redis_url: str, client: Any) -> None:
    """In the stream of dead letters, with its fields and the reason."""
    client.xadd("orders", {"body": "{", "x-shop": "berlin"})
    client.xadd("orders", {b"\xff": b"\xff"})
    with orders(redis_url) as source:
        assert source.fetch_transactions(10) == []
        assert source.malformed == 2
        assert source.dead_letter_file == "orders:dead"
    fields = client.xrange("orders:dead", count=1)[0][1]
    assert (fields["body"], fields["x-shop"]) == ("{", "berlin")
    assert "json" in fields["ergon-reason"]


def test_many_malformed_entries_do_not_look_like_the_end(redis_url: str, client: Any) -> None:
    """A fetch goes on behind them: an empty batch would end a run that drains its source."""
    for _ in range(25):
        client.xadd("orders", {"body": "{"})
    client.xadd("orders", {"body": "1"})
    with orders(redis_url) as source:
        assert [each.payload for each in source.fetch_transactions(10)] == [1]
        assert source.malformed == 25
        assert source.fetch_transactions(10) == []


def test_a_nacked_entry_keeps_its_body(redis_url: str, client: Any) -> None:
    """So that it can be put back as it was."""
    with orders(redis_url, dead_letters="orders-failed") as source:
        source.dispatch_transactions([Transaction("t1", {"n": 1})])
        source.nack(source.fetch_transactions(1)[0], ValueError("größer als 1 kg"))
    fields = client.xrange("orders-failed")[0][1]
    assert (fields["body"], fields["ergon-transaction-id"]) == ('{"n":1}', "t1")
    assert "ValueError" in fields["ergon-reason"]


def test_an_entry_that_another_consumer_has_is_not_settled(redis_url: str, client: Any) -> None:
    """A late ack is refused and counted: whoever has the entry now settles it."""
    with orders(redis_url, consumer="slow", claim_idle=30.0) as slow:
        slow.dispatch_transactions([Transaction("t1", 1), Transaction("t2", 2)])
        first, second = slow.fetch_transactions(2)
        entry = client.xpending_range("orders", "ergon", "-", "+", 2)
        client.xclaim("orders", "ergon", "other", 0, [each["message_id"] for each in entry])
        for settle in (slow.ack, slow.release):
            with pytest.raises(DeliveryLostError, match="not this consumer's") as caught:
                settle(first if settle == slow.ack else second)
            assert caught.value.failure_kind == "lost"
        assert slow.late == 2
        assert client.xpending("orders", "ergon")["pending"] == 2


def test_a_group_that_is_gone_is_made_again(redis_url: str, client: Any) -> None:
    """With its stream: new entries are delivered, and what was in hand is lost, not settled."""
    with orders(redis_url) as source:
        source.dispatch_transactions([Transaction("t1", 1)])
        (first,) = source.fetch_transactions(1)
        client.delete("orders")
        with pytest.raises(DeliveryLostError):
            source.ack(first)
        assert source.fetch_transactions(1) == []
        source.dispatch_transactions([Transaction("t2", 2)])
        assert [each.transaction_id for each in source.fetch_transactions(1)] == ["t2"]


def test_a_new_group_begins_where_it_is_told(redis_url: str) -> None:
    """With all there is, or with what comes next."""
    with orders(redis_url, group="all") as everything, orders(redis_url, start="$") as rest:
        assert rest.fetch_transactions(1) == []
        everything.dispatch_transactions([Transaction("t1", 1)])
        assert len(everything.fetch_transactions(5)) == 1
        assert len(rest.fetch_transactions(5)) == 1
    with orders(redis_url, group="later", start="$") as later:
        assert later.fetch_transactions(5) == []


def test_what_is_released_goes_to_any_consumer(redis_url: str) -> None:
    """At once, whatever claim_idle says, and so does what a closed connector had in hand."""
    with orders(redis_url) as one, orders(redis_url) as other:
        one.dispatch_transactions([Transaction("t1", 1), Transaction("t2", 2)])
        first, _second = one.fetch_transactions(2)
        one.release(first)
        assert other.fetch_transactions(5)[0].transaction_id == "t1"
        one.close()
        until(lambda: [each.transaction_id for each in other.fetch_transactions(5)] == ["t2"])


def test_a_closed_consumer_leaves_its_group(redis_url: str, client: Any) -> None:
    """Otherwise each start of a program would leave a name behind."""
    with orders(redis_url) as source:
        source.dispatch_transactions([Transaction("t1", 1)])
        source.ack(source.fetch_transactions(1)[0])
        assert len(client.xinfo_consumers("orders", "ergon")) == 1
    assert client.xinfo_consumers("orders", "ergon") == []


def test_what_is_parked_for_long_is_kept_by_its_consumer(redis_url: str) -> None:
    """The server counts idle time only up to claim_idle; until then it is renewed."""
    with orders(redis_url, claim_idle=0.5) as one, orders(redis_url, claim_idle=0.5) as other:
        one.dispatch_transactions([Transaction("t1", 1)])
        began = SYSTEM_CLOCK.now()
        one.release_after(one.fetch_transactions(1)[0], 1.6)
        until(lambda: other.fetch_transactions(1), "its time")
        assert SYSTEM_CLOCK.now() - began >= 1.5


def test_a_fetch_may_wait_for_work(redis_url: str) -> None:
    """It returns with what comes meanwhile, or when a stop is asked for."""
    with orders(redis_url, wait=30.0) as source, orders(redis_url) as target:
        found: list[Any] = []
        thread = SYSTEM_CLOCK.spawn("fetch", lambda: found.append(source.fetch_transactions(5)))
        target.dispatch_transactions([Transaction("t1", 1)])
        thread.join(20)
        assert [each.transaction_id for each in found[0]] == ["t1"]
        thread = SYSTEM_CLOCK.spawn("fetch", lambda: found.append(source.fetch_transactions(5)))
        while thread.is_alive():  # it may not have begun at the first of them
            source.stop_waiting()
            thread.join(0.1)
        assert found[1] == []


def test_a_task_may_wait_for_work(redis_url: str) -> None:
    """The event loop goes on meanwhile, and a stop is heard."""

    async def consume() -> list[Transaction]:
        source = orders(redis_url, wait=30.0)
        fetch = asyncio.ensure_future(source.fetch_transactions_async(5))
        await source.dispatch_transactions_async([Transaction("t1", 1)])
        first = await asyncio.wait_for(fetch, 20)
        fetch = asyncio.ensure_future(source.fetch_transactions_async(5))
        await asyncio.sleep(0.05)
        source.stop_waiting()
        assert await asyncio.wait_for(fetch, 20) == []
        await source.aclose()
        return first

    assert [each.transaction_id for each in asyncio.run(consume())] == ["t1"]


def test_a_bound_in_bytes_holds_a_fetch_up(redis_url: str) -> None:
    """Until something is settled; a stop ends the wait with nothing."""
    with orders(redis_url, max_in_flight_bytes=2000) as source:
        source.dispatch_transactions([Transaction(f"t{n}", "x" * 3000) for n in range(2)])
        (first,) = source.fetch_transactions(1)
        found: list[Any] = []
        thread = SYSTEM_CLOCK.spawn("fetch", lambda: found.append(source.fetch_transactions(5)))
        source.ack(first)
        thread.join(20)
        assert len(found[0]) == 1


def test_a_stream_is_trimmed_on_dispatch(redis_url: str, client: Any) -> None:
    """About to the bound: a server trims whole blocks."""
    with orders(redis_url, max_length=100) as target:
        for n in range(10):
            target.dispatch_transactions([Transaction(f"t{n}-{m}", m) for m in range(100)])
    assert 100 <= client.xlen("orders") < 500


def test_a_dispatch_is_all_or_nothing(redis_url: str, client: Any) -> None:
    """What JSON does not give back equal is refused before anything is sent."""
    with orders(redis_url) as target, pytest.raises(PayloadError, match="t2"):
        target.dispatch_transactions([Transaction("t1", 1), Transaction("t2", (1, 2))])
    assert client.exists("orders") == 0


def test_a_key_of_another_kind_is_refused(redis_url: str, client: Any) -> None:
    """Another program uses the name: no wait repairs that."""
    client.set("orders", "text")
    with orders(redis_url) as source:
        with pytest.raises(ConfigurationError, match="WRONGTYPE"):
            source.fetch_transactions(1)
        with pytest.raises(ConfigurationError, match="WRONGTYPE"):
            source.dispatch_transactions([Transaction("t1", 1)])


def test_a_wrong_password_is_not_waited_for(durable_redis: RedisServer) -> None:
    """And not shown."""
    url = durable_redis.url.replace("redis://", "redis://app:hunter2@")
    with orders(url) as source, pytest.raises(ConfigurationError, match="this user") as caught:
        source.fetch_transactions(1)
    assert "hunter2" not in str(caught.value)


def test_the_doctor_is_told_of_server_and_group(redis_url: str) -> None:
    """Before the group is there, and after."""
    with orders(redis_url) as source:
        assert "first fetch" in " ".join(each.found for each in source.observe())
        source.dispatch_transactions([Transaction("t1", 1)])
        source.fetch_transactions(1)
        assert "0 wait, 1 are in hand" in " ".join(each.found for each in source.observe())


def test_a_delivery_of_another_connector_is_refused(redis_url: str) -> None:
    """Settled is the very object that was delivered."""
    with orders(redis_url) as one, orders(redis_url) as other:
        one.dispatch_transactions([Transaction("t1", 1)])
        with pytest.raises(RedisStreamsError, match="did not deliver"):
            other.ack(one.fetch_transactions(1)[0])
