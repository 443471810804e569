"""Which versions of Redis will do: every command of ours is older than the oldest of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import ergon_framework
from ergon_framework.errors import StoreSchemaError
from ergon_framework.storage.redis.address import address_of
from ergon_framework.storage.redis.client import RedisClient
from ergon_framework.storage.redis.diagnostics import (
    MIN_VERSION,
    persistence_of,
    refuse_unsafe,
    version,
    version_in,
)

pytestmark = pytest.mark.req("SCALE:jobs-redis", "SCALE:doctor")

ROOT = Path(ergon_framework.__file__).parent
SCRIPTS = sorted((ROOT / "jobs/stores/redis/lua").glob("*.lua"))
PROGRAMS = [*(ROOT / "jobs/stores/redis").glob("*.py"), *(ROOT / "storage/redis").glob("*.py")]

SINCE: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("DEL", "EXISTS", "EXPIRE", "GET", "INCRBY", "INFO", "PING", "SET"), (1, 0)),
    **dict.fromkeys(("ZCARD", "ZRANGE", "ZREM", "ZRANGEBYSCORE"), (2, 4)),  # ZREM of several
    **dict.fromkeys(
        ("HDEL", "HEXISTS", "HGET", "HGETALL", "HINCRBY", "HMGET", "HSETNX", "ZCOUNT"), (2, 4)
    ),  # HDEL of several
    **dict.fromkeys(("INCR", "LLEN", "LPOP", "LRANGE", "LTRIM", "SMEMBERS"), (1, 0)),
    **dict.fromkeys(("RPUSH", "SADD"), (2, 4)),  # of several
    **dict.fromkeys(("ZREVRANGE", "ZSCORE"), (1, 2)),
    "PERSIST": (2, 2),
    **dict.fromkeys(("HLEN", "ZUNIONSTORE"), (2, 0)),
    **dict.fromkeys(("CONFIG", "PUBLISH", "SUBSCRIBE"), (2, 0)),
    "ZREVRANGEBYSCORE": (2, 2),
    "HSCAN": (2, 8),
    **dict.fromkeys(("EVAL", "EVALSHA", "TIME"), (2, 6)),
    "ZRANGEBYLEX": (2, 8, 9),
    "ZADD": (3, 0, 2),  # with NX
    "HSTRLEN": (3, 2),
    "HSET": (4, 0),  # of several fields
}
"""Since when there are our commands, as we call them."""
WORDS = {"LIMIT", "NX", "WITHSCORES"}
"""What else is written in capitals: options of these commands, as old as they are."""
_CAPITALS = re.compile(r'"([A-Z]{2,})"')
_CALLED = re.compile(r'(?:\.call|send_command|_say)\((?:self\._line, |line, )?"([A-Z]+)"')


def test_scripts_call_nothing_newer_than_the_oldest_server() -> None:
    """Also where a command is handed on as a word."""
    found = {word for file in SCRIPTS for word in _CAPITALS.findall(file.read_text())}
    assert {"ZRANGEBYLEX", "HSET", "TIME"} <= found
    assert found - SINCE.keys() - WORDS == set()
    assert max(SINCE[word] for word in found - WORDS) <= MIN_VERSION


def test_programs_call_nothing_newer_than_the_oldest_server() -> None:
    """What is called without a script."""
    found = {word for file in PROGRAMS for word in _CALLED.findall(file.read_text())}
    assert {"HGETALL", "CONFIG", "SUBSCRIBE"} <= found
    assert found - SINCE.keys() == set()
    assert max(SINCE[word] for word in found) <= MIN_VERSION


@pytest.mark.parametrize(
    ("told", "version"),
    [
        ("6.2.14", (6, 2, 14)),
        ("7.0.0-rc1", (7, 0, 0)),
        ("255.255.255", (255, 255, 255)),
        ("8", (8,)),
        ("", ()),
        ("unstable", ()),
    ],
)
def test_what_a_server_says_it_is(told: str, version: tuple[int, ...]) -> None:
    """Numbers are compared, not letters; a candidate counts as what it is going to be."""
    assert version_in({"redis_version": told}) == version


SYNCED = {"appendonly": "yes", "appendfsync": "always", "no-appendfsync-on-rewrite": "no"}


class FakeLink(RedisClient):
    """A server that tells of itself whatever the test says, and that syncs every write."""

    def __init__(self, told: Mapping[str, str]) -> None:
        super().__init__(address_of("redis://host"))
        self._told = dict(told)

    def info(self, section: str) -> dict[str, str]:
        """All of it, whatever is asked for."""
        return self._told

    def call(self, *words: Any) -> Any:
        """The settings of a synced server; no other is told."""
        asked, name = words[1:]
        assert (words[0], asked) == ("CONFIG", "GET")
        return [name.encode(), SYNCED[name].encode()] if name in SYNCED else []


@pytest.mark.parametrize("told", ["2.8.24", "5.0.14", "6.0.20"])
def test_an_old_server_is_refused(told: str) -> None:
    """With its version and the one that it has to have; the doctor says the same."""
    link = FakeLink({"redis_version": told})
    found = persistence_of(link)
    with pytest.raises(StoreSchemaError, match=rf"Redis {told}, and jobs need 6\.2") as caught:
        refuse_unsafe(found, link, read_only=True)
    assert "6.2 or later" in (caught.value.remedy or "")
    seen = version(found)
    assert seen.is_grave
    assert "6.2 or later is supported" in seen.found


@pytest.mark.parametrize("told", ["6.2.0", "6.10.1", "7.0.15", "7.2.4", "8.4.0", "10.0", ""])
def test_a_newer_server_will_do(told: str) -> None:
    """And one that does not say what it is."""
    link = FakeLink({"redis_version": told, "valkey_version": "8.1.0"})
    found = persistence_of(link)
    refuse_unsafe(found, link, read_only=False)
    assert not version(found).is_grave
