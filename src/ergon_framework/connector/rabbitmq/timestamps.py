"""Timestamps that no calendar has, in messages for aio-pika.

AMQP has 64 bits of seconds for them. The decoder that aio-pika uses makes a datetime of each. Where
that is impossible it raises, which ends the connection. The broker then delivers the same message
on the next one, so a single message of another program would stop a queue for good.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

logger = logging.getLogger("ergon.connector")

_BYTES = 8  # of a timestamp
_Decode = Callable[[bytes], tuple[int, Any]]


class LenientTimestamps:
    """Decodes a timestamp as the client library does, and one that it cannot keep as None."""

    def __init__(self, decode: _Decode) -> None:
        self._decode = decode
        self._left_out = 0

    def __call__(self, value: bytes) -> tuple[int, Any]:
        """How many bytes it took, and what it is."""
        try:
            return self._decode(value)
        except (ValueError, OverflowError, OSError):
            if len(value) < _BYTES:
                raise
        self._left_out += 1
        if self._left_out & (self._left_out - 1) == 0:  # the first, then when it has doubled
            logger.warning(
                "messages from RabbitMQ without their timestamp, which no calendar has: %d so far",
                self._left_out,
            )
        return _BYTES, None


def be_lenient() -> None:
    """From now on, in this process: a timestamp that cannot be decoded is left out.

    The decoder has a table of what it decodes and how, and no setting. Nothing changes for
    timestamps that it can decode, also for other users of it in this process.
    """
    from pamqp import decode

    for table, kind in ((decode.METHODS, "timestamp"), (decode.TABLE_MAPPING, b"T")):
        given: Any = table
        if not isinstance(given[kind], LenientTimestamps):
            given[kind] = LenientTimestamps(given[kind])
