"""A PostgreSQL table as a connector: its rows are the messages.

- ``connector``: the connector class, sync and async
- ``columns``: which column of the user's table plays which role
- ``statements``: the SQL for one table, once its columns have been looked at
- ``errors``: what it refuses
- ``rows``: rows in hand, held by leases in the table or by one reader's lock
"""

from __future__ import annotations

from ergon_framework.connector.postgres.connector import PostgresConnector
from ergon_framework.connector.postgres.errors import ConflictingRowError, PostgresConnectorError

__all__ = ["ConflictingRowError", "PostgresConnector", "PostgresConnectorError"]
