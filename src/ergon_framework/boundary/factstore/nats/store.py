"""The whole fact store in one stream."""

from __future__ import annotations

from ergon_framework.boundary.factstore.nats.archive import NatsMoving
from ergon_framework.boundary.factstore.nats.consumers import NatsQuarantine, NatsServing
from ergon_framework.boundary.factstore.nats.log import NatsLogs, NatsReceiving
from ergon_framework.boundary.factstore.nats.registry import NatsLinks, NatsObjects
from ergon_framework.errors import StoreError


class NatsFactStore(
    NatsMoving, NatsLogs, NatsReceiving, NatsServing, NatsQuarantine, NatsObjects, NatsLinks
):
    """A zone's facts in one stream of NATS JetStream. Any thread may call any method."""

    def backup(self, folder: str) -> None:
        """Refuse: the server's own program copies a stream, and does it well."""
        raise StoreError(
            f"{self.url} is not backed up by a node",
            remedy=f"nats stream backup {self._stream.name} FOLDER copies the stream;"
            " ergon move copies the zone into a file",
        )
