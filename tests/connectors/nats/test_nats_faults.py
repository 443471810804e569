"""A NATS connector when its consumer is killed, its connection is cut, or its server dies."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.connector.broker.connection import BrokerUnavailableError
from ergon_framework.connector.broker.leases import DeliveryExpiredError
from ergon_framework.connector.nats import NatsConnector
from ergon_framework.engine.clocks import SYSTEM_CLOCK
from ergon_framework.errors import ConfigurationError, ErgonError, StoreUnavailableError
from ergon_framework.ports.transaction import Transaction
from ergon_framework.storage.nats.client import is_about
from ergon_framework.storage.nats.errors import PermissionsError
from tests import fork_server
from tests.boundary.node.cables import Cable
from tests.connectors import diary_consumer
from tests.connectors.diary_consumer import consuming, consuming_in, noted
from tests.connectors.in_colour import driven
from tests.connectors.nats.streams import Streams
from tests.servers.nats import NatsServer
from tests.waiting import until

pytestmark = pytest.mark.slow

SHORT = 1.0
"""Seconds a server waits for an acknowledgement in these tests."""


@pytest.fixture
def streams(nats_server: NatsServer) -> Iterator[Streams]:
    """An operator of the server."""
    made = Streams(nats_server.url())
    yield made
    made.close()


def options(url: str, stream: str, **more: Any) -> dict[str, Any]:
    """The arguments of a connector that reads what it publishes."""
    named = {"stream": stream, "consumer": "billing", "subject": f"{stream}.new"}
    return {"url": url, **named, "ack_wait": SHORT, "wait": 0.2, **more}


def some(count: int, prefix: str = "t") -> list[Transaction]:
    """So many transactions."""
    return [Transaction(f"{prefix}{n}", {"n": n}) for n in range(count)]


def unsettled(streams: Streams, stream: str) -> int:
    """How many messages the server has not delivered, or waits to hear of."""
    about = streams.ask(f"CONSUMER.INFO.{stream}.billing")
    return int(about["num_pending"]) + int(about["num_ack_pending"])


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_an_outcome_that_nobody_took_is_not_taken_for_settled(
    streams: Streams, colour: str
) -> None:
    """The consumer was deleted meanwhile: the server says so, and delivers the message again."""
    stream = streams.make()
    with NatsConnector(**options(streams.url, stream)) as connector:
        connector.dispatch_transactions(some(1))
        (found,) = connector.fetch_transactions(1)
        streams.ask(f"CONSUMER.DELETE.{stream}.billing")

        def settle() -> None:
            if colour == "sync":
                connector.ack(found)
            else:
                asyncio.run(connector.ack_async(found))

        with pytest.raises(DeliveryExpiredError, match="was deleted"):
            settle()


def test_a_consumer_without_acknowledgements_is_refused(streams: Streams) -> None:
    """It has no ack_wait either, which is no reason to wait for the server."""
    stream = streams.make()
    config = {"durable_name": "billing", "ack_policy": "none"}
    request = {"stream_name": stream, "config": config}
    streams.ask(f"CONSUMER.DURABLE.CREATE.{stream}.billing", request)
    with (
        NatsConnector(**options(streams.url, stream)) as connector,
        pytest.raises(ConfigurationError, match="ack policy 'none'"),
    ):
        connector.fetch_transactions(1)


def test_a_killed_consumer_loses_nothing(streams: Streams, tmp_path: Path) -> None:
    """What a killed process had in hand is delivered again, and nothing else is."""
    stream, diary = streams.make(), tmp_path / "diary"
    given = options(streams.url, stream)
    with NatsConnector(**given) as connector:
        connector.dispatch_transactions(some(60))
        child = fork_server.start(
            [
                sys.executable,
                diary_consumer.__file__,
                "ergon_framework.connector.nats:NatsConnector",
                json.dumps(given),
                str(diary),
            ]
        )
        until(lambda: len(noted(diary, "ended")) >= 10, "some work")
        child.kill()
        child.wait()
        done_before = len(noted(diary, "ended"))
        assert done_before < 60
        with consuming(connector, diary):
            until(lambda: unsettled(streams, stream) == 0, "everything")
    ended = noted(diary, "ended")
    assert set(ended) == {f"t{n}" for n in range(60)}
    # At most what four workers had ended, or just not acknowledged, when their process died.
    assert sum(ended.values()) - 60 <= 4


def test_a_cut_connection_keeps_deliveries(
    streams: Streams, nats_server: NatsServer, tmp_path: Path
) -> None:
    """Work goes on while the connection is cut, and its outcome counts over the next one."""
    stream, diary = streams.make(), tmp_path / "diary"
    with Cable(nats_server.port) as cable:
        given = options(f"nats://127.0.0.1:{cable.port}", stream, ack_wait=20.0)
        with NatsConnector(**given) as connector:
            connector.dispatch_transactions(some(4))
            with consuming(connector, diary, seconds=0.5):
                until(lambda: len(noted(diary, "began")) == 4, "the work")
                cable.cut()
                until(lambda: not connector.health(), "an outage that is seen")
                cable.heal()
                until(lambda: unsettled(streams, stream) == 0, "everything")
                connector.dispatch_transactions(some(3, "later"))
                until(lambda: noted(diary, "ended").total() == 7, "the rest")
            assert connector.health()
    assert set(noted(diary, "began").values()) == {1}


def test_an_outcome_after_the_lease_is_refused(streams: Streams, nats_server: NatsServer) -> None:
    """Cut off for longer than the server waits, a delivery is somebody else's by now."""
    stream = streams.make()
    with Cable(nats_server.port) as cable:
        cut_off = NatsConnector(**options(f"nats://127.0.0.1:{cable.port}", stream))
        other = NatsConnector(**options(streams.url, stream))
        with cut_off, other:
            other.dispatch_transactions(some(1))
            (first,) = cut_off.fetch_transactions(1)
            cable.cut()
            again: list[Transaction] = []

            def came() -> bool:
                again.extend(other.fetch_transactions(1))
                return bool(again)

            until(came, "the redelivery")
            cable.heal()
            with pytest.raises(DeliveryExpiredError, match="t0"):
                cut_off.nack(first, ValueError("late"))
            other.ack(again[0])
    assert unsettled(streams, stream) == 0


def test_a_long_handler_keeps_its_delivery(streams: Streams, tmp_path: Path) -> None:
    """Work that takes thrice as long as the server waits is told in progress, and done once."""
    stream, diary = streams.make(), tmp_path / "diary"
    with NatsConnector(**options(streams.url, stream)) as connector:
        connector.dispatch_transactions(some(2))
        with consuming(connector, diary, seconds=3 * SHORT):
            until(lambda: noted(diary, "ended").total() == 2, "the work")
            until(lambda: unsettled(streams, stream) == 0, "its acknowledgement")
    assert noted(diary, "began").total() == 2


def test_two_consumers_share_a_stream(streams: Streams, tmp_path: Path) -> None:
    """Two connectors under one durable name get each message once, and both get some."""
    stream, diaries = streams.make(), (tmp_path / "one", tmp_path / "other")
    given = options(streams.url, stream, ack_wait=20.0)
    with NatsConnector(**given) as one, NatsConnector(**given) as other:
        one.dispatch_transactions(some(80))
        with consuming(one, diaries[0]), consuming(other, diaries[1]):
            until(lambda: unsettled(streams, stream) == 0, "everything")
    shares = [noted(diary, "ended") for diary in diaries]
    assert all(shares)
    assert sum(shares, start=noted(tmp_path / "none", "")) == dict.fromkeys(
        (f"t{n}" for n in range(80)), 1
    )


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_server_that_dies_is_waited_for(
    own_nats: NatsServer, tmp_path: Path, colour: str
) -> None:
    """Away at the start, and killed later: it is waited for, and what it stored is delivered."""
    diary = tmp_path / "diary"
    own_nats.start()
    streams = Streams(own_nats.url())
    streams.ask("STREAM.CREATE.ORDERS", {"name": "ORDERS", "subjects": ["ORDERS.>"]})
    own_nats.stop()
    connector = NatsConnector(**options(own_nats.url(is_monitored=False), "ORDERS"))
    with consuming_in(colour, connector, diary):
        until(lambda: not connector.health(), "a server that is away")
        own_nats.start()
        streams.publish("ORDERS.new", b'{"n": 1}', {"ergon-transaction-id": "before"})
        until(lambda: noted(diary, "ended")["before"], "the first message")
        own_nats.kill()
        until(lambda: not connector.health(), "a server that was killed")
        own_nats.start()
        streams.publish("ORDERS.new", b'{"n": 2}', {"ergon-transaction-id": "after"})
        until(lambda: noted(diary, "ended")["after"], "the second message")
        until(lambda: unsettled(streams, "ORDERS") == 0, "their acknowledgements")
        assert connector.health()
        streams.close()
    connector.close()


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_delivery_that_a_killed_server_has_forgotten_is_given_up_at_once(
    own_nats: NatsServer, colour: str
) -> None:
    """It answers no outcome of what it does not know to have delivered, and delivers it again."""
    own_nats.start()
    streams = Streams(own_nats.url())
    stream = streams.make()
    made = NatsConnector(**options(own_nats.url(is_monitored=False), stream, ack_wait=30.0))
    with driven(colour, made) as orders:
        orders("dispatch", some(1))
        (order,) = orders.take()
        own_nats.kill()
        # What a killed server had not written yet.
        (state,) = own_nats.folder.rglob("obs/billing/o.dat")
        state.unlink()
        own_nats.start()
        began = SYSTEM_CLOCK.now()

        def is_forgotten() -> bool:
            with suppress(StoreUnavailableError, BrokerUnavailableError):
                with pytest.raises(DeliveryExpiredError, match="has forgotten"):
                    orders("ack", order)
                return True
            return False

        until(is_forgotten, "an answer")
        assert SYSTEM_CLOCK.now() - began < 8
        (again,) = orders.take()
        orders("ack", again)
        assert unsettled(streams, stream) == 0
    streams.close()


def test_settling_while_the_server_is_away_says_so(
    streams: Streams, nats_server: NatsServer
) -> None:
    """A settlement does not wait for the server: it raises an error without credentials."""
    stream = streams.make()
    with Cable(nats_server.port) as cable:
        url = f"nats://somebody:hunter2@127.0.0.1:{cable.port}"
        with NatsConnector(**options(url, stream, ack_wait=20.0)) as connector:
            connector.dispatch_transactions(some(1))
            (held,) = connector.fetch_transactions(1)
            cable.cut()
            with pytest.raises(ErgonError) as caught:
                connector.ack(held)
            assert "hunter2" not in f"{caught.value!r} {caught.value} {connector!r}"
            cable.heal()
            until(lambda: _acked(connector, held), "the acknowledgement")
    assert unsettled(streams, stream) == 0


def _acked(connector: NatsConnector, held: Transaction) -> bool:
    try:
        connector.ack(held)
    except ErgonError:
        return False
    return True


@pytest.mark.req("X19")
def test_a_consumer_that_is_deleted_is_made_again(
    streams: Streams, caplog: pytest.LogCaptureFixture
) -> None:
    """A fetch says so in one line, does not call the server away, and goes on by itself."""
    stream = streams.make()
    with NatsConnector(**options(streams.url, stream)) as connector:
        connector.dispatch_transactions(some(1))
        assert connector.fetch_transactions(1)
        streams.ask(f"CONSUMER.DELETE.{stream}.billing")
        (again,) = connector.fetch_transactions(1, wait=30.0)
        connector.ack(again)
        assert connector.health()
    (told,) = [each.getMessage() for each in caplog.records if "is tried again" in each.message]
    assert "cannot be used" in told
    assert "nobody who serves the consumer 'billing' just now (503)" in told
    assert "\n" not in told


def settled(connector: NatsConnector, delivery: Transaction) -> bool:
    """Whether its outcome could be told; a refusal is waited out."""
    with suppress(StoreUnavailableError, BrokerUnavailableError):
        connector.ack(delivery)
        return True
    return False


USERS = """
accounts {{ A {{ jetstream: enabled, users: [
    {{ user: boss, password: x }},
    {{ user: app, password: x, permissions: {{ publish: {{ deny: [{denied}] }} }} }}
] }} }}
"""


@pytest.mark.req("X19")
def test_permissions_that_are_taken_away_are_named(own_nats: NatsServer) -> None:
    """At once, not after a timeout; health is bad until they are back, and nothing is lost."""

    def allow_all_but(denied: str) -> None:
        own_nats.configure(more=USERS.format(denied=denied))
        own_nats.reload()

    own_nats.configure(more=USERS.format(denied=""))
    own_nats.start()
    operator = Streams(own_nats.url(user="boss:x"))
    stream = operator.make()
    given = options(own_nats.url(user="app:x"), stream, ack_wait=30.0)
    with NatsConnector(**given) as connector:
        connector.dispatch_transactions(some(2))
        first, second = connector.fetch_transactions(2)
        allow_all_but('"$JS.ACK.>"')

        refused = (StoreUnavailableError, BrokerUnavailableError)
        with pytest.raises(refused, match=r'violation for publish to "\$js.ack') as told:
            connector.ack(first)
        assert "permissions of the user" in told.value.remedy
        assert not connector.health()
        allow_all_but('"$JS.API.CONSUMER.MSG.NEXT.>"')
        until(lambda: settled(connector, first) and settled(connector, second), "both outcomes")
        with ThreadPoolExecutor(1) as pool:
            connector.dispatch_transactions(some(1, "later"))
            fetching = pool.submit(connector.fetch_transactions, 1, wait=30.0)
            until(lambda: not connector.health(), "a fetch that is refused")
            allow_all_but("")
            (later,) = fetching.result(60)
        connector.ack(later)
        assert connector.health()
    operator.close()


@pytest.mark.req("X19")
def test_work_whose_end_cannot_be_told_is_not_begun(own_nats: NatsServer) -> None:
    """It would be repeated for ever. The doctor names the right; when it is back, work goes on."""
    own_nats.configure(more=USERS.format(denied='"$JS.ACK.>"'))
    own_nats.start()
    operator = Streams(own_nats.url(user="boss:x"))
    stream = operator.make()
    given = options(own_nats.url(user="app:x"), stream, ack_wait=1.0)
    with NatsConnector(**given) as connector, ThreadPoolExecutor(1) as pool:
        fetching = pool.submit(connector.fetch_transactions, 1, wait=30.0)
        until(lambda: not connector.health(), "a right that is missing")
        with NatsConnector(**given) as sender:
            with pytest.raises(BrokerUnavailableError, match=r'violation for publish to "\$js.ack'):
                sender.open()
            with pytest.raises(StoreUnavailableError, match=r'violation for publish to "\$js.ack'):
                list(sender.observe())
        own_nats.configure(more=USERS.format(denied=""))
        own_nats.reload()
        until(connector.health, "the right is there")
        with NatsConnector(**given) as sender:
            sender.dispatch_transactions(some(1))
        (first,) = fetching.result(30)
        connector.ack(first)
        assert connector.health()
    operator.close()


@pytest.mark.req("X19")
def test_a_user_who_may_hear_no_answers_is_told_so(own_nats: NatsServer) -> None:
    """At once, at the start and when the right is taken away; then it goes on by itself."""
    may_not_hear = USERS.replace("publish: {{", "subscribe: {{")
    own_nats.configure(more=USERS.format(denied=""))
    own_nats.start()
    operator = Streams(own_nats.url(user="boss:x"))
    given = options(own_nats.url(user="app:x"), operator.make(), ack_wait=30.0)
    with NatsConnector(**given) as connector:
        connector.dispatch_transactions(some(2))
        (first,) = connector.fetch_transactions(1)
        own_nats.configure(more=may_not_hear.format(denied='"_INBOX.>"'))
        own_nats.reload()
        until(lambda: is_forbidden(lambda: connector.ack(first)), "a right that is missing")
        assert not connector.health()
        began = SYSTEM_CLOCK.now()
        with (
            NatsConnector(**given) as other,
            pytest.raises(BrokerUnavailableError, match="violation for subscription") as told,
        ):
            other.open()
        assert SYSTEM_CLOCK.now() - began < 4, "it waited for an answer"
        assert "subscribe to _INBOX.>" in (told.value.remedy or "")
        own_nats.configure(more=USERS.format(denied=""))
        own_nats.reload()
        until(lambda: settled(connector, first), "the outcome")
        (second,) = connector.fetch_transactions(1, wait=10.0)
        connector.ack(second)
        assert connector.health()
    operator.close()


def is_forbidden(call: Callable[[], object]) -> bool:
    """Whether it was refused for want of a right to subscribe."""
    try:
        call()
    except ErgonError as error:
        return "violation for subscription" in str(error)
    return False


def test_a_subject_that_no_stream_takes_is_bad_health(streams: Streams) -> None:
    """Until it takes a message; dead letters alike."""
    given = options(streams.url, streams.make()) | {"subject": "nobody.hears", "wait": 0.1}
    with NatsConnector(**given) as connector:
        assert connector.fetch_transactions(1) == []
        with pytest.raises(StoreUnavailableError, match="has no stream that takes"):
            connector.dispatch_transactions(some(1))
        assert connector.fetch_transactions(1) == []
        assert not connector.health(), "the server is there, and refuses"
        later = {"name": "LATER", "subjects": ["nobody.hears"]}
        streams.ask("STREAM.CREATE.LATER", later)
        connector.dispatch_transactions(some(1))
        assert connector.health()


@pytest.mark.parametrize(
    ("said", "is_ours"),
    [
        ('permissions violation for publish to "$js.api.info"', True),
        ('permissions violation for subscription to "_inbox.x.*"', True),
        ('permissions violation for subscription to "$js.event.>"', False),
        ('permissions violation for publish to "orders.subscription"', False),
    ],
)
def test_a_permission_for_something_else_fails_no_request(said: str, is_ours: bool) -> None:
    """What was asked meanwhile may be done, and must not be told as refused."""
    assert is_about(PermissionsError(said), ["$JS.API.INFO", "_INBOX.x.*"]) is is_ours
