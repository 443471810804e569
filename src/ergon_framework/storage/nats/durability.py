"""What an acknowledgement of a NATS server means: whether it syncs, and on how many disks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from ergon_framework.errors import ConfigurationError

_PATIENCE = 2.0  # seconds
REMEDY = (
    "set sync_interval: always in the jetstream block of the server, or keep the stream on three"
    " servers with ?replicas=3"
)


@dataclass(frozen=True, slots=True)
class Durability:
    """What is known about it."""

    replicas: int
    syncs_always: bool | None
    """None when the server could not be asked."""

    @property
    def sentence(self) -> str:
        """What an acknowledged append survives."""
        copies = "one server" if self.replicas == 1 else f"most of {self.replicas} servers"
        if self.syncs_always:
            return (
                f"An acknowledged fact is synced to disk on {copies} of NATS: it survives the end"
                " of processes and power cuts, not the loss of those disks."
            )
        if self.replicas > 1:
            return (
                f"An acknowledged fact is written on {copies} of NATS, and synced to their disks"
                " later: it survives the end of processes and the power cut of one server, not"
                " of all at once."
            )
        if self.syncs_always is None:
            return (
                "An acknowledged fact is written by one server of NATS and survives the end of"
                " processes; whether it survives a power cut could not be checked, because the"
                " server's monitoring address is not known (?monitor=http://host:8222)."
            )
        return (
            "An acknowledged fact is written by one server of NATS, which syncs its disk later: it"
            " survives the end of processes, and a power cut may lose the facts of some minutes."
        )

    @property
    def is_safe(self) -> bool:
        """Whether the power cut of one server loses nothing, as far as is known."""
        return self.syncs_always is True or self.replicas > 1


def refuse_unsynced(found: Durability, name: str) -> None:
    """Refuse a server whose power cut takes what was acknowledged, or that does not tell."""
    if found.is_safe:
        return
    if found.syncs_always is None:
        raise ConfigurationError(
            f"{name} does not tell whether it syncs what it acknowledges",
            remedy="name its monitoring address in the URL, ?monitor=http://host:8222, and set"
            " sync_interval: always in the jetstream block of the server; or write"
            " ?acknowledge=unsynced if a power cut may take acknowledged facts",
        )
    raise ConfigurationError(
        f"{name} acknowledges facts before they are synced to disk",
        remedy=f"{REMEDY}; or write ?acknowledge=unsynced in the URL if a power cut may take"
        " acknowledged facts",
    )


def durability_of(config: Mapping[str, Any], monitor: str | None) -> Durability:
    """Ask the server, where its URL says how."""
    return Durability(int(config.get("num_replicas", 1)), _syncs_always(monitor))


def _syncs_always(monitor: str | None) -> bool | None:
    """What the server's monitoring page says; None when nobody can be asked."""
    if monitor is None:
        return None
    try:
        settings = _asked(monitor).get("config") or {}
    except (OSError, HTTPException, ValueError):
        return None
    return bool(settings.get("sync_always", False)) if settings else None


def _asked(monitor: str) -> dict[str, Any]:
    parts = urlsplit(monitor)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=_PATIENCE)
    try:
        connection.request("GET", "/jsz")
        found = json.loads(connection.getresponse().read())
    finally:
        connection.close()
    return found if isinstance(found, dict) else {}
