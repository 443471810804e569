"""Reads JSON in which single values cannot be read: they become text that marks them.

A document is read as a whole, so one value that is nested thousands deep, or one integer of
thousands of digits, would make all of it unreadable. The mark holds half of a character, which no
JSON gives back equal: whatever holds the mark is refused where values are checked one by one.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

MAX_DEPTH = 500
"""Lists and objects within each other. The decoder recurses, and so does the encoder later."""
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[{]+|[\]}]+', re.DOTALL)
"""A text, closed or not: without the second a text that never ends were looked at again and again
from each of its quotes."""


def decode_leniently(text: bytes) -> Any:
    """The document; a ValueError or RecursionError if it is no JSON."""
    return json.loads(
        _without_the_deepest(text).decode("utf-8", "surrogateescape"), parse_int=_integer
    )


def readable_text(raw: bytes) -> str:
    """Bytes that were received as text, for people; what is not UTF-8 is escaped."""
    return raw.decode("utf-8", "backslashreplace")


def _unreadable(why: str, raw: bytes) -> str:
    """What stands for a value, with the bytes received; another value has another one."""
    return f"\ud800{why}, sha256:{hashlib.sha256(raw).hexdigest()}: {readable_text(raw)}"


def _integer(digits: str) -> int | str:
    try:
        return int(digits)
    except ValueError:  # the interpreter bounds how many it converts
        return _unreadable(f"an integer of {len(digits)} digits", digits.encode())


def _without_the_deepest(text: bytes) -> bytes:
    """The same with a mark for each value that lies deeper than the decoder may go."""
    kept: list[bytes] = []
    depth = begins = ends = 0
    for token in _TOKEN.finditer(text):
        sign, count = text[token.start()], token.end() - token.start()
        if sign in b"[{":
            if depth <= MAX_DEPTH < depth + count:
                begins = token.start() + MAX_DEPTH - depth
            depth += count
        elif sign in b"]}":
            if depth - count <= MAX_DEPTH < depth:
                behind = token.start() + depth - MAX_DEPTH
                mark = _unreadable("nested too deep", text[begins:behind])
                kept += [text[ends:begins], json.dumps(mark).encode()]
                ends = behind
            depth -= count
    return b"".join([*kept, text[ends:]])
