"""What is published and what comes, sessions that are kept, and brokers that go away."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from ergon_framework.connector.broker.connection import BrokerUnavailableError
from ergon_framework.connector.mqtt import MqttConnector, NobodySubscribedError
from ergon_framework.errors import ChannelLostError, ConfigurationError
from ergon_framework.ports.transaction import Transaction
from tests.boundary.node.cables import Cable
from tests.connectors.in_colour import COLOURS, InColour, driven
from tests.connectors.mqtt.other_mqtt_program import headers_of, publish, retained
from tests.servers.mosquitto import Mosquitto
from tests.servers.tls import Papers
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("colour", COLOURS)]
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
CHILD = Path(__file__).with_name("mqtt_child.py")


@contextmanager
def subscribed(colour: str, url: str, **options: Any) -> Iterator[InColour]:
    """A consumer whose session the broker has."""
    given = {"client_id": f"{colour}-{url.rpartition('/')[2]}", "wait": 0.1, **options}
    with driven(colour, MqttConnector(url, **given)) as orders:
        orders("fetch", 1)
        yield orders


def test_headers_and_trace_go_both_ways(mosquitto: Mosquitto, colour: str) -> None:
    """They are user properties; the correlation is MQTT's own, too."""
    topic = mosquitto.new_topic()
    with subscribed(colour, mosquitto.url(topic), retain=True) as orders:
        metadata = {"traceparent": TRACE, "headers": {"tenant": "blue"}}
        orders("dispatch", [Transaction("o-1", {"n": 1}, metadata, correlation_id="cart-7")])
        [message] = retained(mosquitto, topic)
        assert json.loads(message.payload) == {"n": 1}
        assert message.properties.CorrelationData == b"cart-7"
        assert message.properties.ContentType == "application/json"
        assert headers_of(message)["traceparent"] == TRACE
        assert headers_of(message)["tenant"] == "blue"
        (order,) = orders.take()
        orders("ack", order)
    assert (order.transaction_id, order.correlation_id) == ("o-1", "cart-7")
    assert (order.metadata["traceparent"], order.topic) == (TRACE, topic)


def test_retained_messages_come_to_a_new_session(mosquitto: Mosquitto, colour: str) -> None:
    """Once, when the subscription is new; with ``retained=False`` not at all."""
    topic = mosquitto.new_topic()
    publish(mosquitto, topic, b'"state"', retain=True)
    for wanted in (True, False):
        made = MqttConnector(
            mosquitto.url(topic), client_id=f"{colour}-{wanted}", retained=wanted, wait=0.3
        )
        with driven(colour, made) as states:
            came = states("fetch", 1)
            assert [each.payload for each in came] == (["state"] if wanted else [])
            for each in came:
                states("ack", each)
            assert states("fetch", 1) == []


def test_what_nobody_subscribed_to_is_an_error(mosquitto: Mosquitto, colour: str) -> None:
    """The broker says that no session would get it; a consumer without a name is refused."""
    made = MqttConnector(mosquitto.url(mosquitto.new_topic()))
    with driven(colour, made) as orders:
        with pytest.raises(NobodySubscribedError, match="no subscription"):
            orders("dispatch", [Transaction("one", 1)])
        with pytest.raises(ConfigurationError, match="client_id"):
            orders("fetch", 1)


def test_failures_are_retained_with_their_reason(mosquitto: Mosquitto, colour: str) -> None:
    """Below the topic of dead letters, each by its id, where they stay until they are cleared."""
    topic = mosquitto.new_topic()
    with subscribed(colour, mosquitto.url(topic)) as orders:
        orders("dispatch", [Transaction("bad/1", {"n": 1})])
        orders("nack", *orders.take(), ValueError("unknown article"))
    [letter] = retained(mosquitto, f"ergon-dead-letters/{topic}/#")
    assert letter.topic == f"ergon-dead-letters/{topic}/bad%2F1"
    assert json.loads(letter.payload) == {"n": 1}
    assert "unknown article" in unquote(headers_of(letter)["ergon-reason"])


def test_messages_expire(mosquitto: Mosquitto, colour: str) -> None:
    """With ``message_expiry`` the broker forgets what was not delivered in time."""
    topic = mosquitto.new_topic()
    url = mosquitto.url(topic)
    with subscribed(colour, url):
        pass  # the session stays
    with driven(colour, MqttConnector(url, message_expiry=1)) as publisher:
        publisher("dispatch", [Transaction("short", 1)])
    with driven(colour, MqttConnector(url)) as publisher:
        publisher("dispatch", [Transaction("long", 2)])
    # The broker counts whole seconds: after a while only one of them is left.
    until(lambda: [each.payload for each in _waiting(colour, url)] == [2], "the expiry")


def _waiting(colour: str, url: str) -> list[Any]:
    with driven(colour, MqttConnector(url, client_id=f"{colour}-{url.rpartition('/')[2]}")) as left:
        found: list[Any] = left("fetch", 10, wait=0.5)
        return found


def test_a_group_shares_the_messages(mosquitto: Mosquitto, colour: str) -> None:
    """Each message goes to one of its sessions."""
    url = mosquitto.url(mosquitto.new_topic())
    options = {"group": "billing"}
    with (
        subscribed(colour, url, client_id=f"a-{colour}", **options) as one,
        subscribed(colour, url, client_id=f"b-{colour}", **options) as other,
    ):
        one("dispatch", [Transaction(f"t{n}", n) for n in range(40)])
        seen: dict[str, list[int]] = {"one": [], "other": []}
        while sum(map(len, seen.values())) < 40:
            for name, each in (("one", one), ("other", other)):
                for transaction in each("fetch", 5):
                    seen[name].append(transaction.payload)
                    each("ack", transaction)
    assert sorted(seen["one"] + seen["other"]) == list(range(40))
    assert all(seen.values())


def test_a_session_belongs_to_one_process(mosquitto: Mosquitto, colour: str) -> None:
    """Whoever takes it over goes on with it; what the other one had in hand is lost to it."""
    url = mosquitto.url(mosquitto.new_topic())
    with subscribed(colour, url) as first:
        first("dispatch", [Transaction("one", 1)])
        (order,) = first.take()
        # Its first fetch is looked at: what that takes and drops comes again half a minute later.
        name = f"{colour}-{url.rpartition('/')[2]}"
        with driven(colour, MqttConnector(url, client_id=name, wait=0.1)) as second:
            (again,) = second.take()
            until(lambda: not first.connector.health(), "the loss")
            with pytest.raises(ChannelLostError):
                first("ack", order)
            second("ack", again)
            assert second("fetch", 1) == []


def test_a_lost_channel_settles_nothing(mosquitto: Mosquitto, colour: str) -> None:
    """Each settlement of what came through it is refused, and all of it comes again, once."""
    with Cable(mosquitto.port) as cable:
        url = mosquitto.url(mosquitto.new_topic(), port=cable.port)
        with subscribed(colour, url) as orders:
            orders("dispatch", [Transaction(f"t{n}", n) for n in range(6)])
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
            for each in again:
                orders("ack", each)
            assert orders("fetch", 1) == []
            orders("dispatch", [Transaction("more", 1)])
            assert orders.connector.health()


def test_a_broker_that_is_away_is_waited_for(own_mosquitto: Mosquitto, colour: str) -> None:
    """Before its start and over a restart: a fetch waits, and its sessions are kept on disk."""
    url = own_mosquitto.url(own_mosquitto.new_topic())
    with driven(colour, MqttConnector(url, client_id="billing", wait=0.1)) as orders:
        waiting = orders.begin("fetch", 1)
        until(lambda: not orders.connector.health(), "the outage")
        own_mosquitto.start()
        assert waiting.result(60) == []
        assert orders.connector.health()
        orders("dispatch", [Transaction(f"t{n}", n) for n in range(20)])
        for each in orders.take(5):
            orders("ack", each)
        assert orders("fetch", 15)  # and these are in hand
        own_mosquitto.stop()
        until(lambda: not orders.connector.health(), "the loss")
        with pytest.raises(BrokerUnavailableError):
            orders("dispatch", [Transaction("t99", 99)])
        own_mosquitto.start()
        came = [each.payload for each in orders.take(15)]
        came += [each.payload for each in orders("fetch", 20)]
    # MQTT answers no acknowledgement of a consumer: the broker may have had them, or not.
    assert set(range(5, 20)) <= set(came)
    assert len(came) == len(set(came))


def test_a_killed_consumer_loses_nothing(mosquitto: Mosquitto, colour: str, tmp_path: Path) -> None:
    """What it had in hand comes again when its session is taken up; what it settled does not."""
    url, done = mosquitto.url(mosquitto.new_topic()), tmp_path / "done"
    done.touch()
    with subscribed(colour, url, client_id=f"killed-{colour}"):
        pass
    with driven(colour, MqttConnector(url)) as publisher:
        publisher("dispatch", [Transaction(f"t{n}", n) for n in range(30)])
    words = [sys.executable, str(CHILD), colour, url, f"killed-{colour}", str(done)]
    with subprocess.Popen(words) as child:  # noqa: S603 - our own program
        until(lambda: len(done.read_text().splitlines()) >= 10, "ten to be done")
        child.send_signal(signal.SIGKILL)
    began = {int(line) for line in done.read_text().split()}
    seen: set[int] = set()
    with driven(colour, MqttConnector(url, client_id=f"killed-{colour}")) as orders:
        while batch := orders("fetch", 30, wait=1.0):
            for each in batch:
                seen.add(each.payload)
                orders("ack", each)
    assert began | seen == set(range(30))
    assert len(began & seen) <= 2


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"  # the client leaves the refused socket open
)
def test_it_speaks_tls(mosquitto: Mosquitto, signed: Papers, colour: str) -> None:
    """With a certificate that is checked."""
    url = mosquitto.url(mosquitto.new_topic(), port=mosquitto.tls_port, scheme="mqtts")
    with subscribed(colour, url, ca=str(signed.ca)) as orders:
        orders("dispatch", [Transaction("one", 1)])
        orders("ack", *orders.take())
    with (
        driven(colour, MqttConnector(url, client_id="x")) as orders,
        pytest.raises(ConfigurationError, match="signed by nobody who is trusted"),
    ):
        orders("fetch", 1)


def test_bad_options_are_refused_before_anything_is_opened(
    mosquitto: Mosquitto, colour: str
) -> None:
    """Each error says which one, and what would make dead letters come as work is refused."""
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("", {}, "names no topic"),
        ("%23", {}, "dead letters"),
        ("a/b", {"max_in_flight": 0}, "max_in_flight"),
        ("a/b", {"wait": -1}, "wait"),
        ("a/b", {"format": "xml"}, "format"),
        ("a/b", {"ca": "ca.pem"}, "mqtts"),
    ]
    for topic, options, match in wrong:
        with pytest.raises(ConfigurationError, match=match):
            MqttConnector(mosquitto.url(topic), **options)
    with (
        driven(colour, MqttConnector(mosquitto.url("plant/+/orders"))) as orders,
        pytest.raises(ConfigurationError, match="publish_to"),
    ):
        orders("dispatch", [Transaction("one", 1)])
