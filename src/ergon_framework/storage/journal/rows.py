"""Entries and spans as rows, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from ergon_framework.ports.journal import Entry, SpanRecord, Wanted

_encode = msgspec.json.Encoder(enc_hook=str).encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode

ADD_ENTRY = """
INSERT INTO ergon_entries (at, name, source, unit, trace_id, fields) VALUES (?, ?, ?, ?, ?, ?)
"""
# A span that a writer offers again, not knowing whether it was taken, is there once.
ADD_SPAN = """
INSERT OR IGNORE INTO ergon_spans
    (trace_id, span_id, parent_id, name, source, unit, began_at, ended_at, failure, attributes)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
SELECT = """
SELECT number, at, name, source, unit, trace_id, fields FROM ergon_entries
WHERE {terms} ORDER BY number {order} LIMIT ?
"""
TRACE = """
SELECT trace_id, span_id, parent_id, name, source, unit, began_at, ended_at, failure, attributes
FROM ergon_spans WHERE trace_id = ? ORDER BY began_at, number
"""
TRACES_OF = """
SELECT trace_id FROM (
    SELECT trace_id, began_at AS at FROM ergon_spans WHERE unit = :unit AND unit <> ''
    UNION ALL
    SELECT trace_id, at FROM ergon_entries
    WHERE unit = :unit AND unit <> '' AND trace_id <> ''
) GROUP BY trace_id ORDER BY max(at) DESC, trace_id
"""
# Ids are hexadecimal: "g" comes after all that may follow.
TRACES_BEGINNING = """
SELECT DISTINCT trace_id FROM ergon_spans WHERE trace_id >= ? AND trace_id < ?
ORDER BY trace_id LIMIT ?
"""


def entry_row(entry: Entry) -> tuple[Any, ...]:
    """The columns of :data:`ADD_ENTRY`."""
    fields = _encode(entry.fields).decode()
    return (entry.at, entry.name, entry.source, entry.unit, entry.trace_id, fields)


def entry_of(row: Sequence[Any]) -> Entry:
    """What :func:`select` found."""
    number, at, name, source, unit, trace_id, fields = row
    return Entry(
        at=at,
        name=name,
        source=source,
        unit=unit,
        trace_id=trace_id,
        fields=_decode(fields),
        number=number,
    )


def span_row(span: SpanRecord) -> tuple[Any, ...]:
    """The columns of :data:`ADD_SPAN`."""
    return (
        *(span.trace_id, span.span_id, span.parent_id, span.name, span.source, span.unit),
        *(span.began_at, span.ended_at, span.failure, _encode(span.attributes).decode()),
    )


def span_of(row: Sequence[Any]) -> SpanRecord:
    """What :data:`TRACE` found."""
    trace_id, span_id, parent_id, name, source, unit, began_at, ended_at, failure, more = row
    return SpanRecord(
        trace_id=trace_id,
        span_id=span_id,
        parent_id=parent_id,
        name=name,
        source=source,
        unit=unit,
        began_at=began_at,
        ended_at=ended_at,
        failure=failure,
        attributes=_decode(more),
    )


def select(
    wanted: Wanted, after: int, limit: int, order: Literal["ASC", "DESC"] = "ASC"
) -> tuple[str, list[Any]]:
    """The statement that finds what is wanted, and its values."""
    terms, values = ["number > ?"], [after]
    for term, value in _terms(wanted):
        terms.append(term)
        values += value
    return SELECT.format(terms=" AND ".join(terms), order=order), [*values, limit]


def _terms(wanted: Wanted) -> list[tuple[str, list[Any]]]:
    found: list[tuple[str, list[Any]]] = []
    if wanted.names:
        # Whole, or the part before the dot: "job." up to what would come after all that begins so.
        either = " OR ".join("name = ? OR (name > ? AND name < ?)" for _ in wanted.names)
        values = [each for name in wanted.names for each in (name, f"{name}.", f"{name}/")]
        found.append((f"({either})", values))
    if wanted.unit:
        found.append(("unit = ? AND unit <> ''", [wanted.unit]))
    if wanted.trace_id:
        found.append(("trace_id = ? AND trace_id <> ''", [wanted.trace_id]))
    if wanted.source:
        found.append(("substr(source, 1, length(?)) = ?", [wanted.source] * 2))
    if wanted.since is not None:
        found.append(("at >= ?", [wanted.since]))
    return found
