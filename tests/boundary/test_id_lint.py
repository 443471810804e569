"""Ids that will not come out the same again."""

from __future__ import annotations

import hashlib
import json
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergon_framework.boundary.facts.canonical import canonical
from ergon_framework.boundary.facts.ids import (
    hash_of_object,
    hash_of_python,
    id_warning,
    lint,
    message_id,
    stable_uuid,
)
from ergon_framework.boundary.facts.validation import validate_fact
from ergon_framework.boundary.settings import LimitSettings

pytestmark = pytest.mark.req("P10", "BSFG:Ids")


@pytest.mark.parametrize(
    ("suspect", "word"),
    [
        (str(uuid.uuid4()), "random"),
        (str(uuid.uuid4()).upper(), "random"),
        (f"urn:uuid:{uuid.uuid4()}", "random"),
        ("{" + str(uuid.uuid4()) + "}", "random"),
        (str(uuid.uuid1()), "time"),
        ("1ec9414c-232a-6b00-b3c8-9e6bdeced846", "time"),
        ("017f22e2-79b0-7cc3-98c4-dc0c0c07398f", "time"),
        ("1741248600", "time in seconds"),
        ("1741248600000", "milliseconds"),
        ("1741248600000000", "microseconds"),
        ("1741248600000000000", "nanoseconds"),
        ("1741248600.123", "seconds"),
        ("-1", "counter"),
        ("1", "counter"),
        ("42", "counter"),
        ("000123", "counter"),
        ("123456789", "counter"),
        ("9999999999", "counter"),
        ("175928847299117063", "counter"),
        ("123456789012345678901", "counter"),
        (str(uuid.UUID(int=2**128 - 1).int), "counter"),
        ("2026-03-06T08:00:00Z", "point in time"),
        ("2026-03-06T08:00:00.123456+01:00", "point in time"),
        ("2026-03-06", "point in time"),
        ("20260306080000", "point in time"),
        ("20260306T080000Z", "point in time"),
        ("01ARZ3NDEKTSV4RRFFQ69G5FAV", "ULID"),
        ("01kaqz1vjrd3c5y8h9w2m4n6p7", "ULID"),
        ("0ujtsYcgvSTl8PAuAdqWYSMnLOv", "KSUID"),
        ("2xGtvZ7dQ1f5R3yBq8nTkWmJ0Lc", "KSUID"),
    ],
)
def test_unstable_shapes_are_named(suspect: str, word: str) -> None:
    """Random, time-based and counted ids are told apart."""
    found = lint(suspect)
    assert found is not None
    assert word in found


@pytest.mark.parametrize(
    "stable",
    [
        "WO:12345:created",
        "work_order_created/WO/12345",
        "WO-2026-001",
        "order:12345",
        "2026-03-06:shift-1:closed",
        "12345:created",
        "1741248600000-plant-a-WO-17",
        f"WO:{uuid.UUID(int=5, version=4)}:created",
        f"{uuid.UUID(int=5, version=4)}:created",
        "00000000-0000-0000-0000-000000000000",
        "sha256:" + "0" * 63 + "a",
        "<stable-id>",
        "BatchStepCompletedAtOven0007A",
        "AWorkOrderCreatedInPlantA00",
        "7ZZZZZZZZZZZZZZZZZZZZZZZZZ",
        "a" * 255,
        "é",
        "",
    ],
)
def test_derived_shapes_pass(stable: str) -> None:
    """Nothing is said about an id that may well be derived."""
    assert lint(stable) is None


@given(st.binary())
def test_hashes_pass(source: bytes) -> None:
    """The hexadecimal form of any usual hash is fine."""
    for name in ("md5", "sha1", "sha256", "sha512", "blake2b"):
        digest = hashlib.new(name, source).hexdigest()
        if not digest.isdigit():
            assert lint(digest) is None


@given(st.text(st.characters(codec="utf-8"), min_size=1))
def test_named_uuids_pass(name: str) -> None:
    """Versions 3 and 5 are made of a name, and so are the helpers' ids."""
    assert lint(str(uuid.uuid5(uuid.NAMESPACE_URL, name))) is None
    assert lint(str(uuid.uuid3(uuid.NAMESPACE_URL, name))) is None
    assert lint(stable_uuid("plant-a", name)) is None
    assert lint(message_id("created", "WO", name, once=True)) is None


@given(
    st.from_regex(r"[A-Z]{2,4}", fullmatch=True),
    st.integers(0, 10**9),
    st.from_regex(r"[a-z_]{3,20}", fullmatch=True),
)
def test_readable_keys_pass(kind: str, number: int, event: str) -> None:
    """Kind, number and event, in any usual order and with any usual mark between them."""
    for mark in ":-/.":
        assert lint(f"{kind}{mark}{number}{mark}{event}") is None
        assert lint(f"{event}{mark}{kind}{mark}{number}") is None


@given(st.text())
def test_lint_is_total(text: str) -> None:
    """Whatever text comes, it is either named or not."""
    found = lint(text)
    assert found is None or found


@pytest.mark.parametrize("name", ["md5", "sha1", "sha256", "sha384", "sha512"])
def test_the_hash_of_the_object_is_named(name: str) -> None:
    """In canonical form or as it was spelled, with or without the hash's name in front."""
    content: dict[str, Any] = {"b": 1, "a": "x"}
    form, spelled = canonical(content), json.dumps(content).encode()
    for source in (form, spelled):
        digest = hashlib.new(name, source).hexdigest()
        assert hash_of_object(digest, form, spelled)
        assert hash_of_object(f"{name}:{digest.upper()}", form, spelled)


@pytest.mark.parametrize("name", ["md5", "sha256"])
def test_the_hash_of_what_python_writes_is_named(name: str) -> None:
    """With the blanks that ``json.dumps`` leaves between things, sorted or not."""
    content = {"b": 1, "a": "é"}
    for is_sorted in (False, True):
        source = json.dumps(content, sort_keys=is_sorted).encode()
        assert hash_of_python(hashlib.new(name, source).hexdigest(), content)
    assert hash_of_python(hashlib.sha256(b"").hexdigest(), content) is None
    assert hash_of_python("0" * 64, {1: {2}}) is None


def test_a_random_uuid_without_dashes_is_doubted() -> None:
    """Named UUIDs are not, and neither is anything longer."""
    assert id_warning(uuid.uuid4().hex)
    assert id_warning(uuid.uuid4().hex.upper())
    for stable in (uuid.uuid5(uuid.NAMESPACE_URL, "a").hex, f"WO:{uuid.uuid4().hex}", "WO", ""):
        assert id_warning(stable) is None


def test_a_random_uuid_without_dashes_is_told_and_not_refused() -> None:
    """One of 64 MD5 digests looks like that: they must not be refused where a zone is strict."""
    message = {"from_zone": "a", "to_zone": "b", "produced_at_unix_ms": 1}
    message |= {"message_id": uuid.uuid4().hex}
    fact = {"subject": "order:1", "predicate": "was_created", "object_json": None}
    for strict_ids in (False, True):
        (warning,) = validate_fact(message, fact, LimitSettings(), strict_ids=strict_ids).warnings
        assert warning.startswith("envelope.message_id may be a random UUID")


def test_other_hashes_are_not_the_object_s() -> None:
    """A hash of the event's key is what an id should be."""
    form = canonical({"a": 1})
    assert hash_of_object(message_id("created", "WO", "1", once=True), form) is None
    assert hash_of_object("WO:12345:created", form) is None
    assert hash_of_object("", form) is None
