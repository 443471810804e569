"""The behaviour suite for object stores."""

from __future__ import annotations

from ergon_framework.testing.suites.objectstore.exercise import (
    OBJECT_STORE_CHECKS,
    ObjectStoreSuiteError,
    exercise_object_store,
)

__all__ = ["OBJECT_STORE_CHECKS", "ObjectStoreSuiteError", "exercise_object_store"]
