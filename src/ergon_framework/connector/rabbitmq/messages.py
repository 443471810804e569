"""The messages of RabbitMQ: received ones, ones to publish, and copies of both.

The two client libraries name the properties of a message differently. Here they have the names of
AMQP, and headers are a plain dict.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ergon_framework.connector.base import Delivered
from ergon_framework.connector.broker.message import CONTENT_TYPE, CORRELATION_ID, encoded
from ergon_framework.connector.rabbitmq.topology import QueuePlan

PROPERTIES = (
    "content_type",
    "content_encoding",
    "priority",
    "correlation_id",
    "reply_to",
    "message_id",
    "timestamp",
    "type",
    "app_id",
)
"""The properties that a copy keeps. Not ``user_id``, which the broker compares with the
publisher's, and not ``expiration``, which would begin anew.
"""
NOT_BEFORE = "ergon-not-before"
"""The header of a parked message: when it is due, in milliseconds since 1970."""
LATEST = float(1 << 52)
"""The latest time that is written there, in seconds since 1970: other programs may ask for more,
and the milliseconds must fit into the 63 bits of the header."""
DELIVERY_COUNT = "x-delivery-count"
"""The header in which a quorum queue counts earlier deliveries of a message."""
_OF_THE_BROKER = re.compile(
    r"x-(death|(first|last)-death-.+|delivery-count|acquired-count|opt-.+)|ergon-not-before"
)
MAX_SHORT = 255
"""How many bytes a text property may have."""


@dataclass(slots=True, eq=False)
class Received:
    """One message that a channel has received, until it is settled there."""

    body: bytes
    properties: Mapping[str, Any]
    headers: Mapping[str, Any]
    tag: int
    channel: Any
    """The channel that must settle it: on another channel the tag belongs to another message."""
    _own_id: str = ""

    @property
    def own_id(self) -> str:
        """The id of a message that has none, for as long as this process has it."""
        self._own_id = self._own_id or str(uuid.uuid4())
        return self._own_id

    @property
    def delivery_count(self) -> int:
        """How often it was delivered before and came back; 0 if the broker does not say."""
        count = self.headers.get(DELIVERY_COUNT)
        return count if isinstance(count, int) else 0

    @property
    def not_before(self) -> float:
        """When a parked message is due, in seconds since 1970; 0 for others."""
        found = self.headers.get(NOT_BEFORE)
        return found / 1000 if isinstance(found, int) else 0.0


@dataclass(slots=True, frozen=True)
class Outgoing:
    """One message to publish. The broker must be able to route it, and must confirm it."""

    exchange: str
    routing_key: str
    body: bytes
    properties: Mapping[str, Any]
    headers: Mapping[str, Any]
    queue: QueuePlan | None = None
    """The queue that it goes to, if that must be declared first."""


class RabbitDelivery(Delivered):
    """A delivered transaction with its message."""

    __slots__ = ("received",)

    received: Received

    @property
    def delivery_count(self) -> int:
        """How often the broker had delivered it before, as counted by a quorum queue."""
        return self.received.delivery_count


def readable_headers(received: Received) -> dict[str, str]:
    """Headers as text, completed by the properties that say the same.

    What the broker writes itself is left out: it changes from delivery to delivery.
    """
    headers = {
        name: value if isinstance(value, str) else str(value)
        for name, value in received.headers.items()
        if isinstance(value, str | int | float | bool) and not _OF_THE_BROKER.match(name)
    }
    properties = received.properties
    if properties.get("content_type"):
        headers.setdefault(CONTENT_TYPE, properties["content_type"])
    if properties.get("correlation_id"):
        headers.setdefault(CORRELATION_ID, encoded(properties["correlation_id"]))
    return headers


def properties_of(
    headers: Mapping[str, str], identity: str, correlation: str | None
) -> dict[str, Any]:
    """The properties that other programs read, beside the headers that hold the same."""
    found = {"message_id": identity, "correlation_id": correlation}
    found["content_type"] = headers.get(CONTENT_TYPE)
    return {name: value for name, value in found.items() if value and _is_short(value)}


def copy_of(
    received: Received,
    to: tuple[str, str],
    queue: QueuePlan | None,
    headers: Mapping[str, str | int],
) -> Outgoing:
    """The same message for another place, with further headers."""
    kept = {
        name: value
        for name, value in received.headers.items()
        # The broker drops a message that has been in a queue before by these.
        if not _OF_THE_BROKER.match(name)
    }
    return Outgoing(*to, received.body, received.properties, {**kept, **headers}, queue)


def _is_short(value: str) -> bool:
    return len(value.encode()) <= MAX_SHORT
