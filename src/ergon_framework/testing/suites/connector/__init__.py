"""The behaviour suite for connectors."""

from __future__ import annotations

from ergon_framework.testing.suites.connector.faults import ConnectorFaults
from ergon_framework.testing.suites.connector.runner import CONNECTOR_CHECKS, exercise_connector

__all__ = ["CONNECTOR_CHECKS", "ConnectorFaults", "exercise_connector"]
