"""Rows of any table as a source, on any database of SQLAlchemy: nothing of the table is changed.

Where to look first: ``connector`` is the class. ``reading`` knows which rows are due, and what is
remembered of those that are done, so that a row which is committed late is not passed over.
"""

from __future__ import annotations

from ergon_framework.connector.database.connector import DatabaseConnector
from ergon_framework.connector.database.reading import DatabaseConnectorError, RowTakenError

__all__ = ["DatabaseConnector", "DatabaseConnectorError", "RowTakenError"]
