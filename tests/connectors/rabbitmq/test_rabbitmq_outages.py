"""Connections that break, servers that go away, processes that are killed."""

from __future__ import annotations

import functools
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import aiormq.exceptions
import pika.exceptions
import psycopg
import pytest

from ergon_framework.connector.broker.connection import BrokerUnavailableError
from ergon_framework.connector.rabbitmq import RabbitConnector
from ergon_framework.connector.rabbitmq.errors import refused
from ergon_framework.errors import ChannelLostError, ConfigurationError
from ergon_framework.ports.transaction import Transaction
from tests.boundary.node.cables import Cable
from tests.campaign.parameter_sample import sampled
from tests.connectors.rabbitmq.in_colour import COLOURS, in_colour
from tests.connectors.rabbitmq.other_program import channel
from tests.connectors.test_jsonl_forking import ended, in_a_child
from tests.servers.rabbitmq import RabbitServer
from tests.servers.tls import Papers
from tests.waiting import until

pytestmark = pytest.mark.slow
CHILD = Path(__file__).with_name("consumer_child.py")


@pytest.mark.parametrize("colour", COLOURS)
def test_a_lost_channel_settles_nothing(rabbit_server: RabbitServer, colour: str) -> None:
    """Each settlement of what came through it is refused, and all of it comes again, once."""
    queue = rabbit_server.new_queue().rpartition("/")[2]
    # Another connector dispatches: health() then tells of nothing but the consumer's connection.
    with in_colour(colour, rabbit_server.url(queue)) as producer:
        producer("dispatch", [Transaction(f"t{n}", n) for n in range(6)])
    with Cable(rabbit_server.port) as cable:
        url = rabbit_server.url(queue, port=cable.port)
        with in_colour(colour, url) as orders:
            first = orders.take(6)
            cable.cut()
            until(lambda: not orders.connector.health(), "the loss")
            settlements: list[tuple[str, Any]] = [
                ("ack", ()),
                ("nack", (ValueError("bad"),)),
                ("release", ()),
                ("release_after", (5.0,)),
            ]
            for each, (verb, given) in zip(first, settlements, strict=False):
                with pytest.raises(ChannelLostError):
                    orders(verb, each, *given)
            cable.heal()
            again = orders.take(6)
            assert sorted(each.payload for each in again) == list(range(6))
            assert {each.delivery_count for each in again} == {1}
            for each in again:
                orders("ack", each)
            with pytest.raises(ChannelLostError):
                orders("ack", first[0])
            assert orders("fetch", 1) == []
            assert orders.connector.health()


@pytest.mark.parametrize("colour", sampled(COLOURS, ["sync"]))
def test_a_server_that_is_away_is_waited_for(own_rabbit: RabbitServer, colour: str) -> None:
    """Before its start and after it was killed: a fetch waits, health says so, nothing is lost."""
    with in_colour(colour, own_rabbit.new_queue()) as orders:
        waiting = orders.begin("fetch", 1, wait=0.0)
        until(lambda: not orders.connector.health(), "the outage")
        own_rabbit.start()
        assert waiting.result(120) == []
        assert orders.connector.health()
        orders("dispatch", [Transaction(f"t{n}", n) for n in range(20)])
        first = orders.take(10)
        for each in first[:5]:
            orders("ack", each)
        assert orders("count") == 10
        own_rabbit.kill()
        until(lambda: not orders.connector.health(), "the loss")
        with pytest.raises(BrokerUnavailableError) as caught:
            orders("dispatch", [Transaction("t99", 99)])
        assert "not-so-secret" not in str(caught.value)
        with pytest.raises(ChannelLostError):
            orders("ack", first[5])
        own_rabbit.start()
        came: list[int] = []
        while batch := orders("fetch", 20):
            for each in batch:
                came.append(each.payload)
                orders("ack", each)
        # AMQP answers no acknowledgement: a server that is killed may have had them, or not.
        assert set(range(5, 20)) <= set(came)
        assert len(came) == len(set(came))


@pytest.mark.parametrize("colour", COLOURS)
def test_a_connection_that_hangs_is_given_up(rabbit_server: RabbitServer, colour: str) -> None:
    """Where nothing arrives any more, missing heartbeats end it, and another one is made."""
    queue = rabbit_server.new_queue().rpartition("/")[2]
    with Cable(rabbit_server.port) as cable:
        url = rabbit_server.url(queue, port=cable.port)
        with in_colour(colour, url, heartbeat=1) as orders:
            orders("dispatch", [Transaction("one", 1)])
            (first,) = orders.take()
            cable.stall()
            until(lambda: not orders.connector.health(), "the missing heartbeats")
            with pytest.raises(ChannelLostError):
                orders("ack", first)
            cable.heal()
            (again,) = orders.take()
            orders("ack", again)
            assert again.delivery_count == 1


@pytest.mark.parametrize("colour", COLOURS)
def test_what_is_asked_of_a_connection_that_hangs_ends(
    rabbit_server: RabbitServer, colour: str
) -> None:
    """A fetch that asks for more messages goes on with another connection, and a dispatch fails."""
    queue = rabbit_server.new_queue().rpartition("/")[2]
    with Cable(rabbit_server.port) as cable:
        url = rabbit_server.url(queue, port=cable.port)
        with in_colour(colour, url, heartbeat=1) as orders:
            orders("dispatch", [Transaction("one", 1)])
            orders("ack", orders.take()[0])
            cable.stall()
            fetching = orders.begin("fetch", 50, wait=0.0)  # for more than ever before
            sending = orders.begin("dispatch", [Transaction("two", 2)])
            with pytest.raises(BrokerUnavailableError):
                sending.result(120)
            until(lambda: not orders.connector.health(), "the loss")
            cable.heal()
            found = fetching.result(120)
            orders("dispatch", [Transaction("three", 3)])
            # Whether the broker had come to know of the acknowledgement and of the dispatch that
            # failed, nobody can say.
            while "three" not in {each.transaction_id for each in found}:
                found += orders.take()
            assert {each.transaction_id for each in found} <= {"one", "two", "three"}


@pytest.mark.req("X19")
@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("arguments", [None, {"x-queue-type": "classic"}])
def test_a_queue_that_is_deleted_is_named(
    rabbit_server: RabbitServer,
    caplog: pytest.LogCaptureFixture,
    colour: str,
    arguments: dict[str, str] | None,
) -> None:
    """Made again by us, or by somebody else with other arguments: consuming goes on."""
    queue = rabbit_server.new_queue().rpartition("/")[2]
    with in_colour(colour, rabbit_server.url(queue)) as orders:
        orders("dispatch", [Transaction("one", 1)])
        (one,) = orders.take()
        with channel(rabbit_server) as operator:
            operator.queue_delete(queue)
            if arguments is not None:
                operator.queue_declare(queue, durable=True, arguments=arguments)
        until(lambda: not orders.connector.health(), "the loss")
        with pytest.raises(ChannelLostError):
            orders("ack", one)
        assert orders("fetch", 1) == []
        assert (
            f"cannot be used, and is tried again: QueueDeletedError: the queue '{queue}' was"
            in (caplog.text)
        )
        orders("dispatch", [Transaction("two", 2)])
        (two,) = orders.take()
        orders("ack", two)
        assert orders.connector.health()


@pytest.mark.parametrize("colour", COLOURS)
def test_what_is_forbidden_is_named_as_the_broker_says_it(colour: str) -> None:
    """It may be an exchange that the user may not write to, and not the queue."""
    text = "ACCESS_REFUSED - access to exchange 'amq.default' in vhost '/' refused for user 'app'"
    if colour == "sync":
        error: Exception = pika.exceptions.ChannelClosedByBroker(403, text)
    else:
        error = aiormq.exceptions.ChannelAccessRefused(text)
    found = refused(error, "amqp://broker:5672", "orders")
    assert found is not None
    assert found.message == (
        "amqp://broker:5672: access to exchange 'amq.default' in vhost '/' refused for user 'app'"
    )


@pytest.mark.campaign  # rabbitmqctl takes its seconds to start
def test_a_broker_with_an_alarm_is_named(
    rabbit_server: RabbitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever publishes learns why nothing is taken, and what is given up does not stay open."""
    modules = ("threads", "loops")
    for module in modules:
        name = f"ergon_framework.connector.rabbitmq.{module}.ANSWER_TIMEOUT"
        monkeypatch.setattr(name, 2.0)
    rabbit_server.control("set_vm_memory_high_watermark", "0.000001")
    try:
        for colour in COLOURS:
            with in_colour(colour, rabbit_server.new_queue()) as orders:
                with pytest.raises(BrokerUnavailableError, match="takes no messages for now"):
                    orders("dispatch", [Transaction("one", 1)])
                until(lambda: "ergon-rabbitmq" not in thread_names(), "its connection to end")
    finally:
        rabbit_server.control("set_vm_memory_high_watermark", "0.6")


def thread_names() -> set[str]:
    """Of all threads of this process."""
    return {each.name for each in threading.enumerate()}


@pytest.mark.parametrize("colour", COLOURS)
def test_two_consumers_share_a_queue(rabbit_server: RabbitServer, colour: str) -> None:
    """Each message goes to one of them, and what one has ahead the other one does not get."""
    url = rabbit_server.new_queue()
    with in_colour(colour, url, prefetch=5) as one, in_colour(colour, url, prefetch=5) as other:
        one("fetch", 1)
        other("fetch", 1)
        one("dispatch", [Transaction(f"t{n}", n) for n in range(40)])
        seen: list[int] = []
        while len(seen) < 40:
            for each in (one, other):
                for transaction in each("fetch", 3, wait=0.5):
                    seen.append(transaction.payload)
                    each("ack", transaction)
        assert sorted(seen) == list(range(40))


@pytest.mark.parametrize("colour", COLOURS)
def test_a_killed_consumer_loses_nothing(
    rabbit_server: RabbitServer, colour: str, tmp_path: Path
) -> None:
    """What it had in hand comes again to another process; what it had settled does not."""
    url, done = rabbit_server.new_queue(), tmp_path / "done"
    done.touch()
    with in_colour(colour, url) as orders:
        orders("dispatch", [Transaction(f"t{n}", n) for n in range(30)])
        words = [sys.executable, str(CHILD), colour, url, str(done)]
        with subprocess.Popen(words) as child:  # noqa: S603 - our own program
            until(lambda: len(done.read_text().splitlines()) >= 10, "ten to be done")
            child.send_signal(signal.SIGKILL)
        began = {int(line) for line in done.read_text().split()}
        seen: set[int] = set()
        while batch := orders("fetch", 30, wait=2.0):
            for each in batch:
                seen.add(each.payload)
                orders("ack", each)
        assert began | seen == set(range(30))
        # Acknowledged was each before the last one; of those, the broker heard all but the latest.
        assert len(began & seen) <= 2


@pytest.mark.parametrize("colour", COLOURS)
def test_each_effect_happens_once(
    rabbit_server: RabbitServer, postgres_url: str, colour: str
) -> None:
    """However often the consumer is killed: the effect and its note are one transaction."""
    url, amounts = rabbit_server.new_queue(), range(1, 101)
    with psycopg.connect(postgres_url) as books:
        books.execute("CREATE TABLE inbox (id text PRIMARY KEY)")
        books.execute("CREATE TABLE total AS SELECT 0::bigint AS amount")
    with in_colour(colour, url) as orders:
        orders("dispatch", [Transaction(f"t{n}", n) for n in amounts])
        orders("dispatch", [Transaction(f"t{n}", n) for n in amounts[:20]])  # published twice

    def billed(what: str) -> int:
        with psycopg.connect(postgres_url) as books:
            found = books.execute(what).fetchone()
            assert found is not None
            return int(found[0])

    def has_billed(count: int) -> bool:
        return billed("SELECT count(*) FROM inbox") >= count

    words = [sys.executable, str(CHILD.with_name("billing_child.py")), colour, url, postgres_url]
    for stage in (20, 50, 100):
        with subprocess.Popen(words) as child:  # noqa: S603 - our own program
            until(functools.partial(has_billed, stage), "the effects")
            child.send_signal(signal.SIGKILL)
    assert billed("SELECT amount FROM total") == sum(amounts)


@pytest.mark.parametrize("colour", COLOURS)
def test_a_long_handler_keeps_its_delivery(rabbit_server: RabbitServer, colour: str) -> None:
    """Heartbeats go on while nobody fetches or settles, for several times as long as one lasts."""
    with in_colour(colour, rabbit_server.new_queue(), heartbeat=1) as orders:
        orders("dispatch", [Transaction("long", 1)])
        (order,) = orders.take()
        threading.Event().wait(5.0)
        orders("ack", order)
        assert orders("fetch", 1) == []
        assert orders("count") == 0


@pytest.mark.parametrize("colour", COLOURS)
def test_it_speaks_tls(rabbit_server: RabbitServer, signed: Papers, colour: str) -> None:
    """With a certificate that is checked; as whom, a password says or a certificate of ours."""
    queue = rabbit_server.new_queue().rpartition("/")[2]
    port = rabbit_server.tls_port
    url = rabbit_server.url(queue, port=port, scheme="amqps")
    with in_colour(colour, url, ca=str(signed.ca)) as orders:
        orders("dispatch", [Transaction("one", 1)])
        orders("ack", *orders.take())
    own = {"cert": str(signed.certificate("client")), "key": str(signed.key("client"))}
    by_certificate = f"amqps://127.0.0.1:{port}/{queue}"
    with in_colour(colour, by_certificate, ca=str(signed.ca), sasl="external", **own) as orders:
        orders("dispatch", [Transaction("two", 2)])
        orders("ack", *orders.take())
    with (
        in_colour(colour, url) as orders,
        pytest.raises(ConfigurationError, match="signed by nobody who is trusted"),
    ):
        orders("fetch", 1)


def test_a_forked_child_settles_nothing_of_its_parents(rabbit_server: RabbitServer) -> None:
    """Its settlements would be sent by nobody; with connections of its own it does its own work."""
    with in_colour("sync", rabbit_server.new_queue()) as orders:
        orders("dispatch", [Transaction("parent", 1)])
        (order,) = orders.take()
        connector = orders.connector

        def misuse_and_use() -> None:
            signal.alarm(60)  # a child that hangs must not keep the test waiting
            with pytest.raises(ChannelLostError):
                connector.ack(order)
            connector.dispatch_transactions([Transaction("child", 2)])
            assert connector.health()
            connector.close()

        assert ended(in_a_child(misuse_and_use)) == 0
        orders("ack", order)
        (other,) = orders.take()
        assert other.transaction_id == "child"
        orders("ack", other)
        assert orders("count") == 0


@pytest.mark.parametrize("option", ["exchange", "dead_letter_exchange"])
def test_the_doctor_finds_an_exchange_that_is_missing(
    rabbit_server: RabbitServer, option: str
) -> None:
    """Otherwise the first message that is sent, or fails for good, would be the first to tell."""
    given: dict[str, Any] = {option: f"shop-{option}"}
    with RabbitConnector(rabbit_server.new_queue(), **given) as connector:
        told = list(connector.observe())[-1]
        assert told.is_grave
        assert f"has no exchange 'shop-{option}'" in told.found
        with channel(rabbit_server) as through:
            through.exchange_declare(f"shop-{option}", "fanout")
        found = list(connector.observe())
        assert not [each for each in found if each.is_grave]
        assert found[0].found == f"0 messages wait in {connector.queue}"
