"""The artifacts that a fact refers to."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergon_framework.boundary.facts.canonical import canonical
from ergon_framework.boundary.facts.validation import MAX_REFERENCES, REFERENCE_MARK, references
from ergon_framework.errors import FactInvalidError
from ergon_framework.ports.factstore import Reference

pytestmark = pytest.mark.req("P1", "BSFG:Artifact", "BOUNDARY:objects")

DIGEST = "sha256:" + "ab" * 32
GIVEN = {
    "bucket": "batch-files",
    "key": "order-2026-03-06-001.pdf",
    "digest": DIGEST,
    "size": 2048576,
    "media_type": "application/pdf",
    "file_name": "batch_order.pdf",
}
FOUND = Reference("batch-files", "order-2026-03-06-001.pdf", bytes.fromhex("ab" * 32), 2048576)


def refused(value: Any) -> list[tuple[str, str]]:
    """Where, and why, a reference is refused."""
    with pytest.raises(FactInvalidError) as caught:
        references(value)
    assert caught.value.remedy
    return [(each["field"], each["reason"]) for each in caught.value.details["problems"]]


def without(*names: str) -> dict[str, Any]:
    """A reference that lacks something."""
    return {name: value for name, value in GIVEN.items() if name not in names}


def test_the_object_itself_may_be_a_reference() -> None:
    """As in the specification's example."""
    assert references(GIVEN) == (FOUND,)


def test_references_are_found_at_any_depth() -> None:
    """In lists, in objects, and within another reference; each once."""
    other = {**GIVEN, "key": "other", "parts": [GIVEN, {"x": {**GIVEN, "key": "third"}}]}
    found = references({"attachments": [GIVEN, other], "main": GIVEN})
    assert [each.key for each in found] == [FOUND.key, "other", "third"]


@pytest.mark.parametrize(
    "value",
    [
        None,
        "bucket",
        ["bucket", "key", "digest"],
        {},
        {"bucket": "b"},
        {"bucket": "b", "key": "k"},
        {"key": "k", "digest": "d", "size": 1},
        {"bucket": "b", "digest": "d"},
        {"bucket": 5, "key": []},
    ],
)
def test_what_is_no_reference_is_left_alone(value: Any) -> None:
    """The domain may use these words for itself."""
    assert references(value) == ()


@pytest.mark.parametrize(
    ("value", "problems"),
    [
        (without("digest"), [("fact.object_json.digest", "missing")]),
        (without("size"), [("fact.object_json.size", "missing")]),
        (
            without("digest", "size", "media_type"),
            [("fact.object_json.digest", "missing"), ("fact.object_json.size", "missing")],
        ),
        ({"attachments": [{**GIVEN, "digest": "x"}]}, [("attachments[0].digest", "pattern")]),
        ({"a": {**GIVEN, "digest": None}}, [("a.digest", "missing")]),
        ({**GIVEN, "digest": 5}, [("digest", "pattern")]),
        ({**GIVEN, "size": "5"}, [("size", "type")]),
        ({**GIVEN, "size": True}, [("size", "type")]),
        ({**GIVEN, "size": 1.5}, [("size", "type")]),
        ({**GIVEN, "size": -1}, [("size", "range")]),
        ({**GIVEN, "bucket": ""}, [("bucket", "length")]),
        ({**GIVEN, "key": None}, [("key", "type")]),
    ],
)
def test_a_malformed_reference_is_refused(value: Any, problems: list[tuple[str, str]]) -> None:
    """With the path of what is wrong."""
    full = [
        (at if at.startswith("fact.") else f"fact.object_json.{at}", why) for at, why in problems
    ]
    assert refused(value) == full


def test_there_is_a_limit() -> None:
    """Sixty-four artifacts, counted once each."""
    many = [{**GIVEN, "key": str(n)} for n in range(MAX_REFERENCES)]
    assert len(references(many + many)) == MAX_REFERENCES
    assert refused([*many, GIVEN]) == [("fact.object_json", "length")]


@given(
    st.recursive(
        st.just(GIVEN) | st.none() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_no_reference_without_the_mark(value: Any) -> None:
    """Looking for a few bytes is enough to know that there is none."""
    if REFERENCE_MARK not in canonical(value):
        assert references(value) == ()
