"""What a look at the machine gives: one finding for each thing that was looked at."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """How a finding is."""

    OK = "ok"
    NOTE = "note"  # worth knowing
    BAD = "bad"  # Ergon will not work well


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    check: str
    status: Status
    found: str
    remedy: str = ""
    store: str = field(default="", repr=False, compare=False)
    """The URL of the store that it speaks of; it may hold a password, and is never shown."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "check": self.check,
            "status": self.status.value,
            "found": self.found,
            "remedy": self.remedy,
        }
