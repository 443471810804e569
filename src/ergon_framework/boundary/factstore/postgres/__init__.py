"""Facts in a PostgreSQL database: for zones whose nodes run on several machines.

Theory of operation. The tables of a zone lie in a PostgreSQL schema of their own, so one database
may hold several zones, and jobs as well. An append locks the log's row, which says where the log
ends; so offsets are dense, and become visible in their order, whichever process appends. Appends
that arrive together share a commit. A process remembers how the log stood after its last append,
and sends one statement that holds only if it still stands so and all ids are new; if not, it locks
the row, looks everything up, and writes in a second round trip. Rows carry the same checksums and
the same hash chain as in every other store. Every other change to a zone takes one advisory lock,
except for confirmations, which lock their consumer only.

What it has in common with a file is in ``factstore/sql``; here are:

- ``store``: the parts put together; ``database``: transactions, the clock, notifications
- ``append``: facts on their way into logs; ``session``: statements by name
"""

from ergon_framework.boundary.factstore.postgres.store import PostgresFactStore

__all__ = ["PostgresFactStore"]
