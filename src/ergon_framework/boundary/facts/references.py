"""The artifacts that a fact refers to.

A reference is an object, anywhere in ``object_json``, that has ``bucket`` and ``key`` and at least
one of ``digest``, ``size``, ``media_type`` and ``file_name``. An object with a bucket and a key and
nothing else of these is the domain's own business.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ergon_framework.boundary.facts.canonical import OBJECT
from ergon_framework.boundary.facts.fields import INT64, Problem, Problems, kind, place, refusal
from ergon_framework.boundary.facts.identity import parsed
from ergon_framework.errors import FactInvalidError
from ergon_framework.ports.factstore import Reference

MOST = 64
"""References in one fact."""
MARK = b"bucket"
"""A canonical form without these bytes holds no reference."""

_TELLING = ("digest", "size", "media_type", "file_name")


def references(value: Any, field: str = OBJECT) -> tuple[Reference, ...]:
    """Every artifact a value refers to, each once; ``FactInvalidError`` for what is malformed."""
    problems: Problems = []
    found = [_reference(item, path, problems) for path, item in _candidates(value, field)]
    if problems:
        raise refusal(*problems)
    distinct = tuple(dict.fromkeys(each for each in found if each is not None))
    if len(distinct) > MOST:
        text = f"refers to {len(distinct)} artifacts, and the limit is {MOST}"
        raise refusal(Problem(field, "length", text, "spread them over several facts"))
    return distinct


def _candidates(value: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(value, dict):
        if "bucket" in value and "key" in value and any(name in value for name in _TELLING):
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
    problems.append(Problem(place(path, name), reason, text, "name the artifact as it was put"))
    return None


def _digest(item: dict[str, Any], path: str, problems: Problems) -> bytes | None:
    at, value = place(path, "digest"), item.get("digest")
    if value is None:
        remedy = "give the digest that was answered when the artifact was put"
        problems.append(Problem(at, "missing", "is missing", remedy))
        return None
    try:
        return parsed(value, at)
    except FactInvalidError as error:
        problems.append(Problem(at, error.reason, "is not a digest", error.remedy))
        return None


def _size(item: dict[str, Any], path: str, problems: Problems) -> int | None:
    at, value = place(path, "size"), item.get("size")
    remedy = "give the size in bytes that was answered when the artifact was put"
    if value is None:
        problems.append(Problem(at, "missing", "is missing", remedy))
    elif isinstance(value, bool) or not isinstance(value, int):
        text = f"is {kind(value)} instead of a whole number"
        problems.append(Problem(at, "type", text, remedy))
    elif not 0 <= value <= INT64:
        problems.append(Problem(at, "range", "is negative", remedy))
    else:
        return value
    return None
