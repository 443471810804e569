"""A connection for one event loop: aio-pika's, with one channel.

Everything here runs on the loop, so nothing needs a lock. Only ``is_open`` and ``wake`` are for
other threads.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ergon_framework.connector.broker.wakeup import Wakeup
from ergon_framework.connector.rabbitmq.acknowledgements import Acknowledgements
from ergon_framework.connector.rabbitmq.errors import (
    NOT_OURS,
    channel_lost,
    made_before_fork,
    no_answer,
    not_taken,
    queue_deleted,
    reply_code,
    takes_nothing,
    unroutable,
)
from ergon_framework.connector.rabbitmq.messages import PROPERTIES, Outgoing, Received
from ergon_framework.connector.rabbitmq.prefetch import PrefetchWindow
from ergon_framework.connector.rabbitmq.threads import ANSWER_TIMEOUT, CLOSE_TIMEOUT
from ergon_framework.connector.rabbitmq.topology import QueuePlan
from ergon_framework.engine.atfork import renew_after_fork

if TYPE_CHECKING:
    import aio_pika

logger = logging.getLogger("ergon.connector")

_NAMES = {"type": "message_type"}
"""Properties for which the client has another name than AMQP."""

_TIMESTAMP_BYTES = 8
Connect = Callable[[], "Awaitable[aio_pika.abc.AbstractConnection]"]
_Decode = Callable[[bytes], tuple[int, Any]]


class LenientTimestamps:
    """Decodes a timestamp as the client library does, and one that it cannot keep as None.

    AMQP has 64 bits of seconds for them, and the decoder that aio-pika uses makes a datetime of
    each. Where no calendar has it, that raises, which ends the connection. The broker then delivers
    the same message on the next one: a single message of another program would stop a queue for
    good.
    """

    def __init__(self, decode: _Decode) -> None:
        self._decode = decode
        self._left_out = 0

    def __call__(self, value: bytes) -> tuple[int, Any]:
        """How many bytes were read, and the value."""
        try:
            return self._decode(value)
        except (ValueError, OverflowError, OSError):
            if len(value) < _TIMESTAMP_BYTES:
                raise
        self._left_out += 1
        if self._left_out & (self._left_out - 1) == 0:  # the first, then when it has doubled
            logger.warning(
                "messages from RabbitMQ without their timestamp, which no calendar has: %d so far",
                self._left_out,
            )
        return _TIMESTAMP_BYTES, None


def accept_bad_timestamps() -> None:
    """Make the decoder of this process leave out timestamps that it cannot decode.

    The decoder has a table of types and no setting. Nothing changes for timestamps that it can
    decode, also for its other users in this process.
    """
    from pamqp import decode

    for table, kind in ((decode.METHODS, "timestamp"), (decode.TABLE_MAPPING, b"T")):
        given: Any = table
        if not isinstance(given[kind], LenientTimestamps):
            given[kind] = LenientTimestamps(given[kind])


class _AioConnection:
    """What consuming and publishing connections have in common."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._loop = asyncio.get_running_loop()
        self._connection: Any = None
        self._is_open = True
        self.error: Exception = ConnectionError("the connection was closed")
        renew_after_fork(self)

    def renew(self) -> None:
        """In a forked child: the connection is the parent's."""
        self._is_open, self.error = False, made_before_fork(self.name)

    @property
    def is_open(self) -> bool:
        """Whether it can be used."""
        return self._is_open

    async def _open_channel(self, connect: Connect, *, confirms: bool) -> Any:
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT):
                self._connection = await connect()
                channel = await self._connection.channel(
                    publisher_confirms=confirms, on_return_raises=confirms
                )
        except TimeoutError:
            raise no_answer(self.name) from None
        channel.close_callbacks.add(self._closed)
        return channel

    async def ensure(self, plan: QueuePlan, *, may_declare: bool) -> int:
        """Declare a queue. Returns how many messages wait in it."""
        about = {"durable": True, "arguments": dict(plan.arguments)}
        if may_declare:
            try:
                return await self._declare(plan.name, about)
            except Exception as error:
                if reply_code(error) not in NOT_OURS:
                    raise
        return await self._declare(plan.name, {"passive": True})

    async def _declare(self, queue: str, about: Mapping[str, Any]) -> int:
        # A channel for one question: a refusal closes the channel that was asked through.
        async with self._connection.channel() as channel:
            found = await channel.declare_queue(queue, **about)
        return int(found.declaration_result.message_count)

    async def close(self) -> None:
        """Disconnect. The broker delivers unsettled messages to other consumers."""
        self._is_open = False
        if self._connection is None:
            return
        try:
            with suppress(Exception):
                async with asyncio.timeout(CLOSE_TIMEOUT):
                    await self._finish()
        finally:
            # It has a bound of its own: otherwise a broker that takes no acknowledgements would
            # keep the connection open, and with it every message that it has delivered there.
            with suppress(Exception):
                async with asyncio.timeout(CLOSE_TIMEOUT):
                    await self._connection.close()

    async def _finish(self) -> None:
        """Send what must be sent before the connection closes."""

    def _closed(self, _channel: object, error: BaseException | None) -> None:
        if self._is_open:
            self._is_open = False
            if isinstance(error, Exception):
                self.error = error
            self._gone()

    def _gone(self) -> None:
        """Handle the end of the channel."""


class AioConsumer(_AioConnection):
    """A connection for consuming."""

    def __init__(self, name: str, queue: str, window: PrefetchWindow, wakeup: Wakeup) -> None:
        super().__init__(name)
        self._queue = queue
        self._window = window
        self._wakeup = wakeup
        self._buffer: deque[Received] = deque()
        self._subscriptions: list[str] = []
        self._turn = asyncio.Lock()
        self._asking: set[asyncio.Future[None]] = set()
        self._acknowledgements = Acknowledgements()
        self._acknowledging: asyncio.Task[None] | None = None

    async def open(
        self, connect: Connect, plans: Sequence[QueuePlan], *, may_declare: bool
    ) -> None:
        """Connect, and declare the queues."""
        accept_bad_timestamps()
        try:
            self._channel = await self._open_channel(connect, confirms=False)
            for plan in plans:
                await self.ensure(plan, may_declare=may_declare)
            self._wire = await self._channel.get_underlay_channel()
            self._wire.on_consumer_cancel_callbacks.add(self._cancelled)
        except BaseException:
            await self.close()
            raise

    # ---- fetching ----

    async def take(
        self, batch_size: int, until: float, full_until: float, *, may_ask: bool = True
    ) -> list[Received]:
        """Up to ``batch_size`` messages, as soon as there is one; none at ``until``, if none came.

        Before it returns none it asks the queue, because waiting messages may not have been sent
        yet. While there is no room for more it waits for a settlement instead, until
        ``full_until``.
        """
        while self.is_open and not self._wakeup.is_stopped:
            more = 0 if len(self._buffer) >= batch_size else self._window.more(batch_size)
            if more:
                await self._shielded(self._subscribe(more))
            was_full = self._window.is_full
            end = full_until if was_full else until
            await self._wait(end, was_full=was_full)
            is_over = self._loop.time() >= end
            if is_over and not was_full and may_ask and not self._buffer and self.is_open:
                await self._shielded(self._ask_queue())
            # Nothing is awaited from here on: a fetch that is cancelled has taken nothing.
            if self._buffer or is_over:
                taken = min(batch_size, len(self._buffer))
                return [self._buffer.popleft() for _ in range(taken)]
        return []

    def put_back(self, received: Sequence[Received]) -> None:
        """Deliver these messages first, because their deliveries were dropped."""
        self._buffer.extendleft(reversed(received))

    @property
    def buffered(self) -> int:
        """How many messages have arrived here and were not fetched."""
        return len(self._buffer)

    @property
    def is_full(self) -> bool:
        """Whether nothing more can arrive before a message is settled."""
        return self._window.is_full

    async def _wait(self, until: float, *, was_full: bool) -> None:
        def is_due() -> bool:
            is_freed = was_full and not self._window.is_full
            return bool(self._buffer) or is_freed or not self.is_open

        await self._wakeup.wait_async(until, is_due)

    async def _shielded(self, asking: Coroutine[Any, Any, None]) -> None:
        """Await a call that goes on when the caller is cancelled, because aio-pika would close the
        channel.

        The client library cancels what it is asked when the broker has been silent for too long.
        Nobody has cancelled the caller then: the connection is lost.
        """
        task = asyncio.ensure_future(asking)
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)
        await asyncio.wait([task])
        if task.cancelled():
            self._closed(self._channel, no_answer(self.name))
            raise no_answer(self.name)
        task.result()

    async def _subscribe(self, more: int) -> None:
        async with self._turn:
            await self._channel.set_qos(prefetch_count=more)
            begun = await self._wire.basic_consume(self._queue, self._delivered)
            self._subscriptions.append(begun.consumer_tag)

    async def _ask_queue(self) -> None:
        """Get the messages that wait in the queue, or are on their way here."""
        async with self._turn:
            found = await self._wire.basic_get(self._queue)
            # The broker's channel may hold deliveries that it was sent before that answer. It has
            # sent them on when it answers once more.
            await self._channel.set_qos(prefetch_count=1)
        if found.delivery_tag is not None:
            await self._delivered(found)

    async def _delivered(self, message: Any) -> None:
        given = message.header.properties
        kept = {name: getattr(given, _NAMES.get(name, name)) for name in PROPERTIES}
        if kept["timestamp"] is not None:
            kept["timestamp"] = int(kept["timestamp"].timestamp())
        received = Received(message.body, kept, given.headers or {}, message.delivery_tag, self)
        self._acknowledgements.arrived(received.tag)
        self._buffer.append(received)
        if len(self._buffer) == 1:
            self._wakeup.notify()
        if self._window.arrived(len(message.body)):
            tags, self._subscriptions = self._subscriptions, []
            for tag in tags:
                await self._wire.basic_cancel(tag)

    # ---- settling ----

    async def ack(self, received: Received) -> None:
        """Acknowledge the message, together with others of this turn of the event loop."""
        self._refuse_when_lost(received)
        self._acknowledgements.succeeded(received.tag)
        if self._acknowledging is None:
            self._acknowledging = self._loop.create_task(self._acknowledge())

    async def _finish(self) -> None:
        if self._acknowledging is not None:
            await self._acknowledging

    async def _acknowledge(self) -> None:
        """Write acknowledgements. One task at a time, so that no tag is written after one that
        covers it.
        """
        try:
            while tags := self._acknowledgements.take():
                for tag, is_for_all_before in tags:
                    await self._wire.basic_ack(tag, multiple=is_for_all_before, wait=False)
        except Exception as error:
            # The channel has ended: the broker delivers again what it was not told of.
            logger.debug("%s: acknowledgements were not sent: %r", self.name, error)
        finally:
            self._acknowledging = None

    async def requeue(self, received: Received) -> None:
        """Have the broker deliver the message again."""
        self._refuse_when_lost(received)
        await self._wire.basic_nack(received.tag, requeue=True, wait=False)
        self._acknowledgements.settled(received.tag)

    def _refuse_when_lost(self, received: Received) -> None:
        if not self.is_open or self._wire.is_closed:
            raise channel_lost(self.name)
        if self._window.settled(len(received.body)):
            self._wakeup.notify()

    def _cancelled(self, _frame: object) -> None:
        self._closed(self, queue_deleted(self._queue))

    def _gone(self) -> None:
        self._buffer.clear()
        self._wakeup.notify()


class AioPublisher(_AioConnection):
    """A connection for publishing, apart from those for consuming.

    A broker that is short of memory stops reading from publishers. Settlements, which free memory,
    must not wait behind that.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._known: set[str] = set()
        self._declaring = asyncio.Lock()
        self._turns: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    async def open(self, connect: Connect) -> None:
        """Connect, and ask for confirmations."""
        try:
            self._channel = await self._open_channel(connect, confirms=True)
        except BaseException:
            await self.close()
            raise

    async def publish(self, messages: Sequence[Outgoing], *, may_declare: bool) -> None:
        """Publish all transactions. When this returns, the broker has them on disk."""
        import aiormq

        try:
            async with asyncio.timeout(ANSWER_TIMEOUT):
                # Gathered also where it is one: what the client library cancels, because the broker
                # has been silent for too long, must not look like a cancellation of ours.
                ensuring = self._ensure_all(messages, may_declare=may_declare)
                (failure,) = await asyncio.gather(ensuring, return_exceptions=True)
                outcomes = [failure] * len(messages)
                if failure is None:
                    outcomes = await asyncio.gather(
                        *map(self._publish, messages), return_exceptions=True
                    )
        except TimeoutError:
            raise await self._silence() from None
        for message, outcome in zip(messages, outcomes, strict=True):
            if isinstance(outcome, asyncio.CancelledError):
                raise no_answer(self.name) from outcome
            if isinstance(outcome, aiormq.exceptions.PublishError):
                self._known.clear()  # a queue that was there may have been deleted
                raise unroutable(self.name, message.exchange, message.routing_key) from outcome
            if isinstance(outcome, aiormq.exceptions.DeliveryError):
                raise not_taken(self.name, message.routing_key) from outcome
            if isinstance(outcome, BaseException):
                raise outcome

    async def _silence(self) -> ConnectionError:
        """Why no answer came: either the broker has blocked the connection, or it does
        not answer.
        """
        try:
            async with asyncio.timeout(0):
                await self._connection.transport.ready()
        except TimeoutError:
            return takes_nothing(self.name)
        return no_answer(self.name)

    async def _ensure_all(self, messages: Sequence[Outgoing], *, may_declare: bool) -> None:
        async with self._declaring:  # a quorum queue refuses messages while it is declared again
            for plan in {each.queue.name: each.queue for each in messages if each.queue}.values():
                if plan.name not in self._known:
                    await self.ensure(plan, may_declare=may_declare)
                    self._known.add(plan.name)

    async def _publish(self, message: Outgoing) -> None:
        import aio_pika

        outgoing = aio_pika.Message(
            message.body, headers=dict(message.headers), delivery_mode=2, **message.properties
        )
        exchange = self._channel.default_exchange
        if message.exchange:
            exchange = await self._channel.get_exchange(message.exchange, ensure=False)
        # The client finds the publication of a message that came back by its id alone.
        turn = self._turns.setdefault(outgoing.message_id or "", asyncio.Lock())
        async with turn:
            await exchange.publish(outgoing, message.routing_key, mandatory=True)
