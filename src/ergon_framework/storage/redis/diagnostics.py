"""What an acknowledgement of a Redis server means, and what ``doctor`` asks the server."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass

from ergon_framework.errors import (
    ConfigurationError,
    ErgonError,
    StoreReadOnlyError,
    StoreSchemaError,
)
from ergon_framework.storage.redis.address import address_of
from ergon_framework.storage.redis.client import RedisClient
from ergon_framework.storage.server import Observation, latency, skew

MIN_VERSION = (6, 2)
"""The oldest version of the server that the store is tried on; its commands are older still."""
MIN_VERSION_NAME = ".".join(map(str, MIN_VERSION))
_ASKED = ("appendonly", "appendfsync", "no-appendfsync-on-rewrite", "save", "maxmemory-policy")


@dataclass(frozen=True, slots=True)
class Persistence:
    """How a server keeps what it holds; None where it does not say."""

    version: tuple[int, ...]
    is_replica: bool
    is_logged: bool | None
    """Whether every write goes to a log on disk."""
    synced: str | None
    """When that log is synced: ``always``, ``everysec`` or ``no``."""
    rests_on_rewrite: bool | None
    """Whether the append-only file is not synced while it is being rewritten."""
    has_snapshots: bool | None
    evicts: str | None
    """What the server throws away when its memory is full."""

    @property
    def is_synced(self) -> bool:
        """Whether what was acknowledged is on disk."""
        return bool(self.is_logged and self.synced == "always" and not self.rests_on_rewrite)

    @property
    def keeps_nothing(self) -> bool:
        """Whether everything is gone when the server ends."""
        return self.is_logged is False and self.has_snapshots is False

    def sentence(self) -> str:
        """What an acknowledgement means."""
        if self.keeps_nothing:
            return (
                "An acknowledged job is in the memory of the Redis server only, and ends with it."
            )
        if self.is_logged is None:
            return (
                "An acknowledged job is in the memory of the Redis server, which does not tell"
                " when it goes to disk."
            )
        if not self.is_logged:
            return (
                "An acknowledged job survives a crash of the Redis server only if a snapshot was"
                " taken since."
            )
        if self.synced is None:
            return (
                "An acknowledged job is in the log of the Redis server, which does not tell when"
                " it syncs the log to disk."
            )
        return self._of_the_log()

    def _of_the_log(self) -> str:
        if self.is_synced:
            return "An acknowledged job is synced to the disk of the Redis server."
        if self.synced == "always":
            return (
                "An acknowledged job is synced to the disk of the Redis server, except while it"
                " rewrites its log: then a power cut may take up to half a minute of work."
            )
        span = "a second" if self.synced == "everysec" else "half a minute"
        return (
            f"An acknowledged job is in the log of the Redis server: a power cut there may take up"
            f" to {span} of acknowledged work."
        )


def version_in(info: Mapping[str, str]) -> tuple[int, ...]:
    """The version that a server reports; empty if it reports none.

    Another server, such as Valkey, reports here which Redis it is compatible with.
    """
    found = re.match(r"\d+(\.\d+)*", info.get("redis_version", "").strip())
    return tuple(map(int, found[0].split("."))) if found else ()


def persistence_of(link: RedisClient) -> Persistence:
    """Ask the server; managed ones may refuse some of the commands."""
    server = link.info("server")
    replication = link.info("replication")
    found = {name: _setting(link, name) for name in _ASKED}
    is_logged = found["appendonly"]
    if is_logged is None:
        is_logged = {"1": "yes", "0": "no"}.get(link.info("persistence").get("aof_enabled", ""))
    snapshots, rests = found["save"], found["no-appendfsync-on-rewrite"]
    return Persistence(
        version=version_in(server),
        is_replica=replication.get("role") == "slave",
        is_logged=None if is_logged is None else is_logged == "yes",
        synced=found["appendfsync"],
        rests_on_rewrite=None if rests is None else rests == "yes",
        has_snapshots=None if snapshots is None else bool(snapshots.strip()),
        evicts=found["maxmemory-policy"] or link.info("memory").get("maxmemory_policy"),
    )


def refuse_unsafe(found: Persistence, link: RedisClient, *, read_only: bool) -> None:
    """Refuse a server that would lose jobs, or that cannot run our scripts."""
    name = link.name
    if found.version and found.version < MIN_VERSION:
        text = ".".join(map(str, found.version))
        raise StoreSchemaError(
            f"{name} is Redis {text}, and jobs need {MIN_VERSION_NAME} or later",
            remedy=f"upgrade the server to {MIN_VERSION_NAME} or later",
        )
    if found.evicts not in {None, "noeviction"}:
        raise ConfigurationError(
            f"{name} throws keys away when its memory is full (maxmemory-policy {found.evicts}):"
            " jobs could be lost",
            remedy="set maxmemory-policy noeviction on the server",
        )
    if found.keeps_nothing and not link.address.is_volatile:
        raise ConfigurationError(
            f"{name} keeps nothing on disk: all jobs would be lost when it ends",
            remedy="set appendonly yes and appendfsync always on the server, or write"
            " ?persistence=none in the URL if the jobs may be lost",
        )
    is_accepted = link.address.accepts_unsynced or link.address.is_volatile
    if not found.is_synced and not is_accepted and not read_only:
        raise ConfigurationError(
            f"{name} acknowledges jobs before they are synced to disk, or does not tell: "
            f"{found.sentence()}",
            remedy="set appendonly yes, appendfsync always and no-appendfsync-on-rewrite no on the"
            " server, and let this user call CONFIG GET; or write ?acknowledge=unsynced in the URL"
            " if acknowledged jobs may be lost",
        )
    if found.is_replica and not read_only:
        raise StoreReadOnlyError(
            f"{name} is a replica, which may only be read",
            remedy="write the address of the primary in the URL",
        )


def _setting(link: RedisClient, name: str) -> str | None:
    try:
        answer = link.call("CONFIG", "GET", name)
    except ErgonError as error:
        if error.code == "store_unavailable":
            raise
        return None  # forbidden, or renamed away
    return str(answer[1].decode()) if answer else None


MAX_USAGE = 0.8
"""The share of the server's memory in use from which on there may soon be none left."""


def observe(url: str) -> Iterator[Observation]:
    """Yield observations of the server. Raises what connecting raises."""
    with closing(RedisClient(address_of(url))) as link:
        found = persistence_of(link)
        yield version(found)
        yield role(found, is_cluster=link.info("cluster").get("cluster_enabled") == "1")
        is_accepted = link.address.is_volatile or link.address.accepts_unsynced
        yield durability(found, is_volatile=is_accepted)
        yield eviction(found)
        yield memory(link.info("memory"))
        yield latency(lambda: link.call("PING"))
        asked_at = time.time()
        seconds, micros = link.call("TIME")
        yield skew(int(seconds) + int(micros) / 1_000_000, asked_at, time.time())


def version(found: Persistence) -> Observation:
    """How old the server is."""
    is_old = bool(found.version) and found.version < MIN_VERSION
    remedy = f"upgrade the server to Redis {MIN_VERSION_NAME} or later" if is_old else ""
    text = ".".join(map(str, found.version)) or "not told"
    found_text = f"{text} ({MIN_VERSION_NAME} or later is supported)"
    return Observation("version", found_text, remedy, is_grave=is_old)


def role(found: Persistence, *, is_cluster: bool) -> Observation:
    """Whether the server accepts writes."""
    if found.is_replica:
        remedy = "write the address of the primary in the URL"
        return Observation("role", "a replica, which takes no writes", remedy, is_grave=True)
    part = " of a cluster, where all of a store lives on one server" if is_cluster else ""
    return Observation("role", f"a primary{part}")


def durability(found: Persistence, *, is_volatile: bool) -> Observation:
    """Whether what is acknowledged is on disk."""
    if found.is_synced:
        return Observation("durability", found.sentence())
    remedy = "set appendonly yes and appendfsync always"
    if found.rests_on_rewrite:
        remedy += ", and no-appendfsync-on-rewrite no"
    is_known = found.is_logged is not None and (found.synced is not None or not found.is_logged)
    if not is_known:
        remedy = "ask whoever runs the server; jobs want appendonly yes and appendfsync always"
    is_grave = is_known and not is_volatile
    return Observation("durability", found.sentence(), remedy, is_grave=is_grave)


def eviction(found: Persistence) -> Observation:
    """Whether jobs may be thrown away."""
    if found.evicts is None:
        return Observation("maxmemory-policy", "not told", "see that it is noeviction")
    if found.evicts == "noeviction":
        return Observation("maxmemory-policy", found.evicts)
    return Observation(
        "maxmemory-policy",
        f"{found.evicts}: jobs are thrown away when the memory is full",
        "set maxmemory-policy noeviction",
        is_grave=True,
    )


def memory(info: dict[str, str]) -> Observation:
    """How much of the memory limit is used."""
    used, most = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    if not most:
        return Observation("memory", f"{used / 1e6:,.0f} MB in use, without a limit")
    remedy = "" if used < MAX_USAGE * most else "raise maxmemory, or let jobs be purged sooner"
    return Observation("memory", f"{used / 1e6:,.0f} of {most / 1e6:,.0f} MB in use", remedy)
