"""A program that puts messages in at a steady pace:  feeder KIND URL NAME COUNT PER_SECOND."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from ergon_framework import Transaction
from ergon_framework.connector.nats import NatsConnector
from ergon_framework.connector.rabbitmq import RabbitConnector
from ergon_framework.connector.redis_streams import RedisStreamsConnector

TICK = 0.05

CONNECTORS: dict[str, Callable[[str, str], Any]] = {
    "redis-streams": lambda url, name: RedisStreamsConnector(url, stream=name, group="billing"),
    "nats": lambda url, name: NatsConnector(
        url, stream=name, consumer="billing", subject=f"{name}.new", deduplicate=False
    ),
    "rabbitmq": lambda url, name: RabbitConnector(f"{url}{name}", prefetch=100),
}
"""The consumer's connector, which the feeder sends through as well."""


def main(kind: str, url: str, name: str, count: int, rate: float) -> None:
    """Send what is due, twenty times a second."""
    began, sent = time.monotonic(), 0
    with CONNECTORS[kind](url, name) as target:
        while sent < count:
            due = min(count, int((time.monotonic() - began) * rate) + 1)
            if due > sent:
                target.dispatch_transactions(_order(number) for number in range(sent, due))
                sent = due
            time.sleep(TICK)


def _order(number: int) -> Transaction:
    return Transaction(str(number), {"order": 4711, "at": time.time()})


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]), float(sys.argv[5]))
