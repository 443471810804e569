"""Losses of a peer on their way into an inbound log.

A loss takes an offset of its own there, like a fact: so it lies between the facts before and after
it, moves the head, wakes who waits, and can be confirmed. What takes the offset is a marker, which
is linked into the hash chain and known to the ledger, and which nobody is given as a fact.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from ergon_framework.ports.factstore import Gap, NewFact

NOBODY = ""
"""The zone that markers are from and go to: a zone of facts has a name."""

Entry: TypeAlias = NewFact | Gap


def in_order(facts: Sequence[NewFact], gaps: Sequence[Gap]) -> list[Entry]:
    """Facts with the losses before those that come after them at the peer."""
    entries: list[Entry] = []
    waiting = deque(gaps)
    for fact in facts:
        while waiting and waiting[0].first < (fact.source_offset or 0):
            entries.append(waiting.popleft())
        entries.append(fact)
    return [*entries, *waiting]


def marker(gap: Gap) -> NewFact:
    """What takes the offset of a loss; the same loss has the same marker."""
    about = json.dumps([gap.first, gap.last, gap.reason, gap.at])
    digest = hashlib.sha256(about.encode()).digest()
    return NewFact(NOBODY, digest.hex(), NOBODY, digest, b"", b"", source_offset=gap.first)


def recorded(gap: Gap, log: str, offset: int) -> Gap:
    """A loss of a peer as a gap of the inbound log."""
    return replace(
        gap, log=log, first=offset, last=offset, source_first=gap.first, source_last=gap.last
    )
