"""From whatever a provider raises to one canonical error."""

from __future__ import annotations

from ergon_framework.providers.mapping.rules import Rule, canonical, unmapped_types

__all__ = ["Rule", "canonical", "unmapped_types"]
