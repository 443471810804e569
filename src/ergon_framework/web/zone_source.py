"""A zone as the server reads it: its node is asked, or else its stores are looked into."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ergon_framework.app.node import NodeAddress
from ergon_framework.errors import (
    ConfigurationError,
    ErgonError,
    NodeUnavailableError,
    StoreSchemaError,
)

if TYPE_CHECKING:
    from ergon_framework.boundary.settings import ZoneSettings
    from ergon_framework.boundary.zone import Zone

_ADMIN = "bsfg.v1.BoundaryAdmin/"


@dataclass(frozen=True, slots=True)
class ZoneSource:
    """Where a zone can be asked about itself."""

    name: str
    node: NodeAddress | None
    """None when the settings let the node choose its port: then nobody knows where it is."""
    settings: ZoneSettings
    timeout: float

    def status(self) -> dict[str, Any]:
        """How the zone stands; ``source`` tells whether its node said so or its folder."""
        from ergon_framework.boundary.serving.status import status

        return self._asked("GetStatus", {}, status)

    def consumers(self) -> dict[str, Any]:
        """Every consumer with its cursor and its backlog."""
        from ergon_framework.boundary.serving.pages import consumer_shape

        def look(zone: Zone) -> dict[str, Any]:
            now = zone.clock()
            return {"consumers": [consumer_shape(each, now) for each in zone.store.consumers()]}

        return self._asked("ListConsumers", {}, look)

    def quarantine(self, state: str, consumer: str | None) -> dict[str, Any]:
        """What was set aside; its content stays out."""
        from ergon_framework.boundary.serving.pages import quarantine_shape

        def look(zone: Zone) -> dict[str, Any]:
            found = zone.store.quarantine(consumer, None if state == "all" else state)
            return {"items": [quarantine_shape(each) for each in found]}

        wanted = {"state": state} | ({} if consumer is None else {"consumer_name": consumer})
        return self._asked("ListQuarantine", wanted, look)

    def gaps(self) -> dict[str, Any]:
        """Every recorded loss."""
        from ergon_framework.boundary.serving.pages import gap_shape

        return self._asked(
            "ListGaps", {}, lambda zone: {"gaps": [gap_shape(each) for each in zone.store.gaps()]}
        )

    def check(self) -> None:
        """Raise ``ErgonError`` unless somebody answers for the zone."""
        self.status()

    def _asked(
        self, method: str, fields: dict[str, Any], look: Callable[[Zone], dict[str, Any]]
    ) -> dict[str, Any]:
        try:
            return {**self._by_node(method, fields), "source": "node"}
        except ErgonError as error:
            return {**self._by_folder(look, error), "source": "folder"}

    def _by_node(self, method: str, fields: dict[str, Any]) -> dict[str, Any]:
        if self.node is None:
            raise NodeUnavailableError("nobody knows where the node listens")
        with closing(self.node.connect(self.timeout)) as transport:
            answer = transport.call(_ADMIN + method, json.dumps(fields).encode())
        found: dict[str, Any] = json.loads(answer)
        return found

    def _by_folder(
        self, look: Callable[[Zone], dict[str, Any]], refusal: ErgonError
    ) -> dict[str, Any]:
        from ergon_framework.boundary.upkeep.local import looked_at

        try:
            with looked_at(self.name, self.settings) as zone:
                return look(zone)
        except (ConfigurationError, StoreSchemaError):
            pass  # no such zone has been there: the node is what was meant
        raise refusal
