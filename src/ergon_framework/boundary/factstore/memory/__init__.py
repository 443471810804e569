"""Facts in the memory of one process.

Every call is one step under one lock.

- ``store``: the parts put together; ``state``: everything that is held, and the lock
- ``log``: appending, pages, retention; ``consumers``: cursors, leases, quarantine
- ``objects_and_links``: names of objects, and links; ``records``: copies for moves between stores
"""

from __future__ import annotations

from ergon_framework.boundary.factstore.memory.store import MemoryFactStore

__all__ = ["MemoryFactStore"]
