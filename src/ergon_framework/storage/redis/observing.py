"""Looking at a Redis server: is it new enough, does it keep what it acknowledges?"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

from ergon_framework.storage.observing import Observation, latency, skew
from ergon_framework.storage.redis.address import address_of
from ergon_framework.storage.redis.durability import (
    OLDEST,
    OLDEST_NAME,
    Persistence,
    persistence_of,
)
from ergon_framework.storage.redis.link import RedisLink

CROWDED = 0.8
"""The share of the server's memory in use from which on there may soon be none left."""


def observe(url: str) -> Iterator[Observation]:
    """One observation after the other; raises what connecting raises."""
    with closing(RedisLink(address_of(url))) as link:
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
    is_old = bool(found.version) and found.version < OLDEST
    remedy = f"upgrade the server to Redis {OLDEST_NAME} or later" if is_old else ""
    text = ".".join(map(str, found.version)) or "not told"
    told = f"{text} ({OLDEST_NAME} or later is supported)"
    return Observation("version", told, remedy, is_grave=is_old)


def role(found: Persistence, *, is_cluster: bool) -> Observation:
    """Whether it may be written to."""
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
    """Whether there is memory left."""
    used, most = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    if not most:
        return Observation("memory", f"{used / 1e6:,.0f} MB in use, without a limit")
    remedy = "" if used < CROWDED * most else "raise maxmemory, or let jobs be purged sooner"
    return Observation("memory", f"{used / 1e6:,.0f} of {most / 1e6:,.0f} MB in use", remedy)
