"""From whatever a provider raises to one canonical error."""

from __future__ import annotations

from ergon_framework.providers.mapping.kinds import unmapped_types
from ergon_framework.providers.mapping.rules import Rule, canonical

__all__ = ["Rule", "canonical", "unmapped_types"]
