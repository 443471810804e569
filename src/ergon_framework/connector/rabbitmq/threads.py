"""A connection for threads: pika's, which a thread of its own runs.

pika may be used by one thread only. That thread runs pika's loop, so heartbeats are sent however
long handlers take. All others hand it callbacks: a settlement is put into a list and not waited
for, as AMQP does not answer it; everything else is waited for through a future.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
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
from ergon_framework.connector.rabbitmq.topology import QueuePlan
from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.engine.clocks import SYSTEM_CLOCK, current_clock

if TYPE_CHECKING:
    import pika

ANSWER_TIMEOUT = 30.0
"""Seconds that the broker has for an answer. After that its connection is given up."""
CLOSE_TIMEOUT = 5.0

Done = Callable[..., None]


class PikaConnection:
    """One connection and the thread that owns it. Any thread may call."""

    def __init__(
        self, parameters: pika.ConnectionParameters, name: str, ended: Callable[[Exception], None]
    ) -> None:
        self._parameters = parameters
        self.name = name
        self._tell = ended
        self.error: Exception | None = None
        self._waiting: dict[Future[Any], Any] = {}  # and the channel that each is asked through
        self._ended = threading.Event()
        self._is_closing = False
        self._blocked: Exception | None = None
        self._pika: Any = None
        renew_after_fork(self)

    def renew(self) -> None:
        """In a forked child: the thread that would send anything is the parent's."""
        self.error = self.error or made_before_fork(self.name)
        self._waiting = {}

    def open(self) -> None:
        """Connect. Errors are raised here."""
        opened: Future[Any] = Future()
        SYSTEM_CLOCK.spawn("ergon-rabbitmq", lambda: self._run(opened))
        try:
            self._pika = opened.result(ANSWER_TIMEOUT)
        except TimeoutError as error:
            raise no_answer(self.name) from error

    def close(self, last: Callable[[], None]) -> None:
        """Disconnect, after calling ``last`` in the owner's thread."""
        self._is_closing = True

        def leave() -> None:
            with suppress(Exception):
                last()
                self._pika.close()

        if self._pika is not None and not self._ended.is_set():
            self._pika.ioloop.add_callback_threadsafe(leave)
            self._ended.wait(CLOSE_TIMEOUT)

    @property
    def is_open(self) -> bool:
        """Whether it can be used."""
        return self.error is None and not self._is_closing

    def soon(self, callback: Callable[[], None]) -> None:
        """Have the owner's thread call a function."""
        self._pika.ioloop.add_callback_threadsafe(callback)

    def ask(self, begin: Callable[[Done], Any], channel: Any = None) -> Any:
        """Have the owner's thread start something, and wait until ``done`` was called with the
        answer.
        """
        future: Future[Any] = Future()

        def begin_in_its_thread() -> None:
            try:
                begin(lambda *answer: resolve(future, answer[0] if answer else None))
            except Exception as error:
                fail(future, error)

        self._waiting[future] = channel
        try:
            if self.error is not None:
                raise self.error
            self.soon(begin_in_its_thread)
            return future.result(ANSWER_TIMEOUT)
        except TimeoutError:
            raise self.gave_no_answer() from None
        finally:
            del self._waiting[future]

    def gave_no_answer(self) -> Exception:
        """Give the connection up. Returns the error that says why."""
        self.gone(no_answer(self.name))
        return self.error or no_answer(self.name)

    def channel(self, on_close: Callable[[Any, Exception], None]) -> Any:
        """A new channel."""

        def closed(channel: Any, error: Exception) -> None:
            for future, through in [*self._waiting.items()]:
                if through is channel:
                    fail(future, error)
            on_close(channel, error)

        def begin(done: Done) -> None:
            self._pika.channel(on_open_callback=done).add_on_close_callback(closed)

        return self.ask(begin)

    @contextmanager
    def side_channel(self) -> Iterator[Any]:
        """A channel for one request, because a refusal closes the channel of the request."""
        channel = self.channel(lambda _channel, _error: None)
        try:
            yield channel
        finally:
            self.soon(lambda: channel.close() if channel.is_open else None)

    def ensure(self, plan: QueuePlan, *, may_declare: bool) -> int:
        """Declare a queue. Returns how many messages wait in it."""
        if may_declare:
            try:
                return self.declare(plan)
            except Exception as error:
                if reply_code(error) not in NOT_OURS:
                    raise
        return self._declare(plan.name, {"passive": True})

    def declare(self, plan: QueuePlan) -> int:
        """Declare a queue. Refused if it exists with other arguments."""
        return self._declare(plan.name, {"durable": True, "arguments": dict(plan.arguments)})

    def _declare(self, queue: str, about: Mapping[str, Any]) -> int:
        with self.side_channel() as channel:
            answer = self.ask(
                lambda done: channel.queue_declare(queue, callback=done, **about), channel
            )
        return int(answer.method.message_count)

    def find_exchange(self, name: str) -> None:
        """Raise an error if there is no exchange of that name."""
        with self.side_channel() as channel:
            self.ask(
                lambda done: channel.exchange_declare(name, passive=True, callback=done), channel
            )

    def gone(self, error: Exception) -> None:
        """Handle the end of the connection, after which none of its messages can be settled."""
        if self.error is not None:
            return
        error = self.error = self._blocked or error
        for future in [*self._waiting]:
            fail(future, error)
        self._tell(error)
        with suppress(Exception):
            self.soon(lambda: self._pika.close() if self._pika.is_open else None)

    def _run(self, opened: Future[Any]) -> None:
        """The thread that owns the connection."""
        import pika

        def failed(made: Any, error: Any) -> None:
            fail(opened, error if isinstance(error, Exception) else ConnectionError(str(error)))
            made.ioloop.stop()

        def closed(made: Any, error: Exception) -> None:
            fail(opened, error)
            self.gone(error)
            made.ioloop.stop()

        def blocked(_made: Any, frame: Any) -> None:
            self._blocked = takes_nothing(self.name, frame.method.reason)

        def unblocked(_made: Any, _frame: Any) -> None:
            self._blocked = None

        # Who leaves a blocked connection is not answered. Without this bound each would stay open
        # as long as the alarm of the broker, with its thread.
        self._parameters.blocked_connection_timeout = ANSWER_TIMEOUT
        try:
            made = pika.SelectConnection(
                self._parameters,
                on_open_callback=lambda connection: resolve(opened, connection),
                on_open_error_callback=failed,
                on_close_callback=closed,
            )
            made.add_on_connection_blocked_callback(blocked)
            made.add_on_connection_unblocked_callback(unblocked)
            made.ioloop.start()
            made.ioloop.close()
        except Exception as error:  # nobody must wait for a thread that has ended
            fail(opened, error)
            self.gone(error)
        finally:
            self._ended.set()


class PikaConsumer:
    """A connection for consuming. One thread fetches, and any thread may settle."""

    def __init__(
        self, parameters: Any, name: str, queue: str, window: PrefetchWindow, wakeup: Wakeup
    ) -> None:
        self._queue = queue
        self._window = window
        self._wakeup = wakeup
        self._lock = threading.Lock()
        self._buffer: deque[Received] = deque()
        self._acknowledgements = Acknowledgements()
        self._requeued: list[int] = []
        self._has_settlements = False
        self._subscriptions: list[str] = []
        self._got: Done | None = None
        self._connection = PikaConnection(parameters, name, self._gone)

    def open(self, plans: Sequence[QueuePlan], *, may_declare: bool) -> None:
        """Connect, and declare the queues."""
        import pika

        try:
            self._connection.open()
            for plan in plans:
                self._connection.ensure(plan, may_declare=may_declare)
            self._channel = self._connection.channel(
                lambda _channel, error: self._connection.gone(error)
            )
            empty = [pika.spec.Basic.GetEmpty]
            self._channel.add_callback(lambda _: self._on_message(None), empty, one_shot=False)
            self._channel.add_on_cancel_callback(
                lambda _: self._connection.gone(queue_deleted(self._queue))
            )
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Send settlements and disconnect. The broker delivers the rest to other consumers."""
        self._connection.close(self._flush)
        self._wakeup.notify()

    @property
    def is_open(self) -> bool:
        """Whether deliveries can still be settled."""
        return self._connection.is_open

    @property
    def error(self) -> Exception:
        """Why the connection has ended."""
        return self._connection.error or ConnectionError("the connection was closed")

    # ---- fetching ----

    def take(
        self, batch_size: int, until: float, full_until: float, *, may_ask: bool = True
    ) -> list[Received]:
        """Up to ``batch_size`` messages, as soon as there is one; none at ``until``, if none came.

        Before it returns none it asks the queue, because waiting messages may not have been sent
        yet. While there is no room for more it waits for a settlement instead, until
        ``full_until``.
        """
        clock = current_clock()
        while self.is_open and not self._wakeup.is_stopped:
            self._subscribe(batch_size)
            was_full = self._window.is_full
            end = full_until if was_full else until
            self._wait(end, was_full=was_full)
            is_over = clock.now() >= end
            if is_over and not was_full and may_ask and not self._buffer and self.is_open:
                self._ask_queue()
            with self._lock:
                taken = [self._buffer.popleft() for _ in range(min(batch_size, len(self._buffer)))]
            if taken or is_over:
                return taken
        return []

    def put_back(self, received: Sequence[Received]) -> None:
        """Deliver these messages first, because their deliveries were dropped."""
        with self._lock:
            self._buffer.extendleft(reversed(received))

    @property
    def buffered(self) -> int:
        """How many messages have arrived here and were not fetched."""
        return len(self._buffer)

    @property
    def is_full(self) -> bool:
        """Whether nothing more can arrive before a message is settled."""
        return self._window.is_full

    def _wait(self, until: float, *, was_full: bool) -> None:
        def is_due() -> bool:
            is_freed = was_full and not self._window.is_full
            return bool(self._buffer) or is_freed or not self.is_open

        self._wakeup.wait(until, is_due)

    def _subscribe(self, batch_size: int) -> None:
        with self._lock:
            more = 0 if len(self._buffer) >= batch_size else self._window.more(batch_size)
        if not more:
            return
        channel = self._channel

        def begin(done: Done) -> None:
            tag = channel.basic_consume(self._queue, self._delivered, callback=done)
            self._subscriptions.append(tag)

        ask = self._connection.ask
        ask(lambda done: channel.basic_qos(prefetch_count=more, callback=done), channel)
        ask(begin, channel)

    def _ask_queue(self) -> None:
        """Get the messages that wait in the queue, or are on their way here."""
        channel = self._channel

        def begin(done: Done) -> None:
            self._got = done
            channel.basic_get(
                self._queue, lambda _, *message: self._on_message(self._received(*message))
            )

        found = self._connection.ask(begin, channel)
        # The broker's channel may hold deliveries that it was sent before that answer. It has sent
        # them on when it answers once more.
        self._connection.ask(
            lambda done: channel.basic_qos(prefetch_count=1, callback=done), channel
        )
        if found is not None:
            with self._lock:
                self._buffer.append(found)

    def _on_message(self, received: Received | None) -> None:
        got, self._got = self._got, None
        if got is not None:
            got(received)

    def _delivered(self, _channel: Any, method: Any, properties: Any, body: bytes) -> None:
        received = self._received(method, properties, body)
        with self._lock:
            is_first = not self._buffer
            self._buffer.append(received)
        if is_first:
            self._wakeup.notify()

    def _received(self, method: Any, properties: Any, body: bytes) -> Received:
        with self._lock:
            self._acknowledgements.arrived(method.delivery_tag)
            is_over = self._window.arrived(len(body))
        if is_over:
            for tag in self._subscriptions:
                self._channel.basic_cancel(tag)
            self._subscriptions.clear()
        kept = {name: getattr(properties, name) for name in PROPERTIES}
        return Received(body, kept, properties.headers or {}, method.delivery_tag, self)

    # ---- settling ----

    def ack(self, received: Received) -> None:
        """Acknowledge the message."""
        self._settle(received, is_done=True)

    def requeue(self, received: Received) -> None:
        """Have the broker deliver the message again."""
        self._settle(received, is_done=False)

    def _settle(self, received: Received, *, is_done: bool) -> None:
        if not self.is_open:
            raise channel_lost(self._connection.name)
        with self._lock:
            is_first = not self._has_settlements
            self._has_settlements = True
            if is_done:
                self._acknowledgements.succeeded(received.tag)
            else:
                self._requeued.append(received.tag)
            has_room = self._window.settled(len(received.body))
        if has_room:
            self._wakeup.notify()
        if is_first:  # otherwise the owner has been woken, and sends this one as well
            self._connection.soon(self._flush)

    def _flush(self) -> None:
        with self._lock:
            self._has_settlements = False
            requeued, self._requeued = self._requeued, []
            for tag in requeued:
                self._acknowledgements.settled(tag)
            succeeded = self._acknowledgements.take()
        for tag in requeued:  # first: an acknowledgement may stand for all before it
            self._channel.basic_nack(tag, requeue=True)
        for tag, is_for_all_before in succeeded:
            self._channel.basic_ack(tag, multiple=is_for_all_before)

    def _gone(self, _error: Exception) -> None:
        with self._lock:
            self._buffer.clear()
        self._wakeup.notify()


class _Publishing:
    """Messages that were handed over together. The future ends when all were confirmed."""

    def __init__(self, count: int) -> None:
        self.future: Future[None] = Future()
        self._left = count

    def confirmed(self) -> None:
        self._left -= 1
        if not self._left:
            resolve(self.future, None)


class PikaPublisher:
    """A connection for publishing, apart from those for consuming.

    A broker that is short of memory stops reading from publishers. Settlements, which free memory,
    must not wait behind that.
    """

    def __init__(self, parameters: Any, name: str) -> None:
        self._name = name
        self._published = 0
        self._unconfirmed: OrderedDict[int, tuple[_Publishing, Outgoing]] = OrderedDict()
        self._under_way: set[Future[None]] = set()
        self._known: set[str] = set()
        self._declaring = threading.Lock()
        self._connection = PikaConnection(parameters, name, self._gone)

    def open(self) -> None:
        """Connect, and ask for confirmations."""
        try:
            self._connection.open()
            self._channel = self._connection.channel(
                lambda _channel, error: self._connection.gone(error)
            )
            self._channel.add_on_return_callback(self._returned)
            self._connection.ask(
                lambda done: self._channel.confirm_delivery(self._confirmed, done), self._channel
            )
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Disconnect."""
        self._connection.close(lambda: None)

    @property
    def is_open(self) -> bool:
        """Whether it can be used."""
        return self._connection.is_open

    @property
    def error(self) -> Exception:
        """Why the connection has ended."""
        return self._connection.error or ConnectionError("the connection was closed")

    def ensure(self, plan: QueuePlan, *, may_declare: bool) -> int:
        """Declare a queue. Returns how many messages wait in it."""
        return self._connection.ensure(plan, may_declare=may_declare)

    def find_exchange(self, name: str) -> None:
        """Raise an error if there is no exchange of that name."""
        self._connection.find_exchange(name)

    def is_as_planned(self, plan: QueuePlan) -> bool:
        """Whether a queue has the arguments with which this connector would make it. It is made if
        it is missing.
        """
        try:
            self._connection.declare(plan)
        except Exception as error:
            if reply_code(error) in NOT_OURS:
                return False
            raise
        return True

    def publish(self, messages: Sequence[Outgoing], *, may_declare: bool) -> None:
        """Publish all transactions. When this returns, the broker has them on disk."""
        with self._declaring:  # a quorum queue refuses messages while it is declared once more
            for plan in {each.queue.name: each.queue for each in messages if each.queue}.values():
                if plan.name not in self._known:
                    self.ensure(plan, may_declare=may_declare)
                    self._known.add(plan.name)
        publishing = _Publishing(len(messages))
        self._under_way.add(publishing.future)
        try:
            if self._connection.error is not None:
                raise self._connection.error
            self._connection.soon(lambda: self._send(publishing, messages))
            publishing.future.result(ANSWER_TIMEOUT)
        except TimeoutError:
            raise self._connection.gave_no_answer() from None
        finally:
            self._under_way.discard(publishing.future)

    def _send(self, publishing: _Publishing, messages: Sequence[Outgoing]) -> None:
        import pika

        try:
            for each in messages:
                headers = dict(each.headers)
                properties = pika.BasicProperties(
                    **each.properties, headers=headers, delivery_mode=2
                )
                self._channel.basic_publish(
                    each.exchange, each.routing_key, each.body, properties, mandatory=True
                )
                self._published += 1
                self._unconfirmed[self._published] = (publishing, each)
        except Exception as error:
            fail(publishing.future, error)

    def _confirmed(self, frame: Any) -> None:
        answer = frame.method
        tags = [answer.delivery_tag]
        if answer.multiple:
            tags = [tag for tag in self._unconfirmed if tag <= answer.delivery_tag]
        for tag in tags:
            publishing, message = self._unconfirmed.pop(tag)
            if answer.NAME == "Basic.Nack":
                fail(publishing.future, not_taken(self._name, message.routing_key))
            publishing.confirmed()

    def _returned(self, _channel: Any, method: Any, _properties: Any, _body: bytes) -> None:
        # It is confirmed all the same. Others for the same place have none either.
        error = unroutable(self._name, method.exchange, method.routing_key)
        for publishing, message in self._unconfirmed.values():
            if (message.exchange, message.routing_key) == (method.exchange, method.routing_key):
                fail(publishing.future, error)
        self._known.clear()  # a queue that was there may have been deleted

    def _gone(self, error: Exception) -> None:
        for future in [*self._under_way]:
            fail(future, error)


def resolve(future: Future[Any], answer: Any) -> None:
    """Set the result of a future, unless it is done."""
    if not future.done():
        future.set_result(answer)


def fail(future: Future[Any], error: Exception) -> None:
    """Set the error of a future, unless it is done."""
    if not future.done():
        future.set_exception(error)
