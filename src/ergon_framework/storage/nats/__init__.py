"""NATS JetStream: the address of a stream, the client of its server, and the stream itself.

The client library belongs to an event loop. A :class:`NatsClient` runs one in a thread of its own,
so that any thread can make requests. A :class:`NatsStream` is one stream on it, written by commits
that succeed only if no other client has written since.

- ``client``, ``connect``: requests of any thread, and how a connection comes about
- ``stream``: commits and reading
- ``pull``: messages of a stream through a consumer
- ``address``, ``errors``, ``diagnostics``: where it is, what goes wrong, what ``doctor`` asks
"""

from __future__ import annotations

from ergon_framework.storage.nats.address import NatsAddress, NatsTimeouts, address_of
from ergon_framework.storage.nats.client import NatsClient, NatsReply
from ergon_framework.storage.nats.stream import NatsStream, OvertakenError, Stored, StreamMessage

__all__ = [
    "NatsAddress",
    "NatsClient",
    "NatsReply",
    "NatsStream",
    "NatsTimeouts",
    "OvertakenError",
    "Stored",
    "StreamMessage",
    "address_of",
]
