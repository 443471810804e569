"""Entries of a Redis stream, through a consumer group.

Where to look first: ``connector`` is the class. ``group`` has the commands for the server,
once for threads and asyncio. ``client`` makes connections and translates errors. ``in_hand`` knows
what was delivered and keeps it from other consumers. ``options`` is what is refused before a
server is called.
"""

from __future__ import annotations

from ergon_framework.connector.redis_streams.client import RedisStreamsError
from ergon_framework.connector.redis_streams.connector import RedisStreamsConnector

__all__ = ["RedisStreamsConnector", "RedisStreamsError"]
