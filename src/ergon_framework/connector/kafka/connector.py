"""``KafkaConnector``: its fetch, dispatch and settlement, sync and async."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, ClassVar, Self, cast

from ergon_framework.connector.base import (
    Delivered,
    DroppedDeliveries,
    ThreadedConsuming,
    check_batch_size,
    forget_settlement,
    is_first_settlement,
    refuse_extra,
    settling,
)
from ergon_framework.connector.broker.connection import BrokerUnavailableError, closed
from ergon_framework.connector.broker.message import (
    REASON,
    TRANSACTION_ID,
    MalformedMessageError,
    MessageCodec,
    encoded,
    with_reason,
)
from ergon_framework.connector.broker.options import (
    COUNT,
    SECONDS,
    Bound,
    seconds_of,
    takes_options,
)
from ergon_framework.connector.broker.url import BrokerUrl, import_client, tls_files
from ergon_framework.connector.kafka.client import (
    EXAMPLE,
    HEADROOM,
    LONGEST,
    MAX_MESSAGE,
    PORT,
    SCHEMES,
    TLS,
    ClientRule,
    Login,
    check_topics,
    leave_to_parent,
)
from ergon_framework.connector.kafka.errors import (
    KafkaConnectorError,
    in_words,
    refusal_of,
)
from ergon_framework.connector.kafka.ledger import Entry, OffsetLedger, Order
from ergon_framework.connector.kafka.member import GroupMember, MemberRule
from ergon_framework.connector.kafka.sender import SLICE, Record, Sender
from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.errors import ChannelLostError, ConfigurationError, describe
from ergon_framework.ports.transaction import Transaction, setter_of
from ergon_framework.storage.server import Observation
from ergon_framework.telemetry.tracing import dispatching

CLIENT_LOGGER = logging.getLogger("ergon.connector.kafka")
"""The logger for the client library's own log lines."""
NOT_BEFORE = "ergon-not-before"
"""Header in a retry topic: the Unix time before which the message is not handed out."""
PLACE = "ergon-origin"
"""Header of a dead letter: topic, partition and offset it was read from."""
SET_ASIDE_AGAIN = 5.0
"""Seconds after which a malformed message is tried again that could not be set aside."""
DROPPED_AFTER = 30.0
"""Seconds after which a message is handed out again whose delivery nobody has any more: its fetch
was cancelled, or its call ended before it could hand it back."""
HEALTH = 2.0
"""Seconds that brokers may take to answer before they are taken for away."""
CLOSING = 10.0
"""Seconds that leaving the group, and sending what is under way, may take each."""


class KafkaDelivery(Delivered):
    """A delivered message with the place that it was read from."""

    __slots__ = ("entry", "key")

    entry: Entry
    key: bytes | None

    @property
    def topic(self) -> str:
        """The topic that it was read from."""
        return self.entry.log.partition[0]

    @property
    def partition(self) -> int:
        """The number of the partition that it was read from."""
        return self.entry.log.partition[1]

    @property
    def offset(self) -> int:
        """Its place in the partition."""
        return self.entry.offset

    def belongs_to_entry(self, owner: object, entry: Entry, key: bytes | None) -> None:
        """Like ``belongs_to``, written out because every message comes through here."""
        _set_owner(self, owner)
        _set_verb(self, None)
        _set_entry(self, entry)
        _set_key(self, key)


_set_owner, _set_verb = (setter_of(Delivered, name) for name in ("owner", "verb"))
_set_entry, _set_key = (setter_of(KafkaDelivery, name) for name in ("entry", "key"))


class KafkaConnector(ThreadedConsuming):
    """Consumes a topic as a member of a group, and produces into it.

    ``url`` is ``kafka://host:9092,host:9092/topic``, or ``kafka+ssl://`` for TLS; a user in it is
    for SASL. ``group`` is the consumer group. ``order`` says what is handled one after another:
    messages of one ``key``, of one ``partition``, or ``none``. ``partition_key`` names what sent
    messages have as their key: a field of the transaction (``correlation_id``), or a path into it
    (``payload.customer``). What failed for good goes to ``dead_letter_topic``, by default the
    topic with ``.dlq`` behind it, and what is parked to ``retry_topic`` if there is one.

    ``wait`` is how many seconds a fetch waits for messages once all partitions are empty.
    ``max_in_flight`` and ``max_in_flight_bytes`` bound what was read and has no outcome, ``window``
    how many messages of a partition are handled behind one without an outcome. Offsets are
    committed every ``commit_interval`` seconds. A rebalance waits up to ``revoke_wait`` seconds for
    what is in hand. ``client`` holds further settings of librdkafka by their names.
    """

    joins_trace: ClassVar[bool] = True
    ack_never_waits: ClassVar[bool] = True
    """An outcome is noted, and committed later by the member's own thread."""

    @takes_options(
        max_message_bytes=Bound(1, MAX_MESSAGE - HEADROOM),
        window=COUNT,
        commit_interval=SECONDS,
        revoke_wait=Bound(0, LONGEST["revoke_wait"]),
        send_timeout=Bound(0.001, LONGEST["send_timeout"]),
    )
    def __init__(
        self,
        url: str,
        *,
        topic: str | None = None,
        group: str = "ergon",
        name: str | None = None,
        format: str = "json",
        order: str = "key",
        partition_key: str | None = None,
        dead_letter_topic: str | None = None,
        retry_topic: str | None = None,
        max_message_bytes: int = 1_000_000,
        max_in_flight: int = 1000,
        max_in_flight_bytes: int = 64 * 1024 * 1024,
        window: int = 10_000,
        wait: float = 1.0,
        commit_interval: float = 0.2,
        revoke_wait: float = 30.0,
        send_timeout: float = 30.0,
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
        sasl_mechanism: str = "PLAIN",
        client: Mapping[str, Any] | None = None,
    ) -> None:
        broker = BrokerUrl.of(url, port=PORT, schemes=SCHEMES, example=EXAMPLE)
        broker.refuse_query("KafkaConnector")
        is_tls = tls_files(broker, [TLS], ca=ca, cert=cert, key=key)
        self.topic, self._dead_letter_topic = _topics(
            broker, topic or broker.path, dead_letter_topic, retry_topic
        )
        self.name = name
        self.malformed = 0
        self._title = f"{broker.name}/{self.topic}"
        self._wait = wait
        self.waits_for_work = self._wait > 0
        self._key_path = _key_path(partition_key)
        self._retry_topic = retry_topic
        self._max_message_bytes = max_message_bytes
        self._codec = MessageCodec(format, max_message_bytes, name)
        self._rule = ClientRule(
            servers=",".join(f"{host}:{port}" for host, port in broker.hosts),
            login=Login(is_tls, broker.user, broker.password, sasl_mechanism, ca, cert, key),
            group=group,
            max_message_bytes=max_message_bytes,
            max_count=max_in_flight,
            max_bytes=max_in_flight_bytes,
            revoke_wait=revoke_wait,
            send_timeout=send_timeout,
            more=client or {},
        )
        self._member_rule = MemberRule(
            topics=[self.topic, *([retry_topic] if retry_topic else [])],
            commit_interval=commit_interval,
            revoke_wait=revoke_wait,
            close_timeout=CLOSING,
        )
        self._ledger = OffsetLedger(
            _order(order),
            max_count=max_in_flight,
            max_bytes=max_in_flight_bytes,
            window=window,
        )
        self._sender = Sender(self._title, self._make_producer, CLOSING)
        self._member: GroupMember | None = None
        self._dropped: DroppedDeliveries[Entry] = DroppedDeliveries()
        self._is_closed = False
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Forget the group member and its deliveries in a forked child, because they are the
        parent's.
        """
        self._lock = threading.Lock()
        if self._member is not None:
            leave_to_parent(self._member)
            self._ledger.revoke(self._ledger.partitions)
        self._member = None

    # ---- opening and closing ----

    def health(self) -> bool:
        """Whether it can be used: not closed, not refused, and a broker answers.

        A topic whose messages were refused is bad until one is taken there.
        """
        member = self._member
        if self._is_closed or self._sender.refusals or (member is not None and member.is_refused):
            return False
        try:
            self._sender.metadata(None, HEALTH)
        except Exception:
            return False
        return True

    def observe(self) -> list[Observation]:
        """What ``ergon doctor`` says: whether brokers answer, and which topics are missing."""
        try:
            found = self._sender.metadata(None, HEALTH)
        except Exception as error:
            return [
                Observation(
                    "brokers",
                    f"{self._title} cannot be reached: {in_words(error)}",
                    "see that a broker runs there, and that user, password and TLS are right",
                    is_grave=True,
                )
            ]
        told = [Observation("brokers", f"{len(found.brokers)} answer")]
        for topic in (*self._member_rule.topics, self._dead_letter_topic):
            if topic not in found.topics:
                remedy = f"kafka-topics.sh --create --topic {topic} --bootstrap-server HOST:9092"
                told.append(Observation("topic", f"{topic} does not exist", remedy))
            elif refused := refusal_of(self._title, topic, found.topics[topic].error):
                told.append(Observation("topic", refused.message, refused.remedy or "", True))
        return told + self._sender.refusals.observations()

    def close(self) -> None:
        """Commit what is settled, leave the group and send what is under way."""
        with self._lock:
            self._is_closed, member = True, self._member
        if member is not None:
            member.close()
        self._sender.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- producing ----

    def dispatch_transactions(self, transactions: Iterable[Transaction], **extra: Any) -> None:
        """Send one message for each; returns when the brokers have them all."""
        refuse_extra(self, extra, _SETTINGS)
        given = list(transactions)
        with dispatching("kafka.send", "messaging.message.id", given):
            self._sender.send(self._records(given))

    # ---- consuming ----

    def fetch_transactions(
        self, batch_size: int, *, wait: float | None = None, **extra: Any
    ) -> list[Transaction]:
        """Up to ``batch_size`` messages; an empty list when none came within ``wait`` seconds."""
        member, seconds = self._asked(batch_size, wait, extra)
        while True:
            member.wait(seconds, threading.Event())
            taken = self._take(member, batch_size)
            if taken is not None:
                return taken

    def stop_waiting(self) -> None:
        """Make the fetch under way, or the next one, stop waiting. Any thread may call it."""
        if self._member is not None:
            self._member.stop_waiting()

    def ack(self, transaction: Transaction) -> None:
        """The transaction succeeded: its offset may be committed."""
        # Written out, as every message that succeeds comes through here.
        if not is_first_settlement(KafkaDelivery, transaction, self, "ack", KafkaConnectorError):
            return
        delivery = cast(KafkaDelivery, transaction)
        try:
            self._dropped.forget(delivery.entry)
            self._settle(delivery.entry)
        except BaseException:
            forget_settlement(delivery)
            raise

    def nack(self, transaction: Transaction, exc: Exception) -> None:
        """The transaction failed for good: it goes to the dead-letter topic, with the reason."""
        with self._settling(transaction, "nack") as entry:
            if entry is not None:
                self._sender.send([self._dead_letter(entry, describe(exc))])
                self._settle(entry)

    def release(self, transaction: Transaction) -> None:
        """The transaction was not finished: hand it out again."""
        with self._settling(transaction, "release") as entry:
            if entry is not None:
                self._give_back(entry)

    def release_after(self, transaction: Transaction, seconds: float) -> None:
        """A gate is closed: hand the transaction out again in so many seconds.

        With a retry topic it is sent there. Otherwise it stays here, and so does the offset of its
        partition.
        """
        with self._settling(transaction, "release_after") as entry:
            if entry is None:
                return
            if self._retry_topic is None:
                self._give_back(entry, seconds)
            else:
                self._sender.send([_later(entry, self._retry_topic, seconds)])
                self._settle(entry)

    def get_transactions_count(self) -> int:
        """How many messages wait: those behind the group's offsets that nobody has in hand here."""
        try:
            return self._opened().lag()
        except Exception as error:
            raise BrokerUnavailableError(f"{self._title}: {in_words(error)}") from error

    @property
    def late_settlements(self) -> int:
        """Settlements that changed nothing, because their partition had been revoked."""
        return self._ledger.late

    @property
    def partitions(self) -> list[tuple[str, int]]:
        """The topics and numbers of the partitions that the group has given to this member."""
        return self._ledger.partitions

    @property
    def uncommitted(self) -> dict[tuple[str, int], int]:
        """Offsets up to which partitions are settled, and that the group does not have yet."""
        return {} if self._member is None else self._member.uncommitted()

    # ---- the same for event loops; only what waits for brokers is done by threads ----

    async def dispatch_transactions_async(
        self, transactions: Iterable[Transaction], **extra: Any
    ) -> None:
        """The async version of ``dispatch_transactions``."""
        refuse_extra(self, extra, _SETTINGS)
        given = list(transactions)
        with dispatching("kafka.send", "messaging.message.id", given):
            await self._send_async(self._records(given))

    async def fetch_transactions_async(
        self, batch_size: int, *, wait: float | None = None, **extra: Any
    ) -> list[Transaction]:
        """The async version of ``fetch_transactions``. Cancelled, it has taken nothing."""
        member, seconds = self._asked(batch_size, wait, extra)
        while True:
            if not member.has_ready:  # else there is nothing to wait for, and no thread is needed
                gave_up = threading.Event()
                try:
                    await self._threads.run(member.wait, seconds, gave_up)
                finally:
                    gave_up.set()
                    member.wake()
            taken = self._take(member, batch_size)
            if taken is not None:
                return taken

    async def ack_async(self, transaction: Transaction) -> None:
        """The async version of ``ack``; it never waits."""
        self.ack(transaction)

    async def nack_async(self, transaction: Transaction, exc: Exception) -> None:
        """The async version of ``nack``."""
        with self._settling(transaction, "nack") as entry:
            if entry is not None:
                await self._send_async([self._dead_letter(entry, describe(exc))])
                self._settle(entry)

    async def release_async(self, transaction: Transaction) -> None:
        """The async version of ``release``; it never waits."""
        self.release(transaction)

    async def release_after_async(self, transaction: Transaction, seconds: float) -> None:
        """The async version of ``release_after``."""
        retry_topic = self._retry_topic
        if retry_topic is None:
            self.release_after(transaction, seconds)
            return
        with self._settling(transaction, "release_after") as entry:
            if entry is not None:
                await self._send_async([_later(entry, retry_topic, seconds)])
                self._settle(entry)

    async def get_transactions_count_async(self) -> int:
        """The async version of ``get_transactions_count``."""
        return await self._threads.run(self.get_transactions_count)

    async def health_async(self) -> bool:
        """The async version of ``health``."""
        return await self._threads.run(self.health)

    async def _send_async(self, records: Sequence[Record]) -> None:
        for start in range(0, len(records), SLICE):
            sending = self._sender.begin(records[start : start + SLICE])
            # Shielded: a report that comes after the cancellation has to find its future.
            await asyncio.shield(asyncio.wrap_future(sending))

    # ---- inside: messages ----

    def _records(self, transactions: Iterable[Transaction]) -> list[Record]:
        """Encode all messages before the first is sent: a batch with a bad one is refused as a
        whole.
        """
        given = list(transactions)
        return [
            Record(
                self.topic,
                message.body,
                _key(transaction, self._key_path),
                [(name, value.encode()) for name, value in message.headers.items()],
            )
            for transaction, message in zip(given, self._codec.encode_all(given), strict=True)
        ]

    def _take(self, member: GroupMember, most: int) -> list[Transaction] | None:
        """The messages that are there. None when all of them were set aside and there may be more
        after them.
        """
        for entry in self._dropped.take():
            member.give_back(entry, DROPPED_AFTER)
        taken: list[Transaction] = []
        entries = member.take(most)
        now = datetime.now(UTC)
        for entry in entries:
            try:
                taken.append(self._delivery(entry, now))
            except MalformedMessageError as error:
                self._set_aside(member, entry, describe(error))
        return taken if taken or not entries else None

    def _delivery(self, entry: Entry, now: datetime) -> KafkaDelivery:
        message = entry.message
        body = message.value()
        if body is None:  # it deletes its key in a compacted topic, and has no payload
            body = b"null"
        headers = message.headers()
        if headers:
            delivery = self._codec.decode(
                KafkaDelivery, body, _texts(headers), fallback_id=_place(entry)
            )
        else:
            delivery = self._codec.decode_bare(KafkaDelivery, body, _place(entry), now)
        delivery.belongs_to_entry(self, entry, message.key())
        self._dropped.watch(delivery, entry)
        return delivery

    def _set_aside(self, member: GroupMember, entry: Entry, reason: str) -> None:
        """Send a message that is no transaction to the dead letters; then its offset may be
        committed.
        """
        self.malformed += 1

        def told(sending: Future[None]) -> None:
            if sending.exception() is None:
                member.settle(entry)
            else:
                self.malformed -= 1
                member.give_back(entry, SET_ASIDE_AGAIN)

        self._sender.begin([self._dead_letter(entry, reason)]).add_done_callback(told)

    def _dead_letter(self, entry: Entry, reason: str) -> Record:
        told = with_reason({PLACE: _place(entry)}, reason)
        letter = _copy(entry.message, self._dead_letter_topic, told)
        # One that is too large to be sent is left where it is: the letter says where.
        is_too_large = letter.size > self._max_message_bytes + HEADROOM
        return replace(letter, value=None) if is_too_large else letter

    # ---- inside: settling ----

    @contextmanager
    def _settling(self, transaction: Transaction, verb: str) -> Iterator[Entry | None]:
        """The delivery to settle, or None when it was already settled with this verb."""
        with settling(KafkaDelivery, transaction, self, verb, KafkaConnectorError) as delivery:
            if delivery is None:
                yield None
                return
            self._dropped.forget(delivery.entry)
            # Asked before anything is sent: dead letters of a lost partition are its new owner's.
            if not self._opened().has(delivery.entry):
                raise self._lost(delivery.entry)
            yield delivery.entry

    def _settle(self, entry: Entry) -> None:
        member = self._member
        if member is None or self._is_closed:
            member = self._opened()
        if not member.settle(entry):
            raise self._lost(entry)

    def _give_back(self, entry: Entry, seconds: float = 0.0) -> None:
        if not self._opened().give_back(entry, seconds_of("release_after's seconds", seconds)):
            raise self._lost(entry)

    def _lost(self, entry: Entry) -> ChannelLostError:
        topic, number = entry.log.partition
        return ChannelLostError(
            f"{self._title}: partition {number} of {topic} was revoked before offset"
            f" {entry.offset} was settled; its new owner reads it again",
            remedy="raise revoke_wait above what a handler takes, and make the work idempotent",
        )

    # ---- inside: opening ----

    def _asked(
        self, batch_size: int, wait: float | None, extra: Mapping[str, Any]
    ) -> tuple[GroupMember, float]:
        refuse_extra(self, extra, _SETTINGS)
        check_batch_size(batch_size)
        return self._opened(), self._wait if wait is None else seconds_of("wait", wait)

    def _opened(self) -> GroupMember:
        with self._lock:
            if self._is_closed:
                raise closed(self._title)
            if self._member is None:
                self._member = GroupMember(
                    self._title, self._make_consumer, self._member_rule, self._ledger, _delay_of
                )
            return self._member

    def _make_consumer(self, callbacks: dict[str, Any]) -> Any:
        return self._made("Consumer", {**self._rule.consumer(), **callbacks})

    def _make_producer(self) -> Any:
        return self._made("Producer", self._rule.producer())

    def _made(self, kind: str, settings: dict[str, Any]) -> Any:
        library = import_client("confluent_kafka", extra="kafka", connector="kafka")
        try:
            # Without a logger the library writes to the standard error.
            return getattr(library, kind)(settings, logger=CLIENT_LOGGER)
        except library.KafkaException as error:
            raise ConfigurationError(
                f"{self._title}: {in_words(error)}", remedy="correct the setting in client"
            ) from error


_SETTINGS = "a fetch takes wait, and a dispatch takes none"


def _texts(headers: Iterable[tuple[str, bytes | None]] | None) -> dict[str, str]:
    """The headers as texts; of those with one name the last counts, as in most clients."""
    return {
        name: (value or b"").decode("utf-8", "backslashreplace") for name, value in headers or ()
    }


def _copy(message: Any, topic: str, headers: Mapping[str, str]) -> Record:
    """The same message for another topic, byte by byte, with more headers."""
    kept = [
        (name, value or b"")
        for name, value in message.headers() or ()
        if name not in (REASON, PLACE, NOT_BEFORE)
    ]
    more = [(name, value.encode()) for name, value in headers.items()]
    return Record(topic, message.value(), message.key(), [*kept, *more])


def _later(entry: Entry, topic: str, seconds: float) -> Record:
    """The same message for a retry topic, to be handed out in so many seconds.

    One that has no id in its headers gets that of its place, which it would not have there.
    """
    due = time.time() + seconds_of("release_after's seconds", seconds)
    more = {NOT_BEFORE: f"{due:.3f}"}
    if not _texts(entry.message.headers()).get(TRANSACTION_ID):
        more[TRANSACTION_ID] = encoded(_place(entry))
    return _copy(entry.message, topic, more)


def _place(entry: Entry) -> str:
    """Topic, partition and offset: the id of a message that no header gives one."""
    return f"{entry.log.name}{entry.offset}"


def _delay_of(message: Any) -> float:
    """In how many seconds a message may be handed out; 0 is now."""
    for name, value in message.headers() or ():
        if name == NOT_BEFORE:
            try:
                due = float(value)
            except (TypeError, ValueError):
                return 0.0
            return max(0.0, due - time.time()) if math.isfinite(due) else 0.0
    return 0.0


def _key(transaction: Transaction, path: Sequence[str]) -> bytes | None:
    """What a path names in a transaction, as the key of its message."""
    if not path:
        return None
    found: Any = getattr(transaction, path[0], None)
    for name in path[1:]:
        found = found.get(name) if isinstance(found, Mapping) else None
    if found is None:
        return None
    return found.encode() if isinstance(found, str) else json.dumps(found, sort_keys=True).encode()


def _topics(
    broker: BrokerUrl, topic: str, dead_letter_topic: str | None, retry_topic: str | None
) -> tuple[str, str]:
    """The topic and that of the dead letters, after all three were checked."""
    if not topic or "/" in topic:
        raise ConfigurationError(f"{broker.name}: there is no topic", remedy=f"write {EXAMPLE}")
    dead = dead_letter_topic or f"{topic}.dlq"
    check_topics(broker.name, topic=topic, dead_letter_topic=dead, retry_topic=retry_topic)
    return topic, dead


def _key_path(given: str | None) -> tuple[str, ...]:
    path = () if given is None else tuple(given.split("."))
    if path and path[0] not in _KEY_FIELDS:
        raise ConfigurationError(
            f"partition_key is {given!r}, and a transaction has no such field to be a key",
            remedy=f"begin with one of {', '.join(sorted(_KEY_FIELDS))}, as in payload.customer",
        )
    return path


_KEY_FIELDS = frozenset(
    {"transaction_id", "correlation_id", "parent_id", "trace_id", "source", "payload", "metadata"}
)


def _order(given: str) -> Order:
    try:
        return Order(given)
    except ValueError:
        known = ", ".join(Order)
        raise ConfigurationError(f"order is {given!r}", remedy=f"choose from {known}") from None
