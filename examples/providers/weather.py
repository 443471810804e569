"""A provider for the bad API: the one of the how-to page, with types."""

from __future__ import annotations

from typing import Any

import httpx

from ergon_framework.providers import ProviderBase, ProviderExecutionContext


class Weather(ProviderBase):
    """Asks for a forecast. Everything but the request itself is the base class's."""

    provider_name, capability = "weather", "forecast"

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(**options)
        self._http = httpx.Client(base_url=url)

    def _execute_impl(
        self,
        *,
        tenant_id: str,
        campaign_id: str | None,
        operation: str,
        payload: dict[str, Any],
        context: ProviderExecutionContext,
    ) -> dict[str, Any]:
        answer = self._http.get(operation, params=payload, timeout=context.attempt_timeout_seconds)
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    def close(self) -> None:
        """Close the client too."""
        super().close()
        self._http.close()
