"""A connector to a broker that a forked child has inherited: what came is its parent's."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

from ergon_framework.connector.mqtt import MqttConnector
from ergon_framework.connector.nats import NatsConnector
from ergon_framework.connector.postgres import PostgresConnector
from ergon_framework.errors import ChannelLostError, ConfigurationError
from ergon_framework.ports.transaction import Transaction
from tests.connectors.postgres.tables import LEASED, LEASED_COLUMNS, OUTBOX, new_table
from tests.connectors.sqs.sqs_queue import connect
from tests.connectors.test_jsonl_forking import ended, in_a_child
from tests.waiting import until

pytestmark = pytest.mark.slow
PATIENCE = 60  # seconds that a child may take


def nats(request: pytest.FixtureRequest) -> Any:
    """One with room for the parent's message alone."""
    from tests.connectors.nats.streams import Streams

    streams = Streams(request.getfixturevalue("nats_server").url())
    stream = streams.make()
    streams.close()
    return NatsConnector(
        streams.url, stream=stream, consumer="one", subject=f"{stream}.new", max_in_flight=1
    )


def postgres(request: pytest.FixtureRequest) -> Any:
    """One of a table with leases, with room for the parent's row alone."""
    url = request.getfixturevalue("postgres_url")
    table = new_table(url, LEASED)
    return PostgresConnector(url, table=table, columns=LEASED_COLUMNS, max_in_flight=1)


def sqs(request: pytest.FixtureRequest) -> Any:
    """One with room for the parent's message alone."""
    server = request.getfixturevalue("sqs")
    return connect(server, server.new_queue(), wait=1, max_in_flight=1)


def taken(connector: Any) -> Transaction:
    """One delivery."""
    found: list[Transaction] = []

    def has_come() -> bool:
        found.extend(connector.fetch_transactions(1))
        return bool(found)

    until(has_come, "a delivery")
    return found[0]


def in_a_child_that_ends(work: Callable[[], Any]) -> None:
    """Do it in a forked child; it raises nothing and does not hang."""

    def bounded() -> None:
        signal.alarm(PATIENCE)
        work()

    assert ended(in_a_child(bounded)) == 0


@pytest.mark.parametrize("make", [nats, postgres, sqs])
def test_a_child_is_a_consumer_of_its_own(make: Any, request: pytest.FixtureRequest) -> None:
    """It settles nothing of its parent's, fetches and settles by itself, and ends nobody else."""
    with make(request) as connector:
        connector.dispatch_transactions([Transaction("parent", 1)])
        held = taken(connector)

        def misuse_and_use() -> None:
            with pytest.raises(ChannelLostError, match="fork"):
                connector.ack(held)
            connector.dispatch_transactions([Transaction("child", 2), Transaction("later", 3)])
            own = taken(connector)
            assert own.transaction_id == "child"
            connector.ack(own)
            connector.close()

        in_a_child_that_ends(misuse_and_use)
        connector.ack(held)
        assert taken(connector).transaction_id == "later"


def test_a_child_of_the_only_reader_stands_by(postgres_url: str) -> None:
    """The lock of a table without leases is its parent's."""
    table = new_table(postgres_url, OUTBOX, dead=True)
    options: dict[str, Any] = {"table": table, "columns": "headers", "wait": 0.1}
    options["dead_letters"] = f"{table}_dead"
    with PostgresConnector(postgres_url, **options) as connector:
        connector.dispatch_transactions([Transaction("one", 1), Transaction("two", 2)])
        held = taken(connector)

        def misuse() -> None:
            with pytest.raises(ChannelLostError, match="fork"):
                connector.ack(held)
            assert connector.fetch_transactions(1) == []
            connector.close()

        in_a_child_that_ends(misuse)
        connector.ack(held)
        assert taken(connector).payload == 2


def test_a_child_publishes_to_mqtt_and_leaves_the_session_to_its_parent(
    request: pytest.FixtureRequest,
) -> None:
    """A broker has one connection for a client id: the child's would end its parent's."""
    mosquitto = request.getfixturevalue("mosquitto")
    url = mosquitto.url(mosquitto.new_topic())
    with MqttConnector(url, client_id="forking", wait=0.1) as connector:
        assert connector.fetch_transactions(1) == []
        connector.dispatch_transactions([Transaction("parent", 1)])
        held = taken(connector)

        def misuse_and_use() -> None:
            with pytest.raises(ChannelLostError, match="fork"):
                connector.ack(held)
            with pytest.raises(ConfigurationError, match="fork"):
                connector.fetch_transactions(1)
            connector.dispatch_transactions([Transaction("child", 2)])
            connector.close()

        in_a_child_that_ends(misuse_and_use)
        connector.ack(held)
        assert taken(connector).transaction_id == "child"
