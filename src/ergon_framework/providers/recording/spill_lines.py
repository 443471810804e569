"""What a line of a spill file holds: one batch as JSON, behind a checksum of itself.

``{"sum":"1c291ca3","attempts":[…],"letters":[…]}``: any tool that reads JSON lines can read it. The
sum is the CRC-32 of everything behind it, so that a line that was torn, or changed later, is known.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ergon_framework.ports.providerstore import AttemptRow, Batch, DeadLetter

_HEAD = b'{"sum":"%08x",'
_BODY_AT = len(_HEAD % 0)
_LETTER_FIELDS = tuple(field.name for field in fields(DeadLetter))
_encode = json.JSONEncoder(separators=(",", ":")).encode


def line_of(batch: Batch) -> bytes:
    """The batch as one line, its end included. Raises what ``json`` raises for a bad payload."""
    document = {
        "attempts": [row._asdict() for row in batch.attempts],
        "letters": [
            {name: getattr(letter, name) for name in _LETTER_FIELDS} for letter in batch.letters
        ],
    }
    body = _encode(document)[1:].encode("ascii")
    return _HEAD % zlib.crc32(body) + body + b"\n"


def batch_of(line: bytes) -> Batch:
    """The batch that a line holds. ``ValueError`` when it was not written like this."""
    body = line[_BODY_AT:].removesuffix(b"\n")
    if line[:_BODY_AT] != _HEAD % zlib.crc32(body):
        raise ValueError("the line does not match its checksum")
    try:
        document = json.loads(line)
        return Batch(
            [AttemptRow(**_known(each, AttemptRow._fields)) for each in document["attempts"]],
            [DeadLetter(**_known(each, _LETTER_FIELDS)) for each in document["letters"]],
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("the line was written by a version this one cannot read") from error


def _known(document: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Only what this version has a place for: a later one may have added something."""
    return {name: value for name, value in document.items() if name in names}
