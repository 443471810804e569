"""A fact store for the threads of one process, and the model the others are compared with."""

from __future__ import annotations

import time
from collections.abc import Callable

from ergon_framework.boundary.factstore.memory.consumers import MemoryConsumers
from ergon_framework.boundary.factstore.memory.log import MemoryFactLog
from ergon_framework.boundary.factstore.memory.objects_and_links import MemoryLinks, MemoryObjects
from ergon_framework.boundary.factstore.memory.records import MemoryFactRecords
from ergon_framework.boundary.factstore.memory.state import MemoryDatabase
from ergon_framework.boundary.factstore.parts import FactStoreOfParts, StoreParts
from ergon_framework.errors import StoreError


class MemoryFactStore(FactStoreOfParts):
    """A zone's facts for tests, examples and trials. Every call is one step under one lock."""

    acknowledgement = (
        "An acknowledged fact is in this process's memory: it survives nothing, and is lost when "
        "the process ends."
    )

    is_synced = False

    largest: int | None = None
    """The store itself does not limit the size of a fact."""

    def __init__(self, zone: str, *, clock: Callable[[], float] = time.time) -> None:
        self.database = MemoryDatabase(zone, clock)
        parts = StoreParts(
            MemoryFactLog(self.database),
            MemoryConsumers(self.database),
            MemoryObjects(self.database),
            MemoryLinks(self.database),
        )
        super().__init__(parts, self.database)
        self.records = MemoryFactRecords(self.database, parts)
        """All that the store holds, to be copied into another store or out of one."""

    def backup(self, folder: str) -> None:
        """Refuse: nothing could ever open the copy."""
        raise StoreError(
            "a memory store cannot be backed up", remedy="keep the facts in a file to back them up"
        )

    def close(self) -> None:
        """Refuse further calls. May be called twice."""
        self.database.close()
