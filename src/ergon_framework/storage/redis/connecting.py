"""Connecting to a Redis server, for no longer than whoever wants to can wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import redis

from ergon_framework.storage.hurry import ASKING


class PlainConnection(redis.Connection):
    """One without TLS. Should the driver call this no longer, it waits as long as for anybody."""

    def _connect(self) -> Any:
        return in_time(self, super()._connect)


def in_time(connection: Any, connect: Callable[[], Any], shaken: float | None = None) -> Any:
    """Connect, and have as long for the first answers; ``shaken`` are the seconds for TLS."""
    own = connection.socket_connect_timeout, connection.socket_timeout
    connection.socket_connect_timeout = ASKING.at_most(own[0])
    connection.socket_timeout = ASKING.at_most(own[1] if shaken is None else shaken)
    try:
        connected = connect()
    finally:
        connection.socket_connect_timeout, connection.socket_timeout = own
    connected.settimeout(ASKING.at_most(own[1]))
    return connected
