"""A registry whose start-up fails."""

from __future__ import annotations

from ergon_framework.executor import Registry

registry = Registry()
number = 7


class Application:
    """Carries a registry, as an application may."""

    registry = Registry()


app = Application()


@registry.on_startup
async def connect() -> None:
    """Fail."""
    raise ConnectionError("nobody there")
