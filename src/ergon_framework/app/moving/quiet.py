"""Whether anybody still works with a store that is to be moved."""

from __future__ import annotations

from collections.abc import Callable

from ergon_framework.errors import StoreError
from ergon_framework.ports.factstore import ConsumerDesk
from ergon_framework.ports.jobstore import JobDesk

RECENTLY = 60.0
"""Seconds since a worker told of itself after which it is taken for gone."""


def refuse_workers(desk: JobDesk, now: float, where: str) -> None:
    """Refuse a store that workers use."""
    alive = [each for each in desk.workers() if now - each.seen_at < RECENTLY]
    if alive:
        named = ", ".join(f"{each.id} (process {each.pid} on {each.host})" for each in alive)
        raise StoreError(
            f"workers use {where}: {named}",
            remedy="stop them and wait a minute; --force moves what they leave behind meanwhile",
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
