"""Where a store may be opened. Programs that die by the hundred import this, so it is light."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ergon_framework.ports.factstore import FactStore
    from ergon_framework.ports.jobstore import FullJobStore

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Place:
    """A URL; for facts, a zone comes with it."""

    url: str
    zone: str = "plant-a"


def open_jobs(place: Place, clock: Clock | None = None) -> FullJobStore:
    """The job store there."""
    from ergon_framework.jobs.store_urls import open_store

    return open_store(place.url, clock=clock)


def open_facts(place: Place, clock: Clock | None = None) -> FactStore:
    """The fact store there."""
    from ergon_framework.boundary.store_urls import open_fact_store

    return open_fact_store(place.url, zone=place.zone, clock=clock)
