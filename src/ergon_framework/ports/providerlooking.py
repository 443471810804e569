"""What people who look at provider calls ask of a database, beside what the calls themselves ask.

Nothing here changes anything, or makes a table that is not there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Protocol

from ergon_framework.ports.providerstore import AttemptRow, LetterStatus


class LetterPlace(NamedTuple):
    """Where a dead letter stands among the others, to the last digit that the database keeps."""

    at: datetime
    id: str


class Counted(NamedTuple):
    """How many there are of something at a capability, all tenants together."""

    provider_name: str
    capability: str
    what: str | None
    number: int


class Used(NamedTuple):
    """What is used of the quota windows that are running, all tenants together."""

    provider_name: str
    capability: str
    used: int
    limit: int


class Ended(NamedTuple):
    """The calls to a capability that ended, and the attempts they took."""

    provider_name: str
    capability: str
    succeeded: int
    failed: int
    dead_lettered: int
    attempts: int


@dataclass(frozen=True, slots=True)
class Figures:
    """How all lanes are, at one instant; nobody is named."""

    circuits: list[Counted]
    """Lanes by the state of their circuit."""
    failures: list[Counted]
    """Lanes that failed in the last hour by their latest reason; the most frequent first."""
    quotas: list[Used]
    ended: list[Ended]
    """In the last hour."""
    reasons: list[Counted]
    """Attempts of the last five minutes by reason; None for those that succeeded."""
    letters: int


class ProviderLooking(Protocol):
    """Any thread may call any method. ``StoreError`` when it cannot answer."""

    def tenants(self, limit: int) -> list[str]:
        """Whoever has called a provider or has a quota, in order."""

    def attempts_named(self, units: Sequence[str], limit: int) -> list[AttemptRow]:
        """The latest attempts under these ids or keys, or keys below them; the oldest first."""

    def letter_places(
        self,
        statuses: Sequence[LetterStatus],
        reason: str | None,
        after: LetterPlace | None,
        limit: int,
    ) -> list[LetterPlace]:
        """Where dead letters stand, the newest first."""

    def figures(self, now: float, statuses: Sequence[LetterStatus]) -> Figures:
        """How all lanes are, and how many dead letters have one of these statuses."""
