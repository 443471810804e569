"""Whom a connection is with, and for how long."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field

from ergon_framework.boundary.http.exchange import Caller
from ergon_framework.errors import BoundaryError


@dataclass(frozen=True, slots=True)
class Guest:
    """What was found out about a client when it came."""

    caller: Caller = field(default_factory=Caller)
    context: ssl.SSLContext | None = None
    """What its certificate was checked with."""
    expires_at: float | None = None
    """When its certificate ends, in Unix seconds."""
    denial: BoundaryError | None = None
    """What everything it asks is answered with."""

    def has_overstayed(self, context: ssl.SSLContext | None, now: float) -> bool:
        """Whether its certificate is over, or would have to be checked with another context."""
        is_over = self.expires_at is not None and now > self.expires_at
        return is_over or self.context is not context
