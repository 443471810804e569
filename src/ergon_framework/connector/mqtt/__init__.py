"""MQTT 5 as a connector, for threads and for asyncio.

Where to look first: ``connector`` has the methods that engines call. ``session`` speaks with the
broker through paho-mqtt, because that client lets the application say when a message is
acknowledged; its thread serves other threads and event loops alike.
"""

from __future__ import annotations

from ergon_framework.connector.mqtt.connector import MqttConnector
from ergon_framework.connector.mqtt.session import MqttConnectorError, NobodySubscribedError

__all__ = ["MqttConnector", "MqttConnectorError", "NobodySubscribedError"]
