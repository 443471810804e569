"""What crosses a boundary: an envelope around a fact, and what is answered.

``Envelope`` names sender, recipient and time; ``Fact`` says what happened. They are plain records:
the edge (:mod:`ergon_framework.boundary.facts.validation`) checks them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec


class Envelope(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The system's part of a message. ``message_id`` is the key that prevents doubles."""

    message_id: str
    from_zone: str
    to_zone: str
    produced_at_unix_ms: int
    correlation_id: str | None = None
    causation_id: str | None = None
    labels: dict[str, str] | None = None
    object_media_type: str | None = None
    object_schema: str | None = None


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """The domain's part: ``subject`` (``kind:id``) ``predicate`` (lower_snake_case) object."""

    subject: str
    predicate: str
    object_json: Any = None


EnvelopeLike: TypeAlias = Envelope | Mapping[str, Any]
FactLike: TypeAlias = Fact | Mapping[str, Any]
"""Producers may write mappings, with the same names."""


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to an append: the fact is on disk at ``offset``, and stays there."""

    offset: int
    duplicate: bool = False
    digest: str = ""
    recorded_at_unix_ms: int | None = None


class ObjectReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a put: the bytes are on disk under this name, and never change."""

    bucket: str
    key: str
    digest: str
    size: int


class Delivery(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A fact as a consumer receives it."""

    offset: int
    envelope: Envelope
    fact: Fact
    digest: str = ""
    source_offset: int | None = None
    previous_offset: int | None = None
    recorded_at_unix_ms: int | None = None
    released: bool = False
    """Whether the fact was released from quarantine: its offset may lie below the cursor."""


class Loss(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Facts that were given up, as they are reported to a consumer."""

    first_offset: int
    last_offset: int
    reason: str
    recorded_at_unix_ms: int | None = None
    log: str = ""
    source_first_offset: int | None = None
    """In an inbound log: the first lost offset of the peer's log, and below it the last one."""
    source_last_offset: int | None = None

    @property
    def count(self) -> int:
        """How many offsets were given up, where it happened."""
        if self.source_first_offset is None or self.source_last_offset is None:
            return self.last_offset - self.first_offset + 1
        return self.source_last_offset - self.source_first_offset + 1


class Batch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A page as a consumer receives it; confirm up to ``through_offset`` when all is done."""

    facts: tuple[Delivery, ...] = ()
    head_offset: int = 0
    through_offset: int = 0
    cursor: int = 0
    epoch: str = ""
    zone: str = ""
    """Whose log it is."""
    deliveries: int = 0
    """How often the first of them has been given to a holder."""
    chain: str = ""
    """The log's hash chain at ``cursor``, and at ``through_offset``."""
    through_chain: str = ""
    gaps: tuple[Loss, ...] = ()
