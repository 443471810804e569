"""Validation of facts: the checks between a producer's text and the log.

``parse_append`` and ``parse_batch`` read what a producer sent, and ``validate_fact`` checks one
fact and makes the record that stores append. What is refused here is refused for every kind of
store. Also here: references from a fact's data to artifacts in the object store.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Container, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec
from msgspec import Raw

from ergon_framework.boundary.facts import schema
from ergon_framework.boundary.facts.canonical import OBJECT, canonical, decode, load, read
from ergon_framework.boundary.facts.ids import (
    UNSTABLE,
    hash_of_object,
    hash_of_python,
    id_warning,
    is_digest,
    lint,
)
from ergon_framework.boundary.facts.schema import (
    MAX_INT64,
    FactProblem,
    Problems,
    identity_digest,
    kind,
    parsed,
    place,
    refusal,
)
from ergon_framework.boundary.model import Envelope, Fact
from ergon_framework.boundary.settings import LimitSettings
from ergon_framework.errors import FactInvalidError
from ergon_framework.ports.factstore import NewFact, Reference

MAX_REFERENCES = 64
"""References in one fact."""
REFERENCE_MARK = b"bucket"
"""A canonical form without these bytes holds no reference."""

_REFERENCE_FIELDS = ("digest", "size", "media_type", "file_name")


def references(value: Any, field: str = OBJECT) -> tuple[Reference, ...]:
    """Every artifact a value refers to, each once; ``FactInvalidError`` for what is malformed."""
    problems: Problems = []
    found = [_reference(item, path, problems) for path, item in _candidates(value, field)]
    if problems:
        raise refusal(*problems)
    distinct = tuple(dict.fromkeys(each for each in found if each is not None))
    if len(distinct) > MAX_REFERENCES:
        text = f"refers to {len(distinct)} artifacts, and the limit is {MAX_REFERENCES}"
        raise refusal(FactProblem(field, "length", text, "spread them over several facts"))
    return distinct


def _candidates(value: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(value, dict):
        if (
            "bucket" in value
            and "key" in value
            and any(name in value for name in _REFERENCE_FIELDS)
        ):
            yield path, value
        for name, item in value.items():
            if isinstance(item, dict | list):
                yield from _candidates(item, place(path, name))
    elif isinstance(value, list):
        for n, item in enumerate(value):
            yield from _candidates(item, place(path, n))


def _reference(item: dict[str, Any], path: str, problems: Problems) -> Reference | None:
    bucket = _name(item, path, "bucket", problems)
    key = _name(item, path, "key", problems)
    digest = _digest(item, path, problems)
    size = _size(item, path, problems)
    if bucket is None or key is None or digest is None or size is None:
        return None
    return Reference(bucket, key, digest, size)


def _name(item: dict[str, Any], path: str, name: str, problems: Problems) -> str | None:
    value = item[name]
    if isinstance(value, str) and value:
        return value
    reason = "length" if value == "" else "type"
    text = "is empty" if value == "" else f"is {kind(value)} instead of text"
    problems.append(FactProblem(place(path, name), reason, text, "name the artifact as it was put"))
    return None


def _digest(item: dict[str, Any], path: str, problems: Problems) -> bytes | None:
    at, value = place(path, "digest"), item.get("digest")
    if value is None:
        remedy = "give the digest that was answered when the artifact was put"
        problems.append(FactProblem(at, "missing", "is missing", remedy))
        return None
    try:
        return parsed(value, at)
    except FactInvalidError as error:
        problems.append(FactProblem(at, error.reason, "is not a digest", error.remedy))
        return None


def _size(item: dict[str, Any], path: str, problems: Problems) -> int | None:
    at, value = place(path, "size"), item.get("size")
    remedy = "give the size in bytes that was answered when the artifact was put"
    if value is None:
        problems.append(FactProblem(at, "missing", "is missing", remedy))
    elif isinstance(value, bool) or not isinstance(value, int):
        text = f"is {kind(value)} instead of a whole number"
        problems.append(FactProblem(at, "type", text, remedy))
    elif not 0 <= value <= MAX_INT64:
        problems.append(FactProblem(at, "range", "is negative", remedy))
    else:
        return value
    return None


FactMessage: TypeAlias = tuple[Envelope, Fact]
T = TypeVar("T")

_DAY_MS = 86_400_000
# JSON may spell a letter as an escape of six bytes, and the canonical form has one byte for it.
_MAX_SPELLING_RATIO = 6
"""How many times longer than the longest canonical form an object may be spelled."""
_ENVELOPE_BYTES = 64 * 1024
"""The most bytes of an envelope: more than one with all labels needs."""


_MAX_HASHED = 64 * 1024
"""Bytes of the largest object whose usual spellings are hashed."""


class ValidatedFact(NamedTuple):
    """A fact that may be stored, and warnings about it."""

    new_fact: NewFact
    warnings: tuple[str, ...] = ()


class _Envelope(Envelope, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An envelope as it arrives."""


class _Fact(Fact, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fact as it arrives, with its object not decoded yet."""

    object_json: Raw


class _GivenFact(Fact, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fact as a producer in this process gives it, where the object is required."""

    object_json: Any


class _Stored(msgspec.Struct, gc=False):
    """A stored fact as it is sent to consumers: the fields of a fact, in the same order."""

    subject: str
    predicate: str
    object_json: Raw


class _Item(msgspec.Struct, forbid_unknown_fields=True):
    envelope: _Envelope
    fact: _Fact


class _Items(msgspec.Struct, forbid_unknown_fields=True):
    items: list[_Item]


class _RawItems(msgspec.Struct, forbid_unknown_fields=True):
    items: list[Raw]


_encode = msgspec.json.Encoder().encode
_decode_item = msgspec.json.Decoder(_Item).decode
_decode_items = msgspec.json.Decoder(_Items).decode
_decode_raw_items = msgspec.json.Decoder(_RawItems).decode

_is_id = schema.MESSAGE_ID.fullmatch
_is_subject = schema.SUBJECT.fullmatch
_is_media_type = schema.MEDIA_TYPE.fullmatch
_is_note = schema.NOTE.fullmatch
# A producer has few zones, predicates and labels, and says them with every fact. Lengths are looked
# at first, for what is remembered must be small.
is_valid_word = lru_cache(1024)(schema.NOTE.fullmatch)


@lru_cache(1024)
def are_valid_names(from_zone: str, to_zone: str, predicate: str) -> bool:
    """Whether these are names as the contract wants them. Call it with short ones only."""
    is_zone, is_predicate = schema.ZONE.fullmatch, schema.PREDICATE.fullmatch
    return bool(is_zone(from_zone) and is_zone(to_zone) and is_predicate(predicate))


def parse_append(body: bytes, limits: LimitSettings | None = None) -> FactMessage:
    """The envelope and the fact of an ``AppendFact``; its object is read when it is validated."""
    item = _parsed(_decode_item, body)
    if item is not None:
        return item.envelope, item.fact
    if limits is not None:
        _check_spelling(len(body) - _ENVELOPE_BYTES, limits)
    given = _members(load(body, ""), "envelope", "fact")
    return composed(given.get("envelope"), given.get("fact"))


def parse_batch(
    body: bytes, limits: LimitSettings | None = None
) -> list[FactMessage | FactInvalidError]:
    """The items of an ``AppendFacts`` in order; one that is wrong is an error in its place."""
    batch = _parsed(_decode_items, body)
    if batch is not None:
        _check_count(len(batch.items), limits)
        return [(item.envelope, item.fact) for item in batch.items]
    items = _raw_items(body)
    _check_count(len(items), limits)
    return [_attempted(item, limits) for item in items]


def composed(envelope: Any, fact: Any) -> FactMessage:
    """The envelope and the fact that these members describe, or every mistake in them."""
    problems: Problems = []
    envelope_fields = schema.named(envelope, "envelope", schema.ENVELOPE, problems)
    fact_fields = schema.named(fact, "fact", schema.FACT, problems)
    if problems:
        raise refusal(*problems)
    return Envelope(**envelope_fields), Fact(**fact_fields)


def validate_fact(
    envelope: Envelope | Mapping[str, Any],
    fact: Fact | Mapping[str, Any],
    limits: LimitSettings,
    *,
    known_zones: Container[str] | None = None,
    strict_ids: bool = False,
    is_thorough: bool = True,
    source_offset: int | None = None,
    clock: Callable[[], float] = time.time,
) -> ValidatedFact:
    """Check one fact and make it ready for a log; ``FactInvalidError`` names what is wrong.

    ``known_zones`` are those that may be addressed; ``strict_ids`` refuses ids that would differ
    when the event is published again, which otherwise is a warning. What takes longer to find out
    about an id is only looked for when ``is_thorough``.
    """
    # What nearly every producer gives, at a glance.
    if not (
        isinstance(envelope, Envelope) and isinstance(fact, Fact) and _is_valid(envelope, fact)
    ):
        typed = _typed(envelope, fact)
        envelope, fact = typed if typed and _is_valid(*typed) else composed(envelope, fact)
    if known_zones is not None and envelope.to_zone not in known_zones:
        text = "is not a zone that is known here"
        raise refusal(
            FactProblem("envelope.to_zone", "range", text, "correct it, or add it to known_zones")
        )
    given = fact.object_json
    form, raw = _spellings(given, limits) if isinstance(given, Raw) else (canonical(given), None)
    if len(form) > limits.fact_bytes:
        raise _too_large(f"takes {len(form):,} bytes in canonical form", limits.fact_bytes)
    message_id = envelope.message_id
    new_fact = NewFact(
        envelope.from_zone,
        message_id,
        envelope.to_zone,
        identity_digest(envelope, fact, form),
        _encode(envelope),
        _encode(_Stored(fact.subject, fact.predicate, Raw(form))),
        references(decode(form)) if form.find(REFERENCE_MARK) >= 0 else (),
        source_offset,
    )
    found = lint(message_id) or hash_of_object(message_id, form, raw)
    if found is None and is_thorough and is_digest(message_id) and len(form) <= _MAX_HASHED:
        value = decode(raw or form) if isinstance(given, Raw) else given
        found = hash_of_python(message_id, value)
    return ValidatedFact(new_fact, _warnings(envelope, found, strict_ids, clock))


def _typed(
    envelope: Envelope | Mapping[str, Any], fact: Fact | Mapping[str, Any]
) -> FactMessage | None:
    """Envelope and fact as records, if their names and types are right."""
    try:
        if not isinstance(envelope, Envelope):
            envelope = msgspec.convert(envelope, _Envelope)
        if not isinstance(fact, Fact):
            fact = msgspec.convert(fact, _GivenFact)
    except msgspec.ValidationError:
        return None  # other spellings may be valid, and the errors are written in one place
    return envelope, fact


def unreadable(error: Exception) -> FactInvalidError:
    """The refusal of something that only looks like a fact, say with a text of one's own kind."""
    text = f"cannot be read: {type(error).__name__}: {error}"
    remedy = "use plain text, numbers, booleans, null, and lists and dicts of these"
    return refusal(FactProblem("fact", "type", text, remedy))


def refuse_larger(fact: NewFact, largest: int) -> None:
    """Refuse a fact that the server of a store would not take, however often it is sent."""
    size = len(fact.envelope) + len(fact.fact)
    if size > largest:
        text = f"takes {size:,} bytes with its envelope, and the server of the store {largest:,}"
        remedy = "put the data as an artifact and refer to it, or raise max_payload of the server"
        raise refusal(FactProblem(OBJECT, "too_large", text, remedy))


def _parsed(decode: Callable[[bytes], T], body: bytes) -> T | None:
    """What the bytes say, if they say it plainly.

    Written again it is never longer than what was read, and shorter when a name stood twice; so
    equal lengths, apart from blanks, mean that nothing was dropped.
    """
    try:
        found = decode(body)
        again = _encode(found)
        if len(again) == len(body) or len(_compact(again)) == len(_compact(body)):
            return found
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        pass
    return None


def _compact(raw: bytes) -> bytes:
    return msgspec.json.format(raw, indent=-1)


def _members(given: Any, *names: str) -> dict[str, Any]:
    """The fields of a whole request, which may have these and no others."""
    problems: Problems = []
    found = schema.named(given, "", dict.fromkeys(names, (schema.anything, False)), problems)
    if problems:
        raise refusal(*problems)
    return found


def _raw_items(body: bytes) -> list[bytes]:
    """The items of a batch, each as bytes, so that one cannot spoil the others."""
    batch = _parsed(_decode_raw_items, body)
    if batch is not None:
        return [bytes(item) for item in batch.items]
    items = _members(load(body, ""), "items").get("items")
    if not isinstance(items, list):
        reason = "missing" if items is None else "type"
        text = "is missing" if items is None else f"is {schema.kind(items)} instead of an array"
        raise refusal(FactProblem("items", reason, text, "give an array of facts"))
    # Written with escapes only, so that text UTF-8 cannot carry spoils its own item alone.
    return [json.dumps(item).encode() for item in items]


def _attempted(item: bytes, limits: LimitSettings | None) -> FactMessage | FactInvalidError:
    try:
        return parse_append(item, limits)
    except FactInvalidError as error:
        return error


def _check_count(count: int, limits: LimitSettings | None) -> None:
    if limits is not None and count > limits.batch_items:
        text = f"has {count:,} facts, and the limit is {limits.batch_items:,}"
        raise refusal(FactProblem("items", "length", text, "send several smaller batches"))


def _is_valid(envelope: Envelope, fact: Fact) -> bool:
    """Whether every field but the object is as it should be."""
    from_zone, to_zone, predicate = envelope.from_zone, envelope.to_zone, fact.predicate
    try:
        return bool(
            _is_id(envelope.message_id)
            and len(from_zone) <= schema.MAX_ZONE
            and len(to_zone) <= schema.MAX_ZONE
            and len(predicate) <= schema.MAX_PREDICATE
            and are_valid_names(from_zone, to_zone, predicate)
            and _is_subject(fact.subject)
            and len(fact.subject) <= schema.MAX_SUBJECT
            and type(envelope.produced_at_unix_ms) is int
            and 0 < envelope.produced_at_unix_ms <= schema.MAX_INT64
            and _has_valid_options(envelope)
        )
    except TypeError:  # something that is not text where text should be
        return False


def _has_valid_options(envelope: Envelope) -> bool:
    correlation, causation = envelope.correlation_id, envelope.causation_id
    media_type, object_schema = envelope.object_media_type, envelope.object_schema
    return bool(
        (correlation is None or _is_note(correlation))
        and (causation is None or _is_note(causation))
        and (object_schema is None or _is_note(object_schema))
        and (media_type is None or (_is_note(media_type) and _is_media_type(media_type)))
        and (envelope.labels is None or _are_labels(envelope.labels))
    )


def _are_labels(labels: dict[str, str]) -> bool:
    if type(labels) is not dict or len(labels) > schema.MAX_LABELS:
        return False
    for name, value in labels.items():
        if len(name) > schema.MAX_LABEL or not is_valid_word(name):
            return False
        if value != "" and (len(value) > schema.MAX_NOTE or not is_valid_word(value)):
            return False
    return True


def _check_spelling(size: int, limits: LimitSettings) -> None:
    """Refuse what is long and odd before it takes the node's time."""
    if size > limits.fact_bytes * _MAX_SPELLING_RATIO:
        raise _too_large(f"is spelled with {size:,} bytes", limits.fact_bytes * _MAX_SPELLING_RATIO)


def _too_large(problem: str, limit: int) -> FactInvalidError:
    remedy = "put the data as an artifact and refer to it"
    return refusal(
        FactProblem(OBJECT, "too_large", f"{problem}, and the limit is {limit:,}", remedy)
    )


def _spellings(given: Raw, limits: LimitSettings) -> tuple[bytes, bytes | None]:
    """The object's canonical form, and how it was spelled if that is another."""
    raw = bytes(given)
    _check_spelling(len(raw), limits)
    form = read(raw)[1]
    return form, None if form == raw else raw


def _warnings(
    envelope: Envelope,
    looks_like: str | None,
    strict_ids: bool,
    clock: Callable[[], float],
) -> tuple[str, ...]:
    warnings: tuple[str, ...] = ()
    if looks_like:
        text = f"looks like {looks_like}, which another attempt would not make again"
        if strict_ids:
            remedy = "derive it from the event, for example with message_id(...)"
            raise refusal(FactProblem("envelope.message_id", UNSTABLE, text, remedy))
        warnings += (f"envelope.message_id {text}",)
    elif doubted := id_warning(envelope.message_id):
        text = f"may be {doubted}, which another attempt would not make again"
        warnings += (f"envelope.message_id {text}",)
    if envelope.produced_at_unix_ms > clock() * 1000 + _DAY_MS:
        warnings += ("envelope.produced_at_unix_ms lies more than a day ahead of this clock",)
    return warnings
