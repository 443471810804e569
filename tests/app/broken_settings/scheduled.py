"""A handler that schedules may name."""

from __future__ import annotations

from ergon_framework.executor import Registry

registry = Registry()


@registry.handler("resize")
def resize() -> None:
    """Do nothing."""
