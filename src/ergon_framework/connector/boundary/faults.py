"""What the connector for a zone's node refuses."""

from __future__ import annotations

from ergon_framework.errors import ConnectorError


class BoundaryConnectorError(ConnectorError):
    """The connector was asked for something it must refuse."""

    code = "boundary_connector"


class FactPassedError(BoundaryConnectorError):
    """The fact is no longer this process's: the consumer's name was another's meanwhile."""

    code = "fact_passed"
    failure_kind = "lost"
