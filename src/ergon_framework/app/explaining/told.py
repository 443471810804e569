"""Entries of the journal as sentences, and their fields in plain words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ergon_framework.app.explaining.answers import MOST_TOLD
from ergon_framework.core.rfc3339 import format_instant
from ergon_framework.core.text import coded, quoted, span
from ergon_framework.ports.journal import Entry
from ergon_framework.ports.notice import CATALOGUE

_SECONDS = frozenset({"delay", "seconds", "late", "grace", "retry_after", "elapsed"})


def entries_told(
    entries: Sequence[Entry], phrase: Callable[[Entry], str] | None = None
) -> Iterator[str]:
    """The last entries, a sentence each; ``phrase`` words those it knows, and answers ""."""
    told = entries[-MOST_TOLD:]
    if len(entries) > len(told):
        yield f"{len(entries) - len(told)} older entries of the journal are left out (ergon tail)."
    for entry in told:
        text = "" if phrase is None else phrase(entry)
        yield f"{format_instant(entry.at)}: {text or _said(entry)}."


def _said(entry: Entry) -> str:
    """What happened, as the catalogue says it, and what is known about it."""
    known = CATALOGUE.get(entry.name)
    meaning = known.text.rstrip(".") if known is not None else entry.name
    said = words(entry.fields)
    return f"{meaning} ({said})" if said else meaning


def words(fields: Mapping[str, Any]) -> str:
    """Fields as a person reads them: what says nothing is left out."""
    parts = [text for name, value in fields.items() if (text := _field(name, value))]
    return "; ".join(parts)


def _field(name: str, value: Any) -> str:
    if name == "role" or value in (None, "", [], {}):
        return ""
    label = name.replace("_", " ")
    if isinstance(value, Mapping):
        return _table(label, value)
    if isinstance(value, bool):
        return label if value else f"not {label}"
    if isinstance(value, int | float):
        if name in _SECONDS:
            return f"{'for' if name == 'seconds' else label} {span(value)}"
        return f"{label} {round(value, 3)}"
    text = ", ".join(map(str, value)) if isinstance(value, list) else value
    return f"{label} {quoted(text)}"


def _table(label: str, value: Mapping[str, Any]) -> str:
    """A failure by its code and message; of anything else what is not empty."""
    if "code" in value:
        return f"{label} {coded(value['code'], value.get('message'))}"
    inner = ", ".join(f"{key.replace('_', ' ')} {each}" for key, each in value.items() if each)
    return f"{label}: {inner}" if inner else ""
