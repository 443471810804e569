"""NATS JetStream as a connector: a durable pull consumer as a source, a subject as a target.

- ``connector``: the connector class, sync and async
- ``jetstream``: what it asks the server for: consumers, pulls, acknowledgements, publishing, and a
  stream read in order from a place on, without acknowledgements
- ``loop_settlement``: acknowledgements from an event loop, on a connection of that loop
"""

from __future__ import annotations

from ergon_framework.connector.nats.connector import NatsConnector
from ergon_framework.connector.nats.jetstream import ConflictingMessageError, NatsConnectorError

__all__ = ["ConflictingMessageError", "NatsConnector", "NatsConnectorError"]
