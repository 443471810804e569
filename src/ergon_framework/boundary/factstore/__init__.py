"""Where facts are kept: in an SQLite file, on PostgreSQL, on NATS JetStream, or in memory.

Every store fulfils ``ergon_framework.ports.factstore``, and passes the same suite
(``testing.suites.factstore``). Start with ``sql`` and ``sqlite``.

- ``sql``: what stores on tables share: log, consumers, names of objects, links, archive.
  ``sqlite`` and ``postgres`` bring a session, the ledger of ids, and the way in for appends.
- ``nats``: the same in a stream, by optimistic transactions. ``memory``: the reference model.
- ``hashchain``: keys, checksums and the chain of a log. ``consumers``: how cursors, leases and the
  quarantine may change, and every refusal in words. ``group_commit``: callers that come together
  share a commit. ``references``: what stored facts refer to. ``archive``: copies of a zone.
"""
