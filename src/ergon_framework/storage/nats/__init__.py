"""NATS JetStream: where a stream is, the line to its server, and what lies in the stream.

The client library belongs to an event loop. A :class:`Line` runs one in a thread of its own, so
that any thread can ask. A :class:`NatsStream` is one stream on it, written by commits that succeed
only where nobody else has written since.
"""

from __future__ import annotations

from ergon_framework.storage.nats.address import Address, address_of
from ergon_framework.storage.nats.client import Line, Reply
from ergon_framework.storage.nats.stream import Message, NatsStream, OvertakenError, Stored

__all__ = [
    "Address",
    "Line",
    "Message",
    "NatsStream",
    "OvertakenError",
    "Reply",
    "Stored",
    "address_of",
]
