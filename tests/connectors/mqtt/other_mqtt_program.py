"""A program that knows nothing of Ergon, and speaks with the broker through paho-mqtt."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from queue import Queue
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.servers.mosquitto import Mosquitto

PATIENCE = 30.0


def publish(
    server: Mosquitto,
    topic: str,
    body: bytes,
    headers: Mapping[str, str] | None = None,
    *,
    retain: bool = False,
) -> None:
    """Publish with QoS 1."""
    client = _connected(server, mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5))
    properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    for pair in (headers or {}).items():
        properties.UserProperty = pair
    client.publish(topic, body, 1, retain, properties).wait_for_publish(PATIENCE)
    _left(client)


def retained(server: Mosquitto, pattern: str) -> list[Any]:
    """The retained messages of topics, as the client has them."""
    client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
    return _collected(server, client, pattern)


def taken_over(server: Mosquitto, client_id: str) -> list[Any]:
    """What the broker keeps for a session."""
    client = mqtt.Client(
        CallbackAPIVersion.VERSION2, client_id, protocol=mqtt.MQTTv5, manual_ack=True
    )
    return _collected(server, client, None)


def _collected(server: Mosquitto, client: mqtt.Client, pattern: str | None) -> list[Any]:
    found: Queue[Any] = Queue()
    mark = f"marks/{uuid.uuid4()}"
    client.on_message = lambda _client, _data, message: found.put(message)
    _connected(server, client)
    if pattern is not None:
        client.subscribe(pattern, 1)
    client.subscribe(mark, 1)
    client.publish(mark, b"", 1)  # what was kept comes before it
    messages = []
    while (message := found.get(timeout=PATIENCE)).topic != mark:
        messages.append(message)
    client.unsubscribe(mark)
    _left(client)
    return messages


def headers_of(message: Any) -> dict[str, str]:
    """The user properties of a message."""
    return dict(getattr(message.properties, "UserProperty", []))


def _connected(server: Mosquitto, client: mqtt.Client) -> mqtt.Client:
    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    properties.SessionExpiryInterval = 3600
    client.connect("127.0.0.1", server.port, clean_start=False, properties=properties)
    client.loop_start()
    return client


def _left(client: mqtt.Client) -> None:
    client.disconnect()
    client.loop_stop()
