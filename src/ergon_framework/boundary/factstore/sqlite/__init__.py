"""Facts in an SQLite file: the default home of a zone.

Theory of operation. Appends that arrive together are gathered before they reach the database and
go in with one transaction: one look into the ledger, one insert of all facts, one sync. A log's
offset is given inside that transaction, so offsets are dense and become visible in their order.
Each row carries a checksum of itself and a link of the log's hash chain: a row that changed on disk
is noticed when it is read, and a row that went missing when the chain is walked. Facts to one zone
are counted as they come in, so how far a reader lags behind is known without counting.

What it has in common with a server is in ``factstore/sql``; here are:

- ``store``: the parts put together, and backups; ``session``: transactions and statements
- ``append``: facts on their way into logs; ``ledger``: every id that was ever appended
"""

from ergon_framework.boundary.factstore.sqlite.store import SqliteFactStore

__all__ = ["SqliteFactStore"]
