"""Stores of provider calls behind ``ports/providerstore.py``: memory, SQLite, PostgreSQL.

Start with ``planning`` (what all stores decide alike); ``providers/store_urls`` opens a store.
``memory`` is one file. ``sql_store`` is the same for both databases: ``sql_lanes`` has circuits
and quotas, ``sql_attempts`` attempts and health, ``sql_tasks`` idempotency keys and dead letters,
with the statements in ``sql/``. ``database`` says what they need of a database; ``sqlite`` and
``postgres`` are the two that there are. ``inspector`` has the queries of operators.
"""
