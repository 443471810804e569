"""A connection to an MQTT broker: paho's client, which has a thread of its own.

Callbacks run in that thread. They only put down what has come; nothing of a caller's runs there.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import ssl
import threading
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ergon_framework.connector.base import Delivered
from ergon_framework.connector.broker.message import CONTENT_TYPE
from ergon_framework.connector.broker.url import BrokerUrl, import_client
from ergon_framework.connector.broker.wakeup import Wakeup
from ergon_framework.connector.mqtt.publication import MqttPublication
from ergon_framework.core.broker_reconnect import SETTLED
from ergon_framework.engine.clocks import SYSTEM_CLOCK, current_clock
from ergon_framework.errors import ChannelLostError, ConfigurationError, ConnectorError
from ergon_framework.storage import connection_errors

logger = logging.getLogger("ergon.connector")

ANSWER_TIMEOUT = 30.0
"""Seconds that the broker has for an answer."""
TLS_OPTIONS = connection_errors.Options("ca=FILE", "cert=FILE and key=FILE", "mqtt://")
HELD_BACK = 1.0
"""Seconds for which nothing is read when too many messages with QoS 0 wait here."""
NOBODY = 0x10
"""The reason code of a message for which there is no subscription."""
FAILED = 0x80
_REMEDIES = {
    0x87: "let the broker's access list allow the user to write to that topic",
    0x90: "give a topic that the broker accepts",
    0x97: "raise the quota that the broker has for the user, or publish less",
    0x99: "publish what the broker accepts as a payload there",
}
"""What to do about the reason code of a message that the broker refused."""
TAKEN_OVER = 0x8E
_REFUSALS = frozenset({0x84, 0x85, 0x86, 0x87, 0x8A, 0x8C})
"""Protocol version, client id, user or password, not authorised, banned, authentication method."""


class MqttConnectorError(ConnectorError):
    """The connector refuses what it was asked to do."""

    code = "mqtt_connector"


class NobodySubscribedError(MqttConnectorError):
    """A message was published that no session would ever receive."""

    code = "mqtt_nobody_subscribed"


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How to connect. Without a client id, the session ends with its connection."""

    url: BrokerUrl
    tls: ssl.SSLContext | None
    keepalive: int
    client_id: str | None = None
    session_expiry: int = 0
    receive_maximum: int = 100


@dataclass(slots=True, eq=False)
class Arrived:
    """One message that a session has received, until it is acknowledged there."""

    body: bytes
    headers: Mapping[str, str]
    correlation: bytes | None
    topic: str
    is_retained: bool
    mid: int
    qos: int
    session: MqttSession
    place: int = 0
    """Its place in the order of acknowledgements."""
    number: int = 0
    """Its number among all messages of its session."""

    @property
    def own_id(self) -> str:
        """The id of a message that has none, for as long as this process has it."""
        return f"{self.session.identity}-{self.number}"


class ArrivalOrder:
    """Which messages are acknowledged when: in the order they came in, as MQTT 5 wants it.

    One that is settled waits for those that came before it. When more than ``most`` wait, the
    oldest that is not settled is overtaken: it may be parked for hours, and a broker that has as
    many unacknowledged messages out as it may sends no others. Any thread may call.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._unsettled: dict[int, Arrived] = {}
        self._waiting: dict[int, Arrived] = {}
        self._places = itertools.count()

    def add(self, arrived: Arrived) -> None:
        """Add a message that has arrived."""
        with self._lock:
            arrived.place = next(self._places)
            self._unsettled[arrived.place] = arrived

    def settle(self, arrived: Arrived) -> list[Arrived]:
        """Mark a message as settled. Returns the messages to acknowledge now, in order."""
        with self._lock:
            is_oldest = next(iter(self._unsettled), None) == arrived.place
            del self._unsettled[arrived.place]
            if is_oldest and not self._waiting:
                return [arrived]
            self._waiting[arrived.place] = arrived
            if len(self._waiting) > self._most:
                return self._released(math.inf)
            return self._released(next(iter(self._unsettled), math.inf))

    def settled(self) -> list[Arrived]:
        """Those that wait, in their order, when nothing else can be waited for."""
        with self._lock:
            return self._released(math.inf)

    def _released(self, before: float) -> list[Arrived]:
        found = sorted(place for place in self._waiting if place < before)
        return [self._waiting.pop(place) for place in found]


class MqttDelivery(Delivered):
    """A delivered transaction with its message."""

    __slots__ = ("arrived",)

    arrived: Arrived

    @property
    def topic(self) -> str:
        """The topic it was published to; the subscription may have had wildcards."""
        return self.arrived.topic


class MqttSession:
    """One connection. Any thread may call."""

    def __init__(self, options: SessionOptions, wakeup: Wakeup) -> None:
        self._options = options
        self._wakeup = wakeup
        self.identity = str(uuid.uuid4())
        """A random identity that no other session has."""
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()  # nothing of the client's is called under it
        self._waiting: dict[tuple[str, int], Future[int]] = {}
        self._early: dict[tuple[str, int], int] = {}  # answers that came before they were asked for
        self._buffer: deque[Arrived] = deque()
        self._acknowledging = threading.Lock()
        self._order = ArrivalOrder(options.receive_maximum // 2)
        self._connected: Future[int] = Future()
        self._client: Any = None
        self._opened_at: float | None = None
        self._room = threading.Condition(self._lock)
        self.discarded = 0
        """How many messages with QoS 0 were dropped, because too many waited here."""
        self._is_closing = False
        self.was_refused = False
        """Whether the broker has refused a message that was published through it."""
        self.error: Exception | None = None

    # ---- opening and closing ----

    def open(self, host: str, port: int) -> None:
        """Connect. On an error nothing of the session is left."""
        failure: Exception | None = None
        try:
            self._connect(host, port)
        except Exception as error:
            failure = self._refused(error) or error
        except BaseException:
            self.close()
            raise
        if failure is not None:
            self.close()
            raise failure  # by itself: what caused it would keep the client's socket
        self._opened_at = SYSTEM_CLOCK.now()

    @property
    def is_open(self) -> bool:
        """Whether messages can still be acknowledged."""
        return self.error is None and not self._is_closing

    def close(self) -> None:
        """Disconnect. The broker keeps the session and its unacknowledged messages."""
        self._is_closing = True
        with self._lock:
            self._room.notify_all()
        if self._client is not None:
            with suppress(Exception):
                if self.error is None:
                    with self._acknowledging:
                        for each in self._order.settled():
                            self._client.ack(each.mid, each.qos)
                self._client.disconnect()
                self._client.loop_stop()
            _close_sockets(self._client)
        self._wakeup.notify()

    def _connect(self, host: str, port: int) -> None:
        mqtt = import_client("paho.mqtt.client", extra="mqtt", connector="mqtt")
        properties = self._properties("CONNECT")
        properties.ReceiveMaximum = self._options.receive_maximum
        properties.SessionExpiryInterval = self._options.session_expiry
        made = mqtt.Client(
            mqtt.CallbackAPIVersion.VERSION2,
            client_id=self._options.client_id or "",
            protocol=mqtt.MQTTv5,
            manual_ack=True,
            reconnect_on_failure=False,  # when to try again is decided elsewhere
        )
        made.on_connect = self._on_connect
        made.on_disconnect = self._on_disconnect
        made.on_message = self._on_message
        made.on_subscribe = self._on_subscribe
        made.on_publish = self._on_publish
        url = self._options.url
        if url.user is not None:
            made.username_pw_set(url.user, url.password)
        if self._options.tls is not None:
            made.tls_set_context(self._options.tls)
        try:
            made.connect(
                host,
                port,
                keepalive=self._options.keepalive,
                clean_start=self._options.client_id is None,
                properties=properties,
            )
        except BaseException:
            _close_sockets(made)
            raise
        self._client = made
        made.loop_start()
        try:
            code = self._connected.result(ANSWER_TIMEOUT)
        except TimeoutError:
            raise ConnectionError("the broker does not answer") from None
        if code in _REFUSALS:
            raise ConfigurationError(
                f"{url.name} refuses the login (reason code {code:#x})",
                remedy="fix user, password or client_id",
            )
        if code >= FAILED:
            raise ConnectionError(f"the broker refuses the connection (reason code {code:#x})")

    def _refused(self, error: Exception) -> ConfigurationError | None:
        if isinstance(error, ConfigurationError):
            return error
        return connection_errors.refused(self._options.url.name, repr(error), TLS_OPTIONS)

    # ---- consuming ----

    def subscribe(self, subscription: str, *, wants_retained: bool) -> None:
        """Subscribe with QoS 1; a session that has the subscription gets no retained messages."""
        mqtt = import_client("paho.mqtt.client", extra="mqtt", connector="mqtt")
        handling = 1 if wants_retained else 2
        options = mqtt.SubscribeOptions(qos=1, retainAsPublished=True, retainHandling=handling)
        _, mid = self._client.subscribe(subscription, options=options)
        try:
            code = self._answer("subscribe", mid).result(ANSWER_TIMEOUT)
        except TimeoutError:
            raise ConnectionError("the broker does not answer") from None
        if code >= FAILED:
            raise ConfigurationError(
                f"{self._options.url.name} refuses the subscription (reason code {code:#x})",
                remedy="fix the topic, or what the broker allows the user",
            )

    def pop(self, batch_size: int) -> list[Arrived]:
        """Take messages that have arrived, in order, at most so many."""
        with self._lock:
            self._room.notify_all()
            return [self._buffer.popleft() for _ in range(min(batch_size, len(self._buffer)))]

    def put_back(self, arrived: Sequence[Arrived]) -> None:
        """Deliver these messages first."""
        with self._lock:
            self._buffer.extendleft(reversed(arrived))
        self._wakeup.notify()

    def is_due(self) -> bool:
        """Whether a waiting fetch should return."""
        return bool(self._buffer) or not self.is_open

    @property
    def buffered(self) -> int:
        """How many messages have arrived and were not fetched."""
        return len(self._buffer)

    def ack(self, arrived: Arrived) -> None:
        """Acknowledge the message."""
        if not self.is_open:
            raise ChannelLostError(
                f"the connection to {self._options.url.name} that brought this message is closed",
                remedy="nothing: the broker delivers it again to this session",
            )
        if not arrived.qos:
            return
        with self._acknowledging:  # two threads must not overtake each other on the way out
            for each in self._order.settle(arrived):
                self._client.ack(each.mid, each.qos)

    # ---- publishing ----

    def publish(self, publication: MqttPublication) -> Future[int]:
        """Publish; the future has the reason code of the broker's acknowledgement."""
        if self.error is not None:
            raise self.error
        properties = self._properties("PUBLISH")
        headers = dict(publication.headers)
        content_type = headers.pop(CONTENT_TYPE, None)
        if content_type:
            properties.ContentType = content_type
        if publication.correlation:
            properties.CorrelationData = publication.correlation.encode()
        if publication.expiry is not None:
            properties.MessageExpiryInterval = publication.expiry
        for pair in headers.items():
            properties.UserProperty = pair  # which adds one
        sent = self._client.publish(
            publication.topic,
            publication.body,
            qos=1,
            retain=publication.retain,
            properties=properties,
        )
        return self._answer("publish", sent.mid)

    def check(self, publication: MqttPublication, code: int) -> None:
        """Raise the error of a reason code."""
        name, topic = self._options.url.name, publication.topic
        if code == NOBODY and not publication.retain:
            raise NobodySubscribedError(
                f"{name} has no subscription for {topic!r}: the message is gone",
                remedy="let its consumer connect once first: its session is kept; or retain=true",
            )
        if code >= FAILED:
            raise MqttConnectorError(
                f"{name} refuses a message for {topic!r} (reason code {code:#x})",
                remedy=_REMEDIES.get(code, "see in the log of the broker why it refuses that"),
            )

    def _properties(self, kind: str) -> Any:
        packets = import_client("paho.mqtt.packettypes", extra="mqtt", connector="mqtt")
        properties = import_client("paho.mqtt.properties", extra="mqtt", connector="mqtt")
        return properties.Properties(getattr(packets.PacketTypes, kind))

    # ---- answers, in the thread of the client ----

    def _answer(self, kind: str, mid: int) -> Future[int]:
        future: Future[int] = Future()
        with self._lock:
            early = self._early.pop((kind, mid), None)
            if early is None and self.error is None:
                self._waiting[kind, mid] = future
        if early is not None:
            future.set_result(early)
        elif self.error is not None and not future.done():
            future.set_exception(self.error)
        return future

    def _answered(self, kind: str, mid: int, code: int) -> None:
        with self._lock:
            future = self._waiting.pop((kind, mid), None)
            if future is None:
                self._early[kind, mid] = code
        if future is not None and not future.done():
            future.set_result(code)

    def _on_connect(self, _client: Any, _data: Any, _flags: Any, code: Any, _more: Any) -> None:
        if not self._connected.done():
            self._connected.set_result(code.value)

    def _on_subscribe(self, _client: Any, _data: Any, mid: int, codes: Any, _more: Any) -> None:
        self._answered("subscribe", mid, max(each.value for each in codes))

    def _on_publish(self, _client: Any, _data: Any, mid: int, code: Any, _more: Any) -> None:
        self._answered("publish", mid, code.value)

    def _on_disconnect(self, _client: Any, _data: Any, _flags: Any, code: Any, _more: Any) -> None:
        error: Exception = ConnectionError(
            f"the connection was lost ({code}){self._guess_takeover()}"
        )
        if code.value == TAKEN_OVER:
            error = ConfigurationError(
                f"another connection to {self._options.url.name} has taken over the session"
                f" {self._options.client_id!r}",
                remedy="give each process a client_id of its own; group= lets them share the work",
            )
        with self._lock:
            self.error = error
            waiting, self._waiting = list(self._waiting.values()), {}
            self._buffer.clear()
        for future in [self._connected, *waiting]:
            if not future.done():
                future.set_exception(error)
        self._wakeup.notify()

    def _guess_takeover(self) -> str:
        """Some brokers close the connection of a session that is taken over, and say nothing."""
        name, opened_at = self._options.client_id, self._opened_at
        if name is None or opened_at is None or SYSTEM_CLOCK.now() - opened_at >= SETTLED:
            return ""
        return f"; if this goes on, see that no other process has the client_id {name!r}"

    def _on_message(self, _client: Any, _data: Any, message: Any) -> None:
        properties = message.properties
        headers = dict(getattr(properties, "UserProperty", None) or [])
        content_type = getattr(properties, "ContentType", None)
        if content_type:
            headers.setdefault(CONTENT_TYPE, content_type)
        arrived = Arrived(
            message.payload,
            headers,
            getattr(properties, "CorrelationData", None),
            message.topic,
            message.retain,
            message.mid,
            message.qos,
            self,
            number=next(self._numbers),
        )
        if arrived.qos:
            self._order.add(arrived)
        elif not self._has_room():
            return
        with self._lock:
            is_first = not self._buffer
            self._buffer.append(arrived)
        if is_first:
            self._wakeup.notify()

    def _has_room(self) -> bool:
        """Whether a message with QoS 0 is let in: the broker sends as many as it likes.

        While too many wait nothing is read, so that the broker holds them back. After a moment one
        is let go of: the broker must hear of acknowledgements, and that we are alive.
        """
        with self._room:
            self._room.wait_for(self._may_enter, HELD_BACK)
            if self._may_enter():
                return not self._is_closing
            self.discarded += 1
        if self.discarded & (self.discarded - 1) == 0:  # the first, then when it has doubled
            logger.warning(
                "%s: %d messages with QoS 0 were let go of, because %d wait here already; publish"
                " with QoS 1, or handle them faster",
                self._options.url.name,
                self.discarded,
                self._options.receive_maximum,
            )
        return False

    def _may_enter(self) -> bool:
        return self._is_closing or len(self._buffer) < self._options.receive_maximum


def _close_sockets(client: Any) -> None:
    """Close the pair by which paho wakes its thread: nothing public does without a connection."""
    with suppress(Exception):
        client._reset_sockets()  # noqa: SLF001


def waited(future: Future[int]) -> int:
    """Wait for the reason code in a thread."""
    try:
        return future.result(ANSWER_TIMEOUT)
    except TimeoutError:
        raise ConnectionError("the broker does not answer") from None


async def waited_async(futures: Sequence[Future[int]]) -> list[int]:
    """Await the reason codes in an event loop."""
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT):
            return await asyncio.gather(*map(asyncio.wrap_future, futures))
    except TimeoutError:
        raise ConnectionError("the broker does not answer") from None


def deadline(seconds: float) -> float:
    """The instant so many seconds from now, by the clock of this context."""
    return current_clock().now() + seconds
