"""SQS queues as a source and a target, against a server on loopback."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from ergon_framework.connector import from_url
from ergon_framework.connector.sqs import SqsConnector
from ergon_framework.connector.sqs.wire import incoming
from ergon_framework.errors import ChannelLostError, ConfigurationError, PayloadError
from ergon_framework.ports.transaction import Transaction
from ergon_framework.testing.link import CuttableLink
from ergon_framework.testing.suites import ConnectorFaults, exercise_connector
from tests import fork_server
from tests.campaign.parameter_sample import sampled
from tests.connectors.recorded_results import check_recorded
from tests.connectors.sqs.sqs_queue import connect, dead_letters, ids, numbered, take
from tests.servers.s3 import KEYS, REGION
from tests.servers.sqs import SqsServer
from tests.waiting import until

pytestmark = pytest.mark.slow


@pytest.mark.timeout(400)
@pytest.mark.parametrize("colour", sampled(["sync", "async"], ["async"]))
def test_it_behaves_as_every_connector_must(
    sqs: SqsServer, colour: Literal["sync", "async"]
) -> None:
    """The whole suite, but for a payload of a mebibyte, which SQS has no room for."""
    links: dict[SqsConnector, CuttableLink] = {}

    @contextmanager
    def made() -> Iterator[SqsConnector]:
        with (
            CuttableLink(sqs.server.port) as link,
            connect(sqs, sqs.new_queue(), link, visibility=3) as connector,
        ):
            links[connector] = link
            yield connector

    def crash(connector: SqsConnector) -> SqsConnector:
        links[connector].cut()
        return connect(sqs, connector.queue, visibility=3)

    def cut(connector: SqsConnector) -> None:
        links[connector].cut()
        links[connector].heal()

    def dead(connector: SqsConnector) -> list[tuple[str, str]]:
        # What is malformed is set aside beside the fetch, which does not wait for it.
        until(lambda: len(dead_letters(sqs, connector.queue)) >= connector.malformed)
        return dead_letters(sqs, connector.queue)

    faults = ConnectorFaults(
        crash=crash,
        cut=cut,
        put_malformed=lambda connector: sqs.send(connector.queue, "not json"),
        put_foreign=lambda connector, body, given: sqs.send(connector.queue, body.decode(), given),
        read_foreign=lambda connector: [incoming(each) for each in sqs.read(connector.queue)],
    )
    report = exercise_connector(
        made,
        colour=colour,
        dead_letters=dead,
        order="none",
        faults=faults,
        skip=["keeps_large_payload"],
        patience=20,
    )
    check_recorded("sqs", report)


CONSUMER = """
import sys, threading
from pathlib import Path
from ergon_framework.connector import from_url

diary = Path(sys.argv[2])
with from_url(sys.argv[1], visibility=3, wait=1) as connector:
    while True:
        for delivery in connector.fetch_transactions(3):
            threading.Event().wait(0.05)
            with diary.open("a") as file:
                file.write(delivery.transaction_id + chr(10))
            connector.ack(delivery)
"""


def test_what_a_killed_consumer_had_in_hand_comes_again(sqs: SqsServer, tmp_path: Path) -> None:
    """Its messages become visible when nobody renews them, and none is lost."""
    queue, diary, program = sqs.new_queue(), tmp_path / "diary", tmp_path / "consumer.py"
    diary.touch()
    program.write_text(CONSUMER)
    with connect(sqs, queue) as connector:
        connector.dispatch_transactions(numbered(40))
    url = f"sqs://{REGION}/{queue}?endpoint={sqs.endpoint}"
    with fork_server.start([sys.executable, str(program), url, str(diary)]) as child:
        until(lambda: len(diary.read_text().split()) >= 10, "some of the work")
        child.kill()
    ended = set(diary.read_text().split())
    came: set[str] = set()
    with connect(sqs, queue, visibility=30, wait=1) as other:

        def is_done() -> bool:
            for delivery in other.fetch_transactions(10):
                came.add(delivery.transaction_id)
                other.ack(delivery)
            return len(ended | came) == 40 and other.get_transactions_count() == 0

        until(is_done, "the rest")
    assert len(ended) < 40


def test_a_long_handler_keeps_its_message(sqs: SqsServer) -> None:
    """It is kept invisible for as long as it is in hand, and settled once."""
    queue = sqs.new_queue()
    with connect(sqs, queue, visibility=2) as connector, connect(sqs, queue, wait=1) as other:
        connector.dispatch_transactions(numbered(1))
        (held,) = take(connector, 1)
        for _ in range(5):
            assert other.fetch_transactions(1) == []
        connector.ack(held)
        assert other.fetch_transactions(1) == []


def test_a_message_that_could_not_be_kept_is_refused_late(sqs: SqsServer) -> None:
    """After a cut longer than the visibility another consumer has it: a late ack says so."""
    queue = sqs.new_queue()
    with (
        CuttableLink(sqs.server.port) as link,
        connect(sqs, queue, link, visibility=2) as cut_off,
        connect(sqs, queue, wait=1) as other,
    ):
        cut_off.dispatch_transactions(numbered(1))
        (held,) = take(cut_off, 1)
        link.cut()
        (again,) = take(other, 1)
        link.heal()
        assert again.transaction_id == held.transaction_id
        for verb in (cut_off.ack, cut_off.release):
            with pytest.raises(ChannelLostError, match="became visible before it was settled"):
                verb(held)
        other.ack(again)
        assert other.fetch_transactions(1) == []


def test_a_stop_ends_a_long_poll(sqs: SqsServer) -> None:
    """What the request brings after it is for the next fetch."""
    queue = sqs.new_queue()
    with connect(sqs, queue, wait=20) as connector, ThreadPoolExecutor() as pool:
        waiting = pool.submit(connector.fetch_transactions, 1)
        assert not waiting.done()

        def is_stopped() -> bool:
            connector.stop_waiting()
            return waiting.done()

        until(is_stopped, "the end of the fetch", 10)
        assert waiting.result() == []
        connector.dispatch_transactions(numbered(1))
        (came,) = take(connector, 1)
        connector.ack(came)


def test_a_broker_that_is_away_at_the_start_is_waited_for(sqs: SqsServer) -> None:
    """Health says so meanwhile."""
    queue = sqs.new_queue()
    with (
        CuttableLink(sqs.server.port) as link,
        connect(sqs, queue, link) as connector,
        ThreadPoolExecutor() as pool,
    ):
        link.cut()
        waiting = pool.submit(take, connector, 1)
        until(lambda: not connector.health(), "health")
        with connect(sqs, queue) as sender:
            sender.dispatch_transactions(numbered(1))
        link.heal()
        assert ids(waiting.result(60)) == ["t0"]
        assert connector.health()


def test_messages_of_a_group_keep_their_order(sqs: SqsServer) -> None:
    """Of a FIFO queue one message of a group is in hand at a time; other groups go on."""
    queue = sqs.new_queue(is_fifo=True)
    with connect(sqs, queue) as connector:
        given = [("1", "x"), ("2", "x"), ("3", "y")]
        connector.dispatch_transactions([Transaction(i, correlation_id=key) for i, key in given])
        first, other = sorted(take(connector, 2), key=lambda each: each.transaction_id)
        assert ids([first, other]) == ["1", "3"]
        connector.release(first)
        (again,) = take(connector, 1)
        assert again.transaction_id == "1"
        connector.ack(again)
        assert ids(take(connector, 1)) == ["2"]
        connector.dispatch_transactions([Transaction("3", correlation_id="y")])
        connector.ack(other)


def test_an_envelope_beyond_ten_attributes_is_packed(sqs: SqsServer) -> None:
    """Headers of other programs stay attributes, ours share one, and all come back."""
    queue = sqs.new_queue()
    foreign = {f"x-{n}": str(n) for n in range(8)}
    given = Transaction("t", 1, {"headers": foreign, "tenant": "blue"}, correlation_id="flow")
    with connect(sqs, queue) as connector:
        connector.dispatch_transactions([given])
        (raw,) = sqs.read(queue)
        assert set(raw["MessageAttributes"]) == {*foreign, "ergon-headers"}
        (came,) = take(connector, 1)
        assert (came.metadata, came.correlation_id) == (given.metadata, "flow")
        connector.nack(came, ValueError("no such customer"))
    assert dead_letters(sqs, queue) == [("t", "ValueError: no such customer")]


@pytest.mark.parametrize("packed", ["[" * 50_000, '{"ergon-transaction-id": 5}', "[[1, 2]]", "7"])
def test_packed_headers_that_are_no_texts_are_set_aside(sqs: SqsServer, packed: str) -> None:
    """With their attributes; the messages beside them are delivered."""
    queue = sqs.new_queue()
    sqs.send(queue, "1", {"ergon-headers": packed, "x-shop": "berlin"})
    sqs.send(queue, "2")
    with connect(sqs, queue) as connector:
        (found,) = take(connector, 1)
        assert found.payload == 2
        connector.ack(found)
        until(lambda: connector.fetch_transactions(1) == [] and connector.malformed == 1)
        until(lambda: sqs.read(f"{queue}-dlq"))
    (letter,) = sqs.read(f"{queue}-dlq")
    attributes = letter["MessageAttributes"]
    assert attributes["ergon-headers"]["StringValue"] == packed
    assert attributes["x-shop"]["StringValue"] == "berlin"


def test_bodies_that_are_no_text_are_carried(sqs: SqsServer) -> None:
    """SQS takes text only, so other bytes travel as base64."""
    queue = sqs.new_queue()
    with connect(sqs, queue, format="bytes") as connector:
        connector.dispatch_transactions([Transaction("t", b"\x00\xff photo")])
        assert take(connector, 1)[0].payload == b"\x00\xff photo"


def test_a_message_above_the_limit_is_refused_as_a_whole(sqs: SqsServer) -> None:
    """The error names the transaction and its size, and nothing of the batch is sent."""
    queue = sqs.new_queue()
    with connect(sqs, queue) as connector:
        batch = [*numbered(1), Transaction("big", "x" * 262_000)]
        with pytest.raises(PayloadError, match=r"'big' is 262\d+ bytes long"):
            connector.dispatch_transactions(batch)
        assert connector.fetch_transactions(5) == []


def test_many_large_messages_go_in_several_requests(sqs: SqsServer) -> None:
    """A request has room for ten messages and 256 KiB together."""
    queue = sqs.new_queue()
    with connect(sqs, queue) as connector:
        connector.dispatch_transactions([Transaction(f"t{n}", "x" * 90_000) for n in range(12)])
        assert len({each.transaction_id for each in take(connector, 12)}) == 12


def test_settlements_at_the_same_time_share_a_request(sqs: SqsServer) -> None:
    """Each is told apart: one that SQS does not know fails, and the others count."""
    queue = sqs.new_queue()
    with connect(sqs, queue) as connector, ThreadPoolExecutor(20) as pool:
        connector.dispatch_transactions(numbered(20))
        held = take(connector, 20)
        for done in [pool.submit(connector.ack, each) for each in held]:
            done.result(30)
        assert connector.fetch_transactions(1) == []
        assert connector.get_transactions_count() == 0


def test_a_queue_that_is_not_there_is_told_at_once(sqs: SqsServer) -> None:
    """Waiting would not make it appear."""
    with connect(sqs, "nothing-here") as connector:
        with pytest.raises(ConfigurationError, match=r"sqs://us-east-1/nothing-here"):
            connector.fetch_transactions(1)
        (told,) = connector.observe()
        assert told.is_grave
        assert told.remedy not in told.found, "it is told once"


@pytest.mark.req("X19")
@pytest.mark.parametrize("gone", ["queue", "dead letters"])
def test_a_queue_that_is_deleted_is_named(sqs: SqsServer, gone: str) -> None:
    """By settlements, too, in words of ours; health is bad until it is there again."""
    queue = sqs.new_queue()
    missing = r"SQS answers .*(NonExistentQueue|QueueDoesNotExist)"
    deleted = queue if gone == "queue" else f"{queue}-dlq"
    url = sqs.client.get_queue_url(QueueName=deleted)["QueueUrl"]
    attributes = sqs.client.get_queue_attributes(QueueUrl=url, AttributeNames=["RedrivePolicy"])
    with connect(sqs, queue) as connector:
        connector.dispatch_transactions(numbered(3))
        first, second, third = take(connector, 3)
        sqs.client.delete_queue(QueueUrl=url)
        with pytest.raises(ConfigurationError, match=missing):
            connector.nack(first, ValueError("bad"))
        assert not connector.health()
        if gone == "queue":
            with pytest.raises(ConfigurationError, match=missing):
                connector.ack(second)
            with pytest.raises(ConfigurationError, match=missing):
                connector.release(third)
            with pytest.raises(ConfigurationError, match=missing):
                connector.fetch_transactions(1)
        assert not connector.health()
        sqs.client.create_queue(QueueName=deleted, Attributes=attributes.get("Attributes", {}))
        connector.dispatch_transactions(numbered(1))
        assert len(take(connector, 1)) == 1
        assert connector.health()


def test_a_queue_without_dead_letters_is_not_consumed(sqs: SqsServer) -> None:
    """What failed for good would have nowhere to go."""
    queue = sqs.new_queue(most_receives=None)
    with connect(sqs, queue) as connector:
        with pytest.raises(ConfigurationError, match=r"has no dead-letter queue.*redrive policy"):
            connector.fetch_transactions(1)
        assert "dead letters" in [each.what for each in connector.observe()]
    with connect(sqs, queue, dead_letter_queue=f"{queue}-dlq") as connector:
        assert connector.fetch_transactions(1) == []


def test_a_redrive_policy_that_parking_would_use_up_is_told(sqs: SqsServer) -> None:
    """Each parking is a receive, so a small number of receives is worth knowing."""
    with connect(sqs, sqs.new_queue(most_receives=3)) as connector:
        assert "redrive" in [each.what for each in connector.observe() if each.remedy]


@pytest.mark.parametrize(
    ("url", "options", "told"),
    [
        ("sqs://eu-central-1", {}, "cannot be read"),
        ("sqs://user:secret@eu-central-1/q", {}, "credentials are found where"),
        ("sqs://eu-central-1/q", {"endpoint": "127.0.0.1:4566"}, "with http:// or https://"),
        ("sqs://eu-central-1/q", {"wait": 21}, "wait must be at most 20, not 21"),
        ("sqs://eu-central-1/q", {"visibility": 0}, "visibility must be at least 1, not 0"),
    ],
)
def test_what_cannot_work_is_refused_at_once(url: str, options: dict[str, Any], told: str) -> None:
    """Without a connection, with the name of the option, and never with a secret."""
    with pytest.raises(ConfigurationError, match=told) as caught:
        SqsConnector(url, **options)
    assert "secret" not in str(caught.value)


def test_dead_letters_keep_the_types_of_attributes(sqs: SqsServer) -> None:
    """Bytes and numbers of another program come to the dead letters as they are."""
    queue = sqs.new_queue()
    url = sqs.client.get_queue_url(QueueName=queue)["QueueUrl"]
    given = {
        "raw": {"DataType": "Binary", "BinaryValue": b"\xff\x00"},
        "count": {"DataType": "Number.int", "StringValue": "7"},
    }
    sqs.client.send_message(QueueUrl=url, MessageBody="{}", MessageAttributes=given)
    with connect(sqs, queue) as connector:
        (held,) = take(connector, 1)
        connector.nack(held, ValueError("no"))
    (letter,) = sqs.read(f"{queue}-dlq")
    kept = letter["MessageAttributes"]
    assert {name: kept[name] for name in given} == given


def test_a_dead_letter_queue_that_is_missing_is_named(sqs: SqsServer) -> None:
    """Not the queue that is there."""
    with (
        connect(sqs, sqs.new_queue(), dead_letter_queue="gone") as connector,
        pytest.raises(ConfigurationError, match="its dead-letter queue gone: SQS answers"),
    ):
        connector.fetch_transactions(1)


@pytest.mark.parametrize(
    ("variables", "url", "remedy"),
    [
        ({}, f"sqs://{REGION}/orders", "set AWS_ACCESS_KEY_ID"),
        ({"AWS_PROFILE": "nonesuch"}, f"sqs://{REGION}/orders", "correct AWS_PROFILE"),
        (KEYS, "sqs://eu_central/orders", "write sqs://eu-central-1/orders"),
        (KEYS, f"sqs://{REGION}/orders?endpoint=http://no host", "http://localhost:4566"),
    ],
)
def test_what_waiting_does_not_mend_is_told_at_once(
    sqs: SqsServer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    variables: dict[str, str],
    url: str,
    remedy: str,
) -> None:
    """A fetch without credentials, or with a region that is none, ends, and says what to do."""
    for name in KEYS:
        monkeypatch.delenv(name)
    nowhere = str(tmp_path / "none")
    more = {"AWS_SHARED_CREDENTIALS_FILE": nowhere, "AWS_CONFIG_FILE": nowhere}
    for name, value in {**variables, **more, "AWS_EC2_METADATA_DISABLED": "true"}.items():
        monkeypatch.setenv(name, value)
    given = url if "endpoint" in url else f"{url}?endpoint={sqs.endpoint}"
    with from_url(given) as connector, pytest.raises(ConfigurationError) as caught:
        connector.fetch_transactions(1)
    assert remedy in caught.value.remedy
