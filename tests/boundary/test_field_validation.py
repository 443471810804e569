"""The edge of a node: every field is checked, and each mistake is told by its path."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergon_framework.boundary.facts import schema, validation
from ergon_framework.boundary.facts.canonical import MAX_DEPTH, canonical
from ergon_framework.boundary.facts.validation import (
    ValidatedFact,
    parse_append,
    parse_batch,
    validate_fact,
)
from ergon_framework.boundary.model import Envelope, Fact
from ergon_framework.boundary.settings import LimitSettings
from ergon_framework.errors import FactInvalidError
from ergon_framework.ports.factstore import Reference

pytestmark = pytest.mark.req("P3", "BOUNDARY:badinput")

NOW = 1_741_248_600.0
LIMITS = LimitSettings()
ENVELOPE: dict[str, Any] = {
    "message_id": "WO:12345:created",
    "from_zone": "Plant A",
    "to_zone": "Enterprise",
    "produced_at_unix_ms": 1741248600000,
    "correlation_id": "order:12345",
    "labels": {"priority": "high"},
}
FACT: dict[str, Any] = {
    "subject": "work_order:WO-2026-001",
    "predicate": "was_created",
    "object_json": {"b": 1, "a": [1.5, None]},
}
GONE = object()
Way = Callable[..., ValidatedFact]


def changed(path: str, value: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """An envelope and a fact with one field that is other, or not there."""
    part, _, name = path.partition(".")
    whole = {"envelope": {**ENVELOPE}, "fact": {**FACT}}
    whole[part][name] = value
    if value is GONE:
        del whole[part][name]
    return whole["envelope"], whole["fact"]


def by_wire(envelope: Any, fact: Any, **options: Any) -> ValidatedFact:
    """As a request with compact JSON."""
    body = json.dumps({"envelope": envelope, "fact": fact}, separators=(",", ":")).encode()
    return by_body(body, **options)


def by_body(body: bytes, limits: LimitSettings = LIMITS, **options: Any) -> ValidatedFact:
    """As a request."""
    return validate_fact(*parse_append(body, limits), limits, clock=lambda: NOW, **options)


def by_value(envelope: Any, fact: Any, **options: Any) -> ValidatedFact:
    """As dicts of a program."""
    return validate_fact(envelope, fact, LIMITS, clock=lambda: NOW, **options)


def by_record(envelope: Any, fact: Any, **options: Any) -> ValidatedFact:
    """As records of a program, which nobody has checked yet."""
    return by_value(Envelope(**envelope), Fact(**fact), **options)


def refused(way: Way, *args: Any, **options: Any) -> FactInvalidError:
    """Why such a fact is refused."""
    with pytest.raises(FactInvalidError) as caught:
        way(*args, **options)
    error = caught.value
    assert error.remedy
    assert error.to_dict()["code"] == "invalid_argument"
    assert error.details["reason"] == error.reason
    assert error.details["problems"][0]["field"] == error.details["field"]
    return error


both = pytest.mark.parametrize("way", [by_wire, by_value])

# ---- what is accepted ----


@pytest.mark.parametrize("way", [by_wire, by_value, by_record])
def test_a_sound_fact_is_ready_for_a_log(way: Way) -> None:
    """Stored are compact JSON in the order of the model, and the object in canonical form."""
    new, warnings = way(ENVELOPE, FACT, source_offset=7)
    assert (new.from_zone, new.message_id, new.to_zone) == (
        *("Plant A", "WO:12345:created", "Enterprise"),
    )
    assert new.envelope == (
        b'{"message_id":"WO:12345:created","from_zone":"Plant A","to_zone":"Enterprise",'
        b'"produced_at_unix_ms":1741248600000,"correlation_id":"order:12345",'
        b'"labels":{"priority":"high"}}'
    )
    assert new.fact == (
        b'{"subject":"work_order:WO-2026-001","predicate":"was_created",'
        b'"object_json":{"a":[1.5,null],"b":1}}'
    )
    content = (
        b'{"from_zone":"Plant A","object_json":{"a":[1.5,null],"b":1},"predicate":"was_created",'
        b'"subject":"work_order:WO-2026-001","to_zone":"Enterprise"}'
    )
    assert new.digest == sha256(content).digest()
    assert new.references == ()
    assert new.source_offset == 7
    assert warnings == ()


@pytest.mark.req("P9")
@pytest.mark.parametrize(
    "spelled",
    [
        {"indent": 2},
        {"sort_keys": True},
        {"separators": (" , ", " : ")},
        {"ensure_ascii": False},
    ],
)
def test_the_spelling_of_a_request_does_not_matter(spelled: dict[str, Any]) -> None:
    """Blanks, the order of fields and escapes make no other fact."""
    fact = {**FACT, "object_json": {"é": 1.0, "a": "\u2028"}}
    plain = by_wire(ENVELOPE, fact)
    assert by_body(json.dumps({"fact": fact, "envelope": ENVELOPE}, **spelled).encode()) == plain


def test_names_and_numbers_as_protocol_buffers_write_them() -> None:
    """LowerCamelCase and 64-bit integers as text are understood."""
    envelope, fact = (
        {
            re.sub("_(.)", lambda found: found[1].upper(), name): value
            for name, value in part.items()
        }
        for part in (ENVELOPE, FACT)
    )
    envelope["producedAtUnixMs"] = "1741248600000"
    assert by_wire(envelope, fact) == by_wire(ENVELOPE, FACT)
    assert by_value(envelope, fact) == by_wire(ENVELOPE, FACT)


def test_what_is_given_as_null_or_empty_is_left_out() -> None:
    """An optional field without content is one that was not given."""
    nothing = {"causation_id": None, "object_schema": "", "object_media_type": None}
    assert by_wire({**ENVELOPE, **nothing}, FACT) == by_wire(ENVELOPE, FACT)
    assert by_value({**ENVELOPE, **nothing}, FACT) == by_wire(ENVELOPE, FACT)


@pytest.mark.parametrize("value", [None, True, 0, "", "x", [], {}, 1.5])
@both
def test_any_json_value_may_be_the_object(way: Way, value: Any) -> None:
    """Null included, as long as it is given."""
    new, _ = way(ENVELOPE, {**FACT, "object_json": value})
    assert json.loads(new.fact)["object_json"] == value


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("envelope.message_id", "x" * 255),
        ("envelope.message_id", "!~"),
        ("envelope.from_zone", "z"),
        ("envelope.from_zone", "Werk Süd " + "z" * 119),
        ("envelope.produced_at_unix_ms", 1),
        ("envelope.produced_at_unix_ms", 5.0),
        ("envelope.correlation_id", "x" * 255),
        ("envelope.correlation_id", "Größe 7"),
        ("envelope.labels", {}),
        ("envelope.labels", {f"{n:063}": "x" * 255 for n in range(32)}),
        ("envelope.labels", {"a b/c": ""}),
        ("envelope.object_media_type", "application/pdf"),
        ("envelope.object_media_type", "application/vnd.a+json; charset=utf-8"),
        ("envelope.object_schema", "urn:bsfg:schema:batch.step_completed:v1"),
        ("fact.subject", "a:b"),
        ("fact.subject", "batch_order2:plant-a/line:1/7"),
        ("fact.subject", "k:" + "x" * 1022),
        ("fact.predicate", "p" * 128),
        ("fact.object_json", "x" * (256 * 1024 - 2)),
    ],
)
@both
def test_the_limits_themselves_are_accepted(way: Way, path: str, value: Any) -> None:
    """A field may be as long as it may be."""
    new, _ = way(*changed(path, value))
    part, _, name = path.partition(".")
    assert json.loads(getattr(new, part))[name] == value


# ---- what is refused ----

WRONG: list[tuple[str, Any, str]] = [
    *((f"envelope.{name}", GONE, "missing") for name in list(ENVELOPE)[:4]),
    *((f"envelope.{name}", None, "missing") for name in list(ENVELOPE)[:4]),
    *((f"fact.{name}", GONE, "missing") for name in FACT),
    ("fact.subject", None, "missing"),
    *((f"envelope.{name}", 5, "type") for name in ENVELOPE if name != "produced_at_unix_ms"),
    *((f"fact.{name}", ["x"], "type") for name in list(FACT)[:2]),
    ("envelope.message_id", "", "length"),
    ("envelope.message_id", "x" * 256, "length"),
    ("envelope.message_id", "a b", "pattern"),
    ("envelope.message_id", "é", "pattern"),
    ("envelope.message_id", "a\n", "pattern"),
    ("envelope.from_zone", "", "length"),
    ("envelope.from_zone", "z" * 129, "length"),
    ("envelope.from_zone", "a\x7f", "pattern"),
    ("envelope.to_zone", "a\n", "pattern"),
    ("envelope.produced_at_unix_ms", 0, "range"),
    ("envelope.produced_at_unix_ms", 2**63, "range"),
    ("envelope.produced_at_unix_ms", "0", "range"),
    ("envelope.produced_at_unix_ms", "soon", "type"),
    ("envelope.produced_at_unix_ms", "", "type"),
    ("envelope.produced_at_unix_ms", True, "type"),
    ("envelope.produced_at_unix_ms", 1.5, "type"),
    ("envelope.correlation_id", "x" * 256, "length"),
    ("envelope.causation_id", "a\tb", "pattern"),
    ("envelope.labels", [], "type"),
    ("envelope.labels", {str(n): "" for n in range(33)}, "length"),
    ("envelope.labels", {"k" * 64: "a"}, "length"),
    ("envelope.labels", {"": "a"}, "length"),
    ("envelope.labels", {"a": "x" * 256}, "length"),
    ("envelope.labels", {"a": 5}, "type"),
    ("envelope.labels", {"a": None}, "type"),
    ("envelope.labels", {"a": "\x00"}, "pattern"),
    ("envelope.object_media_type", "pdf", "pattern"),
    ("envelope.object_media_type", "", "length"),
    ("envelope.object_media_type", "a/b/c", "pattern"),
    ("envelope.object_media_type", "a/" + "b" * 254, "length"),
    ("envelope.object_schema", "x" * 256, "length"),
    ("fact.subject", "", "length"),
    ("fact.subject", "work_order", "pattern"),
    ("fact.subject", "Work:1", "pattern"),
    ("fact.subject", "a:", "pattern"),
    ("fact.subject", "a:/b", "pattern"),
    ("fact.subject", "a:b/", "pattern"),
    ("fact.subject", "a:b c", "pattern"),
    ("fact.subject", "a:b\n", "pattern"),
    ("fact.subject", "k:" + "x" * 1023, "length"),
    ("fact.predicate", "", "length"),
    ("fact.predicate", "hasBatch", "pattern"),
    ("fact.predicate", "p" * 129, "length"),
    ("fact.object_json", "x" * (256 * 1024 - 1), "too_large"),
]


@pytest.mark.parametrize(("path", "value", "reason"), WRONG)
@both
def test_a_wrong_field_is_refused_by_its_path(way: Way, path: str, value: Any, reason: str) -> None:
    """Each rule of each field."""
    error = refused(way, *changed(path, value))
    assert error.reason == reason
    assert error.details["field"].startswith(path)
    assert len(error.details["problems"]) == 1
    assert "xxx" not in str(error.to_dict())


@pytest.mark.parametrize(("path", "value", "reason"), WRONG)
def test_records_are_checked_too(path: str, value: Any, reason: str) -> None:
    """A record is only a shape: what a program put into it is looked at."""
    if value is GONE or value is None:
        value = None
        reason = "missing"
    if path == "fact.object_json" and value is None:
        return  # that is null
    assert refused(by_record, *changed(path, value)).reason == reason


def test_paths_lead_to_the_label() -> None:
    """Also where a name is odd."""
    error = refused(by_wire, *changed("envelope.labels", {"a": 1, "b c": None, "d": "ok"}))
    assert [each["field"] for each in error.details["problems"]] == [
        *("envelope.labels.a", "envelope.labels['b c']"),
    ]


@pytest.mark.parametrize("name", ["produced_at_unix_ms", "producedAtUnixMs"])
def test_a_lengthy_spelling_is_refused_before_it_is_read(name: str) -> None:
    """Blanks without end do not take the node's time, whatever way the request would go."""
    envelope = {**ENVELOPE, name: ENVELOPE["produced_at_unix_ms"]}
    if name not in ENVELOPE:
        del envelope["produced_at_unix_ms"]
    body = json.dumps({"envelope": envelope, "fact": {**FACT, "object_json": "@"}}).encode()
    body = body.replace(b'"@"', b"[" + b" " * 700_000 + b"]")
    assert by_body(body).new_fact.fact.endswith(b"[]}")
    error = refused(by_body, body, limits=LimitSettings(fact_bytes=100_000))
    assert (error.details["field"], error.reason) == ("fact.object_json", "too_large")


@both
def test_all_mistakes_are_told_at_once(way: Way) -> None:
    """The first in front, and nothing of the values."""
    envelope = {**ENVELOPE, "from_zone": 5, "colour": "secret", "labels": {"a": 1}}
    error = refused(way, envelope, {"subject": "secret", "object_json": 1})
    assert [(each["field"], each["reason"]) for each in error.details["problems"]] == [
        ("envelope.colour", "unknown_field"),
        ("envelope.from_zone", "type"),
        ("envelope.labels.a", "type"),
        ("fact.subject", "pattern"),
        ("fact.predicate", "missing"),
    ]
    assert "secret" not in str(error.to_dict())


@pytest.mark.parametrize(
    ("envelope", "fact", "field", "reason"),
    [
        (None, FACT, "envelope", "missing"),
        (ENVELOPE, None, "fact", "missing"),
        ([], FACT, "envelope", "type"),
        (ENVELOPE, "x", "fact", "type"),
        ({**ENVELOPE, "mesage_id": "x"}, FACT, "envelope.mesage_id", "unknown_field"),
        ({**ENVELOPE, "messageId": "x"}, FACT, "envelope.message_id", "duplicate_key"),
        (ENVELOPE, {**FACT, "object": 1}, "fact.object", "unknown_field"),
        (ENVELOPE, {**FACT, "objectJson": 1}, "fact.object_json", "duplicate_key"),
    ],
)
@both
def test_the_shape_of_a_message(
    way: Way, envelope: Any, fact: Any, field: str, reason: str
) -> None:
    """Two objects with known fields, each given once."""
    error = refused(way, envelope, fact)
    assert (error.details["field"], error.reason) == (field, reason)


def test_a_near_miss_is_suggested() -> None:
    """A misspelled field is likely the one that is missing."""
    assert "message_id" in refused(by_value, {**ENVELOPE, "mesage_id": "x"}, FACT).remedy


@pytest.mark.parametrize(
    ("body", "field", "reason"),
    [
        (b"", "body", "encoding"),
        (b"{", "body", "encoding"),
        (b"\xff", "body", "encoding"),
        (b"null", "body", "missing"),
        (b"[]", "body", "type"),
        (b'"x"', "body", "type"),
        (b"1e999", "body", "type"),
        (b"{}", "envelope", "missing"),
        (b'{"envelope":{},"fact":{},"stream":1}', "stream", "unknown_field"),
        (b'{"envelope":{},"envelope":{},"fact":{}}', "envelope", "duplicate_key"),
        (b"[" * 100_000, "body", "depth"),
    ],
)
def test_bodies_that_are_no_message(body: bytes, field: str, reason: str) -> None:
    """The whole request is named where no field can be."""
    error = refused(by_body, body)
    assert (error.details["field"], error.reason) == (field, reason)


@pytest.mark.parametrize("name", [*ENVELOPE, "labels.priority", *FACT])
def test_a_field_that_stands_twice_is_refused(name: str) -> None:
    """The first of two is not silently dropped, wherever it stands."""
    body = json.dumps({"envelope": ENVELOPE, "fact": FACT}, separators=(",", ":")).encode()
    last = name.rpartition(".")[2]
    at = body.index(f'"{last}":'.encode())
    twice = body[:at] + f'"{last}":null,'.encode() + body[at:]
    error = refused(by_body, twice)
    assert error.reason == "duplicate_key"
    assert error.details["field"].endswith(name)
    spaced = twice.replace(b",", b" , ")
    assert refused(by_body, spaced).reason == "duplicate_key"


@pytest.mark.parametrize(
    ("raw", "field", "reason"),
    [
        (b'{"a":1,"a":1}', "fact.object_json.a", "duplicate_key"),
        (b'{"a":NaN}', "fact.object_json.a", "range"),
        (b'{"a":9007199254740993}', "fact.object_json.a", "range"),
        (b'{"a":"\\ud800"}', "fact.object_json.a", "encoding"),
        (b'"\xff"', "fact.object_json", "encoding"),
        (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "fact.object_json[0]", "depth"),
    ],
)
def test_flaws_of_the_object_are_refused(raw: bytes, field: str, reason: str) -> None:
    """By the strict reading; the path begins at the fact where it can be known."""
    whole = json.dumps({"envelope": ENVELOPE, "fact": {**FACT, "object_json": "@"}}).encode()
    error = refused(by_body, whole.replace(b'"@"', raw))
    assert error.reason == reason
    assert error.details["field"].startswith(field) or error.details["field"] == "body"


def test_the_deepest_object_also_goes_the_slow_way() -> None:
    """Wherever it is read, the object may be as deep as it may be."""
    value: Any = 1
    for _ in range(MAX_DEPTH):
        value = [value]
    envelope = {**ENVELOPE, "produced_at_unix_ms": "1741248600000"}
    fact = {**FACT, "object_json": value}
    assert by_wire(envelope, fact) == by_wire(ENVELOPE, fact)
    assert refused(by_wire, envelope, {**FACT, "object_json": [value]}).reason == "depth"


def test_an_unknown_zone_may_not_be_addressed() -> None:
    """Where the zones are known."""
    assert by_wire(ENVELOPE, FACT, known_zones={"Enterprise"})
    error = refused(by_wire, ENVELOPE, FACT, known_zones={"Plant A"})
    assert (error.details["field"], error.reason) == ("envelope.to_zone", "range")


def test_long_words_are_not_remembered() -> None:
    """What is kept for speed stays small, whatever is sent."""
    remembered = (validation.are_valid_names, validation.is_valid_word)
    by_wire(ENVELOPE, FACT)
    sizes = [each.cache_info().currsize for each in remembered]
    for path in ("envelope.from_zone", "envelope.to_zone", "fact.predicate", "envelope.labels"):
        word = "z" * 300
        refused(by_wire, *changed(path, {word: "a"} if path.endswith("labels") else word))
    refused(by_wire, *changed("envelope.labels", {"priority": "z" * 300}))
    assert [each.cache_info().currsize for each in remembered] == sizes


# ---- artifacts ----

REFERENCE = {"bucket": "b", "key": "k", "digest": "sha256:" + "0" * 64, "size": 5}


@pytest.mark.req("P1", "BSFG:Artifact")
@pytest.mark.parametrize("value", [REFERENCE, {"x": (REFERENCE,)}, [{**REFERENCE, "size": 5.0}]])
@both
def test_references_are_found(way: Way, value: Any) -> None:
    """As they are stored, however they were given."""
    new, _ = way(ENVELOPE, {**FACT, "object_json": value})
    assert new.references == (Reference("b", "k", bytes(32), 5),)


@pytest.mark.req("P1", "BSFG:Artifact")
@both
def test_a_malformed_reference_is_refused(way: Way) -> None:
    """With the path of its field."""
    value = {"attachments": [{**REFERENCE, "digest": "sha256:…"}]}
    error = refused(way, ENVELOPE, {**FACT, "object_json": value})
    assert error.details["field"] == "fact.object_json.attachments[0].digest"


# ---- warnings ----


def test_a_fact_from_the_future_is_told() -> None:
    """A day ahead is a clock's error that somebody should know about; nothing depends on it."""
    ahead = int(NOW * 1000) + 86_400_000
    assert by_wire(*changed("envelope.produced_at_unix_ms", ahead)).warnings == ()
    (warning,) = by_wire(*changed("envelope.produced_at_unix_ms", ahead + 1)).warnings
    assert warning.startswith("envelope.produced_at_unix_ms")


@pytest.mark.req("P10", "BSFG:Ids")
@pytest.mark.parametrize(
    "suspect",
    [
        str(uuid.uuid4()),
        "1741248600000",
        "17",
        sha256(canonical(FACT["object_json"])).hexdigest(),
        sha256(b'{"b":1,"a":[1.5,null]}').hexdigest(),
        sha256(json.dumps(FACT["object_json"]).encode()).hexdigest(),
    ],
)
def test_an_unstable_id_is_told_or_refused(suspect: str) -> None:
    """A warning by default, a refusal where the zone is strict."""
    message = changed("envelope.message_id", suspect)
    (warning,) = by_wire(*message).warnings
    assert warning.startswith("envelope.message_id looks like")
    error = refused(by_wire, *message, strict_ids=True)
    assert (error.details["field"], error.reason) == ("envelope.message_id", "unstable_id")
    assert by_wire(ENVELOPE, FACT, strict_ids=True)


# ---- batches ----


def test_a_batch_is_read_in_order() -> None:
    """Each item as if it had come alone."""
    items = [
        {"envelope": {**ENVELOPE, "message_id": f"WO:{n}:created"}, "fact": FACT} for n in range(5)
    ]
    expected = [by_wire(**item) for item in items]
    for indent in (None, 1):
        found = parse_batch(json.dumps({"items": items}, indent=indent).encode(), LIMITS)
        assert [by_value(*each) for each in found if isinstance(each, tuple)] == expected
    assert parse_batch(b'{"items":[]}', LIMITS) == []


def test_a_bad_item_does_not_spoil_the_others() -> None:
    """It is an error in its place; the others are as they should be."""
    good = json.dumps({"envelope": ENVELOPE, "fact": FACT}).encode()
    items = [
        good,
        b"5",
        good.replace(b'"Plant A"', b"5"),
        good.replace(b'"fact"', b'"fakt"'),
        good.replace(b'"to_zone"', b'"to_zone": "x", "to_zone"'),
        good.replace(b"message_id", b"messageId"),
        good,
    ]
    found = parse_batch(b'{ "items": [' + b" ,".join(items) + b"] }", LIMITS)
    told = [each.details["field"] if isinstance(each, FactInvalidError) else "" for each in found]
    assert told == ["", "body", "envelope.from_zone", "fakt", "envelope.to_zone", "", ""]
    sound = [validate_fact(*each, LIMITS) for each in found if isinstance(each, tuple)]
    assert sound == [by_wire(ENVELOPE, FACT)] * 3


@pytest.mark.parametrize(
    ("body", "field", "reason"),
    [
        (b"[]", "body", "type"),
        (b"{}", "items", "missing"),
        (b'{"items":5}', "items", "type"),
        (b'{"items":[],"items":[]}', "items", "duplicate_key"),
        (b'{"items":[],"more":1}', "more", "unknown_field"),
        (b'{"items":[', "body", "encoding"),
        (b'{"items":[1,1]}', "items", "length"),
    ],
)
def test_bodies_that_are_no_batch(body: bytes, field: str, reason: str) -> None:
    """The whole request is refused when its items cannot be told apart, or are too many."""
    with pytest.raises(FactInvalidError) as caught:
        parse_batch(body, LimitSettings(batch_items=1))
    assert (caught.value.details["field"], caught.value.reason) == (field, reason)


def test_an_oddly_spelled_batch_is_read() -> None:
    """An escape in the only name of the request costs time and nothing else."""
    item = json.dumps({"envelope": ENVELOPE, "fact": FACT})
    (found,) = parse_batch(f'{{"\\u0069tems":[{item}]}}'.encode(), LIMITS)
    assert isinstance(found, tuple)
    assert validate_fact(*found, LIMITS) == by_wire(ENVELOPE, FACT)


# ---- properties ----

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just(GONE),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
paths = st.sampled_from(
    [f"envelope.{name}" for name in schema.ENVELOPE] + [f"fact.{name}" for name in schema.FACT]
)


@given(paths, anything)
def test_both_ways_agree(path: str, value: Any) -> None:
    """What comes by wire and what a program hands in are judged alike."""

    def judged(way: Way) -> Any:
        try:
            return way(*changed(path, value))
        except FactInvalidError as error:
            return {(each["field"], each["reason"]) for each in error.details["problems"]}

    try:
        json.dumps(None if value is GONE else value, allow_nan=False)
    except (TypeError, ValueError):
        return  # no request can say that
    assert judged(by_wire) == judged(by_value)


@given(st.binary())
def test_any_bytes_are_judged(body: bytes) -> None:
    """A request is a message or it is refused; nothing else happens."""
    with pytest.raises(FactInvalidError):
        parse_append(body)
    with pytest.raises(FactInvalidError):
        parse_batch(body)


@given(st.data())
def test_a_damaged_request_is_judged(data: st.DataObject) -> None:
    """Bytes that were cut, changed or doubled on the way never become an error of ours."""
    body = json.dumps({"envelope": ENVELOPE, "fact": FACT}).encode()
    start = data.draw(st.integers(0, len(body)))
    stop = data.draw(st.integers(start, len(body)))
    middle = data.draw(st.binary(max_size=3) | st.just(body[start:stop] * 2))
    try:
        new, _ = by_body(body[:start] + middle + body[stop:])
    except FactInvalidError:
        return
    assert msgspec.json.decode(new.envelope, type=Envelope).message_id == new.message_id


def test_a_usual_request_does_not_take_the_slow_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any compact or indented request with its fields in any order goes the fast way."""
    for name in ("load", "composed"):
        monkeypatch.setattr(validation, name, None)
    fact = {name: FACT[name] for name in reversed(FACT)}
    assert by_wire(ENVELOPE, fact)
    assert by_body(json.dumps({"fact": fact, "envelope": ENVELOPE}, indent=2).encode())
