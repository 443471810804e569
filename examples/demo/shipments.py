"""What the story is about: shipments, packed in the plant and sent by the enterprise."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

HOPELESS = NO_WEIGHT, NO_CITY = 4, 7
"""Two that can never be sent: one was weighed wrongly, one goes to a place nobody drives to."""
FEWEST, MOST = 24, 500
"""Fewer shipments are too few for all that goes wrong; more take longer than anybody watches."""

_CITIES = ("Oslo", "Porto", "Turin", "Ghent", "Graz")
_SHIFT = datetime(2025, 1, 6, 6, tzinfo=UTC)


@dataclass(frozen=True)
class Shipment:
    """One of them. Everything follows from its number, so telling it again says the same."""

    number: int

    @property
    def name(self) -> str:
        """What people call it."""
        return f"S-{self.number:03}"

    @property
    def id(self) -> str:
        """Of the event that it was packed: of the fact in both zones, and of the job."""
        return f"packed-{self.name}"

    @property
    def needs(self) -> str:
        """The handler of its job: every third needs a label only, the others are booked."""
        return "labels#label" if self.number % 3 == 0 else "book"

    @property
    def has_note(self) -> bool:
        """Whether a delivery note goes with it."""
        return self.number % 4 == 1

    @property
    def is_told_twice(self) -> bool:
        """Whether the plant, by some mistake, tells it twice."""
        return self.number % 5 == 0

    @property
    def note(self) -> bytes:
        """The delivery note, which travels beside the fact and not in it."""
        return f"Delivery note of {self.name}\n".encode() * 400

    def line(self) -> str:
        """As the shop floor writes it down."""
        payload: dict[str, Any] = {"number": self.number, "weight": 1.5 + self.number % 9}
        payload["city"] = _CITIES[self.number % len(_CITIES)]
        if self.number == NO_WEIGHT:
            payload["weight"] = "heavy"
        if self.number == NO_CITY:
            payload["city"] = "Nowhere"
        packed_at = _SHIFT + timedelta(seconds=self.number)
        shape = {"transaction_id": self.id, "payload": payload}
        return json.dumps({**shape, "created_at": packed_at.isoformat()}) + "\n"
