"""MQTT 5: a durable session with QoS 1; each message is acknowledged by itself.

The broker holds the messages before the clock runs: the session was there when they were published.
It sends a hundred ahead. We and the bare client ask for that; FastStream's client miscounts then
and ends the connection, so for it the broker has the same bound in its settings.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from comparison import ContestantError, Record, RunOptions, Turn

from connector_parts import turns
from connector_parts.brokers import broker
from connector_parts.turns import BARE, BODY, FASTSTREAM, PREFETCH, Countdown, Entrant, Heat
from ergon_framework.connector.mqtt import MqttConnector

RATE = 3000
"""Messages of a turn, for each second that it should take."""
EXPIRY = 3600
_NUMBERS = itertools.count()


def mqtt(options: RunOptions) -> Iterator[Record]:
    """With asyncio and with threads; the bare client has threads only."""
    with broker("mosquitto") as server:
        count = round(RATE * options.seconds)
        yield from turns.run_heats(heats(server.url("")), options.rounds, count)


def heats(url: str) -> list[Heat]:
    """The contestants on the broker there; the URL ends with a slash."""
    ours = Entrant("ergon", lambda count: turns.ours_async(count, _connector(url, count)))
    bare = Entrant("paho-mqtt", lambda count: _bare(url, count), BARE)
    peer = Entrant("faststream", lambda count: _faststream(url, count), FASTSTREAM)
    threads = Entrant("ergon threads", lambda count: turns.ours(count, _connector(url, count)))
    return [Heat("mqtt", ours, [bare, peer]), Heat("mqtt-threads", threads, [bare])]


def filled(url: str, count: int) -> str:
    """A topic with so many messages for the session of the same name."""
    name = f"race-{next(_NUMBERS)}"
    with _connected(url, name) as client:
        _subscribe(client, name)
    with _connected(url, "") as client:
        sent = [client.publish(name, BODY, qos=1) for _ in range(count)]
        for each in sent:
            each.wait_for_publish(turns.LONGEST)
    return name


@contextmanager
def _connected(url: str, session: str) -> Iterator[Any]:
    client, answered = _client(session), threading.Event()
    client.max_inflight_messages_set(1000)
    client.on_connect = lambda *_: answered.set()
    client.connect(*_address(url), clean_start=not session, properties=_properties())
    client.loop_start()
    if not answered.wait(turns.LONGEST):
        raise ContestantError("the broker does not answer")
    yield client
    client.disconnect()
    client.loop_stop()


def _subscribe(client: Any, topic: str) -> None:
    answered = threading.Event()
    client.on_subscribe = lambda *_: answered.set()
    client.subscribe(topic, qos=1)
    if not answered.wait(turns.LONGEST):
        raise ContestantError("the broker does not answer")


def _client(session: str) -> Any:
    from paho.mqtt import client as library

    version = library.CallbackAPIVersion.VERSION2
    return library.Client(version, session, protocol=library.MQTTv5, manual_ack=True)


def _properties() -> Any:
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    made = Properties(PacketTypes.CONNECT)
    made.ReceiveMaximum, made.SessionExpiryInterval = PREFETCH, EXPIRY
    return made


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return str(parts.hostname), int(parts.port or 1883)


def _connector(url: str, count: int) -> Any:
    name = filled(url, count)
    return lambda: MqttConnector(f"{url}{name}", client_id=name, max_in_flight=PREFETCH)


def _bare(url: str, count: int) -> Turn:
    countdown, name = Countdown(count), filled(url, count)

    def consume() -> None:
        client = _client(name)

        def on_message(_client: Any, _data: Any, message: Any) -> None:
            is_last = countdown.handle(json.loads(message.payload))
            client.ack(message.mid, message.qos)
            if is_last:
                client.disconnect()

        client.on_message = on_message
        client.connect(*_address(url), clean_start=False, properties=_properties())
        client.loop_forever()

    return countdown.timed(consume)


def _faststream(url: str, count: int) -> Turn:
    library, name = turns.imported("faststream.mqtt"), filled(url, count)

    def declare(handle: Any, end: Any) -> Any:
        made = library.MQTTBroker(
            url,
            client_id=name,
            clean_session=False,
            session_expiry_interval=EXPIRY,
            logger=None,
            apply_types=False,
        )

        @made.subscriber(name, qos=1, ack_policy=turns.imported("faststream").AckPolicy.ACK)
        async def orders(body: Any) -> None:
            if handle(body):
                end()

        return made

    return turns.faststream(count, declare)
