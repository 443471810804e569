"""What things are called in a database that several zones may share."""

from __future__ import annotations

import re
from hashlib import blake2b

PREFIX = "ergon_zone_"
"""What the schemas of zones begin with."""
_READABLE = 40  # letters of the zone's name that are kept


def namespace_of(zone: str) -> str:
    """The schema with a zone's tables: a readable part, and a hash, so that no two are alike."""
    readable = re.sub(r"[^a-z0-9]+", "_", zone.lower()).strip("_")[:_READABLE]
    return f"{PREFIX}{readable or 'x'}_{_hash(zone).hex()[:8]}"


def channel_of(zone: str) -> str:
    """Where new facts of a zone are announced."""
    return f"ergon_facts_{_hash(zone).hex()[:16]}"


def lock_of(zone: str) -> int:
    """The number under which changes to a zone's books, other than appends, take turns."""
    return int.from_bytes(_hash(f"{zone} books"), "big", signed=True)


def _hash(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=8).digest()
