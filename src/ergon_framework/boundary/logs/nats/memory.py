"""What is remembered of a stream between steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from ergon_framework.boundary.logs.nats.entries import Place

MOST = 5_000
"""Records, and places of entries."""
WORN = 50
"""Writes after which earlier messages of a record are removed."""


@dataclass(frozen=True, slots=True)
class Record:
    """A record as it lies in the stream."""

    data: bytes
    seq: int
    """0 when there is none."""


class Memory:
    """Records that are known to be the newest as long as the stream ends at ``last``."""

    def __init__(self) -> None:
        self.last = -1
        self.records: dict[str, Record] = {}
        self.lists: dict[str, set[str]] = {}
        self.places: dict[tuple[str, int], Place] = {}
        """Of entries, which never move: they stay known whoever writes."""
        self._written: Counter[str] = Counter()
        """How often records were written by this process since they were last worn."""

    def forget(self, last: int) -> None:
        """Somebody else has written."""
        self.last = last
        self.records.clear()
        self.lists.clear()

    def add(self, records: Mapping[str, Record]) -> None:
        """Records that were just written."""
        self.records |= records
        self._written.update(list(records))
        for subjects, listed in self.lists.items():
            listed.update(each for each in records if matches(subjects, each))
        if len(self.records) > MOST:
            self.records.clear()
            self.lists.clear()
        if len(self.places) > MOST:
            self.places.clear()

    def worn(self) -> list[str]:
        """Records that were written often, once each time."""
        found = [each for each, count in self._written.items() if count >= WORN]
        for each in found:
            del self._written[each]
        if len(self._written) > MOST:
            self._written.clear()
        return found

    def follow(self, subject: str, record: Record) -> None:
        """A record was written, whatever else was written before it."""
        if record.seq == self.last + 1:
            self.last = record.seq
            self.add({subject: record})
        else:
            self.forget(-1)

    def view(self) -> Memory:
        """The same, for somebody who reads while others go on."""
        seen = Memory()
        seen.last, seen.places = self.last, self.places
        seen.records = dict(self.records)
        seen.lists = {subjects: set(listed) for subjects, listed in self.lists.items()}
        return seen

    def learn(self, seen: Memory) -> None:
        """Take over what somebody has read, unless things have moved on."""
        if seen.last == self.last:
            self.records |= seen.records
            self.lists |= seen.lists


def matches(pattern: str, subject: str) -> bool:
    """Whether a subject is one of those that a pattern with ``*`` means."""
    wanted, words = pattern.split("."), subject.split(".")
    return len(wanted) == len(words) and all(
        one in {"*", word} for one, word in zip(wanted, words, strict=True)
    )
