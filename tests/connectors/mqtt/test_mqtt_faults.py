"""Brokers that hang up or say nothing, floods, sessions that are taken over, texts too long."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from ergon_framework.connector import from_url
from ergon_framework.connector.broker.connection import BrokerUnavailableError
from ergon_framework.connector.mqtt import MqttConnector, MqttConnectorError
from ergon_framework.errors import ConfigurationError, PayloadError
from ergon_framework.ports.transaction import Transaction
from tests.connectors.in_colour import COLOURS, driven
from tests.connectors.mqtt.other_mqtt_program import retained
from tests.connectors.mqtt.silent_broker import silent_broker
from tests.servers.mosquitto import Mosquitto
from tests.waiting import until

SESSION = "ergon_framework.connector.mqtt.session"
both_colours = pytest.mark.parametrize("colour", COLOURS)


@pytest.mark.slow
def test_dead_letters_with_long_ids_are_all_kept(mosquitto: Mosquitto) -> None:
    """Ids that differ only far behind have topics of their own: none replaces another."""
    topic, ids = mosquitto.new_topic(), ["é" * 100 + "-1", "é" * 100 + "-2"]
    made = MqttConnector(mosquitto.url(topic), client_id=topic.replace("/", "-"), wait=0.1)
    with driven("sync", made) as orders:
        orders("fetch", 1)
        orders("dispatch", [Transaction(each, 1) for each in ids])
        for each in orders.take(2):
            orders("nack", each, ValueError("bad"))
    letters = retained(mosquitto, f"ergon-dead-letters/{topic}/#")
    assert len({each.topic for each in letters}) == 2
    assert max(len(each.topic.rpartition("/")[2]) for each in letters) <= 200


@both_colours
@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"metadata": {"headers": {"tenant": "x" * 65_536}}}, "header 'tenant'"),
        ({"metadata": {"note": "x" * 65_536}}, "header 'ergon-metadata'"),
        ({"correlation_id": "x" * 65_536}, "correlation"),
    ],
)
def test_a_text_that_no_packet_holds_is_refused(
    colour: str, fields: dict[str, Any], named: str
) -> None:
    """As a payload that can never be sent, and before the broker is asked: there is none here."""
    with (
        driven(colour, MqttConnector("mqtt://127.0.0.1:1/orders")) as orders,
        pytest.raises(PayloadError, match=named),
    ):
        orders("dispatch", [Transaction("one", 1, **fields)])


@pytest.mark.parametrize(
    ("place", "named"),
    [
        ("a?client_id=", "client_id is empty"),
        ("a?client_id=" + "c" * 65_536, "client_id"),
        ("a%00b?client_id=x", "topic"),
        ("a?client_id=x&group=", "group is empty"),
        ("a?client_id=x&group=a/b", "group is 'a/b'"),
        ("a?publish_to=", "publish_to is empty"),
        ("a/%23/b?client_id=x", "wildcard out of place"),
        ("a%23?client_id=x", "wildcard out of place"),
        ("a/b+?client_id=x", "wildcard out of place"),
        ("a?client_id=x&dead_letter_topic=dead/%23", "dead_letter_topic"),
        ("a?client_id=x&keepalive=65536", "keepalive must be at most 65535, not 65536"),
        ("a?client_id=x&session_expiry=4294967296", "session_expiry"),
        ("a?message_expiry=4294967296", "message_expiry"),
        ("a?client_id=x&keepalive=0", "keepalive must be at least 1"),
    ],
)
def test_what_mqtt_cannot_say_is_refused_at_once(place: str, named: str) -> None:
    """Before anything is connected: it would look like a broker that is away. An empty name is
    most often a variable that is not set, and with one the broker keeps no session.
    """
    with pytest.raises(ConfigurationError, match=named) as caught:
        from_url(f"mqtt://me:hunter2@127.0.0.1:1/{place}")
    assert caught.value.remedy
    assert "hunter2" not in f"{caught.value}"


@pytest.mark.slow
@both_colours
def test_the_next_host_is_used_when_the_first_hangs_up(mosquitto: Mosquitto, colour: str) -> None:
    """As a proxy does whose broker is away; what the first one did says nothing of the second."""
    topic = mosquitto.new_topic()
    with silent_broker(hangs_up=True) as first:
        url = f"mqtt://127.0.0.1:{first.port},127.0.0.1:{mosquitto.port}/{topic}"
        made = MqttConnector(url, client_id=topic.replace("/", "-"), wait=0.1)
        with driven(colour, made) as orders:
            orders("fetch", 1)
            assert orders.connector.health()
            orders("dispatch", [Transaction("one", 1)])
            orders("ack", *orders.take())


@both_colours
def test_a_broker_that_confirms_nothing_is_given_up(
    colour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dispatch ends with an error, also with asyncio, while the connection is kept alive."""
    monkeypatch.setattr(f"{SESSION}.ANSWER_TIMEOUT", 0.2)
    with silent_broker() as broker:
        broker.welcomes.set()
        with (
            driven(colour, MqttConnector(f"mqtt://127.0.0.1:{broker.port}/orders")) as orders,
            pytest.raises(BrokerUnavailableError, match="does not answer"),
        ):
            orders("dispatch", [Transaction("one", 1)])


def test_a_session_nobody_waits_for_is_left() -> None:
    """A cancelled fetch ends at once, its loop too; the session is left as soon as it is made."""

    async def cancelled(port: int) -> None:
        orders = MqttConnector(f"mqtt://127.0.0.1:{port}/orders", client_id="one")
        fetching = asyncio.create_task(orders.fetch_transactions_async(1))
        await asyncio.to_thread(broker.called.wait)
        fetching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fetching
        await orders.aclose()

    with silent_broker() as broker:
        asyncio.run(cancelled(broker.port))
        assert not broker.welcomes.is_set()  # the session was still being made
        broker.welcomes.set()
        until(broker.left.is_set, "the session to be left")


def flood(server: Mosquitto, topic: str, count: int) -> None:
    """Publish numbers with QoS 0, and see that the broker has them."""
    client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
    client.connect("127.0.0.1", server.port)
    client.loop_start()
    for number in range(count):
        client.publish(topic, f"{number}")
    client.publish(f"{topic}/mark", b"", qos=1).wait_for_publish(30)
    client.disconnect()
    client.loop_stop()


@pytest.mark.slow
@both_colours
def test_a_flood_with_qos_0_is_held_back(
    mosquitto: Mosquitto, colour: str, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """The broker keeps it while too many wait here; what it cannot keep for long is counted."""
    topic = mosquitto.new_topic()
    made = MqttConnector(
        mosquitto.url(topic), client_id=f"{colour}-{topic[-3:]}", max_in_flight=2, wait=0.1
    )
    with driven(colour, made) as orders, caplog.at_level(logging.WARNING):
        orders("fetch", 1)
        monkeypatch.setattr(f"{SESSION}.HELD_BACK", 60.0)
        flood(mosquitto, topic, 20)
        assert [each.payload for each in orders.take(20)] == list(range(20))
        assert "QoS 0" not in caplog.text
        monkeypatch.setattr(f"{SESSION}.HELD_BACK", 0.0)
        flood(mosquitto, topic, 6)
        until(lambda: "4 messages with QoS 0 were let go of" in caplog.text, "the warning")
        assert [each.payload for each in orders.take(2)] == [0, 1]
        assert orders("fetch", 6) == []
        assert orders.connector.health()


@pytest.mark.slow
@both_colours
def test_a_session_that_is_taken_over_at_once_is_a_hint(
    mosquitto: Mosquitto, colour: str, caplog: Any
) -> None:
    """A broker that only hangs up leaves it to us to say what may be the cause."""
    url = mosquitto.url(mosquitto.new_topic())
    made = [MqttConnector(url, client_id=f"twice-{colour}", wait=0.0) for _ in range(2)]
    with driven(colour, made[0]) as first, driven(colour, made[1]) as second:
        first("fetch", 1)
        second("fetch", 1)
        until(lambda: not first.connector.health(), "the loss")
        first("fetch", 1)
    assert f"no other process has the client_id 'twice-{colour}'" in caplog.text


@pytest.mark.slow
@both_colours
def test_what_the_broker_refuses_is_bad_health_with_a_remedy(
    colour: str, own_mosquitto: Mosquitto
) -> None:
    """For a target and for dead letters alike, until the like of it is taken."""
    own_mosquitto.allow("topic read shop/#", "topic write shop/in/#")
    own_mosquitto.start()
    url = own_mosquitto.url("shop/in/orders")
    source = MqttConnector(url, client_id="one", publish_to="shop/out", retain=True, wait=0.1)
    with driven(colour, source) as orders, driven(colour, MqttConnector(url)) as sender:
        orders("fetch", 1)
        sender("dispatch", [Transaction("o1", 1)])
        (order,) = orders.take()
        assert source.health()
        for verb, given in (
            ("dispatch", ([Transaction("t1", 1)],)),
            ("nack", (order, ValueError("no"))),
        ):
            refusal = _refusal(orders, verb, *given)
            assert "refuses a message" in str(refusal)
            assert "allow the user to write" in (refusal.remedy or "")
            assert not source.health()
        # mosquitto hangs up after some refusals, which health tells beside them.
        seen = [each for each in source.observe() if each.is_grave and each.what != "connection"]
        assert len(seen) == 2
        assert all("allow the user to write" in each.remedy for each in seen)
        own_mosquitto.allow("topic readwrite #")
        own_mosquitto.reload()
        until(lambda: not _is_refused(orders, order), "an access list that is read anew")
        assert not source.health(), "nothing was published to the target yet"
        orders("dispatch", [Transaction("t1", 1)])
        assert source.health()


def _refusal(orders: Any, verb: str, *given: Any) -> MqttConnectorError:
    for _ in range(20):
        with pytest.raises((MqttConnectorError, BrokerUnavailableError)) as caught:
            orders(verb, *given)
        if isinstance(caught.value, MqttConnectorError):
            return caught.value
    pytest.fail("the broker hangs up each time")


def _is_refused(orders: Any, order: Any) -> bool:
    try:
        orders("nack", order, ValueError("no"))
    except (MqttConnectorError, BrokerUnavailableError):
        return True  # mosquitto hangs up after twenty refusals of one connection
    return False


@pytest.mark.slow
def test_the_doctor_finds_dead_letters_that_the_broker_refuses(own_mosquitto: Mosquitto) -> None:
    """In a process of its own, which has refused nothing yet; it leaves nothing there."""
    own_mosquitto.allow("topic readwrite shop/#")
    own_mosquitto.start()
    with MqttConnector(own_mosquitto.url("shop/+/orders"), client_id="one") as connector:
        (found,) = (each for each in connector.observe() if each.is_grave)
        assert "ergon-dead-letters/shop/any/orders" in found.found
        assert "allow the user to write" in found.remedy
    own_mosquitto.allow("topic readwrite #")
    own_mosquitto.reload()
    with MqttConnector(own_mosquitto.url("shop/+/orders"), client_id="one") as connector:
        until(lambda: not [each for each in connector.observe() if each.is_grave], "no refusal")
    assert retained(own_mosquitto, "ergon-dead-letters/#") == []
