"""What goes into a queue and comes out of it, as other programs see it."""

from __future__ import annotations

import json
import threading
from typing import Any
from urllib.parse import unquote

import aio_pika
import pytest

from ergon_framework.connector.rabbitmq import RabbitConnector, UnroutableError
from ergon_framework.errors import ConfigurationError
from ergon_framework.ports.transaction import Transaction
from tests.connectors.rabbitmq.in_colour import COLOURS, in_colour
from tests.connectors.rabbitmq.other_program import channel, messages, publish
from tests.servers.rabbitmq import RabbitServer
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("colour", COLOURS)]
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_other_programs_read_what_is_dispatched(rabbit_server: RabbitServer, colour: str) -> None:
    """The id and the correlation are properties, the trace is a header, the body is the payload."""
    with in_colour(colour, rabbit_server.new_queue()) as orders:
        order = Transaction(
            "order-1",
            {"amount": 5},
            {"traceparent": TRACE, "headers": {"tenant": "blue"}},
            correlation_id="cart-7",
        )
        orders("dispatch", [order])
        [(properties, body)] = messages(rabbit_server, orders.connector.queue)
    assert (properties.message_id, properties.correlation_id) == ("order-1", "cart-7")
    assert (properties.content_type, properties.delivery_mode) == ("application/json", 2)
    assert (properties.headers["traceparent"], properties.headers["tenant"]) == (TRACE, "blue")
    assert json.loads(body) == {"amount": 5}


def test_what_other_programs_publish_is_read(rabbit_server: RabbitServer, colour: str) -> None:
    """Their message id, correlation id, trace and headers come in the envelope."""
    with in_colour(colour, rabbit_server.new_queue()) as orders:
        assert orders("fetch", 1) == []  # which makes the queue
        headers = {"traceparent": TRACE, "tenant": "blue", "shard": 7}
        publish(
            rabbit_server,
            orders.connector.queue,
            b'{"amount": 5}',
            message_id="m-1",
            correlation_id="cart 7",
            headers=headers,
        )
        (order,) = orders.take()
        orders("ack", order)
    assert (order.transaction_id, order.correlation_id) == ("m-1", "cart 7")
    assert order.metadata["traceparent"] == TRACE
    assert order.metadata["headers"] == {"tenant": "blue", "shard": "7"}
    assert order.payload == {"amount": 5}


def test_malformed_messages_are_set_aside(rabbit_server: RabbitServer, colour: str) -> None:
    """What is no transaction goes to the dead letters with its reason, and the others flow."""
    with in_colour(colour, rabbit_server.new_queue()) as orders:
        orders("fetch", 1)
        publish(rabbit_server, orders.connector.queue, b"not json")
        publish(rabbit_server, orders.connector.queue, b"5", message_id="fine")
        (fine,) = orders.take()
        orders("ack", fine)
        assert (fine.transaction_id, orders.connector.malformed) == ("fine", 1)
        [(properties, body)] = messages(rabbit_server, f"{orders.connector.queue}.dead")
    assert body == b"not json"
    assert "json" in unquote(properties.headers["ergon-reason"])


def test_dead_letters_go_to_an_exchange_of_the_users(
    rabbit_server: RabbitServer, colour: str
) -> None:
    """A failure is published there under the name of the queue; one that nobody takes is kept."""
    url = rabbit_server.new_queue()
    exchange = f"failures.{url.rpartition('/')[2]}.{colour}"
    with channel(rabbit_server) as through:
        through.exchange_declare(exchange, "topic")
    with in_colour(colour, url, dead_letter_exchange=exchange) as orders:
        orders("dispatch", [Transaction("bad", 1)])
        (bad,) = orders.take()
        with pytest.raises(UnroutableError, match=exchange):
            orders("nack", bad, ValueError("unknown article"))
        assert not orders.connector.health(), "the dead letters are refused"
        assert [each.remedy for each in orders.connector.observe() if each.is_grave]
        with channel(rabbit_server) as through:
            through.queue_declare(f"{exchange}.all", durable=True)
            through.queue_bind(f"{exchange}.all", exchange, "#")
        orders("nack", bad, ValueError("unknown article"))
        assert orders.connector.health()
        [(properties, _)] = messages(rabbit_server, f"{exchange}.all")
    assert "unknown article" in unquote(properties.headers["ergon-reason"])


def test_what_no_queue_takes_is_an_error(rabbit_server: RabbitServer, colour: str) -> None:
    """A dispatch fails when a message came back, also among others with the same id."""
    with (
        in_colour(colour, rabbit_server.new_queue(), exchange="amq.topic") as orders,
        pytest.raises(UnroutableError, match=r"'amq\.topic' has no queue for the routing key"),
    ):
        orders("dispatch", [Transaction("same", 1), Transaction("same", 2)])
    with (
        in_colour(colour, rabbit_server.new_queue(), exchange="nobody.made.it") as orders,
        pytest.raises(ConfigurationError, match=r"no exchange 'nobody\.made\.it'"),
    ):
        orders("dispatch", [Transaction("same", 1)])


def test_deliveries_are_counted_and_limited(rabbit_server: RabbitServer, colour: str) -> None:
    """A message that comes back too often is dead-lettered by the broker, which says why."""
    with in_colour(colour, rabbit_server.new_queue(), delivery_limit=2) as orders:
        orders("dispatch", [Transaction("deadly", 1)])
        counts = []
        for _ in range(3):
            (order,) = orders.take()
            counts.append(order.delivery_count)
            orders("release", order)
        assert counts == [0, 1, 2]
        dead = f"{orders.connector.queue}.dead"
        found: list[tuple[Any, bytes]] = []

        def is_there() -> bool:
            found.extend(messages(rabbit_server, dead))
            return bool(found)

        until(is_there, "the dead letter")
        [(properties, _)] = found
    assert properties.headers["x-first-death-reason"] == "delivery_limit"


def test_a_parked_message_waits_in_a_queue(rabbit_server: RabbitServer, colour: str) -> None:
    """It is not in the hands of the process, comes back in its time, and counts no delivery."""
    with in_colour(colour, rabbit_server.new_queue()) as orders:
        orders("dispatch", [Transaction("later", {"n": 1}, correlation_id="c")])
        (order,) = orders.take()
        parked = f"{orders.connector.queue}.parked.1"
        orders("release_after", order, 1.5)
        with channel(rabbit_server) as through:
            assert through.queue_declare(parked, passive=True).method.message_count == 1
        assert orders("fetch", 1) == []
        (again,) = orders.take()
        assert (again.transaction_id, again.payload) == ("later", {"n": 1})
        assert (again.correlation_id, again.delivery_count) == ("c", 0)
        assert dict(again.metadata) == dict(order.metadata)
        orders("ack", again)
        assert orders("count") == 0


def test_a_message_held_here_comes_back_where_there_is_no_room_for_another(
    rabbit_server: RabbitServer, colour: str
) -> None:
    """It is unsettled and fills the prefetch, so no settlement would ever end the fetch's wait."""
    with in_colour(colour, rabbit_server.new_queue(), prefetch=1) as orders:
        orders("dispatch", [Transaction("a", 1), Transaction("b", 2)])
        (first,) = orders.take()
        orders("release_after", first, 0.3)
        (again,) = orders("fetch", 1, wait=0.0)
        assert again.payload == 1
        orders("ack", again)
        (other,) = orders.take()
        orders("ack", other)


def test_a_message_parked_for_ever_stops_nobody(rabbit_server: RabbitServer, colour: str) -> None:
    """Another program may write any instant into the header, also one that no copy could hold."""
    with in_colour(colour, rabbit_server.new_queue()) as orders:
        assert orders("fetch", 1) == []  # which makes the queue
        publish(
            rabbit_server,
            orders.connector.queue,
            b"1",
            headers={"ergon-not-before": 2**63 - 1},
        )
        assert orders("fetch", 1, wait=0.5) == []
        assert orders.connector.health()
        parked = messages(rabbit_server, f"{orders.connector.queue}.parked.{2**17}")
        assert [body for _, body in parked] == [b"1"]


def test_a_queue_of_other_arguments_is_used_as_it_is(
    rabbit_server: RabbitServer, colour: str
) -> None:
    """A classic queue that somebody made is read and written, not declared anew."""
    with in_colour(colour, rabbit_server.new_queue()) as orders:
        with channel(rabbit_server) as through:
            through.queue_declare(orders.connector.queue, durable=True)
        orders("dispatch", [Transaction("one", 1)])
        (order,) = orders.take()
        assert order.delivery_count == 0
        orders("ack", order)


def test_no_queue_is_made_unless_it_may_be(rabbit_server: RabbitServer, colour: str) -> None:
    """With ``declare=False`` a queue that is not there is an error that names it."""
    url = rabbit_server.new_queue()
    with (
        in_colour(colour, url, declare=False) as orders,
        pytest.raises(ConfigurationError, match=f"no queue '{url.rpartition('/')[2]}'"),
    ):
        orders("fetch", 1)


def test_a_fetch_waits_for_messages_and_a_stop(rabbit_server: RabbitServer, colour: str) -> None:
    """It returns what comes, and returns at once when a stop is asked for."""
    with in_colour(colour, rabbit_server.new_queue()) as orders:
        orders("fetch", 1)
        waiting = orders.begin("fetch", 1, wait=600.0)
        publish(rabbit_server, orders.connector.queue, b"1")
        (order,) = waiting.result(60)
        orders("ack", order)
        waiting = orders.begin("fetch", 1, wait=600.0)
        stopping = threading.Event()
        while not waiting.done():  # a stop before the fetch has begun does not count for it
            orders.connector.stop_waiting()
            stopping.wait(0.01)
        assert waiting.result() == []


def test_large_messages_bound_what_comes_ahead(rabbit_server: RabbitServer, colour: str) -> None:
    """Above the limit of bytes nothing more is asked for, until something is settled."""
    size, limit = 100_000, 400_000
    options = {"max_in_flight_bytes": limit, "format": "bytes"}
    with in_colour(colour, rabbit_server.new_queue(), **options) as orders:
        orders("dispatch", [Transaction(f"t{n}", b"x" * size) for n in range(80)])
        seen: set[str] = set()
        while len(seen) < 80:
            batch = orders("fetch", 40, wait=60.0)
            assert batch, f"{len(seen)} of 80 came"
            with channel(rabbit_server) as through:
                waiting = through.queue_declare(orders.connector.queue, passive=True)
            ahead = 80 - len(seen) - waiting.method.message_count
            assert ahead * size <= limit + 32 * size  # what was under way when it was full
            for each in batch:
                seen.add(each.transaction_id)
                orders("ack", each)
        until(lambda: orders("count") == 0, "the queue to be empty")


def test_it_needs_the_right_login(rabbit_server: RabbitServer, colour: str) -> None:
    """A wrong password or virtual host is an error at once, and neither is in its text."""
    port = rabbit_server.port
    for url, match in (
        (f"amqp://ergon:wr0ng-word@127.0.0.1:{port}/q", "refuses the login"),
        (rabbit_server.url("nowhere/q"), "no such virtual host"),
    ):
        with in_colour(colour, url) as orders:
            with pytest.raises(ConfigurationError, match=match) as caught:
                orders("fetch", 1)
            told = f"{caught.value} {caught.value.remedy}"
            assert "wr0ng-word" not in told
            assert "not-so-secret" not in told
    with in_colour(colour, rabbit_server.url("shop/q")) as orders:
        orders("dispatch", [Transaction("one", 1)])
        orders("ack", *orders.take())


def test_a_connection_that_was_refused_is_closed(
    rabbit_server: RabbitServer, colour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An open one of aio-pika closes itself where it is collected: perhaps without a loop."""
    made: list[aio_pika.Connection] = []

    class Recorded(aio_pika.Connection):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            made.append(self)

    monkeypatch.setattr(aio_pika, "Connection", Recorded)
    with in_colour(colour, rabbit_server.url("nowhere/q")) as orders:
        with pytest.raises(ConfigurationError, match="no such virtual host"):
            orders("fetch", 1)
        assert [each.is_closed for each in made] == ([True] if colour == "async" else [])


def test_bad_options_are_refused_before_anything_is_opened(
    rabbit_server: RabbitServer, colour: str
) -> None:
    """Each error says which option is wrong."""
    url = rabbit_server.new_queue()
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"delivery_limit": 0}, "delivery_limit"),
        ({"prefetch": -1}, "prefetch"),
        ({"wait": float("nan")}, "wait"),
        ({"heartbeat": 70_000}, "heartbeat"),
        ({"sasl": "kerberos"}, "sasl"),
        ({"sasl": "external"}, "certificate"),
        ({"ca": "x.pem"}, "amqps"),
        ({"format": "xml"}, "format"),
        ({"routing_key": "x" * 256}, "routing_key is 256 bytes long"),
        ({"dead_letter_queue": "ü" * 128}, "dead_letter_queue is 256 bytes long"),
    ]
    for options, match in wrong:
        with pytest.raises(ConfigurationError, match=match):
            RabbitConnector(url, **options)
    for bad in ("amqp://127.0.0.1", "http://127.0.0.1/q", f"{url}?wait=1"):
        with pytest.raises(ConfigurationError):
            RabbitConnector(bad)


def test_a_timestamp_that_no_calendar_has_stops_nothing(
    rabbit_server: RabbitServer, colour: str
) -> None:
    """Other programs may write anything there, as a property and as a header; the rest is read."""
    with in_colour(colour, rabbit_server.new_queue()) as orders:
        assert orders("fetch", 1) == []  # which makes the queue
        queue = orders.connector.queue
        late = 1 << 62
        publish(rabbit_server, queue, b"1", message_id="m-1", timestamp=late)
        publish(rabbit_server, queue, b"{", message_id="m-2", timestamp=late)
        publish(rabbit_server, queue, b"3", message_id="m-3", timestamp=1_700_000_000)
        came = orders.take(2)
        for each in came:
            orders("ack", each)
    assert [each.transaction_id for each in came] == ["m-1", "m-3"]
