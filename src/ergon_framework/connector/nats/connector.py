"""``NatsConnector``: its fetch, dispatch and settlement, sync and async."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self
from urllib.parse import urlencode

from ergon_framework.connector.base import ThreadedProducing, refuse_extra
from ergon_framework.connector.broker.dead_letters import is_taken_in
from ergon_framework.connector.broker.in_flight import MAX_IN_FLIGHT, MAX_IN_FLIGHT_BYTES
from ergon_framework.connector.broker.leased_source import LeasedSource
from ergon_framework.connector.broker.leases import DeliveryExpiredError, Lease, LeasedDelivery
from ergon_framework.connector.broker.message import (
    MAX_MESSAGE_BYTES,
    TRANSACTION_ID,
    MalformedMessageError,
    MessageCodec,
    with_reason,
)
from ergon_framework.connector.broker.options import COUNT, SOME_SECONDS, Bound, takes_options
from ergon_framework.connector.broker.refusals import Refusals
from ergon_framework.connector.nats.jetstream import (
    MESSAGE_ID,
    ConsumerUnservedError,
    DurableConsumer,
    JetStream,
    JetStreamSession,
    NatsConnectorError,
    OrderedReader,
    delayed,
    reason_of,
)
from ergon_framework.connector.nats.loop_settlement import LoopSettlement
from ergon_framework.engine.clocks import SYSTEM_CLOCK
from ergon_framework.errors import (
    ConfigurationError,
    ErgonError,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
    describe,
)
from ergon_framework.ports.transaction import Transaction
from ergon_framework.storage.nats import NatsClient, address_of
from ergon_framework.storage.nats.client import Sendable, headers_of
from ergon_framework.storage.nats.pull import NO_MESSAGES, place_of
from ergon_framework.storage.server import Observation
from ergon_framework.storage.urls import refuse_unreadable
from ergon_framework.telemetry.tracing import dispatching

if TYPE_CHECKING:
    from nats.aio.msg import Msg

_SETTINGS = "a fetch takes wait, and a dispatch takes none"
_DELIVER = ("all", "new", "last")


class _Held(NamedTuple):
    """What is needed to settle a message."""

    reply: str
    body: bytes
    headers: Mapping[str, str]
    link: int
    """The connection that brought it."""


class NatsConnector(ThreadedProducing):
    """Consumes a stream through a durable pull consumer, and publishes to a subject.

    ``consumer`` is the durable name to read ``stream`` under; the server's consumer is made when
    there is none. Several processes may share it. With ``ordered`` the stream is read from
    ``start_sequence`` on, in order and without acknowledgements. ``subject`` is what is published
    to. What failed for good is published to ``dead_letter_subject``, if there is one, and then
    terminated with its reason; so is what was delivered more than ``max_deliver`` times.
    """

    redelivers: ClassVar[bool] = False
    """What failed is terminated: whether a task tries again before that is the task's business."""
    joins_trace: ClassVar[bool] = True
    """What is delivered goes on with the trace that it was published in."""
    fetch_transaction_by_id_async: ClassVar[Any] = None
    """A server finds messages by their place alone, not by an id."""

    @takes_options(max_deliver=Bound(0), ack_wait=SOME_SECONDS, start_sequence=COUNT)
    def __init__(
        self,
        url: str,
        *,
        stream: str | None = None,
        consumer: str | None = None,
        subject: str | None = None,
        filter_subject: str | None = None,
        dead_letter_subject: str | None = None,
        max_deliver: int = 0,
        ack_wait: float | None = None,
        deliver: str = "all",
        ordered: bool = False,
        start_sequence: int = 1,
        deduplicate: bool = True,
        wait: float = 1.0,
        max_in_flight: int = MAX_IN_FLIGHT,
        max_in_flight_bytes: int = MAX_IN_FLIGHT_BYTES,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        format: str = "json",
        name: str | None = None,
        creds: str | None = None,
        nkey: str | None = None,
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
        tls_first: bool = False,
    ) -> None:
        files = {"creds": creds, "nkey": nkey, "tls_ca": ca, "tls_cert": cert}
        refuse_unreadable(creds=creds, nkey=nkey, ca=ca, cert=cert, key=key)
        files |= {"tls_key": key, "tls_first": "yes" if tls_first else None}
        address = address_of(_with_options(url, files))
        self._consumer = _consumer_of(
            stream, consumer, subject, filter_subject, ack_wait, deliver, ordered
        )
        self.name = name
        self._stream = stream or ""
        self._subject = subject
        self._dead_letters = dead_letter_subject
        self._filter = filter_subject
        if self._reads_dead_letters([filter_subject] if filter_subject else []):
            raise ConfigurationError(
                f"dead_letter_subject is {dead_letter_subject!r}, which filter_subject"
                f" {filter_subject!r} takes in: what is set aside there would be delivered again",
                remedy="name a subject of another stream",
            )
        self._max_deliver = max_deliver
        self._deduplicate = deduplicate
        self._wait = wait
        self.waits_for_work = self._wait > 0
        self._room = max_in_flight_bytes
        self._ordered = (
            OrderedReader(self._stream, filter_subject, start_sequence) if ordered else None
        )
        self._codec = MessageCodec(format, max_message_bytes, name)
        self._jetstream = JetStream(NatsClient(address))
        self._loop_settlement = LoopSettlement(address, self._jetstream.client.timeouts)
        self._source: LeasedSource[JetStreamSession] = LeasedSource(
            address.name,
            type(self),
            NatsConnectorError,
            connect=self._connect,
            end=lambda _: None,
            lease=ack_wait or 30.0,
            renew=self._renew,
            give_back=self._give_back,
            bounds=(max_in_flight, max_in_flight_bytes),
        )
        self._refusals = Refusals(self._jetstream.name)
        self._session: JetStreamSession | None = None
        self.malformed = 0
        if ordered:
            self._offer_no_settlement()

    # ---- opening and closing ----

    def open(self) -> None:
        """Connect; otherwise the first use does."""
        self._source.connection.get()

    def health(self) -> bool:
        """Whether it can be used: it is not closed, and its server answered the last call.

        After the server refused a message, it counts as unusable until it accepts one of that kind.
        """
        return self._source.is_healthy and not self._refusals

    def observe(self) -> Iterator[Observation]:
        """What ``ergon doctor`` reports of the connector."""
        version = self._jetstream.client.version()
        yield Observation("server", f"nats-server {version}")
        if self._stream:
            stream = self._jetstream.api(f"STREAM.INFO.{self._stream}", {}) or {"config": {}}
            yield Observation("stream", self._stream)
            if not self._filter and self._reads_dead_letters(stream["config"].get("subjects", ())):
                yield Observation(
                    "dead letters",
                    f"the stream takes in {self._dead_letters}: what is set aside comes again",
                    "name a subject of another stream, or give filter_subject",
                    is_grave=True,
                )
        if self._consumer is not None:
            about = self._jetstream.consumer(self._stream, self._consumer.durable)
            made = "will be made" if about is None else f"ack_wait {about['ack_wait'] / 1e9:g} s"
            yield Observation("consumer", f"{self._consumer.durable}: {made}")
            if about is not None:
                self._jetstream.check_settling(self._consumer)
            if self._dead_letters is None:
                yield Observation(
                    "dead letters",
                    "what failed for good is terminated, and told as an advisory of the server",
                    "name a subject of another stream that keeps it: dead_letter_subject",
                )

        yield from self._refusals.observations()

    def _reads_dead_letters(self, patterns: Iterable[str]) -> bool:
        """Whether dead letters would be delivered again through one of these streams."""
        subject = self._dead_letters
        return subject is not None and any(is_taken_in(each, subject) for each in patterns)

    def stop_waiting(self) -> None:
        """Make the fetch under way, or the next one, stop waiting. Any thread may call it."""
        self._source.wakeup.stop()
        with suppress(ErgonError):
            self._jetstream.give_up_pull()

    def close(self) -> None:
        """Give back what is in hand, and close the connection. Closing twice is fine."""

        def stop() -> None:
            self.stop_waiting()
            self._loop_settlement.abandon()

        if not self._source.is_closed:
            self._source.close(stop)
            self._jetstream.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- producing ----

    def dispatch_transactions(self, transactions: Iterable[Transaction], **extra: Any) -> None:
        """Publish them in order; when this returns, the stream has stored each."""
        refuse_extra(self, extra, _SETTINGS)
        self._source.refuse_closed()
        given = list(transactions)
        with dispatching("nats.publish", "messaging.message.id", given):
            messages = self._messages_of(given)
            if messages:
                self._source.with_session(lambda _: self._published(messages))

    def _messages_of(self, given: Sequence[Transaction]) -> list[Sendable]:
        if self._subject is None:
            raise ConfigurationError(
                "this NatsConnector has no subject to publish to", remedy='subject="orders.new"'
            )
        messages: list[Sendable] = []
        for each in self._codec.encode_all(given):
            again = {MESSAGE_ID: each.headers[TRANSACTION_ID]} if self._deduplicate else {}
            messages.append((self._subject, each.body, each.headers | again))
        return messages

    # ---- consuming ----

    def fetch_transactions(
        self, batch_size: int, *, wait: float | None = None, **extra: Any
    ) -> list[Transaction]:
        """Up to ``batch_size`` messages; empty at once, or after ``wait`` seconds without any."""
        refuse_extra(self, extra, _SETTINGS)
        return self._source.fetch(batch_size, self._wait if wait is None else wait, self._take)

    def _take(self, session: JetStreamSession, most: int, until: float) -> list[Transaction] | None:
        messages = self._pulled(session, most, max(0.0, until - SYSTEM_CLOCK.now()))
        found = self._delivered(messages)
        # Where all were set aside there may be work behind them.
        is_over = SYSTEM_CLOCK.now() >= until and not messages
        return found if found or is_over or self._source.wakeup.is_stopped else None

    def _pulled(self, session: JetStreamSession, most: int, wait: float) -> Sequence[Msg]:
        if self._source.wakeup.is_stopped:
            wait = 0.0
        if self._ordered is not None:
            return self._ordered.read(self._jetstream, session, most, wait, self._room)
        if self._consumer is None:
            raise ConfigurationError(
                "this NatsConnector has no consumer to read under",
                remedy='stream="ORDERS", consumer="billing"',
            )
        durable = self._consumer.durable
        pulled = self._jetstream.pull(self._stream, durable, most, wait, self._room)
        if pulled.status and pulled.status not in NO_MESSAGES and not pulled.messages:
            # The consumer or its leader is gone: connecting anew looks it up, or makes it.
            why = f"{pulled.status} {pulled.reason}".rstrip()
            raise ConsumerUnservedError(
                f"{self._jetstream.name} has nobody who serves the consumer {durable!r} just now"
                f" ({why})",
                remedy="nothing, if it was deleted: it is made again; otherwise wait until the"
                " cluster has chosen a leader",
                details={"is_lost": False},
            )
        return pulled.messages

    def _delivered(self, messages: Sequence[Msg]) -> list[Transaction]:
        found: list[Transaction] = []
        until = SYSTEM_CLOCK.now() + self._source.leases.seconds
        link = self._jetstream.client.link
        for message in messages:
            place = place_of(message.reply)
            held = _Held(message.reply, message.data, _plain_headers(message), link)
            if self._max_deliver and place.deliveries > self._max_deliver:
                text = f"delivered {place.deliveries - 1} times without an outcome"
                self._set_aside(held, text)
                continue
            about = f"{place.stream}:{place.sequence}"
            try:
                delivery = self._codec.decode(
                    LeasedDelivery, held.body, held.headers, fallback_id=about
                )
            except MalformedMessageError as error:
                self.malformed += 1
                self._set_aside(held, str(error))
                continue
            lease = Lease(held, len(held.body), until)
            delivery.belongs_to(self, lease=lease)
            if self._ordered is None:
                self._source.hold(delivery)
            found.append(delivery)
        return found

    # ---- settling ----

    def ack(self, transaction: Transaction) -> None:
        """The transaction succeeded: acknowledge the message."""
        self._settle(transaction, "ack", b"+ACK")

    def nack(self, transaction: Transaction, exc: Exception) -> None:
        """The transaction failed for good: publish a dead letter, and terminate the message with
        the reason.
        """
        text = describe(exc)
        self._settle(transaction, "nack", reason_of(text), text)

    def release(self, transaction: Transaction) -> None:
        """The transaction was not finished: the server delivers the message again."""
        self._settle(transaction, "release", b"-NAK")

    def release_after(self, transaction: Transaction, seconds: float) -> None:
        """A gate is closed: the server delivers the message again in so many seconds."""
        self._settle(transaction, "release_after", delayed(seconds))

    def _settle(
        self, transaction: Transaction, verb: str, how: bytes, dead_reason: str | None = None
    ) -> None:
        with self._source.settling(self, transaction, verb) as lease:
            if lease is not None:
                self._tell(lease.place, how, dead_reason)

    def _tell(self, held: _Held, how: bytes, dead_reason: str | None) -> None:
        """Tell the server how a delivery ended, on another connection if the first one breaks.

        A delivery belongs to the consumer, not to a connection, and repeating a settlement is
        harmless.
        """
        try:
            self._source.with_session(lambda _: self._told(held, how, dead_reason))
        except StoreUnavailableError:
            self._source.with_session(lambda _: self._told(held, how, dead_reason))

    def _told(self, held: _Held, how: bytes, dead_reason: str | None) -> None:
        self._refuse_forgotten(held)
        if dead_reason is not None:
            self._publish_dead(held, dead_reason)
        if not self._jetstream.settle(held.reply, how):
            self._refuse_unheard()

    def _refuse_forgotten(self, held: _Held) -> None:
        """Raise an error if a restarted server does not know the delivery any more; it does not
        answer then.
        """
        if self._consumer is None or held.link == self._jetstream.client.link:
            return
        delivered = self._jetstream.delivered(self._stream, self._consumer.durable)
        place = place_of(held.reply)
        if delivered is not None and delivered < place.sequence:
            raise DeliveryExpiredError(
                f"{self._jetstream.name} was started anew, and has forgotten that it delivered"
                f" message {place.sequence} of the stream {self._stream!r}",
                remedy="nothing: it delivers the message again",
            )

    def _refuse_unheard(self) -> None:
        """Raise an error if no server took the settlement: the consumer was deleted, or its cluster
        has no leader.
        """
        durable = "" if self._consumer is None else self._consumer.durable
        if durable and self._jetstream.consumer(self._stream, durable) is not None:
            raise StoreUnavailableError(
                f"{self._jetstream.name} has nobody who serves the consumer {durable!r} just now",
                remedy="wait until the cluster has chosen a leader",
                details={"is_lost": False},
            )
        raise DeliveryExpiredError(
            f"the consumer {durable!r} of the stream {self._stream!r} was deleted, and with it what"
            " it knew of this delivery",
            remedy="nothing: a consumer of that name that is made anew delivers the message again",
        )

    def _set_aside(self, held: _Held, reason: str) -> None:
        """Publish a message that cannot be delivered as a dead letter, and terminate it."""
        if self._ordered is None:
            self._tell(held, reason_of(reason), reason)

    def _publish_dead(self, held: _Held, reason: str) -> None:
        if self._dead_letters is None:
            return
        place = place_of(held.reply)
        # Once, however often we are asked to: the first answer may have been lost.
        again = {MESSAGE_ID: f"dead:{place.stream}:{place.sequence}"}
        letter = (self._dead_letters, held.body, with_reason(held.headers, reason) | again)
        self._published([letter])

    def _published(self, messages: Sequence[Sendable]) -> None:
        """Publish to one subject. If that is refused, health is bad until a message is accepted."""
        subject = messages[0][0]
        try:
            self._jetstream.publish(messages)
        except StoreError as error:
            if getattr(error, "is_refusal", False) or isinstance(error, StoreFullError):
                self._refusals.note(subject, error)
            raise
        self._refusals.taken(subject)

    def get_transactions_count(self) -> int:
        """How many messages the consumer has not delivered yet."""
        if self._consumer is None:
            return 0
        durable = self._consumer.durable
        return self._source.with_session(lambda _: self._jetstream.waiting(self._stream, durable))

    # ---- the same for event loops; what blocks is done by other threads ----

    async def fetch_transactions_async(
        self, batch_size: int, *, wait: float | None = None, **extra: Any
    ) -> list[Transaction]:
        """The async version of :meth:`fetch_transactions`. Cancelled, it releases its messages."""
        return await self._fetch_in_thread(
            self.fetch_transactions, self.stop_waiting, batch_size, wait=wait, **extra
        )

    async def ack_async(self, transaction: Transaction) -> None:
        """The async version of :meth:`ack`."""
        await self._settle_async(transaction, "ack", b"+ACK")

    async def release_async(self, transaction: Transaction) -> None:
        """The async version of :meth:`release`."""
        await self._settle_async(transaction, "release", b"-NAK")

    async def release_after_async(self, transaction: Transaction, seconds: float) -> None:
        """The async version of :meth:`release_after`."""
        await self._settle_async(transaction, "release_after", delayed(seconds))

    async def _settle_async(self, transaction: Transaction, verb: str, how: bytes) -> None:
        with self._source.settling(self, transaction, verb) as lease:
            if lease is not None:
                await self._tell_async(lease.place, how)

    async def _tell_async(self, held: _Held, how: bytes) -> None:
        """Without a thread while the connection stands: only making one blocks."""
        session = self._session
        is_there = session is not None and self._source.connection.is_current(session)
        is_there = is_there and held.link == self._jetstream.client.link
        if not (is_there and await self._loop_settlement.settle(held.reply, how)):
            await self._threads.run(self._tell, held, how, None)

    async def _release_all(self, found: list[Transaction]) -> None:
        # What is read in order is not acknowledged, so there is nothing to release.
        for transaction in found if self._ordered is None else ():
            await self.release_async(transaction)

    async def aclose(self) -> None:
        """The async version of :meth:`close`."""
        await self._loop_settlement.aclose()
        await super().aclose()

    # ---- inside ----

    def _connect(self) -> JetStreamSession:
        session = self._jetstream.open(self._consumer)
        self._source.leases.seconds = session.ack_wait
        self._session = session
        return session

    def _renew(self, leases: Sequence[Lease]) -> Collection[Lease]:
        """Tell the server that held messages are being worked on."""
        replies = [lease.place.reply for lease in leases]
        self._source.with_session(lambda _: self._jetstream.in_progress(replies))
        return ()

    def _give_back(self, lease: Lease) -> None:
        self._jetstream.settle(lease.place.reply, b"-NAK")

    def _offer_no_settlement(self) -> None:
        """The engine finds methods by name: without these it settles nothing."""
        for verb in ("ack", "nack", "release", "release_after"):
            setattr(self, verb, None)
            setattr(self, f"{verb}_async", None)


def _plain_headers(message: Msg) -> dict[str, str]:
    """The headers of a message without those that are the server's business."""
    found = headers_of(message)
    return {k: v for k, v in found.items() if not k.lower().startswith("nats-")}


def _with_options(url: str, options: Mapping[str, str | None]) -> str:
    given = {name: value for name, value in options.items() if value}
    if not given:
        return url
    return f"{url}{'&' if '?' in url else '?'}{urlencode(given)}"


def _consumer_of(
    stream: str | None,
    consumer: str | None,
    subject: str | None,
    filter_subject: str | None,
    ack_wait: float | None,
    deliver: str,
    ordered: bool,
) -> DurableConsumer | None:
    """The durable consumer of the options, if there is one. Contradictions are refused."""
    if stream is None and (consumer is not None or ordered):
        raise ConfigurationError(
            "a NatsConnector that reads needs a stream", remedy='stream="ORDERS"'
        )
    if consumer is None and subject is None and not ordered:
        raise ConfigurationError(
            "a NatsConnector needs a consumer to read under, or a subject to publish to",
            remedy='stream="ORDERS", consumer="billing"; or subject="orders.new"',
        )
    if consumer is not None and ordered:
        raise ConfigurationError(
            "an ordered NatsConnector has no durable consumer",
            remedy="leave consumer out; start_sequence says where to begin",
        )
    for field, name in (("stream", stream), ("consumer", consumer)):
        if name is not None and (not name or set(name) & set(" .*>/\\\t\r\n")):
            raise ConfigurationError(
                f"{field} is no name: {name!r}", remedy="give one without spaces, dots, * and >"
            )
    if deliver not in _DELIVER:
        raise ConfigurationError(f"deliver is {deliver!r}", remedy=f"one of {', '.join(_DELIVER)}")
    if stream is None or consumer is None:
        return None
    return DurableConsumer(stream, consumer, filter_subject, ack_wait, deliver)
