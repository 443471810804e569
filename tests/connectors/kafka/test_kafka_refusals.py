"""Brokers of Kafka that are there, and take no messages: for want of a right, or of a topic."""

from __future__ import annotations

from typing import Any

import pytest

from ergon_framework.connector.kafka.errors import KafkaRefusedError
from tests.connectors.in_colour import COLOURS, driven
from tests.connectors.kafka.kafka_topic import connect, numbered, put, read
from tests.servers.kafka import KafkaCluster
from tests.waiting import until

pytestmark = pytest.mark.slow
PRODUCE, PRODUCER_ID = 0, 22
NO_TOPIC, NO_RIGHT, NO_RIGHT_IN_CLUSTER, POLICY = 3, 29, 31, 44
"""Errors of the protocol."""


def is_taken(orders: Any, verb: str, *given: Any) -> bool:
    """Whether the brokers took it."""
    try:
        orders(verb, *given)
    except KafkaRefusedError:
        return False
    return True


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize(
    ("code", "remedy"), [(NO_RIGHT, "--operation Write"), (NO_TOPIC, "--create --topic")]
)
def test_a_refused_topic_is_bad_health_until_it_takes_something(
    kafka: KafkaCluster, colour: str, code: int, remedy: str
) -> None:
    """Also where only the dead letters are refused; the doctor says what to do."""
    topic = kafka.new_topic()
    dead = f"{topic}.dlq"
    put(kafka, topic, numbered(1))
    kafka.refuse(dead, code)
    with driven(colour, connect(kafka, topic, send_timeout=1.0)) as orders:
        (order,) = orders.take()
        assert orders.connector.health()
        kafka.refuse(dead, code)
        kafka.refuse_next(PRODUCE, code)
        with pytest.raises(KafkaRefusedError, match=f"no messages for {dead}") as caught:
            orders("nack", order, ValueError("no"))
        assert remedy in (caught.value.remedy or "")
        assert not orders.connector.health()
        assert remedy in next(e for e in orders.connector.observe() if e.is_grave).remedy
        with connect(kafka, topic, group="doctor") as doctor:
            told = [each.remedy for each in doctor.observe() if each.remedy]
        assert any(remedy in each for each in told)
        kafka.refuse(dead, 0)
        until(lambda: is_taken(orders, "nack", order, ValueError("no")), "the topic is there")
        assert orders.connector.health()
    assert len(read(kafka, dead)) == 1


def test_a_refusal_of_one_message_ends_with_the_next_that_is_taken(kafka: KafkaCluster) -> None:
    """A policy of the brokers, say: they are there, and health says that they cannot be used."""
    topic = kafka.new_topic()
    with connect(kafka, topic) as orders:
        orders.dispatch_transactions(numbered(1))
        kafka.refuse_next(PRODUCE, POLICY)
        with pytest.raises(KafkaRefusedError, match="Policy violation"):
            orders.dispatch_transactions(numbered(1))
        assert not orders.health()
        orders.dispatch_transactions(numbered(1))
        assert orders.health()


def test_a_producer_that_may_not_begin_begins_when_it_may(kafka: KafkaCluster) -> None:
    """For the client library that error is fatal: another producer takes its place."""
    topic = kafka.new_topic()
    with connect(kafka, topic, send_timeout=5.0) as orders:
        kafka.refuse_next(PRODUCER_ID, NO_RIGHT_IN_CLUSTER)
        with pytest.raises(KafkaRefusedError) as caught:
            orders.dispatch_transactions(numbered(1))
        assert "IdempotentWrite" in (caught.value.remedy or "")
        assert not orders.health()
        orders.dispatch_transactions(numbered(1))
        assert orders.health()
