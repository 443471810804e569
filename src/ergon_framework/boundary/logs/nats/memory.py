"""What is remembered of a stream between steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from ergon_framework.boundary.logs.nats.entries import Place
from ergon_framework.boundary.logs.nats.shelves import Shelf

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
        self.highest = 0
        """Where the stream has ever ended."""
        self._last = -1
        self.records: dict[str, Record] = {}
        self.lists: dict[str, set[str]] = {}
        self.shelves: dict[str, Shelf] = {}
        """Logs with their young entries."""
        self.places: dict[tuple[str, int], Place] = {}
        """Of entries, which stay where they are whoever writes, unless the server loses some."""
        self._written: Counter[str] = Counter()
        """How often records were written by this process since they were last worn."""

    @property
    def last(self) -> int:
        """Where the stream ends; -1 when that is not known."""
        return self._last

    @last.setter
    def last(self, last: int) -> None:
        self._last = last
        self.highest = max(self.highest, last)

    def forget(self, last: int) -> None:
        """Somebody else has written."""
        self.last = last
        self.records.clear()
        self.lists.clear()
        self.shelves.clear()

    def begin_anew(self, last: int) -> None:
        """The server may have lost what it had: nothing that was known counts."""
        self.highest, self.places = 0, {}  # those who still read keep the old ones
        self.forget(last)

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
        seen.records, seen.shelves = dict(self.records), dict(self.shelves)
        seen.lists = {subjects: set(listed) for subjects, listed in self.lists.items()}
        return seen

    def learn(self, seen: Memory) -> None:
        """Take over what somebody has read, unless things have moved on."""
        if seen.last == self.last:
            self.records |= seen.records
            self.lists |= seen.lists
            self.shelves |= seen.shelves


def matches(pattern: str, subject: str) -> bool:
    """Whether a subject is one of those that a pattern with ``*`` means."""
    wanted, words = pattern.split("."), subject.split(".")
    return len(wanted) == len(words) and all(
        one in {"*", word} for one, word in zip(wanted, words, strict=True)
    )
