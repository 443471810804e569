"""A message as SQS takes it: text, ten attributes at most, and everything within one size.

Headers are attributes. When there are more than ten, with those of other programs or the reason of
a dead letter, ours go into one attribute together. A body that is no text for SQS is sent as
base64.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from ergon_framework.connector.broker.message import OWN, MalformedMessageError

MOST_ATTRIBUTES = 10
MAX_BATCH_BYTES = 262_144
"""Bytes of all messages of one request together."""
PACKED = "ergon-headers"
"""The attribute in which headers are that have no attribute of their own, as JSON."""
ENCODING = "ergon-body"
_BASE64 = "base64"
_PARTS = ("DataType", "StringValue", "BinaryValue")
_TEXT = re.compile("[\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]+")
_ID = re.compile(r"[!-~]{1,128}")


def outgoing(body: bytes, headers: Mapping[str, str]) -> dict[str, Any]:
    """Body and attributes as the client library takes them."""
    given, text = dict(headers), _text(body)
    if text is None:
        given[ENCODING], text = _BASE64, base64.b64encode(body).decode("ascii")
    return {"MessageBody": text, "MessageAttributes": _attributes(given)}


def incoming(message: Mapping[str, Any]) -> tuple[bytes, dict[str, str]]:
    """Body and headers of a message that was received."""
    headers = attributes_of(message)
    try:
        headers |= _unpacked(headers.pop(PACKED, "{}"))
        is_encoded = headers.pop(ENCODING, "") == _BASE64
        body = message["Body"].encode()
        return (base64.b64decode(body, validate=True) if is_encoded else body), headers
    except (ValueError, binascii.Error) as error:
        raise MalformedMessageError(f"its attributes cannot be read: {error}") from error


def attributes_of(message: Mapping[str, Any]) -> dict[str, str]:
    """The attributes of a message that was received, each as a text."""
    texts = {}
    for name, value in message.get("MessageAttributes", {}).items():
        text = value.get("StringValue")
        if text is None:
            text = base64.b64encode(value.get("BinaryValue", b"")).decode("ascii")
        texts[name] = text
    return texts


def _unpacked(packed: str) -> dict[str, str]:
    """Headers that had no attribute of their own. Anybody may have written there."""
    try:
        found = json.loads(packed)
    except RecursionError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
        raise ValueError(f"{PACKED} is no JSON object of texts")
    return found


def as_received(entry: Mapping[str, Any], raw: Mapping[str, Any]) -> dict[str, Any]:
    """The entry with attributes of other programs as they were received: bytes, and numbers."""
    given = raw.get("MessageAttributes", {})
    kept = {
        name: {part: given[name][part] for part in _PARTS if part in given[name]}
        if name in given and name.lower() not in OWN and name not in (PACKED, ENCODING)
        else value
        for name, value in entry["MessageAttributes"].items()
    }
    return {**entry, "MessageAttributes": kept}


def size_of(entry: Mapping[str, Any]) -> int:
    """Bytes of a message as SQS counts them: body, and names, types and values of attributes."""
    attributes = sum(
        len(name) + len(value["DataType"]) + _length(value)
        for name, value in entry["MessageAttributes"].items()
    )
    return len(entry["MessageBody"].encode()) + attributes


def _length(value: Mapping[str, Any]) -> int:
    return len(value["BinaryValue"] if "BinaryValue" in value else value["StringValue"].encode())


def plain_id(text: str) -> str:
    """A group or deduplication id for any text: itself where SQS takes it, else its digest."""
    return text if _ID.fullmatch(text) else hashlib.sha256(text.encode()).hexdigest()


def _attributes(headers: Mapping[str, str]) -> dict[str, Any]:
    kept = dict(headers)
    if len(kept) > MOST_ATTRIBUTES:
        # Those of other programs keep their attributes as far as they go: others read them.
        foreign = [each for each in kept if each.lower() not in OWN and each != ENCODING]
        alone = set(foreign[: MOST_ATTRIBUTES - 1])
        packed = {name: kept.pop(name) for name in list(kept) if name not in alone}
        kept[PACKED] = json.dumps(packed)
    return {name: {"DataType": "String", "StringValue": value} for name, value in kept.items()}


def _text(body: bytes) -> str | None:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    return text if _TEXT.fullmatch(text) else None
