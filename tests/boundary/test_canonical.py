"""The canonical form, and the strict reading that goes with it."""

from __future__ import annotations

import json
import math
import struct
from datetime import UTC, datetime
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Any

import msgspec
import pytest
import rfc8785
from hypothesis import example, given
from hypothesis import strategies as st

from ergon_framework.boundary.facts import canonical as module
from ergon_framework.boundary.facts.canonical import MAX_DEPTH, MAX_INTEGER, canonical, decode, read
from ergon_framework.errors import FactInvalidError

pytestmark = pytest.mark.req("P9", "BOUNDARY:badinput")

numbers = st.one_of(
    st.integers(-MAX_INTEGER, MAX_INTEGER),
    st.floats(allow_nan=False, allow_infinity=False).filter(
        lambda number: not MAX_INTEGER < abs(number) < 1e21
    ),
)
texts = st.text(st.characters(codec="utf-8"))
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
    max_leaves=20,
)


def refused(raw: bytes) -> tuple[str, str]:
    """Where, and for which reason, such bytes are refused."""
    with pytest.raises(FactInvalidError) as caught:
        decode(raw)
    error = caught.value
    assert error.remedy
    assert error.code == "invalid_argument"
    assert error.reason == error.details["reason"]
    return error.details["field"], error.reason


def nested(depth: int, *, kind: str = "[]") -> bytes:
    """Arrays or objects within each other."""
    opening, closing = (b"[", b"]") if kind == "[]" else (b'{"a":', b"}")
    return opening * depth + b"1" + closing * depth


# ---- the canonical form ----


@given(values)
@example({"\ue000": 1, "\U00010000": 2})
@example([1.0, -0.0, 1e15, 1e-6, 5e-324, 1.7976931348623157e308, 1e21, 0.00001])
@example({"a": 9007199254740991, "b": [-9007199254740991]})
@example({"text": ":9007199254740993,[12345678901234567"})
@example(1e-7)
@example(12345678.25)
@example(0.0001)
@example([1.5, 2e-9])
@example({"9e": 0.5, "text": "1.0 and 3e8"})
def test_both_ways_write_the_same(value: Any) -> None:
    """Whatever way is taken, the bytes are those of the reference implementation."""
    assert canonical(value) == rfc8785.dumps(value)


@given(values)
def test_the_canonical_form_is_read_back_as_itself(value: Any) -> None:
    """A peer that reads a stored fact finds the same canonical form, and so the same identity."""
    form = canonical(value)
    again, twice = read(form)
    assert twice == form
    assert again == value


@given(values, st.booleans(), st.sampled_from([None, 1]))
def test_the_spelling_does_not_matter(value: Any, is_ascii: bool, indent: int | None) -> None:
    """Blanks, escapes and the spelling of numbers leave the canonical form as it is."""
    spelled = json.dumps(value, ensure_ascii=is_ascii, indent=indent).encode()
    assert read(spelled)[1] == canonical(value)


@pytest.mark.parametrize(
    ("spelling", "expected"),
    [
        (b'{"b":1,"a":2}', b'{"a":2,"b":1}'),
        (b'{"a":1.0}', b'{"a":1}'),
        (b'{"a":10e-1}', b'{"a":1}'),
        (b'{"a":"\\u00e9\\/"}', '{"a":"é/"}'.encode()),
        (b"-0", b"0"),
        (b"-0.0", b"0"),
        (b"1E2", b"100"),
        (b"0.0000001", b"1e-7"),
        (b"0.000001", b"0.000001"),
        (b"1e-400", b"0"),
        (b" \t\r\n[ 1 , 2 ]\n", b"[1,2]"),
        (b'"\\u2028\\u007f\\u0000"', b'"\xe2\x80\xa8\x7f\\u0000"'),
    ],
)
def test_other_spellings_of_the_same(spelling: bytes, expected: bytes) -> None:
    """Key order, 1 and 1.0, and escapes are not a difference."""
    assert read(spelling)[1] == expected


def test_the_example_of_the_rfc() -> None:
    """The sample of RFC 8785, section 3.2.2 to 3.2.4."""
    raw = (
        b'{"numbers":[333333333.33333329,1E30,4.50,2e-3,0.000000000000000000000000001],'
        b'"string":"\\u20ac$\\u000F\\u000aA\'\\u0042\\u0022\\u005c\\\\\\"\\/",'
        b'"literals":[null,true,false]}'
    )
    assert read(raw)[1] == (
        b'{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        b'"string":"\xe2\x82\xac$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )


def test_the_keys_of_the_rfc_are_in_the_order_of_utf_16() -> None:
    """The sorting sample of RFC 8785, section 3.2.3."""
    names = ["€", "\r", "\ufb33", "1", "😀", "\u0080", "ö"]
    form = canonical(dict.fromkeys(names, 0))
    assert list(json.loads(form)) == ["\r", "1", "\u0080", "ö", "€", "😀", "\ufb33"]


@pytest.mark.parametrize(
    ("bits", "expected"),
    [
        ("0000000000000000", b"0"),
        ("8000000000000000", b"0"),
        ("0000000000000001", b"5e-324"),
        ("8000000000000001", b"-5e-324"),
        ("7fefffffffffffff", b"1.7976931348623157e+308"),
        ("44b52d02c7e14af5", b"9.999999999999997e+22"),
        ("44b52d02c7e14af6", b"1e+23"),
        ("444b1ae4d6e2ef50", b"1e+21"),
        ("3eb0c6f7a0b5ed8d", b"0.000001"),
        ("3eb0c6f7a0b5ed8c", b"9.999999999999997e-7"),
        ("41b3de4355555553", b"333333333.3333332"),
        ("becbf647612f3696", b"-0.0000033333333333333333"),
        ("43143ff3c1cb0959", b"1424953923781206.2"),
    ],
)
def test_the_numbers_of_the_rfc(bits: str, expected: bytes) -> None:
    """Samples of RFC 8785, appendix B, of which whole numbers beyond 2^53 are refused here."""
    (number,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical(number) == expected


def test_usual_values_do_not_take_the_slow_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text, fractions, instants in microseconds and nested objects need no reference."""
    value: Any = {
        "é": ["x" * 99, 21.5, 0.30000000000000004, 21.0],
        "at": 1741248600000000,
        "n": None,
    }
    form = canonical(value)
    monkeypatch.setattr(module, "rfc8785", None)
    monkeypatch.setattr(module, "load", None)
    assert canonical(value) == form
    assert read(form)[1] == form
    assert read(msgspec.json.format(form))[1] == form


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


def test_what_stands_for_a_json_value_is_written_as_one() -> None:
    """Tuples are arrays, and words and numbers of an enumeration are themselves."""
    assert canonical({"a": (1, Colour.RED), "b": Level.HIGH}) == b'{"a":[1,"red"],"b":3}'


@pytest.mark.parametrize(
    ("value", "field", "reason"),
    [
        ({"a": [math.nan]}, "x.a[0]", "range"),
        (math.inf, "x", "range"),
        ([2**53], "x[0]", "range"),
        ([-(2**53)], "x[0]", "range"),
        ([2.0**53], "x[0]", "range"),
        ([10**400], "x[0]", "range"),
        ({"at": datetime(2026, 1, 1, tzinfo=UTC)}, "x.at", "type"),
        ([b"bytes"], "x[0]", "type"),
        ([Decimal("1.5")], "x[0]", "type"),
        ([{1, 2}], "x[0]", "type"),
        ([msgspec.Raw(b"1")], "x[0]", "type"),
        ({1: "a"}, "x", "type"),
        ({"a b": object()}, "x['a b']", "type"),
        (["\ud800"], "x[0]", "encoding"),
        ({"\udfff": 1}, "x", "encoding"),
    ],
)
def test_what_json_cannot_say_is_refused(value: Any, field: str, reason: str) -> None:
    """A Python value that would change on its way is refused with its place."""
    with pytest.raises(FactInvalidError) as caught:
        canonical(value, "x")
    assert (caught.value.details["field"], caught.value.reason) == (field, reason)


def test_a_value_that_holds_itself_is_refused() -> None:
    """There is an end to every fact."""
    value: list[Any] = []
    value.append(value)
    with pytest.raises(FactInvalidError) as caught:
        canonical(value)
    assert caught.value.reason == "depth"


# ---- strict reading ----


@pytest.mark.parametrize(
    ("raw", "field", "reason"),
    [
        (b'{"a":1,"a":1}', "fact.object_json.a", "duplicate_key"),
        (b'{"a":1,"\\u0061":2}', "fact.object_json.a", "duplicate_key"),
        (b'{"x":[{"a":1,"b":2,"a":3}]}', "fact.object_json.x[0].a", "duplicate_key"),
        (b'{"a":1.5,"a":1.5}', "fact.object_json.a", "duplicate_key"),
        (b'{"a":NaN}', "fact.object_json.a", "range"),
        (b"[Infinity]", "fact.object_json[0]", "range"),
        (b"-Infinity", "fact.object_json", "range"),
        (b"[1e400]", "fact.object_json[0]", "range"),
        (b"[9007199254740992]", "fact.object_json[0]", "range"),
        (b"-9007199254740992", "fact.object_json", "range"),
        (b'{"a":123456789012345678}', "fact.object_json.a", "range"),
        (b"[1e20]", "fact.object_json[0]", "range"),
        (b"1" * 5000, "fact.object_json", "range"),
        (b'["\\ud800"]', "fact.object_json[0]", "encoding"),
        (b'["\\udc00\\ud800"]', "fact.object_json[0]", "encoding"),
        (b'{"\\ud800":1}', "fact.object_json", "encoding"),
        (b'"\xed\xa0\x80"', "fact.object_json", "encoding"),
        (b'"\xff"', "fact.object_json", "encoding"),
        (b'{"\xc0\xaf":1}', "fact.object_json", "encoding"),
        (b"\xef\xbb\xbf1", "fact.object_json", "encoding"),
        ('"é"'.encode("utf-16"), "fact.object_json", "encoding"),
        (b"", "fact.object_json", "encoding"),
        (b"[1,]", "fact.object_json", "encoding"),
        (b"[1] 2", "fact.object_json", "encoding"),
        (b'"a\x01b"', "fact.object_json", "encoding"),
        (b"01", "fact.object_json", "encoding"),
        (b"{'a':1}", "fact.object_json", "encoding"),
        (b"[" * 100_000, "fact.object_json", "depth"),
        (nested(100_000), "fact.object_json", "depth"),
    ],
)
def test_what_readers_would_not_all_understand_alike_is_refused(
    raw: bytes, field: str, reason: str
) -> None:
    """Each is refused with its place and reason."""
    assert refused(raw) == (field, reason)


@pytest.mark.parametrize("kind", ["[]", "{}"])
def test_the_deepest_nesting(kind: str) -> None:
    """Sixty-four within each other are fine, one more is not, and its path is named."""
    raw = nested(MAX_DEPTH, kind=kind)
    assert read(raw)[1] == raw
    field, reason = refused(nested(MAX_DEPTH + 1, kind=kind))
    assert reason == "depth"
    assert field.startswith("fact.object_json" + ("[0][0]" if kind == "[]" else ".a.a"))


def test_many_brackets_are_not_deep() -> None:
    """Width is not depth, and brackets in text are text."""
    value = [{"a": [n]} for n in range(100)] + ["[{" * 100]
    assert decode(canonical(value)) == value
    assert decode(canonical("[" * 100)) == "[" * 100


def test_every_flaw_is_named_and_no_value_is() -> None:
    """All mistakes are in the answer, and nothing of the content but names."""
    with pytest.raises(FactInvalidError) as caught:
        decode(b'{"a":"secret\\ud800","b":9007199254740993,"c":{"d":1,"d":2}}')
    error = caught.value
    assert [each["field"].rpartition("json.")[2] for each in error.details["problems"]] == [
        *("a", "b", "c.d")
    ]
    assert "secret" not in str(error.to_dict())
    assert "9007199254740993" not in str(error.to_dict())


def test_an_endless_list_of_flaws_is_cut() -> None:
    """The answer does not grow with the request."""
    with pytest.raises(FactInvalidError) as caught:
        decode(b"[" + b"1e400," * 1000 + b"1]")
    assert len(caught.value.details["problems"]) == 20
    assert "999 more" in str(caught.value)


@given(st.binary() | st.text().map(str.encode))
@example(b'{"a":1, "a":1}')
def test_reading_is_total(raw: bytes) -> None:
    """Any bytes are either read, and then have a stable form, or refused."""
    try:
        value, form = read(raw)
    except FactInvalidError:
        return
    assert json.loads(raw) == value
    assert read(form) == (value, form)
