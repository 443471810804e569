"""What the Kafka connector refuses, and what it cannot do now."""

from __future__ import annotations

from ergon_framework.errors import ConnectorError


class KafkaConnectorError(ConnectorError):
    """The connector was asked for something it must refuse."""

    code = "kafka_connector"
