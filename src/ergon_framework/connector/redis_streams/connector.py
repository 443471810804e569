"""The connector class: its options, and the sync and async methods that the engines call."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self, TypeVar

from ergon_framework.connector.base import (
    Delivered,
    ThreadedProducing,
    check_batch_size,
    refuse_extra,
    settling,
)
from ergon_framework.connector.broker.connection import closed
from ergon_framework.connector.broker.in_flight import (
    MAX_IN_FLIGHT,
    MAX_IN_FLIGHT_BYTES,
    InFlight,
)
from ergon_framework.connector.broker.message import (
    MAX_MESSAGE_BYTES,
    BrokerMessage,
    MalformedMessageError,
    MessageCodec,
    MessageFormat,
    encoded,
    with_reason,
)
from ergon_framework.connector.broker.options import COUNT, Bound, takes_options
from ergon_framework.connector.broker.url import BrokerUrl
from ergon_framework.connector.broker.wakeup import Wakeup
from ergon_framework.connector.redis_streams.client import (
    EXAMPLE,
    Command,
    RedisClients,
    RedisStreamsError,
    Steps,
    StoppedError,
)
from ergon_framework.connector.redis_streams.group import (
    LONG_IDLE,
    OURS,
    ConsumerGroup,
    Entry,
    observations,
)
from ergon_framework.connector.redis_streams.in_hand import Deliveries, HeldEntry
from ergon_framework.connector.redis_streams.options import (
    MAX_CLAIM_IDLE,
    check_names,
    check_start,
    refuse_header,
)
from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.engine.clocks import current_clock
from ergon_framework.errors import (
    ChannelLostError,
    ConfigurationError,
    ConnectorError,
    describe,
)
from ergon_framework.ports.transaction import Transaction, new_id
from ergon_framework.storage.server import Observation

PORT = 6379
CLAIM_INTERVAL = 1.0
"""Seconds between two searches for what other consumers left, while there are new entries."""
STOP_INTERVAL = 0.5
"""Seconds within which a waiting fetch notices a stop."""
_T = TypeVar("_T", bound=Transaction)
logger = logging.getLogger("ergon.connector")


class DeliveryLostError(ChannelLostError):
    """The entry no longer belongs to this consumer: another one has claimed or settled it."""

    code = "delivery_lost"


class _Delivery(Delivered):
    """A delivered transaction with its entry."""

    __slots__ = ("held",)

    held: HeldEntry


class RedisStreamsConnector(ThreadedProducing):
    """Consumes a Redis stream through a consumer group, and produces into it.

    An entry is delivered to one consumer of the group. One that dies is found by its silence:
    after ``claim_idle`` seconds others take over what it left. A handler may run longer than that,
    since what is in hand is renewed. Settle the very object that was delivered. An entry that was
    delivered more than ``max_deliveries`` times without an outcome is set aside.

    ``late`` counts settlements of entries that another consumer has claimed meanwhile; they are
    refused. ``malformed`` counts entries that are no transactions and were set aside.
    """

    @takes_options(
        claim_idle=Bound(0, MAX_CLAIM_IDLE, is_above=True),
        max_length=COUNT,
        max_deliveries=Bound(0),
    )
    def __init__(
        self,
        url: str,
        *,
        stream: str,
        group: str = "ergon",
        consumer: str | None = None,
        name: str | None = None,
        dead_letters: str | None = None,
        format: str = MessageFormat.JSON.value,
        body_field: str = "body",
        claim_idle: float = 60.0,
        max_deliveries: int = 20,
        wait: float = 1.0,
        start: str = "0",
        max_length: int | None = None,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        max_in_flight: int = MAX_IN_FLIGHT,
        max_in_flight_bytes: int = MAX_IN_FLIGHT_BYTES,
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
    ) -> None:
        check_names(stream, group, body_field, dead_letters)
        check_start(start)
        place = BrokerUrl.of(url, port=PORT, schemes=("redis", "rediss"), example=EXAMPLE)
        place.refuse_query("RedisStreamsConnector")
        self.name = name
        self.malformed = 0
        self.late = 0
        self.dead_letter_file = dead_letters or f"{stream}:dead"
        """The stream with what was set aside."""
        self._body_field = body_field.encode()
        self._max_length = max_length
        self._max_deliveries = max_deliveries
        self._exhausted = 0  # entries that were set aside after that many
        self._wait = wait
        self.waits_for_work = self._wait > 0
        self._wakeup = Wakeup()
        self._codec = MessageCodec(format, max_message_bytes, name)
        self._reads_fields = format == MessageFormat.JSON.value
        self._clients = RedisClients(place, self._wakeup, ca=ca, cert=cert, key=key)
        self._group = ConsumerGroup(
            stream, group, consumer or _consumer(), self.dead_letter_file, claim_idle, start
        )
        self._in_flight = InFlight(self._wakeup, max_in_flight, max_in_flight_bytes)
        self._in_hand = Deliveries(self._in_flight, self._renew, self._give_back, claim_idle)
        self._has_own_name = consumer is not None
        self._cursor = b"0-0"
        self._claimed_at = float("-inf")
        self._has_left = self._is_turn_of_left = False
        self._fetching = threading.Lock()
        renew_after_fork(self)

    def renew(self) -> None:
        """In a forked child: it is another consumer than its parent, which may be fetching."""
        self._fetching = threading.Lock()
        if not self._has_own_name:
            self._group = replace(self._group, consumer=_consumer())

    # ---- fetching -------------------------------------------------------------------------------

    def fetch_transactions(self, batch_size: int, **extra: Any) -> list[Transaction]:
        """Up to ``batch_size``: what was given back, what others left, and what is new."""
        self._check_fetch(batch_size, extra)
        with self._fetching:
            self._wakeup.begin()
            room = self._in_flight.wait_for_room(batch_size)
            try:
                return self._clients.drive(self._fetch(room), waits=True) if room else []
            except StoppedError:
                return []

    async def fetch_transactions_async(self, batch_size: int, **extra: Any) -> list[Transaction]:
        """The async version of :meth:`fetch_transactions`. Cancelled, it releases what it took."""
        self._check_fetch(batch_size, extra)
        task = asyncio.ensure_future(self._fetch_async(batch_size))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._hand_back)
            raise

    async def _fetch_async(self, batch_size: int) -> list[Transaction]:
        self._wakeup.begin()
        room = await self._in_flight.wait_for_room_async(batch_size)
        try:
            return await self._clients.drive_async(self._fetch(room), waits=True) if room else []
        except StoppedError:
            return []

    def stop_waiting(self) -> None:
        """Make the fetch under way return."""
        self._wakeup.stop()

    def _fetch(self, count: int) -> Steps[list[Transaction]]:
        """As many entries as there is room for. Waits for the first if ``wait`` says so."""
        until = current_clock().now() + self._wait
        batch: list[Transaction] = []
        block = 0.0
        for entry in self._in_hand.take_handed_back():
            yield from self._returned(entry, 0.0)
        while True:
            before = self.malformed + self._exhausted
            if due := self._in_hand.due(count):
                batch += yield from self._delivered((yield from self._group.claim(due)))
            if len(batch) < count and self._is_time_to_claim():
                batch += yield from self._take_over(count - len(batch))
            if len(batch) < count:
                wait = 0.0 if batch else block
                found = yield from self._group.read(count - len(batch), wait)
                batch += yield from self._delivered(found)
            if not batch and self._claimed_at < current_clock().now() - STOP_INTERVAL:
                batch += yield from self._take_over(count)
            has_set_aside = self.malformed + self._exhausted > before
            is_more_likely = has_set_aside or self._has_left
            if not batch and is_more_likely and not self._wakeup.is_stopped:
                continue  # an empty batch would mean that there is nothing behind them
            block = self._next_block(until)
            if batch or block <= 0 or self._wakeup.is_stopped:
                return batch

    def _next_block(self, until: float) -> float:
        """For how long the server may block: a stop and parked entries come first."""
        now = current_clock().now()
        due = self._in_hand.next_due()
        return min(
            STOP_INTERVAL, until - now, STOP_INTERVAL if due is None else max(0.01, due - now)
        )

    def _is_time_to_claim(self) -> bool:
        """Once a second. While there is more of it, at every second fetch: new work takes turns."""
        if current_clock().now() - self._claimed_at >= CLAIM_INTERVAL:
            return True
        self._is_turn_of_left = self._has_left and not self._is_turn_of_left
        return self._is_turn_of_left

    def _take_over(self, count: int) -> Steps[list[Transaction]]:
        """Entries that other consumers left or gave back."""
        self._claimed_at = current_clock().now()
        self._cursor, found, trimmed = yield from self._group.claim_idle_ones(self._cursor, count)
        self._has_left = len(found) + trimmed >= count
        if trimmed:
            logger.warning(
                "%d entries of the stream %s were trimmed away before they were settled; raise"
                " max_length, or add consumers",
                trimmed,
                self._group.stream,
            )
        return (yield from self._delivered((yield from self._without_exhausted(found))))

    def _without_exhausted(self, entries: list[Entry]) -> Steps[list[Entry]]:
        """Those that may be delivered once more; the others have ended everybody who had them."""
        if not self._max_deliveries or not entries:
            return entries
        counts = yield from self._group.deliveries([entry for entry, _ in entries])
        left: list[Entry] = []
        for (entry, fields), count in zip(entries, counts, strict=True):
            if count <= self._max_deliveries or entry in self._in_hand:
                left.append((entry, fields))
                continue
            reason = with_reason({}, f"delivered {count - 1} times without an outcome")
            yield from self._group.set_aside(entry, self._identity(entry), reason)
            self._exhausted += 1
        return left

    def _delivered(self, entries: list[Entry]) -> Steps[list[Transaction]]:
        batch: list[Transaction] = []
        for entry, fields in entries:
            if entry in self._in_hand:
                continue  # it became idle while this process was held up, and is ours again
            try:
                delivery = self._opened(_Delivery, entry, fields)
            except MalformedMessageError as error:
                yield from self._set_malformed_aside(entry, error)
                continue
            held = HeldEntry(entry, sum(len(name) + len(value) for name, value in fields.items()))
            delivery.belongs_to(self, held=held)
            self._in_hand.take(delivery, held)
            batch.append(delivery)
        return batch

    def _set_malformed_aside(self, entry: bytes, error: MalformedMessageError) -> Steps[None]:
        reason = with_reason({}, describe(error))
        yield from self._group.set_aside(entry, self._identity(entry), reason)
        self.malformed += 1

    def _opened(self, kind: type[_T], entry: bytes, fields: dict[bytes, bytes]) -> _T:
        """The transaction in an entry. One without a body is that of another program: its fields
        are the payload.
        """
        body = fields.get(self._body_field)
        try:
            if body is None and self._reads_fields:
                texts = {name.decode(): value.decode() for name, value in fields.items()}
                own = {name: texts.pop(name) for name in list(texts) if name in _TRACE}
                made = self._codec.decode(kind, b"null", own, fallback_id=self._identity(entry))
                object.__setattr__(made, "payload", texts)
                return made
            headers = {
                name.decode(): value.decode()
                for name, value in fields.items()
                if name != self._body_field
            }
        except UnicodeDecodeError as error:
            raise MalformedMessageError("a field is not UTF-8 text") from error
        if body is None:
            raise MalformedMessageError(f"it has no field {self._body_field.decode()}")
        return self._codec.decode(kind, body, headers, fallback_id=self._identity(entry))

    def _identity(self, entry: bytes) -> str:
        """The id of an entry without one: the stream's own id, which does not change."""
        return f"{self._group.stream}:{entry.decode()}"

    def _hand_back(self, task: asyncio.Future[list[Transaction]]) -> None:
        """Give back the entries of a cancelled fetch."""
        if task.cancelled() or task.exception() is not None:
            return
        for delivery in task.result():
            assert isinstance(delivery, _Delivery)  # noqa: S101 - for type checkers
            self._in_hand.hand_back(delivery.held)

    # ---- settling -------------------------------------------------------------------------------

    def ack(self, transaction: Transaction) -> None:
        """The transaction succeeded: never deliver its entry again to this group."""
        with self._settling(transaction, "ack") as held:
            if held is not None:
                self._judged(held, self._clients.drive(self._group.ack(held.entry)))

    async def ack_async(self, transaction: Transaction) -> None:
        """The async version of :meth:`ack`."""
        with self._settling(transaction, "ack") as held:
            if held is not None:
                self._judged(held, await self._clients.drive_async(self._group.ack(held.entry)))

    def nack(self, transaction: Transaction, exc: Exception) -> None:
        """The transaction failed for good: move its entry to the dead letters, with the reason."""
        with self._settling(transaction, "nack") as held:
            if held is not None:
                self._judged(held, self._clients.drive(self._set_aside(transaction, held, exc)))

    async def nack_async(self, transaction: Transaction, exc: Exception) -> None:
        """The async version of :meth:`nack`."""
        with self._settling(transaction, "nack") as held:
            if held is not None:
                steps = self._set_aside(transaction, held, exc)
                self._judged(held, await self._clients.drive_async(steps))

    def release(self, transaction: Transaction) -> None:
        """The transaction was not finished: any consumer of the group may have its entry now."""
        self._return("release", transaction, 0.0)

    async def release_async(self, transaction: Transaction) -> None:
        """The async version of :meth:`release`."""
        await self._return_async("release", transaction, 0.0)

    def release_after(self, transaction: Transaction, seconds: float) -> None:
        """A gate is closed: any consumer may have the entry in so many seconds."""
        self._return("release_after", transaction, seconds)

    async def release_after_async(self, transaction: Transaction, seconds: float) -> None:
        """The async version of :meth:`release_after`."""
        await self._return_async("release_after", transaction, seconds)

    def _return(self, verb: str, transaction: Transaction, seconds: float) -> None:
        with self._settling(transaction, verb) as held:
            if held is not None:
                self._judged(held, self._clients.drive(self._returned(held.entry, seconds)))

    async def _return_async(self, verb: str, transaction: Transaction, seconds: float) -> None:
        with self._settling(transaction, verb) as held:
            if held is not None:
                steps = self._returned(held.entry, seconds)
                self._judged(held, await self._clients.drive_async(steps))

    @contextmanager
    def _settling(self, transaction: Transaction, verb: str) -> Iterator[HeldEntry | None]:
        """The delivery to settle, or None when it was already settled with this verb."""
        self._refuse_when_closed()
        with settling(_Delivery, transaction, self, verb, RedisStreamsError) as delivery:
            if delivery is not None and delivery.held.is_lost:
                raise self._lost(delivery.held)
            yield None if delivery is None else delivery.held

    def _judged(self, held: HeldEntry, answer: int) -> None:
        self._in_hand.let_go(held)
        if answer != OURS:
            held.is_lost = True
            raise self._lost(held)

    def _lost(self, held: HeldEntry) -> DeliveryLostError:
        self.late += 1
        return DeliveryLostError(
            f"the entry {held.entry.decode()} of the stream {self._group.stream} is not this"
            " consumer's any more",
            remedy="nothing: another consumer has it, or its group or stream was deleted; a process"
            " that is often held up for so long needs a longer claim_idle",
        )

    def _set_aside(self, transaction: Transaction, held: HeldEntry, exc: Exception) -> Steps[int]:
        reason = with_reason({}, describe(exc))
        identity = encoded(transaction.transaction_id)
        return self._group.set_aside(held.entry, identity, reason)

    def _returned(self, entry: bytes, seconds: float, *, is_counted: bool = False) -> Steps[int]:
        """Let the server count the wait, or keep the entry ourselves while it is too long."""
        if seconds > self._group.claim_idle:
            answer = yield from self._group.set_idle(entry, 0, is_counted=is_counted)
            if answer == OURS:
                self._in_hand.park(entry, seconds)
            return answer
        left = round(seconds * 1000)
        idle = self._group.claim_ms - left if left > 0 else LONG_IDLE
        answer = yield from self._group.set_idle(entry, max(0, idle), is_counted=is_counted)
        if answer == OURS:
            self._in_hand.come_back(entry, seconds)
        return answer

    def _renew(self, entries: list[bytes]) -> Iterable[bytes]:
        return self._clients.drive(self._group.renew(entries))

    def _give_back(self, entry: bytes, seconds: float) -> None:
        # Its delivery was taken back from the count when it was parked.
        self._clients.drive(self._returned(entry, max(0.0, seconds), is_counted=True))

    # ---- dispatching ----------------------------------------------------------------------------

    def dispatch_transactions(self, transactions: Iterable[Transaction], **extra: Any) -> None:
        """Append all transactions to the stream, or none of them."""
        commands = self._commands(transactions, extra)
        if commands:
            self._clients.send_all(commands)

    async def dispatch_transactions_async(
        self, transactions: Iterable[Transaction], **extra: Any
    ) -> None:
        """The async version of :meth:`dispatch_transactions`."""
        commands = self._commands(transactions, extra)
        if commands:
            await self._clients.send_all_async(commands)

    def _commands(
        self, transactions: Iterable[Transaction], extra: dict[str, Any]
    ) -> list[Command]:
        refuse_extra(self, extra, "it takes no settings per call")
        self._refuse_when_closed()
        bound = () if self._max_length is None else ("MAXLEN", "~", self._max_length)
        messages = self._codec.encode_all(transactions)
        refuse_header(self._body_field.decode(), messages)
        return [("XADD", self._group.stream, *bound, "*", *self._fields(m)) for m in messages]

    def _fields(self, message: BrokerMessage) -> Iterator[Any]:
        yield from (self._body_field, message.body)
        for name, value in message.headers.items():
            yield from (name, value)

    # ---- for operators --------------------------------------------------------------------------

    def get_transactions_count(self) -> int:
        """How many entries wait for any consumer of the group. Entries in flight do not count."""
        return self._clients.drive(self._group.waiting())

    def fetch_transaction_by_id(self, transaction_id: str) -> Transaction | None:
        """The first transaction with this id in the stream, settled or not. It claims nothing.

        An entry's own id is looked up. Any other id is searched from the beginning.
        """
        return self._clients.drive(self._found(transaction_id))

    def _found(self, transaction_id: str) -> Steps[Transaction | None]:
        own, _, entry = transaction_id.rpartition(":")
        if own == self._group.stream and entry.replace("-", "").isdigit():
            found = yield from self._group.get(entry)
            return self._first_of(found, transaction_id)
        after = ""
        while entries := (yield from self._group.scan(after)):
            transaction = self._first_of(entries, transaction_id)
            if transaction is not None:
                return transaction
            after = entries[-1][0].decode()
        return None

    def _first_of(self, entries: list[Entry], transaction_id: str) -> Transaction | None:
        for entry, fields in entries:
            try:
                made = self._opened(Transaction, entry, fields)
            except MalformedMessageError:
                continue
            if made.transaction_id == transaction_id:
                return made
        return None

    def observe(self) -> Iterator[Observation]:
        """What ``ergon doctor`` says of the server, the stream and the group."""
        return iter(self._clients.drive(observations(self._clients.name, self._group)))

    def health(self) -> bool:
        """Whether it can be used: open, and its server was there when it was last asked."""
        return self._clients.is_healthy

    def close(self) -> None:
        """Give back what is in flight, leave the group, and close the connection."""
        threads = self._clients.threads
        if not threads.state.is_closed:
            self._in_hand.close()
            if threads.is_connected or self._clients.tasks.is_connected:
                self._leave()
        self._clients.tasks.abandon()
        threads.close()

    async def aclose(self) -> None:
        """The async version of :meth:`close`."""
        await super().aclose()
        await self._clients.tasks.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _leave(self) -> None:
        try:
            held, parked = self._in_hand.kept()
            held += self._in_hand.take_handed_back()
            self._clients.drive(self._group.leave(held, parked))
        except (ConnectorError, ConfigurationError) as error:
            # What was in hand comes back by itself, a little later.
            logger.info("the consumer could not leave its group: %s", describe(error))

    def _check_fetch(self, batch_size: int, extra: dict[str, Any]) -> None:
        refuse_extra(self, extra, "it takes no settings per call")
        check_batch_size(batch_size)
        self._refuse_when_closed()

    def _refuse_when_closed(self) -> None:
        if self._clients.threads.state.is_closed:
            raise closed(self._clients.name)


_TRACE = frozenset({"traceparent", "tracestate"})


def _consumer() -> str:
    """A name that no other consumer has, because a server returns to each name what
    that name left.
    """
    return f"{socket.gethostname()}-{os.getpid()}-{new_id()[:8]}"
