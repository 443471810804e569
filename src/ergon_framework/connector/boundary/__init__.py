"""A zone's node as a connector: facts become transactions, and transactions become facts.

Consuming, a fact is confirmed only after its outcome, and only when all before it have theirs.
Producing, a transaction's id is the fact's id, so dispatching again changes nothing.

Where to look first: ``connector`` is what users make. ``reader`` consumes, and ``window`` decides
what may be confirmed; ``publisher`` produces; ``transactions`` translates between the two; ``link``
reaches the node.
``zone`` is the short form, which needs no node to be started or addressed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ergon_framework.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from ergon_framework.connector.boundary.connector import BoundaryConnector
    from ergon_framework.connector.boundary.link import BoundaryConnectorError, FactPassedError
    from ergon_framework.connector.boundary.zone import Zone

_HOMES = {
    "BoundaryConnector": "connector.boundary.connector",
    "BoundaryConnectorError": "connector.boundary.link",
    "FactPassedError": "connector.boundary.link",
    "Zone": "connector.boundary.zone",
}

__all__ = ["BoundaryConnector", "BoundaryConnectorError", "FactPassedError", "Zone"]

# Imported late: a script that only declares a zone needs no client of a node.
if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_exports(__name__, _HOMES)
