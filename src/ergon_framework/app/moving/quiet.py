"""Whether anybody still works with a store that is to be moved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ergon_framework.boundary.folder import DataFolder
from ergon_framework.errors import ConfigurationError, StoreError
from ergon_framework.ports.factstore import ConsumerDesk
from ergon_framework.ports.jobstore import JobDesk

RECENTLY = 60.0
"""Seconds since a worker told of itself after which it is taken for gone."""


def locked(folder: Path) -> DataFolder:
    """The folder of a zone that is to be read, held so that no node starts there meanwhile."""
    try:
        return DataFolder.lock(folder)
    except ConfigurationError as error:
        raise ConfigurationError(
            error.message,
            remedy="stop the zone's node; --force moves what it leaves behind meanwhile",
            details=error.details,
        ) from error


def refuse_workers(desk: JobDesk, now: float, where: str, *, is_target: bool = False) -> None:
    """Refuse a store that workers use; what they do in a target would be lost, whoever insists."""
    alive = [each for each in desk.workers() if now - each.seen_at < RECENTLY]
    if alive:
        named = ", ".join(f"{each.id} (process {each.pid} on {each.host})" for each in alive)
        forced = "" if is_target else "; --force moves what they leave behind meanwhile"
        raise StoreError(
            f"workers use {where}: {named}", remedy=f"stop them and wait a minute{forced}"
        )


def refuse_readers(desk: ConsumerDesk, clock: Callable[[], float], where: str) -> None:
    """Refuse a zone that somebody reads from right now."""
    held = [each for each in desk.consumers() if each.is_held(clock())]
    if held:
        named = ", ".join(f"{each.name} (held by {each.holder})" for each in held)
        raise StoreError(
            f"consumers read from {where}: {named}",
            remedy="stop the zone's nodes and wait a minute; --force moves it nevertheless",
        )
