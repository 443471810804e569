"""What users test with. Nothing here needs pytest, and importing this loads none of it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ergon_framework.testing.suites import (
        CONNECTOR_CHECKS,
        ConnectorSuiteError,
        SuiteReport,
        exercise_connector,
    )

__all__ = ["CONNECTOR_CHECKS", "ConnectorSuiteError", "SuiteReport", "exercise_connector"]

_HOME = dict.fromkeys(__all__, "ergon_framework.testing.suites")


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
