"""The behaviour suite for provider stores."""

from __future__ import annotations

from ergon_framework.testing.suites.providerstore.exercise import (
    PROVIDER_STORE_CHECKS,
    ProviderStoreSuiteError,
    exercise_provider_store,
)

__all__ = ["PROVIDER_STORE_CHECKS", "ProviderStoreSuiteError", "exercise_provider_store"]
