"""Facts in a stream of NATS JetStream."""

from __future__ import annotations

from ergon_framework.boundary.logs.nats.store import NatsFactStore

__all__ = ["NatsFactStore"]
