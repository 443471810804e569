"""What makes a fact the same fact."""

from __future__ import annotations

from hashlib import sha256

import msgspec
import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from ergon_framework.boundary.facts.canonical import canonical
from ergon_framework.boundary.facts.schema import digest_text, identity_digest, parsed
from ergon_framework.boundary.factstore.hashchain import key_of
from ergon_framework.boundary.model import Envelope, Fact
from ergon_framework.errors import FactInvalidError

pytestmark = pytest.mark.req("P9", "BSFG:Ids")

texts = st.text(st.characters(codec="utf-8"), min_size=1)
ENVELOPE = Envelope(
    message_id="m", from_zone="Plant A", to_zone="Enterprise", produced_at_unix_ms=1741248600000
)
FACT = Fact(subject="work_order:WO-1", predicate="created", object_json={"b": 1, "a": [1.5]})


def digest(envelope: Envelope = ENVELOPE, fact: Fact = FACT) -> bytes:
    """The identity of a message."""
    return identity_digest(envelope, fact, canonical(fact.object_json))


@given(texts, texts, st.none() | texts, st.none() | texts, st.dictionaries(texts, texts))
def test_the_digest_is_that_of_the_canonical_content(
    zone: str, predicate: str, media_type: str | None, schema: str | None, content: dict[str, str]
) -> None:
    """Splicing the canonical object in gives what canonicalising everything would."""
    envelope = msgspec.structs.replace(
        ENVELOPE, from_zone=zone, object_media_type=media_type, object_schema=schema
    )
    fact = Fact(subject="a:b", predicate=predicate, object_json=content)
    whole = {
        "from_zone": zone,
        "to_zone": "Enterprise",
        "subject": "a:b",
        "predicate": predicate,
        "object_json": content,
        "object_schema": schema,
        "object_media_type": media_type,
    }
    present = {name: value for name, value in whole.items() if value is not None}
    assert digest(envelope, fact) == sha256(rfc8785.dumps(present)).digest()


def test_the_digest_is_the_same_for_ever() -> None:
    """Stored ledgers depend on it: this value may never change."""
    assert digest_text(digest()) == (
        "sha256:"
        + sha256(
            b'{"from_zone":"Plant A","object_json":{"a":[1.5],"b":1},"predicate":"created",'
            b'"subject":"work_order:WO-1","to_zone":"Enterprise"}'
        ).hexdigest()
    )


@pytest.mark.parametrize(
    "change",
    [
        {"produced_at_unix_ms": 5},
        {"labels": {"a": "b"}},
        {"correlation_id": "c"},
        {"causation_id": "c"},
        {"message_id": "n"},
    ],
)
def test_advisory_fields_do_not_count(change: dict[str, object]) -> None:
    """A retry may have another time, other labels and another lineage."""
    assert digest(msgspec.structs.replace(ENVELOPE, **change)) == digest()


@pytest.mark.parametrize(
    "change",
    [
        {"from_zone": "Plant B"},
        {"to_zone": "Plant B"},
        {"object_schema": "urn:s"},
        {"object_media_type": "a/b"},
    ],
)
def test_content_fields_of_the_envelope_count(change: dict[str, object]) -> None:
    """Another zone, schema or media type is another fact."""
    assert digest(msgspec.structs.replace(ENVELOPE, **change)) != digest()


@pytest.mark.parametrize(
    "change", [{"subject": "a:b"}, {"predicate": "p"}, {"object_json": {"a": [1.5], "b": 2}}]
)
def test_every_field_of_the_fact_counts(change: dict[str, object]) -> None:
    """Other content is another fact."""
    assert digest(fact=msgspec.structs.replace(FACT, **change)) != digest()


@given(st.tuples(texts, texts, texts), st.tuples(texts, texts, texts))
def test_ledger_keys_keep_their_parts_apart(
    one: tuple[str, str, str], other: tuple[str, str, str]
) -> None:
    """Sixteen bytes that are the same for the same parts, and for no others."""
    assert len(key_of(*one)) == 16
    assert (key_of(*one) == key_of(*other)) == (one == other)


def test_moved_borders_make_another_key() -> None:
    """What belongs to the zone and what to the id is not confused."""
    keys = {
        key_of("outbound", "ab", "c"),
        key_of("outbound", "a", "bc"),
        key_of("outbounda", "b", "c"),
        key_of("outbound", 'ab","c', ""),
    }
    assert len(keys) == 4


def test_a_digest_survives_its_spelling() -> None:
    """What is written is read again, in either case of letters."""
    assert parsed(digest_text(digest()), "x") == digest()
    assert parsed("sha256:" + digest().hex().upper(), "x") == digest()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "sha256:",
        "sha256:" + "0" * 63,
        "0" * 64,
        "md5:" + "0" * 64,
        "sha256:" + "g" * 64,
        "sha256:" + "0" * 64 + "\n",
        "sha256:" + "\u0660" * 64,
        None,
        5,
    ],
)
def test_what_is_no_digest_is_refused(text: object) -> None:
    """The field is named."""
    with pytest.raises(FactInvalidError) as caught:
        parsed(text, "digest")
    assert caught.value.details["field"] == "digest"
    assert caught.value.reason == "pattern"
