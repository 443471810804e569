"""The behaviour suite for fact stores."""

from __future__ import annotations

from ergon_framework.testing.suites.factstore.exercise import (
    FACT_STORE_CHECKS,
    FactStoreSuiteError,
    exercise_fact_store,
)

__all__ = ["FACT_STORE_CHECKS", "FactStoreSuiteError", "exercise_fact_store"]
