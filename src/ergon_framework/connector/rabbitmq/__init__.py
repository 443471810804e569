"""RabbitMQ as a connector, for threads and for asyncio.

Where to look first: ``connector`` has the methods that engines call. ``topology`` names the queues,
``messages`` knows what a message is, ``prefetch`` how many may come ahead. ``threads`` speaks with
the broker through pika, ``loops`` through aio-pika. ``options`` checks what was given, ``errors``
has the refusals.
"""

from __future__ import annotations

from ergon_framework.connector.rabbitmq.connector import RabbitConnector
from ergon_framework.connector.rabbitmq.errors import (
    NotTakenError,
    RabbitConnectorError,
    UnroutableError,
)

__all__ = ["NotTakenError", "RabbitConnector", "RabbitConnectorError", "UnroutableError"]
