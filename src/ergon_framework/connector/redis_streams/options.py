"""What the connector refuses before it asks a server: options, and headers in a body's place."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ergon_framework.connector.broker.dead_letters import refuse_own_dead_letters
from ergon_framework.connector.broker.message import OWN, TRANSACTION_ID, BrokerMessage, decoded
from ergon_framework.connector.redis_streams.client import EXAMPLE
from ergon_framework.errors import ConfigurationError, PayloadError

MAX_CLAIM_IDLE = 10 * 86400.0
"""The longest ``claim_idle`` in seconds. A released entry is made idle for longer, so that any
consumer may claim it.
"""


def check_names(stream: str, group: str, body_field: str, dead_letters: str | None) -> None:
    """Refuse names that are empty or used for something else."""
    for name, text in (("stream", stream), ("group", group), ("body_field", body_field)):
        if not text:
            raise ConfigurationError(f"{name} must not be empty", remedy=f"write {EXAMPLE}")
    if body_field in OWN:
        raise ConfigurationError(
            f"body_field must not be {body_field}, which is the field of a header",
            remedy="choose another name, or leave it out for body",
        )
    refuse_own_dead_letters(stream=stream, dead_letters=dead_letters)


def check_start(start: str) -> None:
    """Refuse a start position that no stream has."""
    if start != "$" and not re.fullmatch(r"\d{1,20}(-\d{1,20})?", start):
        raise ConfigurationError(
            f"start is 0, $ or the id of an entry such as 1700000000000-0, not {start[:40]!r}",
            remedy="leave it out for 0, with all that there is",
        )


def refuse_header(body_field: str, messages: Iterable[BrokerMessage]) -> None:
    """Refuse a header with the name of the body's field."""
    for message in messages:
        if body_field in message.headers:
            identity = decoded(message.headers[TRANSACTION_ID])
            raise PayloadError(
                f"transaction {identity!r} has a header {body_field}, and that is the field of the"
                " body in this stream",
                remedy="name the header otherwise, or give the connector another body_field",
                details={"transaction_id": identity, "path": "metadata.headers"},
            )
