"""What ``ergon doctor`` says of a Redis stream and its server."""

from __future__ import annotations

from ergon_framework.connector.redis_streams.client import Steps
from ergon_framework.connector.redis_streams.group import ConsumerGroup
from ergon_framework.storage.server import Observation


def observations(name: str, group: ConsumerGroup) -> Steps[list[Observation]]:
    """Whether it keeps what it confirms, and how far the group is."""
    text = yield ("INFO",)
    info = dict(
        line.split(":", 1) for line in text.decode(errors="replace").splitlines() if ":" in line
    )
    version = info.get("valkey_version") or info.get("redis_version", "of an unknown version")
    found = [
        Observation("server", f"{name} answers ({info.get('server_name', 'redis')} {version})")
    ]
    if info.get("role", "master") != "master":
        found.append(
            Observation(
                "role", "it is a replica, which may only be read", "name the primary", is_grave=True
            )
        )
    if info.get("aof_enabled", "1") == "0":
        found.append(
            Observation(
                "durability",
                "a crash of the server loses what it has confirmed since its last snapshot",
                "set appendonly yes there",
            )
        )
    if not info.get("maxmemory_policy", "noeviction").startswith(("noeviction", "volatile")):
        found.append(
            Observation(
                "eviction",
                f"the server may throw streams away (maxmemory-policy {info['maxmemory_policy']})",
                "set maxmemory-policy noeviction there",
            )
        )
    found.append((yield from _of_the_group(group)))
    return found


def _of_the_group(group: ConsumerGroup) -> Steps[Observation]:
    info = yield from group.info()
    if info is None:
        text = f"the group {group.name} of the stream {group.stream} is made at the first fetch"
        return Observation("group", text)
    waiting = yield from group.waiting()
    text = f"{group.stream}: {waiting} wait, {info['pending']} are in hand or were given back"
    return Observation("group", f"{text} ({info['consumers']} consumers of {group.name})")
