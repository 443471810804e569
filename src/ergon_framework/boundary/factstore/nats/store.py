"""The whole fact store in one stream."""

from __future__ import annotations

from collections.abc import Callable

from ergon_framework.boundary.factstore.nats.consumers import NatsConsumers
from ergon_framework.boundary.factstore.nats.database import NatsDatabase
from ergon_framework.boundary.factstore.nats.log import NatsLog
from ergon_framework.boundary.factstore.nats.objects_and_links import (
    MAX_NAMES,
    NatsLinks,
    NatsObjects,
)
from ergon_framework.boundary.factstore.nats.records import NatsFactRecords
from ergon_framework.boundary.factstore.parts import FactStoreOfParts, StoreParts
from ergon_framework.errors import StoreError


class NatsFactStore(FactStoreOfParts):
    """A zone's facts in one stream of NATS JetStream. Any thread may call any method."""

    log: NatsLog
    """The logs and their ledger."""

    def __init__(
        self,
        url: str,
        *,
        zone: str,
        clock: Callable[[], float] | None = None,
        read_only: bool = False,
        max_names: int = MAX_NAMES,
    ) -> None:
        self.database = NatsDatabase(url, zone=zone, clock=clock, read_only=read_only)
        durability = self.database.opening.durability
        self.acknowledgement = durability.sentence
        self.is_synced = durability.is_safe
        log = NatsLog(self.database)
        parts = StoreParts(
            log,
            NatsConsumers(self.database),
            NatsObjects(self.database, max_names=max_names),
            NatsLinks(self.database),
        )
        super().__init__(parts, self.database.notifier)
        self.records = NatsFactRecords(self.database, log, parts)
        """All that the store holds, to be copied into another store or out of one."""

    @property
    def url(self) -> str:
        """The URL of the store, without a password."""
        return self.database.url

    @property
    def clock(self) -> Callable[[], float]:
        """What time it is where the facts are."""
        return self.database.clock

    @property
    def largest(self) -> int | None:
        """Bytes that envelope and fact may take together, as the server says."""
        return self.log.largest

    def backup(self, folder: str) -> None:
        """Refuse: the server's own program copies a stream, and does it well."""
        raise StoreError(
            f"{self.url} is not backed up by a node",
            remedy=f"nats stream backup {self.database.stream.name} FOLDER copies the stream;"
            " ergon move copies the zone into a file",
        )

    def close(self) -> None:
        """Close the store after pending appends. May be called twice."""
        self.log.close()
        self.database.close()
