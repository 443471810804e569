"""Rows of any table as a source, on SQLite and PostgreSQL through SQLAlchemy.

Where to look first: ``connector`` is the class. ``reading`` knows which rows are due of a table
that is not changed, and what is remembered of those that are done, so that a row which is committed
late is not passed over. ``status`` is for tables that say it in a column. ``rows`` asks for rows
and reads their columns, for both. ``engines`` opens databases by their URLs, and knows what their
refusals mean.
"""

from __future__ import annotations

from ergon_framework.connector.database.connector import DatabaseConnector
from ergon_framework.connector.database.reading import DatabaseConnectorError, RowTakenError

__all__ = ["DatabaseConnector", "DatabaseConnectorError", "RowTakenError"]
