"""What an answer holds: its items with their ids, and links. Nothing here does I/O.

One item that cannot be used does not hold up the others of its page: it is set aside.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from ergon_framework.connector.broker import lossless_json
from ergon_framework.connector.http.lenient_json import decode_leniently, readable_text
from ergon_framework.errors import ConnectorError, PayloadError

MAX_ID = 255
MAX_HEADER = 16 * 1024
"""Characters of the Link headers that are read."""
_BAD = (msgspec.MsgspecError, ValueError, RecursionError, OverflowError)
_LINK = re.compile(r"<([^<>]*)>((?:\s*;\s*[^\s=;,]+\s*(?:=\s*(?:\"[^\"]*\"|[^\s;,\"]*))?)*)")
_PARAMETER = re.compile(r";\s*([^\s=;,]+)\s*(?:=\s*(?:\"([^\"]*)\"|([^\s;,\"]*)))?")
_WHOLE_LINES = (
    "see that the API sends every line whole, with a line end after the last; the page is asked for"
    " again"
)

Path = tuple[str, ...]


class PageError(ConnectorError):
    """An answer is no page of items. It is requested again later."""

    code = "bad_page"
    failure_kind = "transient"


@dataclass(frozen=True, slots=True)
class PageRules:
    """Where the items, ids and links of an answer are."""

    items: Path = ()
    ids: tuple[Path, ...] = ()
    payload: Path = ()
    correlation: Path | None = None
    since: Path | None = None
    is_lines: bool = False
    max_item_bytes: int = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Item:
    """One item of a page."""

    identity: str
    data: bytes = field(repr=False)
    """The item as JSON. Empty when it is too large to keep."""
    since: Any = None
    problem: str = ""
    """Why the item cannot be a transaction."""


@dataclass(frozen=True, slots=True)
class _UnreadableLine:
    """A line that is no JSON."""

    raw: bytes


def path_of(text: str) -> Path:
    """The names in ``a.b.c``."""
    return tuple(text.split(".")) if text else ()


def found_at(document: Any, path: Path) -> Any:
    """The value at a path of field names and list positions."""
    for name in path:
        if isinstance(document, Mapping):
            document = document.get(name)
        elif isinstance(document, list) and name.isascii() and name.isdecimal() and len(name) < 10:
            place = int(name)
            document = document[place] if place < len(document) else None
        else:
            return None
    return document


def document_of(body: bytes, *, is_lines: bool) -> Any:
    """The JSON of an answer. Of JSON Lines, the list of values."""
    text = body.removeprefix(b"\xef\xbb\xbf")
    try:
        if is_lines:
            return _lines(text)
        return _value(text)
    except _BAD as error:
        raise PageError(
            "the answer is no JSON", remedy="see that url= leads to the API and not to a page"
        ) from error


def items_of(document: Any, rules: PageRules) -> list[Item]:
    """The items of a page, in order. Raises PageError if the answer has no list of items."""
    found = document if rules.is_lines else found_at(document, rules.items)
    if not isinstance(found, list):
        place = f"{'.'.join(rules.items)!r}" if rules.items else "the whole answer"
        raise PageError(
            f"the answer has no list of items: {place} is {_kind(found)}",
            remedy="let items= name the path of the list, as in items=data.orders",
        )
    if found and rules.ids and not any(_has_id(each, rules) for each in found):
        names = ", ".join(".".join(path) for path in rules.ids)
        raise PageError(
            f"no item of the page has anything at {names}",
            remedy="let ids= name the path of the id within an item",
        )
    return [_item(each, rules) for each in found]


def links_of(header: str) -> dict[str, str]:
    """The targets in a Link header (RFC 8288) by their relation; the first of each counts."""
    found: dict[str, str] = {}
    for link in _LINK.finditer(header[:MAX_HEADER]):
        parameters: dict[str, str] = {}
        for name, quoted, plain in _PARAMETER.findall(link[2]):
            parameters.setdefault(name.lower(), quoted or plain)
        if "anchor" in parameters:  # a link of something else than this page
            continue
        for relation in parameters.get("rel", "").lower().split():
            found.setdefault(relation, link[1].strip())
    return found


def later(one: Any, other: Any) -> Any:
    """The higher of two values that mark how far an API was read; None is below everything."""
    if one is None or other is None:
        return one if other is None else other
    first, second = _comparable(one), _comparable(other)
    if type(first) is not type(second):
        return one
    return other if second > first else one


def not_in_future(value: Any, now: float) -> Any:
    """The value, or now if it is an instant after that: one wrong item must not hide the others."""
    instant = instant_of(value)
    if instant is None or instant.timestamp() <= now:
        return value
    capped = datetime.fromtimestamp(now, instant.tzinfo).isoformat()
    return capped.replace("+00:00", "Z") if str(value).endswith("Z") else capped


def is_mark(value: Any) -> bool:
    """Whether a value can mark progress: text or a number."""
    if isinstance(value, bool):
        return False
    return isinstance(value, str | int) or (isinstance(value, float) and value == value)  # noqa: PLR0124 - not NaN


def instant_of(value: Any) -> datetime | None:
    """The instant in a text with its offset from UTC."""
    if not isinstance(value, str) or not 16 <= len(value) <= 40:
        return None
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        return None
    return None if found.tzinfo is None else found


def _comparable(value: Any) -> Any:
    if isinstance(value, str):
        return instant_of(value) or value
    return float(value) if isinstance(value, float) else value


def _lines(text: bytes) -> list[Any]:
    """The value of each line. A line that is no JSON is an item that is set aside, unless the
    answer was cut off in it or is something else than lines.
    """
    values: list[Any] = []
    failed: list[Exception] = []
    for line in filter(bytes.strip, text.splitlines()):
        try:
            values.append(_value(line))
        except _BAD as error:
            failed.append(error)
            values.append(_UnreadableLine(line))
    if len(failed) * 2 > len(values):
        raise failed[0]
    is_last_unreadable = bool(values) and isinstance(values[-1], _UnreadableLine)
    if is_last_unreadable and not text.rstrip(b" \t").endswith((b"\n", b"\r")):
        raise PageError("the answer ends within a line", remedy=_WHOLE_LINES)
    return values


def _value(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except _BAD:
        pass
    try:
        # It takes halves of characters and NaN: then one bad item does not spoil its page.
        return json.loads(text)
    except _BAD:
        return decode_leniently(text)


def _item(value: Any, rules: PageRules) -> Item:
    if isinstance(value, _UnreadableLine):
        kept = json.dumps(readable_text(value.raw)[: rules.max_item_bytes])
        return Item(_digest(value.raw), kept.encode("ascii"), problem="the line is no JSON")
    try:
        data = lossless_json.encode_value("", "item", value)
    except PayloadError:
        return _malformed(value, rules.max_item_bytes)
    if len(data) > rules.max_item_bytes:
        problem = f"an item of {len(data)} bytes; max_message_bytes is {rules.max_item_bytes}"
        return Item(_digest(data), b"", problem=problem)
    mark = None if rules.since is None else found_at(value, rules.since)
    mark = mark if is_mark(mark) else None
    if not rules.ids:
        return Item(_digest(data), data, mark)
    words = [_word(found_at(value, path)) for path in rules.ids]
    if len(words) > 1:  # "a:b" and "c" are not "a" and "b:c"
        words = [word.replace("%", "%25").replace(":", "%3A") for word in words]
    identity = ":".join(words) if all(words) else ""
    if not 0 < len(identity) <= MAX_ID:
        names = ", ".join(".".join(path) for path in rules.ids)
        problem = f"the item has no id of 1 to {MAX_ID} printable characters at {names}"
        return Item(_digest(data), data, mark, problem)
    return Item(identity, data, mark)


def _has_id(value: Any, rules: PageRules) -> bool:
    """Whether there is any value in the place of the id, valid or not."""
    first = rules.ids[0]
    if not isinstance(value, Mapping):
        return True  # it is set aside for what it is
    above = found_at(value, first[:-1])
    return isinstance(above, Mapping) and first[-1] in above


def _word(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        return ""
    text = str(value)
    return text if text.isprintable() else ""


def _malformed(value: Any, max_bytes: int) -> Item:
    try:
        data = json.dumps(value).encode("ascii")
    except _BAD:  # nested too deep
        data = b"null"
    problem = (
        "JSON does not give the item back equal: NaN, half of a character, nested too deep, an"
        " integer of thousands of digits, or not UTF-8"
    )
    kept = data
    if len(data) > max_bytes:
        kept = json.dumps(data[:max_bytes].decode("ascii")).encode("ascii")
    return Item(_digest(data), kept, problem=problem)


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _kind(value: Any) -> str:
    kinds: Sequence[tuple[type, str]] = (
        (Mapping, "an object"),
        (str, "a text"),
        (bool, "true or false"),
        (int, "a number"),
        (float, "a number"),
    )
    return next((name for kind, name in kinds if isinstance(value, kind)), "not there")
