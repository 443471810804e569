"""What lies in a spool, as the rest of the product sees it. No record shows a payload."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from ergon_framework.boundary.model import Envelope, Fact
from ergon_framework.ports.factstore import NewFact


class SpooledFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """An artifact that goes to the node before the fact that refers to it."""

    bucket: str
    key: str
    digest: str
    size: int
    path: str
    """A name in the spool's own folder, or a path outside when it was not copied."""
    is_copy: bool = True


@dataclass(frozen=True, slots=True)
class Entry:
    """A checked fact on its way into the spool."""

    fact: NewFact
    files: tuple[SpooledFile, ...] = ()

    @property
    def size(self) -> int:
        """The bytes that it takes in the spool."""
        copied = sum(file.size for file in self.files if file.is_copy)
        return len(self.fact.envelope) + len(self.fact.fact) + copied


@dataclass(frozen=True, slots=True)
class Spooled:
    """A fact in the line."""

    seq: int
    is_refused: bool
    digest: bytes
    size: int
    envelope: bytes = field(repr=False)
    fact: bytes = field(repr=False)
    files: tuple[SpooledFile, ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """A fact that the node refused for good, with what it said."""

    id: int
    from_zone: str
    message_id: str
    added_at: float
    refused_at: float
    code: str
    reason: str
    message: str
    details: dict[str, Any]
    envelope: Envelope | None = field(repr=False)
    """None, as is the fact, when it can no longer be read."""
    fact: Fact | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class Kept:
    """What a spool still has of what the node took."""

    items: int = 0
    bytes: int = 0
    first_sent_at: float | None = None
    last_sent_at: float | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A fact in the line, without its content; ``code`` and the others when it was refused."""

    id: int
    state: str
    """``waiting`` or ``refused``."""
    from_zone: str
    message_id: str
    size: int
    added_at: float
    refused_at: float | None = None
    code: str = ""
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Figures:
    """A spool in numbers."""

    pending: int = 0
    pending_bytes: int = 0
    refused: int = 0
    refused_bytes: int = 0
