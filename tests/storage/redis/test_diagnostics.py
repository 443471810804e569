"""What ``ergon doctor`` sees of a Redis server."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ergon_framework.errors import ConfigurationError, StoreUnavailableError
from ergon_framework.storage.redis.diagnostics import (
    Persistence,
    durability,
    eviction,
    memory,
    observe,
    role,
    version,
)
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.req("SCALE:doctor")
SAFE = Persistence((7, 2, 4), False, True, "always", False, False, "noeviction")


def test_a_safe_server_gives_no_cause_for_concern(durable_redis: RedisServer) -> None:
    """Everything is looked at, and nothing is to be done."""
    seen = {each.what: each for each in observe(durable_redis.url)}
    assert list(seen) == [
        *("version", "role", "durability", "maxmemory-policy", "memory", "latency", "clock")
    ]
    assert not any(each.is_grave for each in seen.values())
    assert seen["durability"].remedy == ""
    assert seen["role"].found == "a primary"


def test_a_server_that_keeps_nothing_is_grave(redis_server: RedisServer) -> None:
    """Unless the URL says that it may."""
    seen = {each.what: each for each in observe(redis_server.url)}
    assert seen["durability"].is_grave
    assert "appendfsync always" in seen["durability"].remedy
    volatile = {each.what: each for each in observe(f"{redis_server.url}?persistence=none")}
    assert not volatile["durability"].is_grave
    assert volatile["durability"].remedy


def test_a_server_that_is_away() -> None:
    """The error is that of connecting."""
    with pytest.raises(StoreUnavailableError, match="cannot be reached"):
        list(observe("redis://127.0.0.1:1/0"))
    with pytest.raises(ConfigurationError, match="cannot be read"):
        list(observe("redis://host:port"))


def test_unsafe_settings_are_explained() -> None:
    """Each with what to do about it; those that lose jobs are grave."""
    assert version(replace(SAFE, version=(6, 0, 9))).is_grave
    assert not version(SAFE).remedy
    assert version(replace(SAFE, version=())).found.startswith("not told")
    assert role(replace(SAFE, is_replica=True), is_cluster=False).is_grave
    assert "cluster" in role(SAFE, is_cluster=True).found
    assert eviction(replace(SAFE, evicts="volatile-ttl")).is_grave
    assert eviction(replace(SAFE, evicts=None)).remedy
    assert not eviction(SAFE).remedy


@pytest.mark.parametrize(
    ("changes", "found", "remedy"),
    [
        ({"synced": "everysec"}, "a second", "appendfsync always"),
        ({"synced": "no"}, "half a minute", "appendfsync always"),
        ({"rests_on_rewrite": True}, "rewrites its log", "no-appendfsync-on-rewrite no"),
        ({"synced": None}, "does not tell", "ask whoever runs the server"),
        ({"is_logged": None}, "does not tell", "ask whoever runs the server"),
        ({"is_logged": False, "has_snapshots": True}, "snapshot", "appendonly yes"),
    ],
)
def test_weak_durability_is_explained(changes: dict[str, object], found: str, remedy: str) -> None:
    """What an acknowledgement means there, and how to make it mean more."""
    seen = durability(replace(SAFE, **changes), is_volatile=False)  # type: ignore[arg-type]
    assert found in seen.found
    assert remedy in seen.remedy
    assert seen.is_grave == ("ask whoever" not in remedy), "what is known to lose work is grave"


def test_full_memory_is_told() -> None:
    """Before there is none left."""
    assert memory({"used_memory": "90", "maxmemory": "100"}).remedy
    assert not memory({"used_memory": "10", "maxmemory": "100"}).remedy
    assert "without a limit" in memory({"used_memory": "10"}).found
