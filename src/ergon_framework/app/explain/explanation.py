"""Questions, explanations, and journal entries as sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from ergon_framework.app.journal import journal_of, journal_path
from ergon_framework.app.settings.sections import Settings
from ergon_framework.app.settings.stores import options_again
from ergon_framework.core.rfc3339 import format_rfc3339
from ergon_framework.core.text import duration, failure_text, one_sentence
from ergon_framework.ports.journal import JournalEntry, JournalQuery
from ergon_framework.ports.notice import CATALOGUE

MAX_ENTRIES = 12
"""How many entries of the journal are told; ergon tail shows the rest."""


_VERBS = {
    "cancelled": "was cancelled",
    "completed": "completed",
    "dead_letter": "was given up and is a dead letter",
    "discarded": "was discarded",
    "duplicate": "was a duplicate",
    "failed": "failed",
    "gone": "is no longer in the store",
    "refused": "was refused",
    "retry": "is waiting for its next attempt",
    "retrying": "is waiting for its next attempt",
    "succeeded": "succeeded",
    "success": "succeeded",
    "timed_out": "timed out",
}
"""What a status means, as a person says it; of any other, that it is so."""


class Explanation(msgspec.Struct, frozen=True):
    """The status of one unit, and sentences that say why."""

    kind: str
    id: str
    status: str
    why: list[str]
    as_of: str | None = None
    """When the explanation was true, if it may have changed since."""
    tenant: str | None = None
    """The tenant of the unit, where each tenant has ids of its own."""

    @property
    def standing(self) -> str:
        """The status as a phrase; one that may have changed since is given with its time."""
        status = self.status.replace("_", " ")
        if self.as_of is None:
            return _VERBS.get(self.status, f"is {status}")
        return f"was last known to be {status}, at {self.as_of}"

    @property
    def lead(self) -> str:
        """The first sentence: kind, id and status."""
        whose = "" if self.tenant is None else f" of tenant {self.tenant}"
        return f"{self.kind.capitalize()} {self.id}{whose} {self.standing}."

    def view(self) -> dict[str, Any]:
        """The explanation as plain values, for ``--json``."""
        view = {"kind": self.kind, "id": self.id, "status": self.status, "why": self.why}
        more = {"as_of": self.as_of, "tenant": self.tenant}
        return view | {name: value for name, value in more.items() if value is not None}


@dataclass
class Question:
    """A unit, and where to look for it. ``looked`` fills with the places that were looked at."""

    unit: str
    settings: Settings
    store: str | None = None
    """A store that takes the place of those in the settings."""
    node: str | None = None
    """The URL of a zone's node, to be asked instead of the folders on this machine."""
    config: Path | None = None
    looked: list[str] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    """Why some of these places could not be looked at."""

    def options(self, url: str) -> str:
        """How the next command finds the same store, from whatever folder."""
        return options_again(self.settings, self.config, self.store, url)

    @cached_property
    def entries(self) -> list[JournalEntry]:
        """The last that the journal has about it, the oldest first."""
        path = journal_path(self.settings)
        journal = journal_of(self.settings)
        if journal is None:
            where = "no journal" if path is None else f"no journal yet ({path} is not there)"
            self.looked.append(where)
            return []
        self.looked.append(f"the journal {path}")
        with journal:
            return journal.newest(JournalQuery(unit=self.unit))


_SECONDS = frozenset({"delay", "seconds", "late", "grace", "retry_after", "elapsed"})


def sentences(
    entries: Sequence[JournalEntry], phrase: Callable[[JournalEntry], str] | None = None
) -> Iterator[str]:
    """The last entries, a sentence each; ``phrase`` gives the text of those it knows, else ""."""
    shown = entries[-MAX_ENTRIES:]
    if len(entries) > len(shown):
        yield f"{len(entries) - len(shown)} older entries of the journal are left out."
    for entry in shown:
        text = "" if phrase is None else phrase(entry)
        yield f"{format_rfc3339(entry.at)}: {text or _said(entry)}."


def _said(entry: JournalEntry) -> str:
    """What happened, as the catalogue says it, and what is known about it."""
    known = CATALOGUE.get(entry.name)
    meaning = known.text.rstrip(".") if known is not None else entry.name
    details = field_text(entry.fields)
    return f"{meaning} ({details})" if details else meaning


def field_text(fields: Mapping[str, Any]) -> str:
    """Fields as text for people, without empty ones."""
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
            return f"{'for' if name == 'seconds' else label} {duration(value)}"
        return f"{label} {round(value, 3)}"
    text = ", ".join(map(str, value)) if isinstance(value, list) else value
    return f"{label} {one_sentence(text)}"


def _table(label: str, value: Mapping[str, Any]) -> str:
    """A failure by its code and message; of anything else what is not empty."""
    if "code" in value:
        return f"{label} {failure_text(value['code'], value.get('message'))}"
    inner = ", ".join(f"{key.replace('_', ' ')} {each}" for key, each in value.items() if each)
    return f"{label}: {inner}" if inner else ""
