"""JSON in one spelling: the canonical form of RFC 8785, and the strict reading that goes with it.

Two spellings of the same content have the same canonical bytes, so a retry that orders its keys in
another way is still the same fact. The C encoder writes that form for nearly every value there is;
where it would not, the reference implementation does. What makes the difference is looked for in
the bytes, so that the usual fact costs a few microseconds.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import rfc8785

from ergon_framework.boundary.facts.schema import FactProblem, kind, place, refusal

MAX_INTEGER = 2**53 - 1
"""The largest whole number that every JSON reader keeps exact."""
MAX_DEPTH = 64
"""Arrays and objects within each other."""
OBJECT = "fact.object_json"

_REMEDY = "send JSON as RFC 7493 describes it"
_SURROGATE = re.compile("[\ud800-\udfff]")
_EXPONENT = 1e21
"""Numbers of this size and above are written with an exponent in the canonical form."""


class _UnsupportedNumberError(Exception):
    """A number whose canonical spelling the C encoder does not know."""


def _number(literal: str) -> float:
    """A number with a fraction; a whole one as the integer that its canonical form shows."""
    value = float(literal)
    size = abs(value)
    if 1e-5 <= size <= MAX_INTEGER or not size:
        return int(value) if value.is_integer() else value
    raise _UnsupportedNumberError


_decode = msgspec.json.Decoder(float_hook=_number).decode
_decode_plain = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_encode_sorted = msgspec.json.Encoder(order="sorted").encode
_compact = msgspec.json.format


def _mark(byte: int) -> int:
    if 0x30 <= byte <= 0x39:
        return ord("9")
    if byte in b"eE":
        return ord("e")
    return ord("[") if byte in b"[{" else ord("4") if byte >= 0xF0 else ord(" ")


# The bytes that matter: digits and exponents, brackets, and those that begin a character beyond
# U+FFFF.
_MARKS = bytes(_mark(byte) for byte in range(256))
_LONG = b"9" * 16
# An integer of so many digits, where one may begin; text is searched too, which only costs time.
_BEYOND = re.compile(rb"(?:^|[:,\[])-?(?:[0-9]{17}|9[0-9]{15})")


def canonical(value: Any, field: str = OBJECT) -> bytes:
    """The canonical form of a value; ``FactInvalidError`` with its place for what JSON cannot say.

    The encoder also takes what JSON has no word for: it writes NaN as null and a date as text. So
    its work is read back and compared.
    """
    try:
        form = _encode_sorted(value)
        marks = form.translate(_MARKS)
        # To ask with `in` takes longer: it first tries whether the bytes are a number.
        if (
            form.find(b".0") < 0
            and marks.find(b"9e") < 0
            and marks.find(_LONG) < 0
            and marks.count(b"[") <= MAX_DEPTH
            and (form.isascii() or marks.find(b"4") < 0)
        ):  # as nearly every fact: nothing in it can have another canonical form
            if _decode_plain(form) == value:
                return form
        else:
            again = _decode(form)
            if again == value and _is_plain(form, marks, again):
                return _encode_sorted(again)
    except (_UnsupportedNumberError, RecursionError, TypeError, ValueError):
        pass  # the slow way does it, or says what is wrong
    problems = list(json_problems(value, field))
    if problems:
        raise refusal(*problems)
    return rfc8785.dumps(value)


def decode(raw: bytes, field: str = OBJECT) -> Any:
    """The value of strict JSON (RFC 7493): no name twice, no number that a reader would bend."""
    return read(raw, field)[0]


def read(raw: bytes, field: str = OBJECT) -> tuple[Any, bytes]:
    """The value and its canonical form."""
    try:
        value = _decode(raw)
        form = _encode_sorted(value)
        if (form == raw or _is_said_once(value, raw)) and _is_plain(
            form, form.translate(_MARKS), value
        ):
            return value, form
    except (_UnsupportedNumberError, msgspec.DecodeError, RecursionError, UnicodeError):
        pass
    value = load(raw, field)
    return value, canonical(value, field)


def load(raw: bytes, field: str) -> Any:
    """The value as it is spelled, by the slow way: it understands every spelling there is.

    No name stands twice in an object. What else JSON cannot say, the canonical form refuses.
    """
    doubled: list[str] = []

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) == len(pairs):
            return found
        counted = Counter(name for name, _ in pairs)
        doubled.extend(name for name, times in counted.items() if times > 1)
        return _DuplicateName(found, doubled[-1])

    try:
        value = json.loads(
            raw.decode(), object_pairs_hook=members, parse_float=_fraction, parse_constant=float
        )
    except (ValueError, RecursionError) as error:
        raise refusal(_unreadable(field, error)) from None
    if doubled:  # in a whole request the object lies a little deeper
        raise refusal(*json_problems(value, field, MAX_DEPTH + 4))
    return value


def _unreadable(field: str, error: Exception) -> FactProblem:
    if isinstance(error, RecursionError):
        return _too_deep(field)
    if isinstance(error, UnicodeDecodeError):
        return FactProblem(field, "encoding", f"is not UTF-8 at byte {error.start}", _REMEDY)
    if isinstance(error, json.JSONDecodeError):
        text = f"is not JSON at character {error.pos}: {error.msg}"
        return FactProblem(field, "encoding", text, _REMEDY)
    return FactProblem(field, "range", "holds a number of thousands of digits", _REMEDY)


def json_problems(value: Any, path: str, deepest: int = MAX_DEPTH) -> Iterator[FactProblem]:
    """What JSON cannot say so that everybody understands the same, with the place of each."""
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, str):
        if _SURROGATE.search(value):
            yield FactProblem(
                path, "encoding", "holds a lone surrogate", "decode the text properly"
            )
    elif isinstance(value, int | float):
        if not _is_exact_number(value):
            text = "is beyond the numbers that every JSON reader keeps exact"
            remedy = "stay within ±(2^53 - 1), or write it as text"
            yield FactProblem(path, "range", text, remedy)
    elif not isinstance(value, dict | list | tuple):
        remedy = "use text, numbers, booleans, null, and lists and dicts of these"
        text = f"is of type {type(value).__name__}, which JSON does not have"
        yield FactProblem(path, "type", text, remedy)
    elif not deepest:
        yield _too_deep(path)
    elif isinstance(value, dict):
        yield from _problems_of_members(value, path, deepest - 1)
    else:
        for n, item in enumerate(value):
            yield from json_problems(item, place(path, n), deepest - 1)


def _problems_of_members(members: dict[Any, Any], path: str, deepest: int) -> Iterator[FactProblem]:
    if isinstance(members, _DuplicateName):
        at = place(path, members.name)
        yield FactProblem(at, "duplicate_key", "is given twice", "give each name once")
    for name, item in members.items():
        if not isinstance(name, str):
            text = f"has a key that is {kind(name)}, and JSON keys are text"
            yield FactProblem(path, "type", text, "write the key as text")
        elif _SURROGATE.search(name):
            text = "has a key with a lone surrogate"
            yield FactProblem(path, "encoding", text, "decode the text properly")
        else:
            yield from json_problems(item, place(path, name), deepest)


def _too_deep(path: str) -> FactProblem:
    at = path if len(path) <= 200 else path[:200] + "…"
    return FactProblem(at, "depth", f"is nested more than {MAX_DEPTH} deep", "make it flatter")


def _is_exact_number(value: float) -> bool:
    """Whether a number survives; a large whole one would come back as another integer."""
    if isinstance(value, int):
        return -MAX_INTEGER <= value <= MAX_INTEGER
    return math.isfinite(value) and not MAX_INTEGER < abs(value) < _EXPONENT


def _is_said_once(value: Any, raw: bytes) -> bool:
    """Whether the bytes spell the value as the encoder would, apart from blanks.

    Then no name stands twice in an object, for the second one would have been lost.
    """
    plain = _encode(value)
    return plain == raw or plain == _compact(raw, indent=-1)


def _is_plain(form: bytes, marks: bytes, value: Any) -> bool:
    """Whether what the encoder wrote is the canonical form.

    Its keys are in the order of their code points, which is that of UTF-16 up to U+FFFF, and its
    integers are of any size.
    """
    if marks.find(_LONG) >= 0 and _BEYOND.search(form):
        return False
    if marks.count(b"[") > MAX_DEPTH and not _is_shallow(value):
        return False
    return form.isascii() or marks.find(b"4") < 0


def _is_shallow(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for node in level
            for item in (node.values() if type(node) is dict else node)
            if type(item) in {dict, list}
        ]
        if not level:
            return True
    return False


class _DuplicateName(dict[str, Any]):
    """An object in which a name stands twice."""

    def __init__(self, members: dict[str, Any], name: str) -> None:
        super().__init__(members)
        self.name = name


def _fraction(literal: str) -> float:
    value = float(literal)
    return int(value) if value.is_integer() and abs(value) <= MAX_INTEGER else value
