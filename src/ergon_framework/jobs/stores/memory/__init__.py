"""Jobs in the memory of one process: for tests, examples and work that may be lost with it.

Every call is one step under one lock. It is the plainest of the stores, and the one that the
others are compared with.

- ``store``: the calls of the ports; ``records``: copies for moves between stores
- ``job_table``: every change of a job; ``queues``: jobs that wait; ``rows``: one job
- ``flows``: jobs that wait for one another
"""

from ergon_framework.jobs.stores.memory.store import MemoryJobStore

__all__ = ["MemoryJobStore"]
