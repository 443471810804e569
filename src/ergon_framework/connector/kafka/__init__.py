"""Topics of a Kafka cluster as a source and a target of transactions.

Where to look first: ``connector`` is what tasks see. ``ledger`` decides which message is handed out
and which offset may be committed, and talks to nobody. ``member`` polls, rebalances and commits in
a thread, ``sender`` sends and waits for delivery reports. ``client`` makes the settings of the
client library, and ``errors`` has the refusals.
"""

from __future__ import annotations

from ergon_framework.connector.kafka.connector import KafkaConnector, KafkaDelivery

__all__ = ["KafkaConnector", "KafkaDelivery"]
