"""Two tasks. Neither has a loop, a retry or a lock: connectors and policies have those."""

from __future__ import annotations

from ergon_framework import ConsumerTask, Transaction
from ergon_framework.boundary import Artifact

from .shipments import Shipment


class Announce(ConsumerTask):
    """In the plant: reads what the shop floor wrote down, and tells it as facts."""

    def process_transaction(self, transaction: Transaction) -> None:
        """When this returns, the fact is on disk in the outbox, and its line is done with."""
        shipment = Shipment(transaction.payload["number"])
        note = Artifact(shipment.note, file_name=f"{shipment.name}.txt")
        fact = transaction.derive(
            {
                "subject": f"shipment:{shipment.name}",
                "predicate": "packed",
                "object_json": {**transaction.payload, "shipment": shipment.name},
            },
            id=shipment.id,  # made of the event, so that telling it again changes nothing
            created_at=transaction.created_at,
            metadata={"artifacts": [note]} if shipment.has_note else {},
        )
        self.plant_connector.dispatch_transactions([fact])
        if shipment.is_told_twice:
            self.plant_connector.dispatch_transactions([fact])


class Accept(ConsumerTask):
    """In the enterprise: makes a job of each fact. The fact is confirmed when the job is stored."""

    def process_transaction(self, transaction: Transaction) -> None:
        """A crash in between repeats this, and the same id makes no second job."""
        packed = transaction.payload["object_json"]
        job = transaction.derive(
            {name: packed[name] for name in packed if name != "number"},
            id=transaction.transaction_id,
            metadata={"handler": Shipment(packed["number"]).needs},
        )
        self.queue_connector.dispatch_transactions([job])
