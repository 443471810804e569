"""Stores of provider calls behind ``ports/providerstore.py``: memory, SQLite, PostgreSQL.

Start with ``registry`` (which store a URL names) and ``planning`` (what all stores decide alike).
``memory`` is one file. ``sql_store`` is the same for both databases: ``sql_lanes`` has circuits
and quotas, ``sql_attempts`` attempts and health, ``sql_tasks`` idempotency keys and dead letters,
with the statements in ``sql/``. ``database`` says what they need of a database; ``sqlite`` and
``postgres`` are the two that there are. ``inspector`` has the queries of operators.
"""

from __future__ import annotations

from ergon_framework.providers.stores.registry import open_store

__all__ = ["open_store"]
