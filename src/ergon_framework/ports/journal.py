"""What a journal promises: notices and spans of many processes, kept for a while, read by people.

A journal is for explanations. No part reads its own state from it: that is in the stores. It is
bounded in size and time, and it may lose its last second in a power cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from ergon_framework.ports.jobstore import Subscription


class JournalEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A notice as it was emitted, made of plain values, never with a payload."""

    at: float  # seconds since 1970
    name: str  # from the catalogue
    source: str  # what emitted it, for example "worker w1" or "zone plant"
    unit: str = ""  # the id of the job, transaction, fact or call it is about
    trace_id: str = ""  # 32 hexadecimal digits
    fields: dict[str, Any] = {}
    number: int = 0  # given by the journal, growing


class SpanRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A span that has ended."""

    trace_id: str
    span_id: str
    parent_id: str = ""  # empty: the first of its trace
    name: str
    source: str
    unit: str = ""
    began_at: float
    ended_at: float
    failure: str = ""  # what went wrong, in a word; empty: nothing
    attributes: dict[str, Any] = {}


class JournalQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which entries a reader means; every filter that is set must match."""

    names: tuple[str, ...] = ()  # whole names, or what comes before the dot, as "job"
    unit: str = ""
    trace_id: str = ""
    source: str = ""  # the beginning of it
    since: float | None = None


class Journal(Protocol):
    """A bounded record that several processes write and read."""

    def write(self, entries: Sequence[JournalEntry], spans: Sequence[SpanRecord] = ()) -> None:
        """Add them in one commit; notifies the subscribers."""

    def read(self, wanted: JournalQuery, after: int = 0, limit: int = 1000) -> list[JournalEntry]:
        """Entries with a number above ``after``, the oldest first."""

    def newest(self, wanted: JournalQuery, limit: int = 1000) -> list[JournalEntry]:
        """The last entries, the oldest of them first."""

    def last(self) -> int:
        """The highest number given so far."""

    def trace(self, trace_id: str) -> list[SpanRecord]:
        """The spans of a trace, by their beginning."""

    def traces_of(self, unit: str) -> list[str]:
        """The traces in which a unit took part, the newest first."""

    def sweep(self, keep: float, most: int) -> int:
        """Drop what is older than ``keep`` seconds or beyond ``most`` rows; how many went."""

    def subscribe(self) -> Subscription:
        """Subscribe to each write, by any process."""

    def close(self) -> None:
        """Close the journal. May be called twice."""
