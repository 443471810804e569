"""Very many queues in Redis: a look takes many calls, of which each reads a bounded part."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
import redis

from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.stores.redis import RedisJobStore
from ergon_framework.testing.suites.drivers import HandClock
from ergon_framework.testing.suites.jobstore.under_test import JobStoreSubject, new

pytestmark = pytest.mark.req("SCALE:jobs-redis")
MANY = 1_203
"""Queues that no call reads together."""
MOST_COMMANDS = 620
"""What one script may ask of the server: five commands for each of a hundred queues, and some."""
WHOLE = {"HGETALL", "HKEYS", "HVALS"}
NAMES = [f"tenant-{number:04}" for number in range(MANY)]
COUNTED = [(name, {"pending": 1}) for name in NAMES]


@pytest.fixture
def store(redis_url: str) -> Iterator[RedisJobStore]:
    """One job in each queue, and every second of them for an executor that it names."""
    with closing(RedisJobStore(redis_url)) as made:
        client = JobClient(store=made)
        handlers = ("a", "other#a")
        jobs = [{"handler": handlers[n % 2], "queue": name} for n, name in enumerate(NAMES)]
        client.enqueue_many(jobs)
        yield made


def asked(url: str, look: Callable[[], Any]) -> tuple[Any, list[list[str]]]:
    """The answer of a look, and what each of its calls had the server do."""
    calls: list[list[str]] = []
    with redis.Redis.from_url(url, decode_responses=True) as link, link.monitor() as watched:
        answer = look()
        link.echo("that was all")
        for told in watched.listen():
            words = str(told["command"])
            if words.startswith("ECHO"):
                return answer, calls
            if told["client_type"] == "lua":
                calls[-1].append(words)
            else:
                calls.append([] if words.startswith("EVAL") else [words])
    raise AssertionError("the server says no more")


def whole(command: str) -> bool:
    """Whether it reads all fields or members of what grows with the number of queues."""
    name, _, rest = command.partition(" ")
    if ":counts" not in rest and ":lanes" not in rest:
        return False
    return name in WHOLE or (name == "ZRANGE" and rest.endswith(" 0 -1"))


LOOKS: list[tuple[Callable[[RedisJobStore], Any], Any]] = [
    (lambda s: s.queue_names(limit=9), NAMES[:9]),
    (lambda s: s.queue_names(limit=9, is_due=True), NAMES[:9]),
    (lambda s: s.queue_names(after=NAMES[5], limit=2, is_due=True), NAMES[6:8]),
    (lambda s: s.queue_names(prefix="tenant-12", is_due=True), NAMES[1200:]),
    (lambda s: [(each.name, dict(each.counts)) for each in s.queues()], COUNTED),
    (lambda s: [each.name for each in s.look_at_queues(NAMES)], NAMES),
    (lambda s: dict(s.count_by_status().counts), {"pending": MANY}),
    (lambda s: [(e.executor, list(e.queues)) for e in s.named()], [("other", NAMES[1::2])]),
]


def test_a_look_at_very_many_queues_reads_them_in_slices(
    store: RedisJobStore, redis_url: str
) -> None:
    """All of them are found, and no call keeps the server from others for long."""
    for number, (look, wanted) in enumerate(LOOKS):
        answer, calls = asked(redis_url, lambda look=look: look(store))  # type: ignore[misc]
        assert answer == wanted, number
        assert max(map(len, calls)) <= MOST_COMMANDS, number
        assert [each for call in calls for each in call if whole(each)] == [], number


def test_due_queues_of_very_many_executors(redis_url: str) -> None:
    """Of each executor as many are read as are wanted, and of so many executors in one call."""
    with closing(RedisJobStore(redis_url)) as store:
        jobs = [{"handler": f"{name}#a", "queue": name} for name in NAMES[:250]]
        JobClient(store=store).enqueue_many(jobs)
        answer, calls = asked(redis_url, lambda: store.queue_names(limit=250, is_due=True))
    assert answer == NAMES[:250]
    assert max(map(len, calls)) <= MOST_COMMANDS


FIRST_LOOK, EACH_CLAIM = 90, 60
"""What a claim may ask of the server: the first behind very many paused queues, and all others."""


def test_paused_queues_cost_a_claim_nothing(redis_url: str) -> None:
    """However many are paused; they are open again at once when they are resumed."""
    with closing(RedisJobStore(redis_url)) as store:
        s = JobStoreSubject(store, HandClock(), None, 15.0)
        for name in NAMES[:300]:
            store.set_queue(name, is_paused=True)
        store.add([new(name, queue=name) for name in NAMES[:300]])
        store.add([new(f"open-{n}", queue="zz-open") for n in range(9)])
        for n in range(4):
            found, calls = asked(redis_url, s.ids)
            assert found == [f"open-{n}"]
            assert max(map(len, calls)) <= (EACH_CLAIM if n else FIRST_LOOK), n
        store.set_queue(NAMES[200], is_paused=False)
        assert sorted(s.ids(2)) == ["open-4", NAMES[200]]
        store.set_queue("zz-open", is_paused=True)
        store.add([new("more", queue=NAMES[200]), new("shut", queue=NAMES[3])])
        assert s.ids(9) == ["more"]
        [shut] = store.look_at_queues([NAMES[3]])
        assert (shut.is_paused, dict(shut.counts)) == (True, {"pending": 2})
        assert shut.oldest_due_at is not None


def test_lanes_that_an_earlier_version_lists_are_found(redis_url: str) -> None:
    """It knows of no lanes that stand apart: it lists, drops and resumes as it always did."""
    with closing(RedisJobStore(redis_url, prefix="old")) as store:
        s = JobStoreSubject(store, HandClock(), None, 15.0)
        for name in NAMES[:200]:
            store.set_queue(name, is_paused=True)
        store.add([new(name, queue=name) for name in NAMES[:200]])
        assert s.ids() == []
        with redis.Redis.from_url(redis_url) as link:
            apart = {key: link.zrange(f"{{old}}:due:{key}", 0, -1) for key in ("open", "closed")}
            assert (len(apart["open"]), len(apart["closed"])) == (0, 200)
            store.add([new("new", queue="new")])
            link.zrem("{old}:due:open", "0::new")
            assert s.ids() == ["new"]
            link.hdel("{old}:queues", NAMES[9])
            store.prune(10)
        assert s.ids(5) == [NAMES[9]]
