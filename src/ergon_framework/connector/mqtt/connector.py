"""The connector: one durable session of an MQTT 5 broker as a source, a topic as a target."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, ClassVar, Self

from ergon_framework.connector.base import (
    DroppedDeliveries,
    OwnThreads,
    check_batch_size,
    inherited,
    refuse_extra,
    settling,
)
from ergon_framework.connector.broker.connection import AsyncBrokerConnection, BrokerConnection
from ergon_framework.connector.broker.delays import DelayedDeliveries
from ergon_framework.connector.broker.message import (
    CORRELATION_ID,
    TRANSACTION_ID,
    MalformedMessageError,
    MessageCodec,
    encoded,
    with_reason,
)
from ergon_framework.connector.broker.options import Bound, seconds_of, takes_options
from ergon_framework.connector.broker.refusals import Refusals
from ergon_framework.connector.broker.url import BrokerUrl, tls_files
from ergon_framework.connector.broker.wakeup import Wakeup
from ergon_framework.connector.mqtt.options import MAX_16_BITS, MAX_32_BITS, check_names
from ergon_framework.connector.mqtt.publication import (
    MqttPublication,
    check_texts,
    dead_letter_place,
)
from ergon_framework.connector.mqtt.session import (
    TLS_OPTIONS,
    Arrived,
    MqttConnectorError,
    MqttDelivery,
    MqttSession,
    SessionOptions,
    deadline,
    waited,
    waited_async,
)
from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.engine.clocks import current_clock
from ergon_framework.errors import ConfigurationError, ConnectorError, ErgonError, describe
from ergon_framework.ports.transaction import Transaction
from ergon_framework.storage.connection_errors import context_of
from ergon_framework.storage.server import Observation

logger = logging.getLogger("ergon.connector")

SCHEMES = ("mqtt", "mqtts")
PORTS = {"mqtt": 1883, "mqtts": 8883}
DROPPED_FOR = 30.0
"""Seconds after which a message is delivered again whose delivery was dropped without being
settled.
"""
_SETTINGS = "a fetch takes wait, and a dispatch takes none"


class MqttConnector:
    """Consumes what is published to a topic, and publishes to it, with QoS 1.

    ``client_id`` names the session that the broker keeps for a consumer; without one the connector
    only publishes. Consumers with the same ``group`` share the messages. What fails for good is a
    retained message under ``dead_letter_topic``.
    """

    exclusive: ClassVar[bool] = True
    """A broker ends the connection of a session when another one takes it over."""

    @takes_options(
        keepalive=Bound(1, MAX_16_BITS),
        session_expiry=Bound(1, MAX_32_BITS),
        message_expiry=Bound(1, MAX_32_BITS),
        dead_letter_expiry=Bound(1, MAX_32_BITS),
    )
    def __init__(
        self,
        url: str,
        *,
        client_id: str | None = None,
        group: str | None = None,
        name: str | None = None,
        publish_to: str | None = None,
        dead_letter_topic: str = "ergon-dead-letters",
        dead_letter_expiry: int | None = None,
        message_expiry: int | None = None,
        session_expiry: int = 7 * 86_400,
        retain: bool = False,
        retained: bool = True,
        max_in_flight: int = 100,
        max_message_bytes: int = 4 * 1024 * 1024,
        format: str = "json",
        wait: float = 1.0,
        keepalive: int = 30,
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
    ) -> None:
        example = "mqtt://user:password@host/plant/orders"
        port = PORTS.get(str(url).partition("://")[0].lower(), PORTS["mqtt"])
        self._url = BrokerUrl.of(url, port=port, schemes=SCHEMES, example=example)
        self._url.refuse_query("MqttConnector")
        self.topic = self._url.path
        if not self.topic:
            raise ConfigurationError(f"{self._url.name} names no topic", remedy=f"write {example}")
        has_tls = tls_files(self._url, ("mqtts",), ca=ca, cert=cert, key=key)
        tls = context_of(TLS_OPTIONS, ca, cert, key) if has_tls else None
        check_names(
            topic=self.topic,
            client_id=client_id,
            group=group,
            publish_to=publish_to,
            dead_letter_topic=dead_letter_topic,
        )
        self.name = name
        self.malformed = 0
        self._target = publish_to or self.topic
        self._subscription = f"$share/{group}/{self.topic}" if group else self.topic
        self._dead = dead_letter_topic
        self._refuse_loop()
        self._expiries = (message_expiry, dead_letter_expiry)
        self._retain, self._wants_retained = retain, retained
        self._codec = MessageCodec(format, max_message_bytes, name)
        self._wait = wait
        self.waits_for_work = self._wait > 0
        self._durable = SessionOptions(
            self._url, tls, keepalive, client_id, session_expiry, min(max_in_flight, MAX_16_BITS)
        )
        self._passing = SessionOptions(self._url, tls, keepalive)
        self._wakeup = Wakeup()
        self._refusals = Refusals(self._url.name)
        self._sessions: dict[str, MqttSession] = {}
        self._of_parents: list[MqttSession] = []
        self._is_parents_session = False
        self.renew()
        renew_after_fork(self)
        about = (self._url.name, self._wakeup)
        self._consuming = _threaded(*about, self._consumer)
        self._publishing = _threaded(*about, self._publisher)
        self._aconsuming = _on_loop(*about, self._consumer)
        self._apublishing = _on_loop(*about, self._publisher)

    def renew(self) -> None:
        """Forget the connections and what they received in a forked child, because they are the
        parent's.
        """
        # Kept: freeing one here would close what its parent uses.
        self._of_parents += self._sessions.values()
        self._is_parents_session = self._is_parents_session or "consuming" in self._sessions
        self._sessions = {}
        self._dropped: DroppedDeliveries[Arrived] = DroppedDeliveries()
        self._delayed: DelayedDeliveries[Arrived] = DelayedDeliveries()

    # ---- opening and closing ----

    def health(self) -> bool:
        """Whether it can be used: it is not closed, and the broker answers as far as is known.

        After the broker refused a message, it counts as unusable until it accepts one of that kind.
        """
        states = [self._consuming.state, self._publishing.state]
        states += [self._aconsuming.state, self._apublishing.state]
        consumer = self._sessions.get("consuming")
        # A publisher that broke while nobody used it shows only that it has to be made anew.
        is_there = consumer is None or consumer.is_open
        return is_there and not self._refusals and all(each.is_healthy for each in states)

    def stop_waiting(self) -> None:
        """Make the fetch under way stop waiting. Any thread may call it."""
        self._wakeup.stop()

    def close(self) -> None:
        """Close. The broker keeps the session and its unsettled messages."""
        self._consuming.close()
        self._publishing.close()
        self._aconsuming.abandon()
        self._apublishing.abandon()
        for session in self._sessions.values():
            session.close()

    async def aclose(self) -> None:
        """The async version of :meth:`close`."""
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- producing ----

    def dispatch_transactions(self, transactions: Iterable[Transaction], **extra: Any) -> None:
        """Publish all transactions. When this returns, the broker has each."""
        self._publish(self._publications(transactions, extra))

    async def dispatch_transactions_async(
        self, transactions: Iterable[Transaction], **extra: Any
    ) -> None:
        """The async version of :meth:`dispatch_transactions`."""
        await self._publish_async(self._publications(transactions, extra))

    # ---- consuming ----

    def fetch_transactions(
        self, batch_size: int, *, wait: float | None = None, **extra: Any
    ) -> list[MqttDelivery]:
        """Up to ``batch_size`` messages; an empty list when none came for ``wait`` seconds."""
        until = deadline(self._checked(batch_size, wait, extra))
        while (session := self._consuming.wait()) is not None:
            now = current_clock().now()
            self._bring_back(now)
            self._wakeup.wait(self._delayed.next_due(until), session.is_due)
            deliveries, malformed = self._read(session.pop(batch_size))
            for arrived, reason in malformed:
                with self._kept(arrived):
                    self._set_aside(arrived, reason)
            if not session.is_open:
                lost = self._consuming.lost(session, session.error or ConnectionError("closed"))
                if isinstance(lost, ConfigurationError):
                    raise lost
            elif deliveries:
                return deliveries
            elif self._wakeup.is_stopped or (current_clock().now() >= until and not malformed):
                return []
        return []

    async def fetch_transactions_async(
        self, batch_size: int, *, wait: float | None = None, **extra: Any
    ) -> list[MqttDelivery]:
        """The async version of :meth:`fetch_transactions`; cancelled, it has taken nothing."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._checked(batch_size, wait, extra)
        while (session := await self._aconsuming.wait()) is not None:
            self._bring_back(loop.time())
            await self._wakeup.wait_async(self._delayed.next_due(until), session.is_due)
            deliveries, malformed = self._read(session.pop(batch_size))
            for arrived, reason in malformed:
                with self._kept(arrived):
                    await self._set_aside_async(arrived, reason)
            if not session.is_open:
                error = session.error or ConnectionError("closed")
                lost = await self._aconsuming.lost(session, error)
                if isinstance(lost, ConfigurationError):
                    raise lost
            elif deliveries:
                return deliveries
            elif self._wakeup.is_stopped or (loop.time() >= until and not malformed):
                return []
        return []

    # ---- settling ----

    def ack(self, transaction: Transaction) -> None:
        """The transaction succeeded: acknowledge the message."""
        with settling(MqttDelivery, transaction, self, "ack", MqttConnectorError) as delivery:
            if delivery is not None:
                arrived = delivery.arrived
                if self._of_parents and arrived.session in self._of_parents:
                    raise inherited(delivery, "ack")
                arrived.session.ack(arrived)
                self._dropped.forget(arrived)

    async def ack_async(self, transaction: Transaction) -> None:
        """The async version of :meth:`ack`."""
        self.ack(transaction)

    def nack(self, transaction: Transaction, exc: Exception) -> None:
        """The transaction failed for good: when this returns, the message is a dead letter with its
        reason.
        """
        with self._settled(transaction, "nack") as arrived:
            if arrived is not None:
                self._set_aside(arrived, describe(exc))

    async def nack_async(self, transaction: Transaction, exc: Exception) -> None:
        """The async version of :meth:`nack`."""
        with self._settled(transaction, "nack") as arrived:
            if arrived is not None:
                await self._set_aside_async(arrived, describe(exc))

    def release(self, transaction: Transaction) -> None:
        """The transaction was not finished: the message is delivered again, by this process or the
        next one.
        """
        with self._settled(transaction, "release") as arrived:
            if arrived is not None:
                self._refuse_lost(arrived)
                arrived.session.put_back([arrived])

    async def release_async(self, transaction: Transaction) -> None:
        """The async version of :meth:`release`."""
        self.release(transaction)

    def release_after(self, transaction: Transaction, seconds: float) -> None:
        """A gate is closed: the message waits here for so many seconds, unacknowledged."""
        self._park(transaction, current_clock().now() + seconds_of("seconds", seconds))

    async def release_after_async(self, transaction: Transaction, seconds: float) -> None:
        """The async version of :meth:`release_after`."""
        self._park(transaction, asyncio.get_running_loop().time() + seconds_of("seconds", seconds))

    def observe(self) -> Iterator[Observation]:
        """What ``ergon doctor`` says: whether the broker answers, and takes dead letters."""
        try:
            with self._publisher_in_use():
                yield Observation("connection", f"{self._url.name} answers with MQTT 5")
            if self._durable.client_id is not None:
                # Empty and retained, it removes what is kept under a topic that nothing else has.
                topic = self.topic.replace("+", "any").replace("#", "any")
                place = dead_letter_place(self._dead, topic, "ergon-doctor")
                letter = MqttPublication(place, b"", {}, retain=True, is_dead_letter=True)
                with suppress(MqttConnectorError):  # which is remembered
                    self._publish([letter])
        except ErgonError as error:
            yield Observation("connection", error.message, error.remedy or "", is_grave=True)
        yield from self._refusals.observations()

    # ---- inside: what comes ----

    def _checked(self, batch_size: int, wait: float | None, extra: Mapping[str, Any]) -> float:
        refuse_extra(self, extra, _SETTINGS)
        check_batch_size(batch_size)
        if self._durable.client_id is None:
            raise ConfigurationError(
                f"the connector to {self._url.name} has no client_id, so it cannot consume",
                remedy="give client_id=NAME: the broker keeps a session for that name",
            )
        if self._is_parents_session:
            raise ConfigurationError(
                f"the session {self._durable.client_id!r} on {self._url.name} is that of the"
                " process that this fork was made from",
                remedy="make a connector in the child, with a client_id of its own; group= lets"
                " them share the work",
            )
        self._wakeup.begin()
        return self._wait if wait is None else seconds_of("wait", wait)

    def _read(
        self, taken: Iterable[Arrived]
    ) -> tuple[list[MqttDelivery], list[tuple[Arrived, str]]]:
        deliveries: list[MqttDelivery] = []
        malformed: list[tuple[Arrived, str]] = []
        for arrived in taken:
            headers = dict(arrived.headers)
            if arrived.correlation:
                text = arrived.correlation.decode("utf-8", "backslashreplace")
                headers.setdefault(CORRELATION_ID, encoded(text))
            identity = headers.get(TRANSACTION_ID) or arrived.own_id
            try:
                delivery = self._codec.decode(
                    MqttDelivery, arrived.body, headers, fallback_id=identity
                )
            except MalformedMessageError as error:
                malformed.append((arrived, error.message))
                continue
            delivery.belongs_to(self, arrived=arrived)
            self._dropped.watch(delivery, arrived)
            deliveries.append(delivery)
        return deliveries, malformed

    @contextmanager
    def _kept(self, arrived: Arrived) -> Iterator[None]:
        """Count a malformed message that was set aside; one that was not comes again."""
        try:
            yield
        except Exception as error:
            self._delayed.add(arrived, deadline(1.0))
            logger.warning("%s: a malformed message stays: %s", self._url.name, describe(error))
        else:
            self.malformed += 1
            if self.malformed & (self.malformed - 1) == 0:  # the first, then when it has doubled
                logger.warning("%s: %d malformed so far", self._url.name, self.malformed)

    def _bring_back(self, now: float) -> None:
        for arrived in self._dropped.take():
            # Whoever had it may be at work with it still.
            self._delayed.add(arrived, now + DROPPED_FOR)
        for arrived in self._delayed.take_due(now):
            if arrived.session.is_open:  # otherwise the broker delivers it again
                arrived.session.put_back([arrived])

    def _park(self, transaction: Transaction, until: float) -> None:
        with self._settled(transaction, "release_after") as arrived:
            if arrived is not None:
                self._refuse_lost(arrived)
                self._delayed.add(arrived, until)

    def _refuse_lost(self, arrived: Arrived) -> None:
        if not arrived.session.is_open:
            arrived.session.ack(arrived)  # which says that it is lost

    @contextmanager
    def _settled(self, transaction: Transaction, verb: str) -> Iterator[Arrived | None]:
        """The delivery to settle, or None when it was already settled with this verb."""
        with settling(MqttDelivery, transaction, self, verb, MqttConnectorError) as delivery:
            if delivery is None:
                yield None
                return
            if delivery.arrived.session in self._of_parents:
                raise inherited(delivery, verb)
            yield delivery.arrived
            self._dropped.forget(delivery.arrived)

    # ---- inside: what goes ----

    def _publications(
        self, transactions: Iterable[Transaction], extra: Mapping[str, Any]
    ) -> list[MqttPublication]:
        refuse_extra(self, extra, _SETTINGS)
        if "+" in self._target or "#" in self._target:
            raise ConfigurationError(
                f"{self._target!r} is a pattern, and nothing can be published to it",
                remedy="give publish_to=TOPIC",
            )
        given, found = list(transactions), []
        for transaction, message in zip(given, self._codec.encode_all(given), strict=True):
            publication = MqttPublication(
                self._target,
                message.body,
                message.headers,
                transaction.correlation_id,
                self._retain,
                self._expiries[0],
            )
            check_texts(transaction.transaction_id, publication)
            found.append(publication)
        return found

    def _dead_letter(self, arrived: Arrived, reason: str) -> MqttPublication:
        headers = with_reason(arrived.headers, reason)
        identity = headers.get("ergon-transaction-id") or arrived.own_id
        # Retained, each under a topic of its own: a broker keeps nothing else that nobody reads.
        place = dead_letter_place(self._dead, arrived.topic, identity)
        return MqttPublication(
            place,
            arrived.body,
            headers,
            retain=True,
            expiry=self._expiries[1],
            is_dead_letter=True,
        )

    def _set_aside(self, arrived: Arrived, reason: str) -> None:
        self._refuse_lost(arrived)
        self._publish([self._dead_letter(arrived, reason)])
        arrived.session.ack(arrived)

    async def _set_aside_async(self, arrived: Arrived, reason: str) -> None:
        self._refuse_lost(arrived)
        await self._publish_async([self._dead_letter(arrived, reason)])
        arrived.session.ack(arrived)

    def _publish(self, publications: list[MqttPublication]) -> None:
        with self._publisher_in_use() as session:
            sent = [session.publish(each) for each in publications]
            for publication, answer in zip(publications, sent, strict=True):
                self._check(session, publication, waited(answer))

    async def _publish_async(self, publications: list[MqttPublication]) -> None:
        async with self._aio_publisher_in_use() as session:
            codes = await waited_async([session.publish(each) for each in publications])
            for publication, code in zip(publications, codes, strict=True):
                self._check(session, publication, code)

    def _check(self, session: MqttSession, publication: MqttPublication, code: int) -> None:
        """Raise the error of a reason code, and remember it until a message of that kind is
        accepted.
        """
        what = "dead letters" if publication.is_dead_letter else publication.topic
        try:
            session.check(publication, code)
        except MqttConnectorError as error:
            session.was_refused = True
            self._refusals.note(what, error)
            raise
        self._refusals.taken(what)

    # ---- inside: connections ----

    def _consumer(self) -> MqttSession:
        session = self._opened(self._durable)
        try:
            session.subscribe(self._subscription, wants_retained=self._wants_retained)
        except BaseException:
            session.close()
            raise
        self._sessions["consuming"] = session
        return session

    def _publisher(self) -> MqttSession:
        session = self._sessions["publishing"] = self._opened(self._passing)
        return session

    def _opened(self, options: SessionOptions) -> MqttSession:
        """Open a session with the first host that accepts it."""
        failure: Exception = ConnectionError("the URL names no host")
        for host, port in self._url.hosts:
            session = MqttSession(options, self._wakeup)
            try:
                session.open(host, port)
            except ConfigurationError:
                raise
            except Exception as error:
                failure = error
            else:
                return session
        raise failure

    @contextmanager
    def _publisher_in_use(self) -> Iterator[MqttSession]:
        session = self._publishing.get()
        if not session.is_open:  # it broke while nobody used it
            if session.was_refused:  # some brokers hang up after that
                self._publishing.drop(session)
            else:
                self._publishing.lost(session, session.error or ConnectionError("closed"))
            session = self._publishing.get()
        try:
            yield session
        except ConnectorError:
            raise
        except Exception as error:
            raise self._publishing.lost(session, error) from error

    @asynccontextmanager
    async def _aio_publisher_in_use(self) -> AsyncIterator[MqttSession]:
        session = await self._apublishing.get()
        if not session.is_open:
            if session.was_refused:
                await self._apublishing.drop(session)
            else:
                await self._apublishing.lost(session, session.error or ConnectionError("closed"))
            session = await self._apublishing.get()
        try:
            yield session
        except ConnectorError:
            raise
        except Exception as error:
            raise await self._apublishing.lost(session, error) from error

    def _refuse_loop(self) -> None:
        first = self.topic.partition("/")[0]
        if first in {"#", "+", self._dead.partition("/")[0]}:
            raise ConfigurationError(
                f"{self.topic!r} takes in the dead letters under {self._dead!r}",
                remedy="subscribe to something narrower, or give another dead_letter_topic",
            )


def _threaded(name: str, wakeup: Wakeup, connect: Any) -> BrokerConnection[MqttSession]:
    return BrokerConnection(name, connect, MqttSession.close, wakeup)


def _on_loop(name: str, wakeup: Wakeup, connect: Any) -> AsyncBrokerConnection[MqttSession]:
    threads = OwnThreads("ergon-mqtt")  # which the end of a loop does not wait for

    async def connected() -> MqttSession:
        making: Future[MqttSession] = threads.submit(connect)
        try:
            return await asyncio.shield(asyncio.wrap_future(making))
        except asyncio.CancelledError:
            making.add_done_callback(_let_go)
            raise

    async def closed(session: MqttSession) -> None:
        await asyncio.to_thread(session.close)

    return AsyncBrokerConnection(name, connected, closed, wakeup)


def _let_go(making: Future[MqttSession]) -> None:
    """Close a session that was being opened, because its caller has left."""
    if not making.cancelled() and making.exception() is None:
        making.result().close()
