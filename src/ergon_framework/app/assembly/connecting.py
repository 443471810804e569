"""What connectors to our own parts are given from the rest of the settings.

A connector of the type ``jobs`` or ``boundary`` need not repeat which store there is, or where the
node of a zone listens. Whatever its own table says counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import SecretStr

from ergon_framework.app.settings.secrets import revealed
from ergon_framework.app.settings.sections import Settings
from ergon_framework.app.settings.source import did_you_mean
from ergon_framework.app.settings.stores import base_of, resolve_url, store_url
from ergon_framework.errors import WiringError

_PATHS = ("outbox", "cert", "key", "ca")


def completed(
    name: str, kind: str, options: Mapping[str, Any], settings: Settings
) -> Mapping[str, Any]:
    """The options of a connector with what the settings say elsewhere."""
    if kind == "jobs":
        return _for_jobs(name, options, settings)
    if kind == "boundary":
        return _for_boundary(name, options, settings)
    return options


def _for_jobs(name: str, options: Mapping[str, Any], settings: Settings) -> Mapping[str, Any]:
    jobs = settings.extensions.get("jobs")
    known = {} if jobs is None else {"settings": jobs}
    if "store" in options:
        url = resolve_url(str(revealed(options["store"])), base_of(settings))
    else:
        url = store_url(settings, None if jobs is None else jobs.store)
    if not url:
        raise WiringError(
            f"connectors.{name}: there is no store for its jobs",
            remedy='write url = "sqlite:///work.db" under [store], or store = and a URL here',
            details={"key": ["store"]},
        )
    return {**known, **options, "store": SecretStr(url)}  # it may hold a password


def _for_boundary(name: str, options: Mapping[str, Any], settings: Settings) -> Mapping[str, Any]:
    base = base_of(settings)
    placed = {
        key: str((base / revealed(options[key])).absolute()) for key in _PATHS if options.get(key)
    }
    given = {key: value for key, value in {**options, **placed}.items() if key != "zone"}
    if "node" in options:
        return given
    return {**_node_of(name, options.get("zone"), settings), **given}


def _node_of(name: str, wanted: Any, settings: Settings) -> dict[str, Any]:
    """Where the named zone listens, or the only one there is."""
    from ergon_framework.app.boundary import zones_of
    from ergon_framework.app.boundary_address import zone_address

    zones = zones_of(settings)
    if wanted is None and len(zones) != 1:
        known = f"there are {', '.join(zones)}" if zones else "there is no [zones.NAME] either"
        raise WiringError(
            f"connectors.{name}: it says neither zone nor node, and {known}",
            remedy="write zone = and the name of one, or node = and the URL of its node",
            details={"key": ["zone"]},
        )
    zone = next(iter(zones)) if wanted is None else str(revealed(wanted))
    if zone not in zones:
        raise WiringError(
            f"connectors.{name}: there is no zone {zone!r}; {did_you_mean(zone, list(zones))}",
            remedy="write a table [zones.NAME], or node = and the URL of its node",
            details={"key": ["zone"]},
        )
    address = zone_address(zones[zone])
    found = {"node": address.url, "from_zone": zone, "expected_zone": address.expected_zone}
    return found | {key: value for key, value in address.files.items() if value is not None}
