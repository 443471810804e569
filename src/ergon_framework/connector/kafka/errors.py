"""What the Kafka connector refuses, and what the client library raises, in words."""

from __future__ import annotations

from typing import Any

from ergon_framework.errors import ConnectorError, describe


class KafkaConnectorError(ConnectorError):
    """The connector was asked for something it must refuse."""

    code = "kafka_connector"


def in_words(error: Exception) -> str:
    """What the client library raised, without the names of its constants."""
    cause: Any = error.args[0] if error.args else None
    told = getattr(cause, "str", None)
    return str(told()) if callable(told) else describe(error)
