"""One message to publish, the bounds that MQTT has for it, and the topic of a dead letter."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote

from ergon_framework.errors import PayloadError

MAX_TEXT = 65_535
"""Bytes of a text in a packet: its length has 16 bits."""
MAX_PLACE = 200
"""Characters of an id in the topic of a dead letter."""


@dataclass(frozen=True, slots=True)
class MqttPublication:
    """One message to publish with QoS 1."""

    topic: str
    body: bytes
    headers: Mapping[str, str]
    correlation: str | None = None
    retain: bool = False
    expiry: int | None = None
    is_dead_letter: bool = False


def check_texts(transaction_id: str, publication: MqttPublication) -> None:
    """Refuse a transaction with a text that no packet has room for, before anything is sent."""
    texts = [("the correlation id", publication.correlation or "")]
    texts += [(f"the header {name[:80]!r}", value) for name, value in publication.headers.items()]
    for what, text in texts:
        if _is_bad(text):
            raise PayloadError(
                f"transaction {transaction_id[:80]!r} cannot be sent over MQTT: {what} is longer"
                f" than {MAX_TEXT} bytes, or has a NUL character",
                remedy="move the data into the payload, or store it elsewhere and send its address",
                details={"transaction_id": transaction_id},
            )


def _is_bad(text: str) -> bool:
    return len(text.encode("utf-8", "surrogatepass")) > MAX_TEXT or "\0" in text


def dead_letter_place(folder: str, topic: str, identity: str) -> str:
    """The topic of a dead letter. A long id is cut, with a digest that tells it from others."""
    found = quote(identity, safe="")
    if len(found) > MAX_PLACE:
        digest = hashlib.sha256(identity.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        found = f"{found[: MAX_PLACE - len(digest) - 1]}~{digest}"
    return f"{folder}/{topic}/{found}"
