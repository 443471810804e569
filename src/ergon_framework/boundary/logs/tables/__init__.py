"""What stores of facts have in common that keep them in tables: all but the SQL and the ledger.

A store brings its own statements, under the names that are used here, a way to run them
(:class:`~ergon_framework.boundary.logs.tables.ground.Books`), and its own ledger of ids.
"""
