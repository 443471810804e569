"""What two stores have in common and what not, read side by side in small pages."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ergon_framework.ports.copies import Copy, JobCopy
from ergon_framework.ports.moving import Archive, C

PAGE = 500
"""Copies that are read at once."""


class Step(StrEnum):
    """What one copy needs."""

    SAME = "same"  # nothing: it is on both sides
    NEW = "new"  # it is missing where it should go
    CHANGED = "changed"
    GONE = "gone"  # it is no longer where it came from


@dataclass(frozen=True, slots=True)
class Sum:
    """How many copies of a kind a store has, and the digest over all of them, in order."""

    count: int
    digest: str


def copies(store: Archive, kind: type[C]) -> Iterator[C]:
    """Every copy of a kind, in order."""
    after: Any = None
    while page := store.dump(kind, after, PAGE):
        yield from page
        after = page[-1].place


def differences(source: Archive, target: Archive, kind: type[Copy]) -> Iterator[tuple[Step, Copy]]:
    """What each copy needs, for the target to become what the source is.

    What is found gone is told before what is new, for places that cannot be compared: new things
    come last there. The target may be changed meanwhile as the steps say, and not otherwise.
    """
    wanted, there = copies(source, kind), copies(target, kind)
    theirs = next(there, None)
    for mine in wanted:
        while theirs is not None and _is_gone(theirs, mine):
            yield Step.GONE, theirs
            theirs = next(there, None)
        if theirs is None or _thing(theirs) != _thing(mine):
            yield Step.NEW, mine
            continue
        yield (Step.SAME if theirs.content == mine.content else Step.CHANGED), mine
        theirs = next(there, None)
    while theirs is not None:
        yield Step.GONE, theirs
        theirs = next(there, None)


class Adding:
    """Copies that are added up, one after the other."""

    def __init__(self) -> None:
        self._digest, self._count = hashlib.sha256(), 0

    def add(self, copy: Copy) -> int:
        """Add one; how many there were so far."""
        content = copy.content
        self._digest.update(len(content).to_bytes(8) + content)
        self._count += 1
        return self._count

    def sum(self) -> Sum:
        """What they come to."""
        return Sum(self._count, self._digest.hexdigest())


def summed(store: Archive, kind: type[Copy], watch: Callable[[int], None] = lambda _: None) -> Sum:
    """Read all copies of a kind and add them up; ``watch`` is told how many there were so far."""
    adding = Adding()
    for copy in copies(store, kind):
        watch(adding.add(copy))
    return adding.sum()


def is_empty(store: Archive, kinds: tuple[type[Copy], ...]) -> bool:
    """Whether a store holds nothing but what every fresh one holds."""
    return not any(
        copy for kind in kinds for copy in store.dump(kind, None, 2) if not copy.is_given
    )


def _is_gone(theirs: Copy, mine: Copy) -> bool:
    """Whether a copy of the target lies before the next one of the source."""
    if type(mine).has_shared_places:
        return bool(theirs.place < mine.place)
    return bool(_thing(theirs) != _thing(mine))


def _thing(copy: Copy) -> Any:
    """What makes it the same thing on both sides; an id that is used again is another job."""
    return (copy.name, copy.job.created_at) if isinstance(copy, JobCopy) else copy.name
