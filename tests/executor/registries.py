"""Registries for tests of the runtime in this process."""

from __future__ import annotations

import asyncio
from typing import Any

from ergon_framework.executor import Registry

LIMITS = [1, 4]
COLOURS = ["sync", "async", "mixed"]


def registry_of(colour: str) -> Registry:
    """Handlers of one colour; in the mixed one there is a plain and an async one."""
    registry = Registry()
    if colour != "async":
        registry.add(echo, "echo")
    else:
        registry.add(aecho, "echo")
    if colour == "mixed":
        registry.add(aecho, "aecho")
    return registry


def echo(*args: Any, **kwargs: Any) -> Any:
    """Give back what was sent."""
    return {"args": args, "kwargs": kwargs}


async def aecho(*args: Any, **kwargs: Any) -> Any:
    """Give it back a little later."""
    await asyncio.sleep(0)
    return {"args": args, "kwargs": kwargs}
