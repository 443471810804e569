"""Jobs in a PostgreSQL database, shared by any number of workers on any number of hosts.

Theory of operation. As in the SQLite store, a job's ``stage`` says what the machinery has to do
with it, and each stage has partial indexes of its own. What differs is that others work at the same
time, and that each result that is read costs a round trip:

* ``settle_and_claim`` is one pipeline: settle, claim, scan the lanes, COMMIT. The lanes that are
  claimed from are those that the last scan found; a worker that is left with free slots goes on
  with what this scan finds. Claims of different workers pass by each other (``SKIP LOCKED``).
* Jobs that have a limit key or an expiry, and queues with limits, are claimed by a second
  transaction. There, a queue's row is locked while one claims from it, and so is each
  limit key while jobs of it start, or are woken after one has stopped. A worker does not wait for
  a key that others hold: it passes its jobs over, and asks again soon. Locks that are waited for
  are taken in one order: queues by name, then keys.
* All instants come from the server, or from the clock that a test gave.

No decision about a job is made in SQL: transitions and claims are decided by the core, statements
check and apply.

- ``store``: the calls of the ports; ``transactions``: how they run
- ``exchange``, ``claim``, ``settle``, ``insert``: what workers and clients need
- ``flows``, ``flow_tables``: the calls of their port, and where flows, steps and joins are kept
- ``key_limits``: tokens of limit keys within a queue
- ``admin``, ``records``: searches, counts and retention; copies for moves between stores
- ``statements``, ``rows``: SQL by name, arrays, rows as jobs
"""

from ergon_framework.jobs.stores.postgres.store import PostgresJobStore

__all__ = ["PostgresJobStore"]
