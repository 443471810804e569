"""The behaviour suite for connectors."""

from __future__ import annotations

from ergon_framework.testing.suites.connector.runner import CONNECTOR_CHECKS, exercise_connector

__all__ = ["CONNECTOR_CHECKS", "exercise_connector"]
