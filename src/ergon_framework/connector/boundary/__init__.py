"""A zone's node as a connector: facts become transactions, and transactions become facts.

Consuming, a fact is confirmed only after its outcome, and only when all before it have theirs.
Producing, a transaction's id is the fact's id, so dispatching again changes nothing.
"""

from __future__ import annotations

from ergon_framework.connector.boundary.connector import BoundaryConnector
from ergon_framework.connector.boundary.faults import BoundaryConnectorError, FactPassedError

__all__ = ["BoundaryConnector", "BoundaryConnectorError", "FactPassedError"]
