"""Rows in Redis that are none: they hold up nobody, and no script fails for one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from ergon_framework.jobs.stores.redis import RedisJobStore
from ergon_framework.ports.jobstore import OnDuplicate, Search
from ergon_framework.testing.suites.drivers import HandClock
from ergon_framework.testing.suites.jobstore.under_test import (
    LEASE,
    SUCCEEDED,
    JobStoreSubject,
    ids_of,
)


@pytest.fixture
def s(redis_url: str) -> Iterator[JobStoreSubject]:
    """A store with a clock set by hand."""
    clock = HandClock()
    store = RedisJobStore(redis_url, clock=clock)
    yield JobStoreSubject(store, clock, None, 10.0)
    store.close()


def write(url: str, part: str, name: str, value: bytes | None) -> None:
    """Put something into one of the store's hashes, or take it out."""
    with redis.Redis.from_url(url) as link:
        key = next(iter(link.scan_iter(f"*:{part}")))
        if value is None:
            link.hdel(key, name)
        else:
            link.hset(key, name, value)


@pytest.mark.req("SCALE:jobs-redis")
@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("job", b""),
        ("job", b"\x02\x00"),
        ("job", b"\xff" * 200),
        ("job", None),
        ("body", b"\xc1"),
        ("body", None),
    ],
)
@pytest.mark.parametrize("way", ["due", "later", "limited", "running"])
def test_a_row_that_is_none_holds_up_nobody(
    s: JobStoreSubject, redis_url: str, part: str, value: bytes | None, way: str
) -> None:
    """All others are claimed, found, rescued, counted and swept, whatever stands in the row."""
    ways: dict[str, dict[str, Any]] = {"later": {"delay": 5.0}, "limited": {"limit_key": "k"}}
    fields = ways.get(way, {})
    s.put("first", limit_key="k")
    first = s.take("first")
    s.put("bad", unique_key="u", expires_at=s.clock() + 50.0, **fields)
    s.put("a", "b", **fields)
    if way == "running":
        assert sorted(s.ids(5)) == ["a", "b", "bad"]
    elif way == "limited":
        assert s.ids(5) == []
    write(redis_url, part, "bad", value)
    s.must(first, SUCCEEDED)
    s.store.prune(100)
    s.clock.forward(6.0)
    claimed = s.claim(5) + s.claim(5)
    if way != "running":
        assert set(ids_of(claimed)) <= {"a", "b"}
        assert claimed
    s.clock.forward(LEASE + 60.0)
    overdue = set(ids_of(s.store.expired_leases(10)))
    assert overdue <= {"a", "b"}
    assert overdue
    s.store.prune(100)
    assert {"a", "b"} <= set(ids_of(s.store.search(Search())))
    assert s.store.queues()
    s.put("c", unique_key="u", on_duplicate=OnDuplicate.REPLACE)
    if value is not None:
        assert [each.id for each in s.store.unreadable()] == ["bad"]


@pytest.mark.req("SCALE:jobs-redis")
def test_a_history_that_was_lost_stops_no_settlement(s: JobStoreSubject, redis_url: str) -> None:
    """What happened before is gone; what happens now is recorded."""
    s.put("a")
    leased = s.take("a")
    s.store.renew([], LEASE)
    s.must(leased, SUCCEEDED)
    write(redis_url, "tale", "a", None)
    assert s.store.find("a") is not None


@pytest.mark.req("SCALE:jobs-redis")
def test_a_queue_whose_limits_cannot_be_read_is_paused(s: JobStoreSubject, redis_url: str) -> None:
    """Nobody knows how it is limited: it waits, all others go on, and new limits put it right."""
    s.store.set_queue("q", max_active=1)
    s.put("a", queue="q")
    s.put("b")
    write(redis_url, "queues", "q", b"\xc1")
    assert s.ids(5) == ["b"]
    assert {queue.name: queue.is_paused for queue in s.store.queues()} == {
        "default": False,
        "q": True,
    }
    s.store.set_queue("q", is_paused=False, max_active=1)
    assert s.ids(5) == ["a"]
