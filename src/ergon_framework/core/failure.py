"""Failure as data: what went wrong, in a record small enough to be stored and sent.

Exceptions are classified into this record once, where they are caught, by one ordered table per
package. The machinery branches on ``kind`` alone; ``code`` is an open vocabulary that belongs to
the package that raises it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What the machinery branches on: a closed list."""

    TRANSIENT = "transient"  # may pass by itself
    THROTTLED = "throttled"  # may pass, and the other side said when
    HELD = "held"  # a gate refused before anything was attempted
    TIMEOUT = "timeout"  # we gave up waiting
    LOST = "lost"  # the holder is gone: dead channel, dead child, expired lease
    REJECTED = "rejected"  # the input is refused; trying again is useless
    DEFECT = "defect"  # an unknown exception: our bug or theirs
    CANCELLED = "cancelled"  # someone asked us to stop


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed attempt as data. It crosses threads, processes, SQL and the wire unchanged."""

    kind: Kind
    code: str
    message: str = ""
    retry_after: float | None = None
