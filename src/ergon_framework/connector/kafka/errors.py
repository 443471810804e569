"""The errors of the Kafka connector, and the client library's errors in words."""

from __future__ import annotations

from typing import Any

from ergon_framework.errors import ConnectorError, describe


class KafkaConnectorError(ConnectorError):
    """The connector refuses what it was asked to do."""

    code = "kafka_connector"


class KafkaRefusedError(ConnectorError):
    """The brokers can be reached, and accept no messages for a topic until somebody corrects
    something.
    """

    code = "kafka_refused"
    failure_kind = "transient"


def told_by(error: Any) -> str:
    """What an error of the client library says, without the names of its constants."""
    told = getattr(error, "str", None)
    return str(told()) if callable(told) else f"{error}"


def in_words(error: Exception) -> str:
    """What the client library raised, in words."""
    cause: Any = error.args[0] if error.args else None
    return told_by(cause) if callable(getattr(cause, "str", None)) else describe(error)


_WRITE = (
    "let the user write: kafka-acls.sh --bootstrap-server HOST:9092 --add --operation Write"
    " --allow-principal User:NAME --topic {topic}"
)
_MAKE = "make the topic: kafka-topics.sh --create --topic {topic} --bootstrap-server HOST:9092"
_IDEMPOTENT = (
    "let the user write idempotently: kafka-acls.sh --bootstrap-server HOST:9092 --add --cluster"
    " --operation IdempotentWrite --allow-principal User:NAME"
)
_REMEDIES = {
    "TOPIC_AUTHORIZATION_FAILED": _WRITE,
    "CLUSTER_AUTHORIZATION_FAILED": _IDEMPOTENT,
    "UNKNOWN_TOPIC_OR_PART": _MAKE,
    "_UNKNOWN_TOPIC": _MAKE,
    "_UNKNOWN_PARTITION": _MAKE,
    "POLICY_VIOLATION": "see which policy of the brokers the topic {topic} is subject to",
    "THROTTLING_QUOTA_EXCEEDED": "raise the quota of the user: kafka-configs.sh --describe",
    "INVALID_RECORD": "see what the brokers demand of messages in the topic {topic}",
}
"""What to do about errors that the brokers return until somebody changes something there."""


def refusal_of(name: str, topic: str, error: Any) -> KafkaRefusedError | None:
    """The error of a message that was refused by brokers that are there; None for other errors."""
    constant = getattr(error, "name", None)
    remedy = _REMEDIES.get(constant()) if callable(constant) else None
    if remedy is None:
        return None
    return KafkaRefusedError(
        f"{name}: the brokers take no messages for {topic}: {told_by(error)}",
        remedy=remedy.format(topic=topic),
    )


def is_of_ended(error: Any) -> bool:
    """Whether it only says that the producer has ended before, for another reason."""
    constant = getattr(error, "name", None)
    return callable(constant) and constant() in {"_PURGE_QUEUE", "_PURGE_INFLIGHT", "_FATAL"}
