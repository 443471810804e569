"""Facts in a stream of NATS JetStream."""

from __future__ import annotations

from ergon_framework.boundary.factstore.nats.store import NatsFactStore

__all__ = ["NatsFactStore"]
