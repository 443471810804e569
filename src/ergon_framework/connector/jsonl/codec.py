"""Lines and their meaning: transactions to JSON and back without loss, and the dead letter.

Written is only what reads back equal. A tuple, a date, NaN or bytes would come back as something
else, so they are refused, before anything is written, with the path of the value.
"""

from __future__ import annotations

import base64
import math
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from ergon_framework.errors import ConnectorError, EnvelopeError, PayloadError
from ergon_framework.ports.transaction import Transaction

NEWLINE = b"\n"
_MAX_DEPTH = 200
_MAX_REASON = 2000
_REMEDIES: tuple[tuple[str, str], ...] = (
    ("bytes", 'encode it as text, for example base64.b64encode(value).decode("ascii")'),
    ("bytearray", 'encode it as text, for example base64.b64encode(value).decode("ascii")'),
    ("tuple", "use a list"),
    ("set", "use a sorted list"),
    ("datetime", "use value.isoformat()"),
    ("date", "use value.isoformat()"),
    ("Decimal", "use str(value)"),
    ("UUID", "use str(value)"),
)
_BAD_JSON = (msgspec.MsgspecError, ValueError, RecursionError)


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
    document = transaction.to_dict()
    try:
        line = msgspec.json.encode(document)
        is_lossless = msgspec.json.decode(line) == document
    except (*_BAD_JSON, TypeError) as error:
        raise _refused(transaction, document) from error
    if not is_lossless:
        raise _refused(transaction, document)
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
    except _BAD_JSON as error:
        raise MalformedLineError(f"not JSON: {error}") from error


def is_complete(tail: bytes) -> bool:
    """Whether a last line without a newline is whole.

    No JSON text but a number stays valid when its end is cut off, so what parses was not torn.
    """
    try:
        value = msgspec.json.decode(tail)
    except _BAD_JSON:
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


def _refused(transaction: Transaction, document: dict[str, Any]) -> PayloadError:
    path, what, remedy = "payload", "a value that JSON does not give back equal", ""
    for field, value in document.items():
        found = _culprit(value, field, 0)
        if found is not None:
            path, what, remedy = found
            break
    return PayloadError(
        f"transaction {transaction.transaction_id!r} cannot be written as JSON without loss: "
        f"{path} is {what}",
        remedy=remedy or "convert it to plain JSON values first",
        details={"transaction_id": transaction.transaction_id, "path": path},
    )


def _culprit(value: Any, path: str, depth: int) -> tuple[str, str, str] | None:
    """Where it is, what it is, and what to do about it; None when the value is fine."""
    if depth > _MAX_DEPTH:
        what = f"nested more than {_MAX_DEPTH} levels deep, or inside itself"
        return f"{path[:40]}…", what, "flatten it"
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                return path, f"an object with a key of type {type(key).__name__}", "use text keys"
            found = _culprit(key, f"a key of {path}", depth + 1) or _culprit(
                inner, path + _step(key), depth + 1
            )
            if found is not None:
                return found
        return None
    if isinstance(value, list):
        for index, inner in enumerate(value):
            found = _culprit(inner, f"{path}[{index}]", depth + 1)
            if found is not None:
                return found
        return None
    return _atom(value, path)


def _atom(value: Any, path: str) -> tuple[str, str, str] | None:
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            return path, "text with a lone surrogate", "repair the text first"
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return path, "not a finite number", "use None"
    if value is None or isinstance(value, bool | int | float):
        return None
    name = type(value).__name__
    return path, f"of type {name}", dict(_REMEDIES).get(name, "")


def _step(key: str) -> str:
    short = key if len(key) <= 40 else f"{key[:40]}…"
    return f".{short}" if key.isidentifier() else f"[{short!r}]"
