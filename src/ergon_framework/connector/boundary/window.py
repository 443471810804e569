"""The facts between the consumer's cursor and what was read: which are in hand, which are done.

Outcomes come in any order, but a cursor only says "everything up to here". So an outcome is
recorded, and the cursor moves over the longest prefix of facts that have theirs. A fact that failed
is put into quarantine when its turn has come, which moves the cursor past it.

Facts that an operator released from quarantine lie below the cursor. They come before all others,
because a node takes a confirmation for them, too, wherever it points.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from ergon_framework.boundary.model import Delivery

Key: TypeAlias = tuple[bool, int]


class EntryState(Enum):
    """The state of a fact."""

    WAITING = auto()
    IN_HAND = auto()
    DONE = auto()
    FAILED = auto()
    GONE = auto()  # confirmed, set aside, or given to another process


_ENDED = (EntryState.DONE, EntryState.FAILED)


@dataclass(slots=True, eq=False)
class WindowEntry:
    """One fact, or without a delivery a stretch of the log that needs no handling."""

    offset: int
    delivery: Delivery | None = None
    state: EntryState = EntryState.WAITING
    code: str = ""  # why it failed, as a code …
    reason: str = ""  # … and as a sentence
    not_before: float = 0.0
    deaths: int = 0  # how many processes had it in hand, perhaps beside others
    told_as: EntryState | None = None  # the outcome that the node was told, once it is done

    @property
    def key(self) -> Key:
        """The sort key of an entry: facts released from quarantine come first."""
        return (self.delivery is None or not self.delivery.released, self.offset)


@dataclass(frozen=True, slots=True)
class Confirm:
    """All facts up to ``offset`` have their outcome."""

    offset: int
    entries: tuple[WindowEntry, ...]


@dataclass(frozen=True, slots=True)
class SetAside:
    """The next fact failed."""

    entry: WindowEntry


WindowStep: TypeAlias = Confirm | SetAside


class Window:
    """The state of the window. It has no lock: callers that share it between threads hold one."""

    def __init__(self) -> None:
        self._entries: list[WindowEntry] = []
        self._known: set[Key] = set()
        self.one_at_a_time_until = 0
        """Up to this offset facts are handed out one at a time, because a process that had them
        died.
        """

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[WindowEntry]:
        return iter(self._entries)

    @property
    def in_hand(self) -> int:
        """How many facts are handed out and not settled."""
        return sum(each.state is EntryState.IN_HAND for each in self._entries)

    def next_due(self, now: float) -> float:
        """Seconds until a parked fact may be handed out."""
        waiting = (each for each in self._entries if each.state is EntryState.WAITING)
        return min((max(0.0, each.not_before - now) for each in waiting), default=math.inf)

    def extend(self, entries: Iterable[WindowEntry], cursor: int) -> None:
        """Add what was read, and drop what lies below a cursor that other processes have moved."""
        for entry in entries:
            if entry.key not in self._known:
                self._known.add(entry.key)
                bisect.insort(self._entries, entry, key=lambda each: each.key)
        passed = [each for each in self._entries if each.key <= (True, cursor) and each.key[0]]
        # The node's answer to an outcome may have been lost; if the cursor is past it, it was
        # heard.
        self._drop([each for each in passed if each.state in _ENDED], is_told=True)
        self._drop([each for each in passed if each.state not in _ENDED])

    def knows(self, entry: WindowEntry) -> bool:
        """Whether a fact is in the window."""
        return entry.key in self._known

    def clear(self) -> None:
        """Forget all facts, which belong to another process now."""
        self._drop(list(self._entries))
        self.one_at_a_time_until = 0

    def take(self, most: int, now: float) -> list[WindowEntry]:
        """The first fact that may be handed out."""
        taken: list[WindowEntry] = []
        for entry in self._entries:
            if len(taken) == most:
                break
            if entry.state is not EntryState.WAITING or entry.not_before > now:
                continue  # Skipped, so that parked and finished facts slow down no others.
            if entry.offset <= self.one_at_a_time_until and entry.key[0]:
                most = 1  # It may be what the last process that had it died of.
                if taken or self.in_hand:
                    break
            entry.state = EntryState.IN_HAND
            taken.append(entry)
        return taken

    def next_step(self) -> WindowStep | None:
        """What the node may be told now."""
        prefix: list[WindowEntry] = []
        for entry in self._entries:
            if entry.state is not EntryState.DONE:
                if not prefix and entry.state is EntryState.FAILED:
                    return SetAside(entry)
                break
            prefix.append(entry)
        # Facts from quarantine have lower offsets than the others, whose confirmation covers them.
        return Confirm(prefix[-1].offset, tuple(prefix)) if prefix else None

    def told(self, step: WindowStep) -> None:
        """The node has taken it."""
        self._drop(step.entries if isinstance(step, Confirm) else (step.entry,), is_told=True)

    def _drop(self, entries: Iterable[WindowEntry], *, is_told: bool = False) -> None:
        gone = set(map(id, entries))
        if not gone:
            return
        for entry in self._entries:
            if id(entry) in gone:
                entry.told_as = entry.state if is_told else None
                entry.state = EntryState.GONE
                self._known.discard(entry.key)
        self._entries = [each for each in self._entries if id(each) not in gone]
