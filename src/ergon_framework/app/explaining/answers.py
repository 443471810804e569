"""What is asked and what is answered."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from ergon_framework.app.journal import journal_of, journal_path
from ergon_framework.app.settings.sections import Settings
from ergon_framework.ports.journal import Entry, Wanted

MOST_TOLD = 12
"""How many entries of the journal are told; ergon tail shows the rest."""


_VERBS = {
    "cancelled": "was cancelled",
    "completed": "completed",
    "dead_letter": "was given up and is a dead letter",
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
    """Where one unit stands, and sentences that say why."""

    kind: str
    id: str
    status: str
    why: list[str]
    as_of: str | None = None
    """When that was so, if nobody knows whether it still is."""

    @property
    def standing(self) -> str:
        """The status in words; one that may be over is not called the present one."""
        status = self.status.replace("_", " ")
        if self.as_of is None:
            return _VERBS.get(self.status, f"is {status}")
        return f"was last known to be {status}, at {self.as_of}"

    @property
    def lead(self) -> str:
        """The first sentence: what it is, which one, and how it stands."""
        return f"{self.kind.capitalize()} {self.id} {self.standing}."

    def shape(self) -> dict[str, Any]:
        """As programs get it."""
        shape = {"kind": self.kind, "id": self.id, "status": self.status, "why": self.why}
        return shape if self.as_of is None else shape | {"as_of": self.as_of}


@dataclass
class Asked:
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

    @cached_property
    def entries(self) -> list[Entry]:
        """The last that the journal has about it, the oldest first."""
        path = journal_path(self.settings)
        journal = journal_of(self.settings)
        if journal is None:
            where = "no journal" if path is None else f"no journal yet ({path} is not there)"
            self.looked.append(where)
            return []
        self.looked.append(f"the journal {path}")
        with journal:
            return journal.newest(Wanted(unit=self.unit))
