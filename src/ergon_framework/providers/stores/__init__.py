"""Stores of provider calls behind ``ports/providerstore.py``: memory, SQLite, PostgreSQL.

``providers/store_urls`` opens a store. What all stores decide alike is in ``key_claims`` (who holds
an idempotency key) and ``roll_ups`` (attempts by the minute). ``memory`` is one file. ``sql`` is
the same for both databases: ``store`` with its parts ``gates`` (circuits, cooldowns, quotas),
``attempts`` (with the health of lanes) and ``keys_and_dead_letters``, and their statements.
``database`` says what they need of a database; ``sqlite`` and ``postgres`` are the two that there
are. ``inspector`` has the queries of operators, ``records`` what a move copies.
"""
