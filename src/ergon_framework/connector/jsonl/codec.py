"""Encodes transactions as JSON lines and back without loss, and makes dead letters.

Only values that read back equal are written. A tuple, a date, NaN or bytes would come back as
something else, so they are refused, before anything is written, with the path of the value.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from ergon_framework.connector.broker import lossless_json
from ergon_framework.connector.broker.lossless_json import BAD_JSON
from ergon_framework.errors import ConnectorError, EnvelopeError, PayloadError
from ergon_framework.ports.transaction import Transaction

NEWLINE = b"\n"
_MAX_REASON = 2000


class JsonlConnectorError(ConnectorError):
    """The JSON Lines connector was asked for something it must refuse, or its files failed it."""

    code = "jsonl_connector"


class MalformedLineError(JsonlConnectorError):
    """A line is not a transaction."""

    code = "malformed_line"


class LineTooLongError(MalformedLineError):
    """A line is longer than ``max_line_bytes``."""

    code = "line_too_long"


def encode(transaction: Transaction, max_bytes: int) -> bytes:
    """The transaction as one line, newline included."""
    if not isinstance(transaction, Transaction):
        raise EnvelopeError(
            f"dispatch_transactions takes Transactions, not {type(transaction).__name__}",
            remedy="wrap the payload: Transaction(transaction_id=..., payload=...)",
        )
    line = lossless_json.encode(transaction.transaction_id, transaction.to_dict())
    if len(line) > max_bytes:
        raise PayloadError(
            f"transaction {transaction.transaction_id!r} is {len(line)} bytes long as a line; "
            f"at most {max_bytes} are allowed",
            remedy="store the data elsewhere and send its address, or raise max_line_bytes",
            details={"transaction_id": transaction.transaction_id},
        )
    return line + NEWLINE


def decode(line: bytes) -> Any:
    """The JSON value of a line."""
    try:
        return msgspec.json.decode(line)
    except BAD_JSON as error:
        raise MalformedLineError(f"not JSON: {error}") from error


def is_complete(tail: bytes) -> bool:
    """Whether a last line without a newline is complete.

    No JSON text but a number stays valid when its end is cut off, so a line that parses was not cut
    off.
    """
    try:
        value = msgspec.json.decode(tail)
    except BAD_JSON:
        return False
    return isinstance(value, bool) or not isinstance(value, int | float)


def shown(name: str) -> str:
    """The name of a file as text that every program can read; what is not UTF-8 is escaped."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def letter(reason: str, where: dict[str, Any], line: bytes) -> bytes:
    """A dead letter: the reason, the place, and the line as its JSON ``value`` or as text."""
    document = _envelope(reason, where)
    if "transaction_id" in where:
        document["value"] = msgspec.Raw(line.strip())
        return msgspec.json.encode(document) + NEWLINE
    try:
        document["text"] = line.decode("utf-8")
    except UnicodeDecodeError:
        document["base64"] = base64.b64encode(line).decode("ascii")
    return msgspec.json.encode(document) + NEWLINE


def long_letter(reason: str, where: dict[str, Any], pieces: Iterator[bytes]) -> Iterator[bytes]:
    """A dead letter for a line too long to be held: written piece by piece.

    All pieces but the last must be a multiple of three bytes long, so that their base64 joins up.
    """
    yield msgspec.json.encode(_envelope(reason, where))[:-1] + b',"base64":"'
    for piece in pieces:
        yield base64.b64encode(piece)
    yield b'"}' + NEWLINE


def _envelope(reason: str, where: dict[str, Any]) -> dict[str, Any]:
    text = reason[:_MAX_REASON].encode("utf-8", "backslashreplace").decode("utf-8")
    return {"at": datetime.now(UTC).isoformat(), **where, "reason": text}
