"""Random lives of very many paused queues in Redis, whose lanes stand apart from all others."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing

import pytest
import redis

from ergon_framework.core.job import CancelRequested
from ergon_framework.jobs.stores.redis import RedisJobStore
from ergon_framework.testing.suites.drivers import HandClock
from ergon_framework.testing.suites.jobstore.under_test import SUCCEEDED, JobStoreSubject, new

pytestmark = pytest.mark.req("SCALE:jobs-redis")
QUEUES = [f"q-{number}" for number in range(75)]
MANY_SEEDS = [pytest.param(seed, 140, marks=pytest.mark.campaign) for seed in range(1, 9)]


class Life:
    """Jobs of many queues, most of them paused, and what is known of them."""

    def __init__(
        self, store: RedisJobStore, clock: HandClock, link: redis.Redis, seed: int
    ) -> None:
        self.store = store
        self.clock = clock
        self.subject = JobStoreSubject(store, clock, None, 15.0)
        self.link = link
        self.dice = random.Random(seed)  # noqa: S311 - a test
        self.paused: set[str] = set()
        self.jobs: dict[str, str] = {}  # those that wait, and their queues
        self.number = 0
        self.looks = 0  # at lanes that stood apart

    def pause(self) -> None:
        for name in self.dice.sample(QUEUES, 20):
            self.set_paused(name, is_paused=True)

    def resume(self) -> None:
        for name in self.dice.sample(sorted(self.paused), min(5, len(self.paused))):
            self.set_paused(name, is_paused=False)

    def set_paused(self, name: str, *, is_paused: bool) -> None:
        self.store.set_queue(name, is_paused=is_paused)
        (self.paused.add if is_paused else self.paused.discard)(name)

    def add(self) -> None:
        jobs = []
        for _ in range(self.dice.randrange(1, 30)):
            self.number += 1
            executor, name = self.dice.choice(("", "python", "node")), f"job-{self.number}"
            job = new(
                name,
                handler=f"{executor}#work" if executor else "work",
                executor=executor,
                queue=self.dice.choice(QUEUES),
                delay=self.dice.choice((0.0, 0.0, 5.0)),
                unique_key=self.dice.choice((None, name)),
            )
            jobs.append(job)
            self.jobs[name] = job.queue
        self.store.add(jobs)

    def cancel(self) -> None:
        for name in self.dice.sample(sorted(self.jobs), min(5, len(self.jobs))):
            self.subject.must(self.subject.get(name), CancelRequested(), keep=1.0)
            del self.jobs[name]

    def wait(self) -> None:
        self.clock.forward(3.0)
        self.store.prune(100)

    def claim(self, slots: int | None = None) -> int:
        most = {name: slots or self.dice.randrange(4) for name in ("python", "node")}
        found = self.subject.claim(most)
        for job in found:
            assert job.queue not in self.paused
            self.subject.must(job, SUCCEEDED, keep=1.0)
            del self.jobs[job.id]
        return len(found)

    def check(self) -> None:
        """Both sets together are all lanes, and only those of paused queues stand apart."""
        lanes, opened, closed = (
            {str(each) for each in self.link.zrange(f"{{lanes}}:{key}", 0, -1)}
            for key in ("lanes", "due:open", "due:closed")
        )
        if not closed:
            assert not opened
            return
        self.looks += 1
        assert (opened | closed, opened & closed) == (lanes, set())
        assert {lane.rpartition(":")[2] for lane in closed} <= self.paused


@pytest.mark.parametrize(("seed", "acts"), [(0, 30), *MANY_SEEDS])
def test_lanes_of_paused_queues_stand_apart(redis_url: str, seed: int, acts: int) -> None:
    """Whatever is paused, resumed, added, claimed and cancelled; and no job is left in the end."""
    clock = HandClock()
    with (
        closing(RedisJobStore(redis_url, clock=clock, prefix="lanes")) as store,
        redis.Redis.from_url(redis_url, decode_responses=True) as link,
    ):
        life = Life(store, clock, link, seed)
        for name in QUEUES:
            life.set_paused(name, is_paused=True)
        choices: list[Callable[[], object]] = [life.pause, life.resume, life.cancel, life.wait]
        choices += [life.add] * 3 + [life.claim] * 2
        for _ in range(acts):
            life.dice.choice(choices)()
            life.check()
        assert life.looks > acts // 4, "the lanes seldom stood apart"
        for name in QUEUES:
            life.set_paused(name, is_paused=False)
        clock.forward(10.0)
        while life.claim(99):
            pass
        life.check()
        assert life.jobs == {}
