"""The pages of zones and of providers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from ergon_framework.ports.providerstore import ProviderStats
from ergon_framework.web.backend_pool import BackendPool
from ergon_framework.web.backends import ProviderBackend
from ergon_framework.web.boundary_routes import zone_state
from ergon_framework.web.console.formatting import Chip
from ergon_framework.web.dead_letter_routes import WAITING

PROVIDER_COLUMNS = (
    "provider",
    "capability",
    "state.text",
    "open",
    "half_open",
    "closed",
    "succeeded",
    "failed",
    "dead_lettered",
    "attempts",
    "quota_used",
    "quota_limit",
    "latest_reason",
)
ZONE_COLUMNS = ("zone", "up", "source", "problem", "quarantined", "lost_facts")


async def zones_document(pool: BackendPool) -> dict[str, Any]:
    """Every zone of the settings, as its node or its folder reports it."""
    rows = await asyncio.gather(*(zone_state(pool, name) for name in pool.backends.zones))
    return {"items": sorted(rows, key=lambda row: str(row["zone"]))}


def zone_chip(zone: Mapping[str, Any]) -> Chip:
    """The state of a zone, in a word or two."""
    if not zone["up"]:
        return Chip("bad", "does not answer")
    if zone.get("alerts"):
        return Chip("warn", "to look at")
    if zone["source"] == "folder":
        return Chip("wait", "its node is not up")
    return Chip("ok", "well")


async def providers_document(pool: BackendPool) -> dict[str, Any]:
    """What each capability of a provider has done in the last hour, all tenants together."""
    rows: list[dict[str, Any]] = []
    letters = 0
    for part, source in pool.backends.providers.items():
        found = await pool.call(part, partial(_figures, source))
        if found is not None:
            rows += provider_rows(found)
            letters += found.letters
    return {"items": rows, "dead_letters": letters, "has_store": bool(pool.backends.providers)}


def _figures(source: ProviderBackend) -> ProviderStats | None:
    if source.looking is None or not source.has_tables():
        return None
    return source.looking.figures(source.opened().now(), WAITING)


def provider_rows(found: ProviderStats) -> list[dict[str, Any]]:
    """A row for each capability, made from lists that each have one value of it."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for provider, capability in sorted(_named(found)):
        rows[provider, capability] = {
            "provider": provider,
            "capability": capability,
            **dict.fromkeys(("open", "half_open", "closed"), 0),
            **dict.fromkeys(("succeeded", "failed", "dead_lettered", "attempts"), 0),
            "quota_used": None,
            "quota_limit": None,
            "latest_reason": None,
        }
    for circuit in found.circuits:
        rows[circuit[:2]][str(circuit.what)] = circuit.number
    for ended in found.ended:
        names = ("succeeded", "failed", "dead_lettered", "attempts")
        rows[ended[:2]].update({name: getattr(ended, name) for name in names})
    for quota in found.quotas:
        rows[quota[:2]].update(quota_used=quota.used, quota_limit=quota.limit)
    for failure in reversed(found.failures):  # The most frequent one comes last, and stays.
        rows[failure[:2]]["latest_reason"] = failure.what
    return [{**row, "state": provider_chip(row)._asdict()} for row in rows.values()]


def _named(found: ProviderStats) -> Iterable[tuple[str, str]]:
    lists = (found.circuits, found.failures, found.quotas, found.ended)
    return {(str(each[0]), str(each[1])) for rows in lists for each in rows}


def provider_chip(row: Mapping[str, Any]) -> Chip:
    """The state of a capability, in a word or two."""
    if row["open"]:
        return Chip("bad", "circuit open")
    if row["half_open"]:
        return Chip("warn", "trying again")
    if row["quota_limit"] and row["quota_used"] >= row["quota_limit"]:
        return Chip("warn", "quota used up")
    return Chip("ok", "well")
