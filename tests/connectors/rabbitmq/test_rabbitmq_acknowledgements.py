"""One acknowledgement for a run of messages, and never for one that has not succeeded."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import aio_pika
import pytest

from ergon_framework.connector.broker.wakeup import Wakeup
from ergon_framework.connector.rabbitmq.acknowledgements import Acknowledgements
from ergon_framework.connector.rabbitmq.loops import AioConsumer
from ergon_framework.connector.rabbitmq.prefetch import PrefetchWindow
from ergon_framework.connector.rabbitmq.threads import CLOSE_TIMEOUT
from ergon_framework.ports.transaction import Transaction
from tests.connectors.rabbitmq.in_colour import COLOURS, in_colour
from tests.connectors.rabbitmq.other_program import messages
from tests.servers.rabbitmq import RabbitServer


def test_a_run_from_the_first_goes_out_as_one() -> None:
    """Also in another order than the broker's; the one behind a gap is written by itself."""
    channel = Acknowledgements()
    for tag in range(1, 7):
        channel.arrived(tag)
    for tag in (2, 1, 3, 5):
        channel.succeeded(tag)
    assert channel.take() == [(3, True), (5, False)]
    assert channel.take() == []
    channel.settled(4)
    channel.succeeded(6)
    assert channel.take() == [(6, False)]


def test_none_stands_for_a_message_that_is_on_its_way() -> None:
    """The client library has it, and nobody here has: it is not acknowledged with those behind."""
    channel = Acknowledgements()
    for tag in (1, 3, 4):
        channel.arrived(tag)
        channel.succeeded(tag)
    assert channel.take() == [(1, False), (3, False), (4, False)]
    channel.arrived(5)
    channel.arrived(2)
    channel.succeeded(5)
    assert channel.take() == [(5, False)]
    channel.arrived(6)
    for tag in (6, 2):
        channel.succeeded(tag)
    assert channel.take() == [(6, True)]


@pytest.mark.parametrize("seed", range(20))
def test_the_broker_forgets_exactly_what_succeeded(seed: int) -> None:
    """Whatever the order in which messages come, are requeued and succeed."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    channel = Acknowledgements()
    coming = list(range(1, 200))
    in_hand: list[int] = []
    forgotten: set[int] = set()  # by the broker
    requeued: set[int] = set()
    succeeded: set[int] = set()
    while coming or in_hand:
        deed = chance.random()
        if deed < 0.5 and coming:
            tag = coming.pop(chance.randrange(min(3, len(coming))))
            channel.arrived(tag)
            in_hand.append(tag)
        elif deed < 0.9 and in_hand:
            tag = in_hand.pop(chance.randrange(min(4, len(in_hand))))
            channel.succeeded(tag)
            succeeded.add(tag)
        elif in_hand:
            requeued.add(in_hand[-1])
            channel.settled(in_hand.pop())
        if chance.random() < 0.3 or not (coming or in_hand):
            for tag, is_for_all_before in channel.take():
                assert tag not in forgotten, "the broker closes the channel"
                behind = range(1 if is_for_all_before else tag, tag + 1)
                forgotten |= set(behind) - requeued
            assert forgotten == succeeded


@pytest.mark.slow
@pytest.mark.parametrize("colour", COLOURS)
def test_what_was_not_settled_comes_again(rabbit_server: RabbitServer, colour: str) -> None:
    """Messages behind and between it were acknowledged, before the connector closed."""
    names = [str(number) for number in range(8)]
    with in_colour(colour, rabbit_server.new_queue(), prefetch=8) as orders:
        orders("dispatch", [Transaction(name, 1) for name in names])
        taken = {each.transaction_id: each for each in orders.take(8)}
        for name in ("1", "0", "2", "4", "7"):
            orders("ack", taken[name])
        orders("release", taken["5"])
        queue = orders.connector.queue
    left = {properties.message_id for properties, _ in messages(rabbit_server, queue)}
    assert left == {"3", "5", "6"}


class _TakesNoAcknowledgement:
    """A connection, and its channel, through which acknowledgements never get out."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.is_waiting = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    async def channel(self, **options: Any) -> _TakesNoAcknowledgement:
        channel = _TakesNoAcknowledgement(await self._real.channel(**options))
        channel.is_waiting = self.is_waiting
        return channel

    async def get_underlay_channel(self) -> _TakesNoAcknowledgement:
        wire = _TakesNoAcknowledgement(await self._real.get_underlay_channel())
        wire.is_waiting = self.is_waiting
        return wire

    async def basic_ack(self, *_: Any, **__: Any) -> None:
        self.is_waiting.set()
        await asyncio.Event().wait()


@pytest.mark.slow
def test_a_connection_that_takes_no_acknowledgement_is_closed(
    rabbit_server: RabbitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then its messages go to other consumers."""
    queue = rabbit_server.new_queue().rpartition("/")[2]
    with in_colour("sync", rabbit_server.url(queue)) as orders:
        orders("dispatch", [Transaction("one", 1)])

    async def consume_and_close() -> bool:
        loop = asyncio.get_running_loop()
        connection = _TakesNoAcknowledgement(await aio_pika.connect(rabbit_server.url()))

        async def connect() -> Any:
            return connection

        consumer = AioConsumer("orders", queue, PrefetchWindow(1, 1000, None), Wakeup())
        await consumer.open(connect, [], may_declare=False)
        (received,) = await consumer.take(1, loop.time() + 60, loop.time() + 60)
        await consumer.ack(received)
        closing = asyncio.ensure_future(consumer.close())
        await connection.is_waiting.wait()
        now = loop.time
        monkeypatch.setattr(loop, "time", lambda: now() + CLOSE_TIMEOUT)
        await closing
        is_closed: bool = connection.is_closed
        if not is_closed:
            await connection.close()
        return is_closed

    assert asyncio.run(consume_and_close())
    with in_colour("sync", rabbit_server.url(queue)) as orders:
        (again,) = orders.take()
        assert again.transaction_id == "one"
