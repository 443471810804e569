"""Where the answers come from: the stores and zones that the settings name. None is ever made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ergon_framework.app.jobs import setup_of
from ergon_framework.app.node import NodeAddress, node_address
from ergon_framework.app.settings.sections import Settings
from ergon_framework.app.settings.stores import (
    call_stores,
    is_in_memory,
    keeps_calls,
    keeps_jobs,
    resolve_url,
)
from ergon_framework.errors import ConfigurationError, SettingsError
from ergon_framework.web.job_source import JobSource
from ergon_framework.web.provider_source import ProviderSource
from ergon_framework.web.zone_source import ZoneSource

PROVIDERS = "providers"
"""The name of the part that the store of provider calls is."""
_NODE_PATIENCE = 0.6
"""The share of a request's time that a node has to answer; the rest is for its folder."""


class Source(Protocol):
    """One of them."""

    def check(self) -> None:
        """Raise ``ErgonError`` unless it can be read."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Everything there is to tell about; None is a part that the settings do not name."""

    jobs: JobSource | None = None
    providers: Mapping[str, ProviderSource] = field(default_factory=dict)
    """By the names of their parts: a provider may have a store of its own."""
    zones: Mapping[str, ZoneSource] = field(default_factory=dict)

    def parts(self) -> Iterator[tuple[str, Source]]:
        """Those that are there, by the names under which probes and metrics know them."""
        if self.jobs is not None:
            yield "jobs", self.jobs
        yield from self.providers.items()
        for name, zone in self.zones.items():
            yield zone_part(name), zone

    def close(self) -> None:
        """Let go of what was opened."""
        for each in self.providers.values():
            each.close()
        if self.jobs is not None:
            self.jobs.close()


def zone_part(name: str) -> str:
    """What a zone is called among the parts."""
    return f"zone:{name}"


def provider_part(name: str) -> str:
    """What the store of one provider is called among the parts; without a name, that of all."""
    return f"{PROVIDERS}:{name}" if name else PROVIDERS


def sources_of(settings: Settings, url: str | None = None) -> Sources:
    """What the settings name; ``url`` is the store of jobs and provider calls instead of theirs."""
    jobs = setup_of(settings, url)
    calls = _calls(url) if url else call_stores(settings)
    zones = _zones(settings)
    if not (jobs.url or calls or zones):
        file = settings.file
        where = "there is no settings file" if file is None else f"{file} has none"
        raise SettingsError(
            f"no store: {where}",
            remedy='write url = "sqlite:///work.db" under [store] in ergon.toml, or give --store',
        )
    for each in (jobs.url, calls.get("", "")):
        if is_in_memory(each):
            raise ConfigurationError(
                "what a store in memory holds, only its own process can see",
                remedy="name a store in a database, such as sqlite:///work.db",
            )
    return Sources(
        JobSource(jobs) if keeps_jobs(jobs.url) else None,
        {
            provider_part(name): ProviderSource(each)
            for name, each in calls.items()
            if not is_in_memory(each)  # of a single provider: the others can be told about
        },
        zones,
    )


def _calls(url: str) -> dict[str, str]:
    """A store that somebody names, if it is of a kind that keeps provider calls."""
    return {"": resolve_url(url, Path())} if keeps_calls(url) else {}


def _zones(settings: Settings) -> dict[str, ZoneSource]:
    from ergon_framework.app.zones import known_zone

    found = {}
    for name in settings.extensions.get("zones") or {}:
        setup = known_zone(settings.file, name)
        if setup is not None:
            timeout = settings.server.timeout * _NODE_PATIENCE
            address = _address(settings.file, name)
            found[name] = ZoneSource(name, address, setup.settings, timeout)
    return found


def _address(file: Path | None, zone: str) -> NodeAddress | None:
    try:
        return node_address(file, zone)
    except ConfigurationError:  # it lets the node choose its port
        return None
