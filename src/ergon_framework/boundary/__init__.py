"""The boundary: facts and artifacts that cross between sites, and are never lost or doubled.

Promises: an acknowledged fact is on disk, at an offset that never changes; the same id with the
same content has that offset for ever, and with other content it is refused; a fact is visible only
where its artifacts are; what a consumer has not confirmed is delivered again, in order. Not
promised: that an acknowledged fact has reached another zone, or that anybody accepted it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ergon_framework.boundary.client.artifacts import Artifact
    from ergon_framework.boundary.client.consumer import AsyncConsumer, Consumer
    from ergon_framework.boundary.client.inbox import Inbox
    from ergon_framework.boundary.client.outbox import Outbox
    from ergon_framework.boundary.client.producer import AsyncProducer, Producer
    from ergon_framework.boundary.facts.ids import message_id, stable_uuid
    from ergon_framework.boundary.model import Batch, Delivery, Envelope, Fact, Receipt
    from ergon_framework.boundary.node import Node
    from ergon_framework.boundary.settings import ZoneSettings
    from ergon_framework.boundary.store_urls import open_fact_store, open_object_store
    from ergon_framework.boundary.zone import LocalZone

_HOMES = {
    "Artifact": "client.artifacts",
    "AsyncConsumer": "client.consumer",
    "AsyncProducer": "client.producer",
    "Batch": "model",
    "Consumer": "client.consumer",
    "Delivery": "model",
    "Envelope": "model",
    "Fact": "model",
    "Inbox": "client.inbox",
    "LocalZone": "zone",
    "Node": "node",
    "Outbox": "client.outbox",
    "Producer": "client.producer",
    "Receipt": "model",
    "ZoneSettings": "settings",
    "message_id": "facts.ids",
    "open_fact_store": "store_urls",
    "open_object_store": "store_urls",
    "stable_uuid": "facts.ids",
}

__all__ = [
    "Artifact",
    "AsyncConsumer",
    "AsyncProducer",
    "Batch",
    "Consumer",
    "Delivery",
    "Envelope",
    "Fact",
    "Inbox",
    "LocalZone",
    "Node",
    "Outbox",
    "Producer",
    "Receipt",
    "ZoneSettings",
    "message_id",
    "open_fact_store",
    "open_object_store",
    "stable_uuid",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
