"""NATS JetStream as a connector, on a real server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from ergon_framework.connector.broker.registry import from_url
from ergon_framework.connector.nats import ConflictingMessageError, NatsConnector
from ergon_framework.errors import ConfigurationError, ErgonError
from ergon_framework.ports.transaction import Transaction
from ergon_framework.testing.suites import exercise_connector
from ergon_framework.testing.suites.connector import ConnectorFaults
from tests.boundary.node.cables import Cable
from tests.connectors.nats.streams import Streams
from tests.connectors.recorded_results import check_recorded
from tests.servers.nats import NatsServer
from tests.waiting import until


@pytest.fixture
def streams(nats_server: NatsServer) -> Iterator[Streams]:
    """An operator of the server."""
    made = Streams(nats_server.url())
    yield made
    made.close()


def consuming(url: str, stream: str, **options: Any) -> NatsConnector:
    """A connector that reads what it publishes, and keeps what failed."""
    return NatsConnector(
        url,
        stream=stream,
        consumer="billing",
        subject=f"{stream}.new",
        filter_subject=f"{stream}.new",
        dead_letter_subject=f"{stream}.dead",
        **{"wait": 0.0, **options},
    )


class SuiteStreams:
    """What the suite does to a connector from outside: it is one fresh stream for each."""

    def __init__(self, streams: Streams, server: NatsServer, **options: Any) -> None:
        self._streams = streams
        self._server = server
        # The server tells a consumer of a message a moment after it has stored it.
        self._options = {"ack_wait": 2.0, "wait": 0.02, **options}

    @contextmanager
    def make(self) -> Iterator[NatsConnector]:
        """A connector behind a cable of its own."""
        with Cable(self._server.port) as cable:
            stream = self._streams.make()
            url = f"nats://127.0.0.1:{cable.port}"
            made: Any = consuming(url, stream, **self._options)
            made.stream, made.cable = stream, cable
            yield made
            made.close()

    def crash(self, connector: Any) -> NatsConnector:
        """Nothing more is heard of it."""
        connector.cable.cut()
        return consuming(self._streams.url, connector.stream, **self._options)

    def cut(self, connector: Any) -> None:
        """Its connection breaks, once."""
        connector.cable.cut()
        connector.cable.heal()

    def put_malformed(self, connector: Any) -> None:
        """Something that is no JSON."""
        self._streams.publish(f"{connector.stream}.new", b"{")

    def put_foreign(self, connector: Any, body: bytes, headers: Mapping[str, str]) -> None:
        """As another program publishes."""
        self._streams.publish(f"{connector.stream}.new", body, dict(headers))

    def read_foreign(self, connector: Any) -> list[tuple[bytes, dict[str, str]]]:
        """As another program reads."""
        return self._streams.stored(connector.stream, f"{connector.stream}.new")

    def dead(self, connector: Any) -> list[tuple[str, str]]:
        """The ids and reasons of what was set aside."""
        return self._streams.dead(connector.stream)

    @property
    def faults(self) -> ConnectorFaults:
        """All of it."""
        return ConnectorFaults(
            crash=self.crash,
            cut=self.cut,
            put_malformed=self.put_malformed,
            put_foreign=self.put_foreign,
            read_foreign=self.read_foreign,
        )


@pytest.mark.slow
@pytest.mark.parametrize("colour", ["sync", "async"])
def test_the_suite_is_passed(streams: Streams, nats_server: NatsServer, colour: Any) -> None:
    """Everything a connector to a broker promises, none of it left out."""
    subject = SuiteStreams(streams, nats_server)
    report = exercise_connector(
        subject.make,
        colour=colour,
        dead_letters=subject.dead,
        ids="unique",
        faults=subject.faults,
        patience=20.0,
    )
    report.raise_for_failures(recommended=True)
    check_recorded("nats", report)


@pytest.mark.slow
@pytest.mark.campaign
def test_the_suite_is_passed_without_deduplication(
    streams: Streams, nats_server: NatsServer
) -> None:
    """Then one id may be published twice, and is delivered twice."""
    subject = SuiteStreams(streams, nats_server, deduplicate=False)
    report = exercise_connector(
        subject.make, colour="both", dead_letters=subject.dead, faults=subject.faults
    )
    report.raise_for_failures(recommended=True)


def test_a_url_makes_a_connector(streams: Streams) -> None:
    """The options stand in the URL, and a mistyped one is answered with the one that was meant."""
    stream = streams.make()
    bare = streams.url.partition("?")[0]
    with from_url(f"{bare}?stream={stream}&consumer=billing&subject={stream}.new") as connector:
        connector.dispatch_transactions([Transaction("t1", 1)])
        (found,) = connector.fetch_transactions(1)
        connector.ack(found)
    with pytest.raises(ConfigurationError, match="unknown option 'strem'") as caught:
        from_url(f"{bare}?strem={stream}")
    assert "stream" in (caught.value.remedy or "")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({}, "needs a consumer to read under"),
        ({"consumer": "c"}, "needs a stream"),
        ({"stream": "S", "consumer": "c", "ordered": True}, "no durable consumer"),
        ({"stream": "a.b", "consumer": "c"}, "stream is no name"),
        ({"stream": "S", "consumer": "c", "deliver": "some"}, "deliver is 'some'"),
        ({"subject": "s", "format": "xml"}, "format is json, text or bytes"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], match: str) -> None:
    """Without a connection, and with what to write instead."""
    with pytest.raises(ConfigurationError, match=match) as caught:
        NatsConnector("nats://somebody:hunter2@127.0.0.1:1", **options)
    assert caught.value.remedy
    assert "hunter2" not in str(caught.value)


@pytest.mark.slow
def test_a_stream_that_is_not_there_is_no_outage(streams: Streams) -> None:
    """A fetch says which stream is missing, with the command that makes it, and does not wait."""
    with (
        NatsConnector(streams.url, stream="NOBODY", consumer="c") as connector,
        pytest.raises(ConfigurationError, match="no stream 'NOBODY'") as caught,
    ):
        connector.fetch_transactions(1)
    assert "nats stream add NOBODY" in (caught.value.remedy or "")


@pytest.mark.slow
def test_a_consumer_of_the_server_is_taken_as_it_is(streams: Streams) -> None:
    """Another ack_wait than it has is refused with the command that changes it."""
    stream = streams.make()
    with consuming(streams.url, stream, ack_wait=7.0) as connector:
        assert connector.fetch_transactions(1) == []
    with (
        consuming(streams.url, stream, ack_wait=3.0) as other,
        pytest.raises(ConfigurationError, match="ack_wait of 7 s, not 3") as caught,
    ):
        other.fetch_transactions(1)
    assert f"nats consumer edit {stream} billing --wait=3s" in (caught.value.remedy or "")
    with consuming(streams.url, stream) as third:
        assert third.fetch_transactions(1) == []


@pytest.mark.slow
def test_a_fetch_waits_for_a_message(streams: Streams) -> None:
    """A fetch with wait returns what is published meanwhile, and a stop ends it at once."""
    stream = streams.make()
    with consuming(streams.url, stream, wait=60.0) as connector, ThreadPoolExecutor(1) as pool:
        fetching = pool.submit(connector.fetch_transactions, 5)
        streams.publish(f"{stream}.new", b"1")
        assert [each.payload for each in fetching.result(30)] == [1]
        stopped = pool.submit(connector.fetch_transactions, 5)

        def is_stopped() -> bool:
            connector.stop_waiting()
            return stopped.done()

        until(is_stopped, "the stop", 30)
        assert stopped.result() == []
        # A message for the pull that was given up goes back, and is not lost for its ack_wait.
        streams.publish(f"{stream}.new", b"2")
        assert [each.payload for each in connector.fetch_transactions(5)] == [2]


@pytest.mark.slow
def test_event_loops_settle_one_after_another_and_at_once(streams: Streams) -> None:
    """The first loop has a connection of its own to settle on; others do without, or come after."""
    stream = streams.make()
    with consuming(streams.url, stream) as connector:
        connector.dispatch_transactions(Transaction(f"t{n}", n) for n in range(4))
        held = connector.fetch_transactions(4)

        async def settle(*mine: Transaction) -> None:
            for each in mine:
                await connector.ack_async(each)

        async def settle_around_another() -> None:
            await settle(held[0])
            await asyncio.to_thread(lambda: asyncio.run(settle(held[1])))
            await settle(held[2])

        asyncio.run(settle_around_another())
        asyncio.run(settle(held[3]))
        about = streams.ask(f"CONSUMER.INFO.{stream}.billing")
        assert about["num_ack_pending"] == 0


def test_what_is_in_flight_is_bounded(streams: Streams) -> None:
    """A fetch takes no more than there is room for, in messages and bytes, and waits for room."""
    stream = streams.make()
    with (
        consuming(streams.url, stream, max_in_flight=2) as connector,
        ThreadPoolExecutor(1) as pool,
    ):
        connector.dispatch_transactions([Transaction(f"t{n}", n) for n in range(4)])
        first = connector.fetch_transactions(10)
        assert len(first) == 2
        fetching = pool.submit(connector.fetch_transactions, 10)
        assert not threading.Event().wait(0.2)
        assert not fetching.done()
        connector.ack(first[0])
        assert len(fetching.result(30)) == 1
    large = streams.make()
    with consuming(streams.url, large, max_in_flight_bytes=3000) as connector:
        connector.dispatch_transactions([Transaction(f"t{n}", "x" * 1000) for n in range(6)])
        assert 1 <= len(connector.fetch_transactions(10)) <= 3
        connector.dispatch_transactions([Transaction("huge", "x" * 10_000)])
    with consuming(streams.url, large, max_in_flight_bytes=3000) as connector:
        came = []
        while batch := connector.fetch_transactions(10):
            came += batch
            for each in batch:
                connector.ack(each)
        assert came[-1].transaction_id == "huge"
        assert len(came) == 7


@pytest.mark.slow
def test_what_kills_its_consumer_is_set_aside(streams: Streams) -> None:
    """Delivered more often than max_deliver without an outcome, a message is a dead letter."""
    stream = streams.make()
    with consuming(streams.url, stream, max_deliver=2) as connector:
        connector.dispatch_transactions([Transaction("poison", 1)])
        for _ in range(2):
            (found,) = connector.fetch_transactions(1)
            connector.release(found)
        assert connector.fetch_transactions(1) == []
    [(identity, reason)] = streams.dead(stream)
    assert (identity, reason) == ("poison", "delivered 2 times without an outcome")


@pytest.mark.slow
def test_without_a_dead_letter_subject_a_message_is_terminated(streams: Streams) -> None:
    """It is not delivered again, and nothing is published."""
    stream = streams.make()
    given: dict[str, Any] = {"stream": stream, "consumer": "c", "subject": f"{stream}.new"}
    with NatsConnector(streams.url, **given) as connector:
        connector.dispatch_transactions([Transaction("t1", 1)])
        (found,) = connector.fetch_transactions(1)
        connector.nack(found, ValueError("two\nlines"))
        assert connector.fetch_transactions(1) == []
    assert streams.ask(f"CONSUMER.INFO.{stream}.c")["num_ack_pending"] == 0


@pytest.mark.slow
def test_other_content_under_an_id_is_refused(streams: Streams) -> None:
    """Within the window of deduplication the same again is fine, and another payload is not."""
    stream = streams.make()
    with consuming(streams.url, stream) as connector:
        connector.dispatch_transactions([Transaction("t1", 1)])
        connector.dispatch_transactions([Transaction("t1", 1)])
        with pytest.raises(ConflictingMessageError, match="'t1'"):
            connector.dispatch_transactions([Transaction("t1", 2)])
        assert connector.get_transactions_count() == 1


@pytest.mark.slow
def test_an_ordered_connector_reads_on_in_order(streams: Streams, nats_server: NatsServer) -> None:
    """Nothing is settled; after a cut it goes on behind the last message that it delivered."""
    stream = streams.make()
    with Cable(nats_server.port) as cable:
        url = f"nats://127.0.0.1:{cable.port}"
        with NatsConnector(url, stream=stream, ordered=True, start_sequence=3) as connector:
            for number in range(1, 7):
                streams.publish(f"{stream}.new", str(number).encode())
            assert getattr(connector, "ack", None) is None
            assert [each.payload for each in connector.fetch_transactions(2)] == [3, 4]
            cable.cut()
            cable.heal()
            assert [each.payload for each in connector.fetch_transactions(10)] == [5, 6]
            name = streams.ask(f"CONSUMER.NAMES.{stream}")["consumers"][-1]
            streams.ask(f"CONSUMER.DELETE.{stream}.{name}")  # as a server does that was restarted
            streams.publish(f"{stream}.new", b"7")
            came: list[Any] = []

            def read() -> bool:
                came.extend(each.payload for each in connector.fetch_transactions(10))
                return bool(came)

            until(read, "the last message")
            assert came == [7]


@pytest.mark.slow
def test_doctor_sees_what_is_missing(streams: Streams) -> None:
    """The server, the stream, the consumer, and where dead letters go."""
    stream = streams.make()
    with NatsConnector(streams.url, stream=stream, consumer="billing") as connector:
        told = {each.what: each for each in connector.observe()}
    assert told["stream"].found == stream
    assert "will be made" in told["consumer"].found
    assert "dead_letter_subject" in told["dead letters"].remedy


def test_a_server_that_is_away_shows_no_password() -> None:
    """Neither the error of a dispatch nor the connector shows what the URL holds."""
    url = "nats://somebody:hunter2@127.0.0.1:1"
    with NatsConnector(url, subject="orders.new") as connector:
        with pytest.raises(ErgonError, match="cannot be reached") as caught:
            connector.dispatch_transactions([Transaction("t1", 1)])
        assert not connector.health()
        assert "hunter2" not in f"{caught.value!r}{caught.value}{connector!r}"
