"""The connector suite against a real mosquitto, in both colours, with everything that can break."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import unquote

import pytest

from ergon_framework.connector.mqtt import MqttConnector
from ergon_framework.testing.suites import exercise_connector
from ergon_framework.testing.suites.connector.faults import ConnectorFaults
from tests.boundary.node.cables import Cable
from tests.connectors.mqtt.other_mqtt_program import headers_of, publish, retained, taken_over
from tests.connectors.recorded_results import check_recorded
from tests.servers.mosquitto import Mosquitto

pytestmark = pytest.mark.slow
NOT_OFFERED = {
    *("finds_by_id", "does_not_find_the_unknown", "counts_what_waits"),  # no broker tells
    "release_restores_order",
    "parked_outlives_its_consumer",  # parked ones wait in the process
}


class OneTopic:
    """Connectors to one broker, each behind a cable of its own, and subscribed before it is used.

    A broker keeps nothing for a session that is not there yet.
    """

    def __init__(self, server: Mosquitto, colour: str) -> None:
        self._server = server
        self._colour = colour
        self._cable: Cable | None = None

    def factory(self) -> Any:
        """What the suite takes."""
        return self.connector if self._colour == "sync" else self.connector_async

    @contextmanager
    def connector(self) -> Iterator[MqttConnector]:
        """One that can be cut off."""
        topic = self._server.new_topic()
        with Cable(self._server.port) as self._cable:
            made = self._made(topic, self._cable.port)
            if self._colour == "sync":
                made.fetch_transactions(1, wait=0.0)
            try:
                yield made
            finally:
                made.close()

    @asynccontextmanager
    async def connector_async(self) -> AsyncIterator[MqttConnector]:
        """The same for a loop."""
        with self.connector() as made:
            await made.fetch_transactions_async(1, wait=0.0)
            yield made

    def _made(self, topic: str, port: int | None = None) -> MqttConnector:
        url = self._server.url(topic, port=port)
        return MqttConnector(url, client_id=topic.replace("/", "-"), wait=0.1)

    def cut(self, connector: MqttConnector) -> Any:
        """Break its connections, and see that it has noticed; new ones can be made."""
        if self._colour == "async":  # the loop goes on meanwhile
            return asyncio.to_thread(self._cut, connector)
        return self._cut(connector)

    def _cut(self, connector: MqttConnector) -> None:
        self._silent().wait_until_quiet()
        self._silent().cut()
        _noticed(connector)
        self._silent().heal()

    def crash(self, connector: MqttConnector) -> Any:
        """Cut it off for good; another process takes the session over."""
        if self._colour == "async":  # the loop goes on meanwhile
            return asyncio.to_thread(self._crash, connector)
        return self._crash(connector)

    def _crash(self, connector: MqttConnector) -> MqttConnector:
        self._silent().wait_until_quiet()
        self._silent().cut()
        return self._made(connector.topic)

    def _silent(self) -> Cable:
        """The cable, when nothing is under way: MQTT answers no acknowledgement of a consumer."""
        assert self._cable is not None
        carried, never = -1, threading.Event()
        while carried != self._cable.carried:
            carried = self._cable.carried
            never.wait(0.1)
        return self._cable

    def put_malformed(self, connector: MqttConnector) -> None:
        """Something that is not JSON."""
        publish(self._server, connector.topic, b"not json")

    def put_foreign(
        self, connector: MqttConnector, body: bytes, headers: Mapping[str, str]
    ) -> None:
        """A message with user properties."""
        publish(self._server, connector.topic, body, headers)

    def read_foreign(self, connector: MqttConnector) -> list[tuple[bytes, Mapping[str, str]]]:
        """What the broker keeps for the session."""
        kept = taken_over(self._server, connector.topic.replace("/", "-"))
        return [(each.payload, headers_of(each)) for each in kept]

    def dead_letters(self, connector: MqttConnector) -> list[tuple[str, str]]:
        """Ids and reasons."""
        kept = retained(self._server, f"ergon-dead-letters/{connector.topic}/#")
        found = [headers_of(each) for each in kept]
        return [
            (unquote(each.get("ergon-transaction-id", "")), unquote(each["ergon-reason"]))
            for each in found
        ]


def _noticed(connector: MqttConnector) -> None:
    """Wait until a consumer knows that it was cut off; whoever only publishes finds out later."""
    never, looks = threading.Event(), 100
    while connector.health() and looks:
        looks -= 1
        never.wait(0.01)


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_it_behaves_as_a_connector(mosquitto: Mosquitto, colour: Any) -> None:
    """Every check passes but those of what no broker of MQTT offers."""
    place = OneTopic(mosquitto, colour)
    report = exercise_connector(
        place.factory(),
        colour=colour,
        dead_letters=place.dead_letters,
        faults=ConnectorFaults(
            crash=place.crash,
            cut=place.cut,
            put_malformed=place.put_malformed,
            put_foreign=place.put_foreign,
            read_foreign=place.read_foreign,
        ),
        skip=["parked_outlives_its_consumer"],
        patience=30.0,
    )
    assert set(report.skipped) <= NOT_OFFERED
    check_recorded("mqtt", report)
