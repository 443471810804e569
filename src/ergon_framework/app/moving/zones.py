"""Which zone of a place is to be moved, and which are there."""

from __future__ import annotations

from collections.abc import Sequence

from ergon_framework.app.moving.places import Place
from ergon_framework.app.settings.source import did_you_mean
from ergon_framework.app.settings.stores import file_has_table
from ergon_framework.app.tables import zones_there
from ergon_framework.boundary.opening import open_fact_store
from ergon_framework.errors import ConfigurationError, StoreError, StoreSchemaError

_TABLES = {"ergon_jobs": "jobs", "provider_dead_letters": "provider calls"}
"""By which tables a file is known to keep something beside facts."""


def zones_at(place: Place) -> list[str]:
    """Whose facts a place keeps, as far as it can tell."""
    if place.file is None:
        return zones_there(place.url) if place.is_database else []
    zone = place.zone()
    return [] if zone is None else [zone]


def no_work_at(place: Place) -> ConfigurationError:
    """The error of a place that keeps neither jobs nor provider calls."""
    told = f"{place.name} keeps neither jobs nor provider calls"
    zones = zones_at(place)
    if zones:
        return ConfigurationError(
            f"{told}, but the facts of zone {', '.join(zones)}",
            remedy=f"--zone {zones[0]} moves them",
        )
    is_redis = not place.is_database
    keys = "; the URL ends with the number of the database, and has ?prefix=NAME if the keys do"
    return ConfigurationError(
        f"{told}: nothing of Ergon is there",
        remedy=f"correct FROM, which is the store that is there{keys if is_redis else ''}",
    )


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
        _refuse_unknown_stream(zone, place)
        return
    there = zones_at(place)
    if zone not in there:
        raise _no_zone(zone, place, there)


def _refuse_unknown_stream(zone: str, place: Place) -> None:
    """Ask for the one stream first: not every user may ask which there are."""
    try:
        open_fact_store(place.url, zone=zone, read_only=True).close()
    except StoreSchemaError as error:
        from ergon_framework.boundary.logs.nats.opening import zones_in_space

        try:
            there = zones_in_space(place.url)
        except StoreError:
            raise error from None
        if zone in there:  # its stream is not one to read
            raise
        raise _no_zone(zone, place, there) from None


def _no_zone(zone: str, place: Place, there: Sequence[str]) -> ConfigurationError:
    kept = [] if there else _kept(place)
    if kept:
        return ConfigurationError(
            f"{place.name} has no zone {zone!r}; it keeps {' and '.join(kept)}",
            remedy="correct FROM; without --zone the same command moves what it keeps",
        )
    if there:
        return ConfigurationError(
            f"{place.name} has no zone {zone!r}; {did_you_mean(zone, there)}",
            remedy="correct --zone",
        )
    return ConfigurationError(
        f"{place.name} has no zone {zone!r}, nor any other",
        remedy="correct FROM, which is the store that is there, or --zone",
    )


def _kept(place: Place) -> list[str]:
    """What a file keeps beside facts; one that cannot be read says so."""
    if place.file is None:
        return []
    return [title for table, title in _TABLES.items() if file_has_table(place.file, table)]
