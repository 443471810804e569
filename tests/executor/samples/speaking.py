"""A handler that returns what the structlog processor adds to an event."""

from __future__ import annotations

import sys
from typing import Any

from ergon_framework.executor import Registry
from ergon_framework.integrations.structlog import add_unit

registry = Registry()


@registry.handler
def speak() -> dict[str, Any]:
    """The ids, and whether OpenTelemetry was loaded."""
    return {**add_unit(None, "info", {}), "has_opentelemetry": "opentelemetry.trace" in sys.modules}
