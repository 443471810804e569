"""The connector suite against a real RabbitMQ, in both colours, with everything that can break."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

import pytest

from ergon_framework.connector.rabbitmq import RabbitConnector
from ergon_framework.testing.suites import exercise_connector
from ergon_framework.testing.suites.connector.faults import ConnectorFaults
from tests.boundary.node.cables import Cable
from tests.connectors.rabbitmq.other_program import messages, publish
from tests.connectors.recorded_results import check_recorded
from tests.servers.rabbitmq import RabbitServer

pytestmark = pytest.mark.slow
NOT_OFFERED = {"finds_by_id", "does_not_find_the_unknown", "release_restores_order"}


class OnePlace:
    """Connectors to one server, each behind a cable of its own."""

    def __init__(self, server: RabbitServer, colour: str) -> None:
        self._server = server
        self._colour = colour
        self._cable: Cable | None = None

    @contextmanager
    def connector(self) -> Iterator[RabbitConnector]:
        """One that can be cut off."""
        queue = self._server.new_queue().rpartition("/")[2]
        with Cable(self._server.port) as self._cable:
            url = self._server.url(queue, port=self._cable.port)
            yield RabbitConnector(url, wait=0.0)

    def cut(self, connector: RabbitConnector) -> Any:
        """Break its connections, and see that it has noticed; new ones can be made."""
        if self._colour == "async":  # the loop goes on meanwhile
            return asyncio.to_thread(self._cut, connector)
        return self._cut(connector)

    def _cut(self, connector: RabbitConnector) -> None:
        assert self._cable is not None
        self._cable.wait_until_quiet()
        self._cable.cut()
        _noticed(connector)
        self._cable.heal()

    def crash(self, connector: RabbitConnector) -> Any:
        """Cut it off for good; another one takes over."""
        if self._colour == "async":  # the loop goes on meanwhile
            return asyncio.to_thread(self._crash, connector)
        return self._crash(connector)

    def _crash(self, connector: RabbitConnector) -> RabbitConnector:
        assert self._cable is not None
        self._cable.wait_until_quiet()
        self._cable.cut()
        return RabbitConnector(self._server.url(connector.queue), wait=0.0)

    def put_malformed(self, connector: RabbitConnector) -> None:
        """Something that is not JSON."""
        self.put_foreign(connector, b"not json", {})

    def put_foreign(
        self, connector: RabbitConnector, body: bytes, headers: Mapping[str, str]
    ) -> None:
        """A message as a program publishes it that follows the conventions of AMQP."""
        RabbitConnector(self._server.url(connector.queue)).get_transactions_count()  # makes it
        publish(self._server, connector.queue, body, headers=dict(headers), message_id="m-1")

    def read_foreign(self, connector: RabbitConnector) -> list[tuple[bytes, Mapping[str, str]]]:
        """What another program finds in the queue."""
        return [(body, kept.headers) for kept, body in messages(self._server, connector.queue)]

    def dead_letters(self, connector: RabbitConnector) -> list[tuple[str, str]]:
        """Ids and reasons."""
        kept = messages(self._server, f"{connector.queue}.dead")
        found = [properties.headers for properties, _ in kept]
        return [
            (unquote(each.get("ergon-transaction-id", "")), unquote(each["ergon-reason"]))
            for each in found
        ]


def _noticed(connector: RabbitConnector) -> None:
    """Wait until a consumer knows that it was cut off; whoever only publishes finds out later."""
    never, looks = threading.Event(), 100
    while connector.health() and looks:
        looks -= 1
        never.wait(0.01)


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_it_behaves_as_a_connector(rabbit_server: RabbitServer, colour: Any) -> None:
    """Every check passes but those of what a queue cannot do: be searched, or keep its order."""
    place = OnePlace(rabbit_server, colour)
    report = exercise_connector(
        place.connector,
        colour=colour,
        dead_letters=place.dead_letters,
        faults=ConnectorFaults(
            crash=place.crash,
            cut=place.cut,
            put_malformed=place.put_malformed,
            put_foreign=place.put_foreign,
            read_foreign=place.read_foreign,
        ),
        patience=30.0,
    )
    assert set(report.skipped) <= NOT_OFFERED
    check_recorded("rabbitmq", report)
