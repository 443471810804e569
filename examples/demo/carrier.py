"""A carrier that books pick-ups: somebody else's service, which calls nobody and has bad hours."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from ergon_framework.engine.clocks import current_clock, sleep_until
from ergon_framework.providers import (
    ProviderBadRequestError,
    ProviderBase,
    ProviderExecutionContext,
)

TENANT = "demo"
SECONDS = 0.25
"""What a booking takes."""


class Carrier(ProviderBase):
    """One attempt at a time. Circuit, quota, deadline and records are around it, not in it."""

    provider_name = "carrier"
    capability = "booking"

    def __init__(self, *, outage: str, **options: Any) -> None:
        super().__init__(**options)
        self._outage = Path(outage)

    def _execute_impl(
        self,
        *,
        tenant_id: str,
        campaign_id: str | None,
        operation: str,
        payload: dict[str, Any],
        context: ProviderExecutionContext,
    ) -> dict[str, Any]:
        if self._outage.exists():
            raise ConnectionRefusedError("the carrier is closed")
        if payload["city"] == "Nowhere":
            raise ProviderBadRequestError("the carrier does not drive there")
        clock = current_clock()
        sleep_until(clock, clock.now() + SECONDS)
        # The key is that of the job, at every attempt: who asks again gets the same booking.
        key = context.idempotency_key or ""
        return {"booking": hashlib.sha256(key.encode()).hexdigest()[:12]}
