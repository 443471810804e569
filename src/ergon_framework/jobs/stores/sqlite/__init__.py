"""Jobs in an SQLite file, shared by any number of processes on one machine.

Theory of operation. Every call is one transaction of the group commit writer, which commits calls
that arrive together with one sync. A job's ``stage`` says what the machinery has to do with it, and
every stage has partial indexes of its own: claiming reads the first entries of the lanes (executor
and queue) that a worker has slots for, whatever else is there. Nothing here reads a clock except at
the beginning of a call, and no decision about a job is made here: transitions and claims are
decided by the core.

- ``store``: the calls of the ports, each one transaction; ``transactions``: how those run
- ``claim``, ``transitions``: what a worker gets, and every change of a job
- ``flows``: the calls of their port; ``flow_tables``: where flows, steps and joins are kept
- ``admin``, ``records``: searches, counts and retention; copies for moves between stores
- ``rows``: rows of the tables as jobs
"""

from ergon_framework.jobs.stores.sqlite.store import SqliteJobStore

__all__ = ["SqliteJobStore"]
