"""A zone's node as a connector: facts become transactions, and transactions become facts.

Consuming, a fact is confirmed only after its outcome, and only when all before it have theirs.
Producing, a transaction's id is the fact's id, so dispatching again changes nothing.

``connector`` is what users make. ``reader`` consumes, and ``window`` decides what may be confirmed;
``publisher`` produces; ``transactions`` translates between the two; ``link`` reaches the node.
``zone`` is the short form, which needs no node to be started or addressed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ergon_framework.connector.boundary.connector import BoundaryConnector
    from ergon_framework.connector.boundary.link import BoundaryConnectorError, FactPassedError
    from ergon_framework.connector.boundary.zone import Zone

_HOMES = {
    "BoundaryConnector": "connector",
    "BoundaryConnectorError": "link",
    "FactPassedError": "link",
    "Zone": "zone",
}

__all__ = ["BoundaryConnector", "BoundaryConnectorError", "FactPassedError", "Zone"]


def __getattr__(name: str) -> Any:
    # Late: a script that only declares a zone needs no client of a node.
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
