"""From whatever a provider raises to one canonical error.

- ``rules``: the order in which a failure is looked up, and rules of a provider's own
- ``clients``: the failures of known clients; ``retry_after``: when to call
  again, from ``Retry-After`` and other headers
"""

from __future__ import annotations

from ergon_framework.providers.mapping.rules import Rule, canonical, unmapped_types

__all__ = ["Rule", "canonical", "unmapped_types"]
