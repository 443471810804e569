"""Facts in a stream of NATS JetStream.

Theory of operation. A transaction reads records, decides, and sends what it writes as one batch
that the server takes only if the stream still ends where the transaction began: a conflict starts
it anew. Records that were read are cached for as long as the stream ends where it did.

- ``store``: the parts put together; ``database``: transactions, notifications
- ``session``: what one transaction reads and writes; ``schema``: subjects, and facts as messages
- ``log``, ``append``, ``pages``: appending, retention, verification, reading
- ``consumers``: cursors, leases, quarantine; ``objects_and_links``: names of objects, and links
- ``records``: copies for moves between stores; ``setup``: opening a stream, or making one
"""

from __future__ import annotations

from ergon_framework.boundary.factstore.nats.store import NatsFactStore

__all__ = ["NatsFactStore"]
