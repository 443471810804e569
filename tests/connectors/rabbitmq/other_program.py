"""A program that knows nothing of Ergon, and speaks with the broker through pika."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pika

from tests.servers.rabbitmq import PASSWORD, USER, RabbitServer


@contextmanager
def channel(server: RabbitServer) -> Iterator[Any]:
    """A channel of a connection of its own."""
    given = pika.ConnectionParameters(
        "127.0.0.1", server.port, credentials=pika.PlainCredentials(USER, PASSWORD)
    )
    with closing(pika.BlockingConnection(given)) as connection:
        yield connection.channel()


def publish(server: RabbitServer, queue: str, body: bytes, **properties: Any) -> None:
    """Put a message into a queue, confirmed."""
    with channel(server) as through:
        through.confirm_delivery()
        through.basic_publish("", queue, body, pika.BasicProperties(**properties), mandatory=True)


def messages(server: RabbitServer, queue: str) -> list[tuple[Any, bytes]]:
    """The properties and bodies of what waits in a queue; they are taken out of it."""
    found: list[tuple[Any, bytes]] = []
    with channel(server) as through:
        while True:
            method, properties, body = through.basic_get(queue, auto_ack=True)
            if method is None:
                return found
            found.append((properties, body))
