"""In which order messages are acknowledged, as the broker hears it."""

from __future__ import annotations

import pytest

from ergon_framework.connector.mqtt import MqttConnector
from ergon_framework.ports.transaction import Transaction
from tests.connectors.in_colour import COLOURS, driven
from tests.servers.mosquitto import Mosquitto
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("colour", COLOURS)]


def ids(transactions: list[Transaction]) -> list[str]:
    """Their ids, in order."""
    return [each.transaction_id for each in transactions]


def test_a_message_is_acknowledged_after_those_before_it(mosquitto: Mosquitto, colour: str) -> None:
    """Whoever has the session next gets what was settled behind a message that was not."""
    url = mosquitto.url(mosquitto.new_topic())
    name = f"{colour}-{url.rpartition('/')[2]}"
    with driven(colour, MqttConnector(url, client_id=name, wait=0.1)) as orders:
        assert orders("fetch", 1) == []
        orders("dispatch", [Transaction(f"t{n}", n) for n in range(4)])
        came = orders.take(4)
        for each in (came[3], came[1]):
            orders("ack", each)
        with driven(colour, MqttConnector(url, client_id=name, wait=0.1)) as other:
            # The broker ends the first connection, as if its process had died.
            assert ids(other.take(4)) == ["t0", "t1", "t2", "t3"]


def test_what_was_settled_is_acknowledged_when_the_connector_is_closed(
    mosquitto: Mosquitto, colour: str
) -> None:
    """There is nothing to wait for any more."""
    url = mosquitto.url(mosquitto.new_topic())
    name = f"{colour}-{url.rpartition('/')[2]}"
    with driven(colour, MqttConnector(url, client_id=name, wait=0.1)) as orders:
        assert orders("fetch", 1) == []
        orders("dispatch", [Transaction(f"t{n}", n) for n in range(4)])
        came = orders.take(4)
        for each in (came[3], came[1]):
            orders("ack", each)
    with driven(colour, MqttConnector(url, client_id=name, wait=0.5)) as other:
        assert ids(other.take(2)) == ["t0", "t2"]
        assert other("fetch", 1) == []


def test_a_parked_message_does_not_stop_the_others(mosquitto: Mosquitto, colour: str) -> None:
    """A broker sends so many messages unacknowledged; the parked one is overtaken before that."""
    url = mosquitto.url(mosquitto.new_topic())
    name = f"{colour}-{url.rpartition('/')[2]}"
    made = MqttConnector(url, client_id=name, wait=0.1, max_in_flight=4)
    with driven(colour, made) as orders:
        assert orders("fetch", 1) == []
        orders("dispatch", [Transaction(f"t{n}", n) for n in range(20)])
        (first,) = orders.take(1)
        orders("release_after", first, 3600.0)
        seen: list[str] = []

        def are_all_there() -> bool:
            for each in orders("fetch", 4):
                seen.append(each.transaction_id)
                orders("ack", each)
            return len(seen) == 19

        until(are_all_there, "the messages behind the parked one")
        assert seen == [f"t{n}" for n in range(1, 20)]
