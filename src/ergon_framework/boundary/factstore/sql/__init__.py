"""What stores of facts have in common that keep them in tables: all but the SQL and the ledger.

A store brings its own statements, under the names that are used here, a way to run them
(:class:`~ergon_framework.boundary.factstore.sql.session.Session`), and its own ledger of ids.

- ``append``: facts that become rows within one transaction; facts of a peer.
- ``log``: pages, retention, verification. ``pages``: reading. ``rows``: rows as records.
- ``consumers``: cursors, leases, giving out pages, quarantine. ``objects_and_links``.
- ``records``: records of a zone. ``session``: statements, transactions, subscribers, whose store.
"""
