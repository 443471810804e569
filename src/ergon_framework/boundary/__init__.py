"""The boundary: facts and artifacts that cross between sites, and are never lost or doubled.

Promises: an acknowledged fact is on disk, at an offset that never changes; the same id with the
same content has that offset for ever, and with other content it is refused; a fact is visible only
where its artifacts are; what a consumer has not confirmed is delivered again, in order. Not
promised: that an acknowledged fact has reached another zone, or that a consumer accepted it.

Where to look first:

- ``zone``: a zone in this process; ``append_batcher``: how a fact comes in; ``data_folder``: its
  lock
- ``facts``: what a fact may be, its identity digest and its id; ``model``: the records
- ``factstore``: logs, consumers, quarantine and links, on every engine
- ``node``: the process that serves a zone and pulls from its peers; ``http``: its wire protocol
- ``client``: producer, consumer, outbox and inbox
- ``maintenance``: retention; ``backup``, ``restore``; ``verification``, ``anchor``: whether
  anything was lost
- ``settings``, ``store_urls``, ``certs``, ``reloading``: configuration of a zone
- ``telemetry``: notices, counters and spans
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ergon_framework.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from ergon_framework.boundary.client.artifacts import Artifact
    from ergon_framework.boundary.client.consumer import AsyncConsumer, Consumer
    from ergon_framework.boundary.client.inbox import Inbox
    from ergon_framework.boundary.client.outbox import Outbox
    from ergon_framework.boundary.client.producer import AsyncProducer, Producer
    from ergon_framework.boundary.facts.ids import message_id, stable_uuid
    from ergon_framework.boundary.model import Batch, Delivery, Envelope, Fact, Receipt
    from ergon_framework.boundary.node.node import Node
    from ergon_framework.boundary.settings import ZoneSettings
    from ergon_framework.boundary.store_urls import open_fact_store
    from ergon_framework.boundary.zone import LocalZone
    from ergon_framework.storage.objectstore.urls import open_object_store

_HOMES = {
    "Artifact": "boundary.client.artifacts",
    "AsyncConsumer": "boundary.client.consumer",
    "AsyncProducer": "boundary.client.producer",
    "Batch": "boundary.model",
    "Consumer": "boundary.client.consumer",
    "Delivery": "boundary.model",
    "Envelope": "boundary.model",
    "Fact": "boundary.model",
    "Inbox": "boundary.client.inbox",
    "LocalZone": "boundary.zone",
    "Node": "boundary.node.node",
    "Outbox": "boundary.client.outbox",
    "Producer": "boundary.client.producer",
    "Receipt": "boundary.model",
    "ZoneSettings": "boundary.settings",
    "message_id": "boundary.facts.ids",
    "open_fact_store": "boundary.store_urls",
    "open_object_store": "storage.objectstore.urls",
    "stable_uuid": "boundary.facts.ids",
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

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, _HOMES)
