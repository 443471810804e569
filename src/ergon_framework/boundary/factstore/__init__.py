"""Where facts are kept: in an SQLite file, on PostgreSQL, on NATS JetStream, or in memory.

Every store fulfils ``ergon_framework.ports.factstore``, and passes the same suite
(``testing.suites.factstore``). Start with ``sql`` and ``sqlite``.

- A store has parts: a log, consumers, names of objects, links to peers, and records for a move.
  ``parts`` hands each call of the port to its part.
- ``sql``: the parts on tables. ``sqlite`` and ``postgres`` bring a database, the ledger of ids, and
  the way in for appends. ``nats``: the parts in a stream, by optimistic transactions. ``memory``:
  the reference model.
- ``append_plan``: what an append is: new, a duplicate, a conflict, or refused. ``page_plan``: what
  a page of a log holds.
- ``hashchain``: keys, checksums and the chain of a log. ``consumers``: how cursors, leases and the
  quarantine may change, and the errors that refuse a change. ``append_queue``: appends that
  come together share a commit. ``references``: what stored facts refer to. ``records``: records of
  a zone.
"""
