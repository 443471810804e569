"""What the connector refuses. Importing this needs no driver."""

from __future__ import annotations

from typing import ClassVar

from ergon_framework.errors import ConnectorError, StoreUnavailableError


class PostgresConnectorError(ConnectorError):
    """The connector refuses what it was asked to do."""

    code = "postgres_connector"


class ConflictingRowError(PostgresConnectorError):
    """The transaction's id stands for a row with another payload. Nothing of it was stored."""

    code = "conflicting_row"


class TableRefusedError(StoreUnavailableError):
    """The server can be reached and refuses a statement until the user is given rights."""

    is_refusal: ClassVar[bool] = True
    statement = ""
    """The refused statement, without values."""
