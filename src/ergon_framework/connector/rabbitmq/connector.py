"""The connector: one object for threads, through pika, and for asyncio, through aio-pika."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from ergon_framework.connector.base import (
    DroppedDeliveries,
    check_batch_size,
    refuse_extra,
    settling,
)
from ergon_framework.connector.broker.connection import AsyncBrokerConnection, BrokerConnection
from ergon_framework.connector.broker.dead_letters import refuse_own_dead_letters
from ergon_framework.connector.broker.delays import DelayedDeliveries
from ergon_framework.connector.broker.in_flight import MAX_IN_FLIGHT, MAX_IN_FLIGHT_BYTES
from ergon_framework.connector.broker.message import (
    MAX_MESSAGE_BYTES,
    MalformedMessageError,
    MessageCodec,
    with_reason,
)
from ergon_framework.connector.broker.options import SOME_SECONDS, Bound, seconds_of, takes_options
from ergon_framework.connector.broker.refusals import Refusals
from ergon_framework.connector.broker.wakeup import Wakeup
from ergon_framework.connector.rabbitmq.errors import (
    LOCKED,
    NotTakenError,
    RabbitConnectorError,
    UnroutableError,
    channel_lost,
    innermost,
    refused,
    reply_code,
)
from ergon_framework.connector.rabbitmq.loops import AioConsumer, AioPublisher
from ergon_framework.connector.rabbitmq.messages import (
    LATEST,
    NOT_BEFORE,
    Outgoing,
    RabbitDelivery,
    Received,
    copy_of,
    properties_of,
    readable_headers,
)
from ergon_framework.connector.rabbitmq.options import (
    MAX_HEARTBEAT,
    login,
    short_names,
)
from ergon_framework.connector.rabbitmq.prefetch import MAX_PREFETCH, PrefetchWindow
from ergon_framework.connector.rabbitmq.threads import PikaConsumer, PikaPublisher
from ergon_framework.connector.rabbitmq.topology import QueuePlan, Topology, parking_step
from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.engine.clocks import current_clock
from ergon_framework.errors import ConfigurationError, ConnectorError, ErgonError, describe
from ergon_framework.ports.transaction import Transaction
from ergon_framework.storage.server import Observation

logger = logging.getLogger("ergon.connector")
_C = TypeVar("_C")

NEARLY_DUE = 0.02
"""Seconds by which a parked message may be delivered early."""
DROPPED_FOR = 30.0
"""Seconds after which a message is delivered again whose delivery was dropped without being
settled.
"""
LOOK_AROUND = 1.0
"""Seconds that a fetch without room waits for a settlement before it looks for messages that nobody
has any more: they may be all that is in flight, and no settlement of theirs will come."""
MAX_DELIVERY_LIMIT = 2**31 - 1
_SETTINGS = "a fetch takes wait, and a dispatch takes none"


@dataclass(slots=True)
class _Sorted:
    """The messages that have arrived, by what is to be done with them."""

    deliver: list[RabbitDelivery] = field(default_factory=list)
    park: list[tuple[Received, float]] = field(default_factory=list)
    malformed: list[tuple[Received, str]] = field(default_factory=list)

    def take_parked(self) -> Iterator[tuple[Received, float]]:
        """Yields each message, which stays in the list until the caller has finished with it."""
        while self.park:
            yield self.park[0]
            del self.park[0]

    def take_malformed(self) -> Iterator[tuple[Received, str]]:
        """Yields each message, which stays in the list until the caller has finished with it."""
        while self.malformed:
            yield self.malformed[0]
            del self.malformed[0]

    def left(self) -> list[Received]:
        """The messages that could not be handled."""
        return [received for received, _ in (*self.park, *self.malformed)]


class RabbitConnector:
    """Consumes one RabbitMQ queue, and publishes into it or to an exchange.

    A queue that does not exist is made as a durable quorum queue. What fails for good is published
    to ``dead_letter_queue`` (``QUEUE.dead``) with its reason, or to ``dead_letter_exchange``. A
    fetch waits ``wait`` seconds for messages. ``prefetch`` fixes how many the broker sends ahead;
    otherwise that follows the fetches.
    """

    @takes_options(
        may_be_empty=["routing_key"],
        delivery_limit=Bound(1, MAX_DELIVERY_LIMIT),
        consumer_timeout=SOME_SECONDS,
        prefetch=Bound(1, MAX_PREFETCH),
        heartbeat=Bound(0, MAX_HEARTBEAT),
    )
    def __init__(
        self,
        url: str,
        *,
        name: str | None = None,
        exchange: str = "",
        routing_key: str | None = None,
        declare: bool = True,
        dead_letter_queue: str | None = None,
        dead_letter_exchange: str = "",
        delivery_limit: int = 20,
        consumer_timeout: float | None = None,
        prefetch: int | None = None,
        max_in_flight: int = MAX_IN_FLIGHT,
        max_in_flight_bytes: int = MAX_IN_FLIGHT_BYTES,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        format: str = "json",
        wait: float = 1.0,
        heartbeat: int = 30,
        sasl: str = "plain",
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
    ) -> None:
        self._login = login(
            url, sasl=sasl, ca=ca, cert=cert, key=key, heartbeat=heartbeat, name=name or "ergon"
        )
        self.queue = self._login.place[1]
        self.name = name
        self.malformed = 0
        self._broker = self._login.url.name
        self._topology = Topology(
            self.queue,
            dead_letter_exchange,
            dead_letter_queue or f"{self.queue}.dead",
            delivery_limit,
            consumer_timeout,
        )
        short_names(
            queue=self.queue,
            exchange=exchange,
            routing_key=routing_key,
            dead_letter_queue=self._topology.dead_letter_queue,
            dead_letter_exchange=dead_letter_exchange,
        )
        if not dead_letter_exchange:
            refuse_own_dead_letters(queue=self.queue, dead_letter_queue=dead_letter_queue)
        self._to = (exchange, self.queue if routing_key is None else routing_key)
        self._may_declare = declare
        self._bounds = (max_in_flight, max_in_flight_bytes, prefetch)
        self._codec = MessageCodec(format, max_message_bytes, name)
        self._wait = wait
        self.waits_for_work = self._wait > 0
        self._may_ask = True
        self._dropped: DroppedDeliveries[Received] = DroppedDeliveries()
        self._delayed: DelayedDeliveries[Received] = DelayedDeliveries()
        self._wakeup = Wakeup()
        self._refusals = Refusals(self._broker)
        self._of_parents: list[object] = []  # freeing these would close what the parent uses
        self._consumers: dict[str, PikaConsumer | AioConsumer] = {}  # the last of each colour
        renew_after_fork(self)
        broker, wakeup = self._broker, self._wakeup
        self._consuming = BrokerConnection(broker, self._consumer, PikaConsumer.close, wakeup)
        self._publishing = BrokerConnection(broker, self._publisher, PikaPublisher.close, wakeup)
        self._aconsuming = AsyncBrokerConnection(
            broker, self._aio_consumer, AioConsumer.close, wakeup
        )
        self._apublishing = AsyncBrokerConnection(
            broker, self._aio_publisher, AioPublisher.close, wakeup
        )

    def renew(self) -> None:
        """In a forked child: it has no connection, and nothing in hand."""
        self._of_parents.append(self._consumers)
        self._consumers, self._delayed = {}, DelayedDeliveries()

    # ---- opening and closing ----

    def health(self) -> bool:
        """Whether it can be used: it is not closed, and the broker answers as far as is known.

        After the broker refused a message, it counts as unusable until it accepts one of that kind.
        """
        states = [self._consuming.state, self._publishing.state]
        states += [self._aconsuming.state, self._apublishing.state]
        # A publisher that broke while nobody used it shows only that it has to be made anew.
        is_there = all(each.is_open for each in self._consumers.values())
        return is_there and not self._refusals and all(each.is_healthy for each in states)

    def stop_waiting(self) -> None:
        """Make the fetch under way stop waiting. Any thread may call it."""
        self._wakeup.stop()

    def close(self) -> None:
        """Send settlements and close. Unsettled messages are delivered again. Closing twice is
        fine.
        """
        self._consuming.close()
        self._publishing.close()
        self._aconsuming.abandon()
        self._apublishing.abandon()

    async def aclose(self) -> None:
        """The async version of :meth:`close`."""
        await self._aconsuming.aclose()
        await self._apublishing.aclose()
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    # ---- producing ----

    def dispatch_transactions(self, transactions: Iterable[Transaction], **extra: Any) -> None:
        """Publish all transactions. When this returns, the broker has confirmed each."""
        self._publish(self._outgoing(transactions, extra))

    async def dispatch_transactions_async(
        self, transactions: Iterable[Transaction], **extra: Any
    ) -> None:
        """The async version of :meth:`dispatch_transactions`."""
        await self._publish_async(self._outgoing(transactions, extra))

    # ---- consuming ----

    def fetch_transactions(
        self, batch_size: int, *, wait: float | None = None, **extra: Any
    ) -> list[RabbitDelivery]:
        """Up to ``batch_size`` messages; an empty list when none came for ``wait`` seconds."""
        waits = self._checked(batch_size, wait, extra)
        clock = current_clock()
        until = clock.now() + waits
        while (consumer := self._consuming.wait()) is not None:
            self._bring_back(clock.now())
            try:
                taken = consumer.take(
                    batch_size,
                    self._delayed.next_due(until),
                    self._delayed.next_due(clock.now() + LOOK_AROUND),
                    may_ask=self._may_ask,
                )
                found = self._sorted(taken, clock.now())
                self._put_away(consumer, found)
            except Exception:
                if consumer.is_open:
                    raise
                taken, found = [], _Sorted()
            if not consumer.is_open:
                lost = self._consuming.lost(consumer, self._cause(consumer.error))
                if isinstance(lost, ConfigurationError):
                    raise lost
            elif found.deliver:
                return found.deliver
            elif self._wakeup.is_stopped or (
                clock.now() >= until and not taken and not consumer.is_full
            ):
                return []
        return []

    async def fetch_transactions_async(
        self, batch_size: int, *, wait: float | None = None, **extra: Any
    ) -> list[RabbitDelivery]:
        """The async version of :meth:`fetch_transactions`; cancelled, it has taken nothing."""
        waits = self._checked(batch_size, wait, extra)
        loop = asyncio.get_running_loop()
        until = loop.time() + waits
        while (consumer := await self._aconsuming.wait()) is not None:
            self._bring_back(loop.time())
            try:
                taken = await consumer.take(
                    batch_size,
                    self._delayed.next_due(until),
                    self._delayed.next_due(loop.time() + LOOK_AROUND),
                    may_ask=self._may_ask,
                )
                found = self._sorted(taken, loop.time())
                await self._put_away_async(consumer, found)
            except Exception:
                if consumer.is_open:
                    raise
                taken, found = [], _Sorted()
            if not consumer.is_open:
                lost = await self._aconsuming.lost(consumer, self._cause(consumer.error))
                if isinstance(lost, ConfigurationError):
                    raise lost
            elif found.deliver:
                return found.deliver
            elif self._wakeup.is_stopped or (
                loop.time() >= until and not taken and not consumer.is_full
            ):
                return []
        return []

    # ---- settling ----

    def ack(self, transaction: Transaction) -> None:
        """The transaction succeeded: acknowledge the message."""
        with self._settled(transaction, "ack", PikaConsumer) as received:
            if received is not None:
                received.channel.ack(received)

    async def ack_async(self, transaction: Transaction) -> None:
        """The async version of :meth:`ack`."""
        with self._settled(transaction, "ack", AioConsumer) as received:
            if received is not None:
                await received.channel.ack(received)

    def nack(self, transaction: Transaction, exc: Exception) -> None:
        """The transaction failed for good: when this returns, the message is a dead letter with its
        reason.
        """
        with self._settled(transaction, "nack", PikaConsumer) as received:
            if received is not None:
                self._set_aside(received, describe(exc))

    async def nack_async(self, transaction: Transaction, exc: Exception) -> None:
        """The async version of :meth:`nack`."""
        with self._settled(transaction, "nack", AioConsumer) as received:
            if received is not None:
                await self._set_aside_async(received, describe(exc))

    def release(self, transaction: Transaction) -> None:
        """The transaction was not finished: the broker delivers the message again."""
        with self._settled(transaction, "release", PikaConsumer) as received:
            if received is not None:
                received.channel.requeue(received)

    async def release_async(self, transaction: Transaction) -> None:
        """The async version of :meth:`release`."""
        with self._settled(transaction, "release", AioConsumer) as received:
            if received is not None:
                await received.channel.requeue(received)

    def release_after(self, transaction: Transaction, seconds: float) -> None:
        """A gate is closed: the message waits in a queue for so many seconds, and is delivered
        again.
        """
        rest = seconds_of("release_after's seconds", seconds)
        with self._settled(transaction, "release_after", PikaConsumer) as received:
            if received is None:
                return
            if parking_step(rest) is None:
                self._delayed.add(received, current_clock().now() + rest)
            else:
                self._park(received, rest)

    async def release_after_async(self, transaction: Transaction, seconds: float) -> None:
        """The async version of :meth:`release_after`."""
        rest = seconds_of("release_after's seconds", seconds)
        with self._settled(transaction, "release_after", AioConsumer) as received:
            if received is None:
                return
            if parking_step(rest) is None:
                self._delayed.add(received, asyncio.get_running_loop().time() + rest)
            else:
                await self._park_async(received, rest)

    # ---- for operators ----

    def get_transactions_count(self) -> int:
        """How many messages wait in the queue, or here for a fetch."""
        plan, may = self._topology.source(), self._may_declare
        with self._publisher_in_use() as publisher:
            return publisher.ensure(plan, may_declare=may) + self._waiting_here()

    async def get_transactions_count_async(self) -> int:
        """The async version of :meth:`get_transactions_count`."""
        plan, may = self._topology.source(), self._may_declare
        async with self._aio_publisher_in_use() as publisher:
            return await publisher.ensure(plan, may_declare=may) + self._waiting_here()

    def observe(self) -> Iterator[Observation]:
        """What ``ergon doctor`` says: whether the broker answers, what is in the queues, and which
        exchange is missing.
        """
        try:
            with self._publisher_in_use() as publisher:
                for plan in self._consumed():
                    count = publisher.ensure(plan, may_declare=self._may_declare)
                    yield Observation("queue", f"{count} messages wait in {plan.name}")
                for exchange in filter(None, (self._to[0], self._topology.dead_letter_exchange)):
                    publisher.find_exchange(exchange)
                if self._may_declare and not publisher.is_as_planned(self._topology.source()):
                    yield Observation(
                        "queue arguments",
                        f"{self.queue} was made by somebody else, with other arguments",
                        "see that it is a quorum queue with x-delivery-limit and a dead-letter"
                        " exchange, or say declare=false to accept it",
                    )
        except ErgonError as error:
            yield Observation("connection", error.message, error.remedy or "", is_grave=True)
        yield from self._refusals.observations()

    # ---- inside: what comes ----

    def _checked(self, batch_size: int, wait: float | None, extra: Mapping[str, Any]) -> float:
        refuse_extra(self, extra, _SETTINGS)
        check_batch_size(batch_size)
        self._wakeup.begin()
        return self._wait if wait is None else seconds_of("wait", wait)

    def _sorted(self, taken: Iterable[Received], now: float) -> _Sorted:
        """Sort messages into those to deliver, to park further, and to set aside."""
        found, wall = _Sorted(), time.time()
        for received in taken:
            rest = received.not_before - wall
            if parking_step(rest) is not None:
                found.park.append((received, rest))
            elif rest > NEARLY_DUE:
                self._delayed.add(received, now + rest)
            else:
                try:
                    found.deliver.append(self._delivery(received))
                except MalformedMessageError as error:
                    found.malformed.append((received, error.message))
        return found

    def _delivery(self, received: Received) -> RabbitDelivery:
        identity = received.properties.get("message_id") or received.own_id
        delivery = self._codec.decode(
            RabbitDelivery, received.body, readable_headers(received), fallback_id=identity
        )
        delivery.belongs_to(self, received=received)
        self._dropped.watch(delivery, received)
        return delivery

    def _bring_back(self, now: float) -> None:
        """Deliver again what is due, and what was dropped."""
        for received in self._dropped.take():
            # Whoever had it may be at work with it still.
            self._delayed.add(received, now + DROPPED_FOR)
        for received in self._delayed.take_due(now):
            if received.channel.is_open:  # otherwise the broker delivers it again
                received.channel.put_back([received])

    def _put_away(self, consumer: PikaConsumer, found: _Sorted) -> None:
        try:
            for received, rest in found.take_parked():
                self._park(received, rest)
            for received, reason in found.take_malformed():
                self._set_aside(received, reason)
                self._count_malformed(reason)
        except BaseException:
            consumer.put_back(found.left())
            if not found.deliver:
                raise

    async def _put_away_async(self, consumer: AioConsumer, found: _Sorted) -> None:
        try:
            for received, rest in found.take_parked():
                await self._park_async(received, rest)
            for received, reason in found.take_malformed():
                await self._set_aside_async(received, reason)
                self._count_malformed(reason)
        except Exception:
            consumer.put_back(found.left())
            if not found.deliver:
                raise
        except BaseException:  # cancelled: what was to be delivered is found as dropped
            consumer.put_back(found.left())
            raise

    def _count_malformed(self, reason: str) -> None:
        self.malformed += 1
        if self.malformed & (self.malformed - 1) == 0:  # the first, then each time it has doubled
            logger.warning(
                "%s: %d malformed so far, set aside; the last one: %s",
                self._broker,
                self.malformed,
                reason,
            )

    def _waiting_here(self) -> int:
        buffered = sum(each.buffered for each in self._consumers.values() if each.is_open)
        return buffered + len(self._delayed)

    # ---- inside: what goes ----

    def _outgoing(
        self, transactions: Iterable[Transaction], extra: Mapping[str, Any]
    ) -> list[Outgoing]:
        refuse_extra(self, extra, _SETTINGS)
        given = list(transactions)
        exchange, key = self._to
        queue = self._topology.source() if (exchange, key) == ("", self.queue) else None
        found = []
        for transaction, message in zip(given, self._codec.encode_all(given), strict=True):
            properties = properties_of(
                message.headers, transaction.transaction_id, transaction.correlation_id
            )
            found.append(Outgoing(exchange, key, message.body, properties, message.headers, queue))
        return found

    def _parked(self, received: Received, rest: float) -> Outgoing:
        plan = self._topology.parking(parking_step(rest) or 1)
        due = {NOT_BEFORE: int(min(time.time() + rest, LATEST) * 1000)}
        return copy_of(received, ("", plan.name), plan, due)

    def _dead_letter(self, received: Received, reason: str) -> Outgoing:
        to = (self._topology.dead_letter_exchange, self._topology.dead_letter_key)
        return copy_of(received, to, self._topology.dead_letters(), with_reason({}, reason))

    # The copy is confirmed before the message is settled: in between, a crash leaves both.

    def _park(self, received: Received, rest: float) -> None:
        self._publish([self._parked(received, rest)])
        received.channel.ack(received)

    async def _park_async(self, received: Received, rest: float) -> None:
        await self._publish_async([self._parked(received, rest)])
        await received.channel.ack(received)

    def _set_aside(self, received: Received, reason: str) -> None:
        self._publish([self._dead_letter(received, reason)])
        received.channel.ack(received)

    async def _set_aside_async(self, received: Received, reason: str) -> None:
        await self._publish_async([self._dead_letter(received, reason)])
        await received.channel.ack(received)

    def _publish(self, messages: Sequence[Outgoing]) -> None:
        if messages:
            with self._remembered(messages[0]), self._publisher_in_use() as publisher:
                publisher.publish(messages, may_declare=self._may_declare)

    async def _publish_async(self, messages: Sequence[Outgoing]) -> None:
        if messages:
            with self._remembered(messages[0]):
                async with self._aio_publisher_in_use() as publisher:
                    await publisher.publish(messages, may_declare=self._may_declare)

    @contextmanager
    def _remembered(self, message: Outgoing) -> Iterator[None]:
        """Remember that the broker refused a message for a queue or exchange; health is bad until
        it accepts one.
        """
        what = f"{message.exchange}/{message.routing_key}"
        try:
            yield
        except (UnroutableError, NotTakenError, ConfigurationError) as error:
            self._refusals.note(what, error)
            raise
        self._refusals.taken(what)

    @contextmanager
    def _settled(
        self, transaction: Transaction, verb: str, kind: type[PikaConsumer | AioConsumer]
    ) -> Iterator[Received | None]:
        """The delivery to settle, or None when it was already settled with this verb."""
        with settling(RabbitDelivery, transaction, self, verb, RabbitConnectorError) as delivery:
            if delivery is None:
                yield None
                return
            received = delivery.received
            if not isinstance(received.channel, kind):
                raise RabbitConnectorError(
                    f"cannot {verb} {transaction!r}: it was fetched in the other colour",
                    remedy="settle with ack_async what fetch_transactions_async returned",
                )
            if not received.channel.is_open:
                raise channel_lost(self._broker)
            yield received
            self._dropped.forget(received)

    # ---- inside: connections ----

    def _consumer(self) -> PikaConsumer:
        def opened(parameters: Any) -> PikaConsumer:
            made = PikaConsumer(
                parameters, self._broker, self.queue, PrefetchWindow(*self._bounds), self._wakeup
            )
            made.open(self._consumed(), may_declare=self._may_declare)
            return made

        made = self._first(self._login.pika_parameters(), opened)
        self._consumers["sync"] = made
        return made

    def _publisher(self) -> PikaPublisher:
        def opened(parameters: Any) -> PikaPublisher:
            made = PikaPublisher(parameters, self._broker)
            made.open()
            return made

        return self._first(self._login.pika_parameters(), opened)

    async def _aio_consumer(self) -> AioConsumer:
        async def opened(connect: Any) -> AioConsumer:
            made = AioConsumer(
                self._broker, self.queue, PrefetchWindow(*self._bounds), self._wakeup
            )
            await made.open(connect, self._consumed(), may_declare=self._may_declare)
            return made

        made = await self._first_async(self._login.aio_pika_connects(), opened)
        self._consumers["async"] = made
        return made

    async def _aio_publisher(self) -> AioPublisher:
        async def opened(connect: Any) -> AioPublisher:
            made = AioPublisher(self._broker)
            await made.open(connect)
            return made

        return await self._first_async(self._login.aio_pika_connects(), opened)

    def _consumed(self) -> list[QueuePlan]:
        # Where it may make none, the dead-letter queue is missed when the first letter is written.
        return self._topology.consumed() if self._may_declare else [self._topology.source()]

    def _first(self, hosts: Iterable[Any], opened: Callable[[Any], _C]) -> _C:
        """Connect to the first host that answers."""
        errors: list[Exception] = []
        for host in hosts:
            try:
                return opened(host)
            except Exception as error:
                errors.append(error)
        raise self._cause(errors[-1]) from errors[-1]

    async def _first_async(
        self, hosts: Iterable[Any], opened: Callable[[Any], Awaitable[_C]]
    ) -> _C:
        errors: list[Exception] = []
        for host in hosts:
            try:
                return await opened(host)
            except Exception as error:
                errors.append(error)
        raise self._cause(errors[-1]) from errors[-1]

    @contextmanager
    def _publisher_in_use(self) -> Iterator[PikaPublisher]:
        publisher = self._publishing.get()
        if not publisher.is_open:  # it broke while nobody used it
            self._publishing.lost(publisher, publisher.error)
            publisher = self._publishing.get()
        try:
            yield publisher
        except ConnectorError:
            raise
        except Exception as error:
            raise self._publishing.lost(publisher, self._cause(error)) from error

    @asynccontextmanager
    async def _aio_publisher_in_use(self) -> AsyncIterator[AioPublisher]:
        publisher = await self._apublishing.get()
        if not publisher.is_open:
            await self._apublishing.lost(publisher, publisher.error)
            publisher = await self._apublishing.get()
        try:
            yield publisher
        except ConnectorError:
            raise
        except Exception as error:
            raise await self._apublishing.lost(publisher, self._cause(error)) from error

    def _cause(self, error: Exception) -> Exception:
        """The error of this connector, if a person has to do something about it."""
        error = innermost(error)
        if reply_code(error) == LOCKED:
            # Another consumer alone may read the queue: it must not be asked by basic.get.
            self._may_ask = False
        return refused(error, self._broker, self.queue) or error
