"""The whole fact store in one stream."""

from __future__ import annotations

from ergon_framework.boundary.logs.nats.links import NatsLinks
from ergon_framework.boundary.logs.nats.logs import NatsLogs
from ergon_framework.boundary.logs.nats.moving import NatsMoving
from ergon_framework.boundary.logs.nats.objects import NatsObjects
from ergon_framework.boundary.logs.nats.quarantine import NatsQuarantine
from ergon_framework.boundary.logs.nats.receiving import NatsReceiving
from ergon_framework.boundary.logs.nats.serving import NatsServing
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
