"""Which zone of a place is to be moved, and which are there."""

from __future__ import annotations

from ergon_framework.app.moving.places import Place
from ergon_framework.app.reading.source import did_you_mean
from ergon_framework.app.reading.store_files import file_has_table
from ergon_framework.app.tables import zones_there
from ergon_framework.boundary.opening import open_fact_store
from ergon_framework.errors import ConfigurationError

_TABLES = {"ergon_jobs": "jobs", "provider_dead_letters": "provider calls"}
"""By which tables a file is known to keep something beside facts."""


def zones_at(place: Place) -> list[str]:
    """Whose facts a place keeps, as far as it can tell."""
    if place.file is None:
        return zones_there(place.url) if place.is_database else []
    zone = place.zone()
    return [] if zone is None else [zone]


def zone_meant(given: str | None, place: Place) -> str:
    """The zone that is to be moved; nothing is made by looking for it."""
    zone = given or place.zone()
    if zone is None:
        raise ConfigurationError(
            f"nothing says which zone of {place.name} is meant", remedy="give --zone NAME"
        )
    _refuse_unknown(zone, place)
    return zone


def _refuse_unknown(zone: str, place: Place) -> None:
    """A zone that is not there: to open it for writing would make it."""
    if not place.is_database:
        open_fact_store(place.url, zone=zone, read_only=True).close()
        return
    there = zones_at(place)
    if zone in there:
        return
    kept = [] if there else _kept(place)
    if kept:
        raise ConfigurationError(
            f"{place.name} has no zone {zone!r}; it keeps {' and '.join(kept)}",
            remedy="correct FROM; without --zone the same command moves what it keeps",
        )
    raise ConfigurationError(
        f"{place.name} has no zone {zone!r}; {did_you_mean(zone, there)}", remedy="correct --zone"
    )


def _kept(place: Place) -> list[str]:
    """What a file keeps beside facts; one that cannot be read says so."""
    if place.file is None:
        return []
    return [title for table, title in _TABLES.items() if file_has_table(place.file, table)]
