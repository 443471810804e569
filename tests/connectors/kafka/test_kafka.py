"""Kafka topics as a source and a target, against a cluster on loopback."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any, Literal

import pytest

from ergon_framework.connector.kafka import KafkaConnector
from ergon_framework.connector.kafka.client import ClientRule, Login
from ergon_framework.errors import ConfigurationError, ConnectorError, PayloadError
from ergon_framework.ports.transaction import Transaction
from ergon_framework.testing.suites import ConnectorFaults, SuiteReport, exercise_connector
from tests.connectors.kafka.kafka_topic import (
    connect,
    dead_letters,
    headers,
    ids,
    made_ahead,
    numbered,
    put,
    read,
    send,
    take,
)
from tests.connectors.recorded_results import check_recorded
from tests.servers.kafka import KafkaCluster, KafkaLink
from tests.waiting import until

pytestmark = pytest.mark.slow


def test_it_behaves_as_every_connector_must(kafka: KafkaCluster) -> None:
    """The whole suite, on a topic with one partition, which keeps the order.

    It waits for groups most of the time, so both colours run side by side.
    """
    with ThreadPoolExecutor() as pool:
        colours: list[Literal["sync", "async"]] = ["sync", "async"]
        reports = list(pool.map(lambda colour: exercised(kafka, colour), colours))
    for report in reports:
        check_recorded("kafka", report)


def exercised(kafka: KafkaCluster, colour: Literal["sync", "async"]) -> SuiteReport:
    """What the suite says of connectors of that colour."""
    links: dict[KafkaConnector, KafkaLink] = {}

    def make() -> KafkaConnector:
        link = stack.enter_context(KafkaLink(kafka.port))
        # A broker takes a mebibyte by default; the suite sends a little more.
        options: dict[str, Any] = {"wait": 0.05, "max_message_bytes": 4 << 20}
        connector = connect(link, kafka.new_topic(), **options)
        links[connector] = link
        return connector

    def crash(connector: KafkaConnector) -> KafkaConnector:
        # Offsets are committed a moment after an ack; what a crash in between repeats is
        # test_kafka_faults' subject.
        until(lambda: not connector.uncommitted, "the commit")
        links[connector].cut()  # for good: the group hears nothing more of it
        return connect(kafka, connector.topic, wait=0.05)

    def cut(connector: KafkaConnector) -> None:
        links[connector].cut()
        links[connector].heal()

    def dead(connector: KafkaConnector) -> list[tuple[str, str]]:
        # What is malformed is set aside beside the fetch, which does not wait for it.
        until(lambda: len(dead_letters(kafka, connector.topic)) >= connector.malformed)
        return dead_letters(kafka, connector.topic)

    faults = ConnectorFaults(
        crash=crash,
        cut=cut,
        put_malformed=lambda connector: send(kafka, connector.topic, b"\xff not json"),
        put_foreign=lambda connector, body, given: send(
            kafka, connector.topic, body, headers=dict(given)
        ),
        read_foreign=lambda connector: [
            (each.value(), headers(each)) for each in read(kafka, connector.topic)
        ],
    )
    with ExitStack() as stack, made_ahead(make) as made:
        return exercise_connector(
            made,
            colour=colour,
            dead_letters=dead,
            order="strict",
            faults=faults,
            patience=20,  # the group waits for a dead member until its session has ended
            # Without a retry topic the consumer keeps what is parked; with one, a test below shows
            # it.
            skip=["parked_outlives_its_consumer"],
        )


def test_the_next_member_gets_what_has_no_outcome(kafka: KafkaCluster) -> None:
    """Settled out of order, the offset stays below the first message without an outcome."""
    topic = kafka.new_topic()
    with connect(kafka, topic) as first:
        put(kafka, topic, numbered(6))
        taken = take(first, 6)
        for index in (0, 1, 4, 3):
            first.ack(taken[index])
    with connect(kafka, topic) as second:
        assert ids(take(second, 4)) == ["t2", "t3", "t4", "t5"]


def test_offsets_are_committed_while_it_runs(kafka: KafkaCluster) -> None:
    """The group's offset follows the outcomes without anybody closing anything."""
    topic = kafka.new_topic()
    with connect(kafka, topic) as running, connect(kafka, topic) as looking:
        put(kafka, topic, numbered(3))
        for delivery in take(running, 3):
            running.ack(delivery)
        until(lambda: looking.get_transactions_count() == 0, "the commit")


def test_a_delivery_knows_where_it_was_read(kafka: KafkaCluster) -> None:
    """Topic, partition, offset and key are attributes; the key is what the option names."""
    topic = kafka.new_topic()
    with connect(kafka, topic, partition_key="payload.customer") as connector:
        given = [
            Transaction("a", {"customer": "c-7"}),
            Transaction("b", {"customer": 7}),
            Transaction("c", {}),
        ]
        connector.dispatch_transactions(given)
        first, second, third = take(connector, 3)
    assert (first.topic, first.partition, first.offset, first.key) == (topic, 0, 0, b"c-7")
    assert (second.key, third.key, third.offset) == (b"7", None, 2)


def test_messages_of_one_key_wait_for_each_other(kafka: KafkaCluster) -> None:
    """Other keys go on, and after a release the first of a key comes first again."""
    topic = kafka.new_topic()
    with connect(kafka, topic, partition_key="correlation_id") as connector:
        given = [("1", "x"), ("2", "x"), ("3", "y")]
        connector.dispatch_transactions([Transaction(i, correlation_id=key) for i, key in given])
        first, other = take(connector, 2)
        assert ids([first, other]) == ["1", "3"]
        assert connector.fetch_transactions(5) == []
        connector.release(first)
        (again,) = take(connector, 1)
        connector.ack(again)
        assert ids(take(connector, 1)) == ["2"]


def test_what_failed_for_good_is_a_dead_letter(kafka: KafkaCluster) -> None:
    """Byte by byte as it was, with its key and headers, the reason and where it was read."""
    topic = kafka.new_topic()
    send(kafka, topic, b'{"n":  1}', key="k", headers={"tenant": "blue"})
    with connect(kafka, topic) as connector:
        (bad,) = take(connector, 1)
        connector.nack(bad, ValueError("no such customer"))
        until(lambda: connector.get_transactions_count() == 0, "the commit")
    (letter,) = read(kafka, f"{topic}.dlq")
    assert (letter.value(), letter.key()) == (b'{"n":  1}', b"k")
    told = headers(letter)
    assert (told["tenant"], told["ergon-origin"]) == ("blue", f"{topic}:0-0")
    assert dead_letters(kafka, topic)[0][1] == "ValueError: no such customer"


def test_a_malformed_message_is_set_aside(kafka: KafkaCluster) -> None:
    """It is counted, becomes a dead letter with every byte, and blocks nobody."""
    topic = kafka.new_topic()
    send(kafka, topic, b"\xff not json")
    with connect(kafka, topic) as connector:
        put(kafka, topic, numbered(1))
        (good,) = take(connector, 1)
        connector.ack(good)
        until(lambda: connector.get_transactions_count() == 0, "the offset to pass it")
        assert (good.transaction_id, connector.malformed) == ("t0", 1)
    (letter,) = read(kafka, f"{topic}.dlq")
    assert (letter.value(), headers(letter)["ergon-origin"]) == (b"\xff not json", f"{topic}:0-0")


def test_messages_of_other_programs_have_the_id_of_their_place(kafka: KafkaCluster) -> None:
    """It is the same at every delivery. A message without a value has no payload."""
    topic = kafka.new_topic()
    send(kafka, topic, b'{"sku": 7}', headers={"tenant": "blue"})
    send(kafka, topic, None, key="gone")
    with connect(kafka, topic) as connector:
        first, second = take(connector, 2)
    assert (first.transaction_id, first.payload) == (f"{topic}:0-0", {"sku": 7})
    assert (second.payload, second.key) == (None, b"gone")


def test_a_retry_topic_takes_what_is_parked(kafka: KafkaCluster) -> None:
    """The partition's offset goes on, and any member gets the message when its time has come."""
    topic = kafka.new_topic()
    with connect(kafka, topic, retry_topic=f"{topic}.retry") as first:
        put(kafka, topic, numbered(2))
        parked, other = take(first, 2)
        first.release_after(parked, 0.5)
        first.ack(other)
        until(lambda: first.get_transactions_count() == 1, "the offset to pass the parked one")
    with connect(kafka, topic, retry_topic=f"{topic}.retry") as second:
        (again,) = take(second, 1)
        assert (again.transaction_id, again.topic) == ("t0", f"{topic}.retry")
        second.ack(again)
        until(lambda: second.get_transactions_count() == 0, "both to be done")


def test_a_message_without_an_id_keeps_that_of_its_place_in_the_retry_topic(
    kafka: KafkaCluster,
) -> None:
    """However often it is parked: work that is idempotent by the id knows it again."""
    topic = kafka.new_topic()
    send(kafka, topic, b"7", headers={"tenant": "blue"})
    with connect(kafka, topic, retry_topic=f"{topic}.retry") as connector:
        for _ in range(3):
            (found,) = take(connector, 1)
            assert found.transaction_id == f"{topic}:0-0"
            assert found.metadata["headers"]["tenant"] == "blue"
            connector.release_after(found, 0.01)
        (found,) = take(connector, 1)
        assert (found.transaction_id, found.topic) == (f"{topic}:0-0", f"{topic}.retry")


def test_what_is_read_ahead_is_bounded(kafka: KafkaCluster) -> None:
    """A consumer holds so many messages and no more; a settlement makes room for the next."""
    topic = kafka.new_topic()
    with connect(kafka, topic, max_in_flight=5) as connector:
        put(kafka, topic, numbered(20))
        held = take(connector, 5)
        for number in range(5, 20):
            connector.ack(held.pop(0))
            held += take(connector, 1)
            assert held[-1].transaction_id == f"t{number}"


def test_bytes_are_bounded_as_well(kafka: KafkaCluster) -> None:
    """With large messages few are held, though the count would allow more."""
    topic = kafka.new_topic()
    with connect(kafka, topic, max_in_flight_bytes=50_000) as connector:
        connector.dispatch_transactions([Transaction(f"t{n}", "x" * 20_000) for n in range(9)])
        came = 0
        while came < 9:
            batch = connector.fetch_transactions(9)
            came += len(batch)
            for delivery in batch:
                connector.ack(delivery)


def test_a_group_that_is_given_a_topic_later_reads_it_from_its_beginning(
    kafka: KafkaCluster,
) -> None:
    """What was sent before the group's first start is work, too."""
    topic = kafka.new_topic()
    put(kafka, topic, numbered(2))
    with connect(kafka, topic, group=f"{topic}-late") as late:
        assert ids(take(late, 2)) == ["t0", "t1"]


def test_a_message_above_the_limit_is_refused_as_a_whole(kafka: KafkaCluster) -> None:
    """The error names the transaction and the limit, and nothing of its batch is sent."""
    topic = kafka.new_topic()
    with connect(kafka, topic, max_message_bytes=2000) as connector:
        batch = [*numbered(1), Transaction("big", "x" * 3000)]
        with pytest.raises(PayloadError, match=r"'big'.*at most 2000"):
            connector.dispatch_transactions(batch)
        assert connector.fetch_transactions(5) == []


@pytest.mark.parametrize(
    ("url", "options", "told"),
    [
        ("kafka://h:1", {}, "there is no topic"),
        ("kafka://h:1/t", {"order": "keys"}, "order is 'keys'.*key, partition, none"),
        ("kafka://h:1/t", {"topic": "a b"}, "topic is 'a b', which is no name of a topic"),
        ("kafka://h:1/^t.*", {}, "topic is .*, which is no name of a topic"),
        ("kafka://h:1/t", {"dead_letter_topic": "t/d"}, "dead_letter_topic is 't/d', which is no"),
        ("kafka://h:1/t", {"dead_letter_topic": "t"}, "dead_letter_topic is 't', as topic is"),
        ("kafka://h:1/t", {"retry_topic": "t"}, "retry_topic is 't', as topic is"),
        ("kafka://h:1/t", {"retry_topic": "t.dlq"}, "retry_topic is 't.dlq', as dead_letter_topic"),
        ("kafka://h:1/t", {"partition_key": "corelation_id"}, "has no such field to be a key"),
        ("kafka://h:1/t", {"max_in_flight": 0}, "max_in_flight must be at least 1"),
        ("kafka://h:1/t", {"wait": -1}, "wait must be .* not -1"),
        (
            "kafka://h:1/t",
            {"max_message_bytes": 10**9},
            "max_message_bytes must be at most",
        ),
        ("kafka://h:1/t", {"revoke_wait": 10**6}, "revoke_wait must be at most 43200"),
        ("kafka://h:1/t", {"send_timeout": 10**7}, "send_timeout must be at most 2147483"),
        ("kafka://h:1/t", {"send_timeout": 0}, "send_timeout must be at least 0.001"),
        ("kafka://h:1/t", {"group": ""}, "group is empty"),
        ("kafka://h:1/t", {"client": {"group.id": "g"}}, "client must not hold group.id"),
    ],
)
def test_what_cannot_work_is_refused_at_once(url: str, options: dict[str, Any], told: str) -> None:
    """Without a connection, and with the name of the option."""
    with pytest.raises(ConfigurationError, match=told):
        KafkaConnector(url, **options)


def test_bounds_beyond_those_of_the_client_library_are_fine(kafka: KafkaCluster) -> None:
    """It fetches ahead what it can; what may be in flight is counted here."""
    huge: dict[str, Any] = {
        "max_in_flight": 10**9,
        "max_in_flight_bytes": 1 << 50,
        "revoke_wait": 43_200.0,
    }
    most: dict[str, Any] = {"max_message_bytes": 10**9 - 40_000, "send_timeout": 2_147_483.0}
    with connect(kafka, kafka.new_topic(), **huge, **most) as connector:
        connector.dispatch_transactions(numbered(1))
        assert ids(take(connector, 1)) == ["t0"]


def test_a_short_queue_is_filled_again_soon() -> None:
    """The client library's own second would leave it empty for most of the time."""

    def settings(more: dict[str, Any]) -> dict[str, Any]:
        return ClientRule(
            servers="h:1",
            login=Login(),
            group="g",
            max_message_bytes=1000,
            max_count=10,
            max_bytes=1000,
            revoke_wait=1.0,
            send_timeout=1.0,
            more=more,
        ).consumer()

    assert settings({})["fetch.queue.backoff.ms"] <= 50
    assert settings({"fetch.queue.backoff.ms": 70})["fetch.queue.backoff.ms"] == 70


def test_no_error_and_no_log_has_the_password(caplog: pytest.LogCaptureFixture) -> None:
    """Neither does the repr of the connector or of what it holds."""
    caplog.set_level(logging.DEBUG)
    url = "kafka+ssl://app:hush-hush@127.0.0.1:9/orders"
    with closing(KafkaConnector(url, send_timeout=0.3, sasl_mechanism="SCRAM-SHA-512")) as it:
        assert not it.health()
        with pytest.raises(ConnectorError) as caught:
            it.dispatch_transactions(numbered(1))
        seen = [repr(it), str(caught.value), *map(repr, vars(it).values()), caplog.text]
    assert not [each for each in seen if "hush" in each]
