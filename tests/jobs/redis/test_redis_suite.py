"""The Redis store under the behaviour suite."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from ergon_framework.jobs.stores.redis import RedisJobStore
from ergon_framework.ports.jobstore import FullJobStore, JobAdmin, JobStore, ScheduleStore
from ergon_framework.testing.suites.jobstore import JOB_STORE_CHECKS, exercise_job_store
from ergon_framework.testing.suites.jobstore.under_test import Spoil


def spoiler(url: str) -> Spoil:
    """Cuts the bodies of jobs in half, and answers how to put one right."""

    def spoil(_: FullJobStore, job_id: str) -> Callable[[], None]:
        with redis.Redis.from_url(url) as link:
            key = next(each for each in link.scan_iter("*:body"))
            body = link.hget(key, job_id)
            assert isinstance(body, bytes)
            link.hset(key, job_id, body[: len(body) // 2])

        def fix() -> None:
            with redis.Redis.from_url(url) as link:
                link.hset(key, job_id, body)

        return fix

    return spoil


@pytest.mark.req("SCALE:jobs-redis")
@pytest.mark.parametrize("check", [check.name for check in JOB_STORE_CHECKS])
def test_the_redis_store_keeps_its_promises(check: str, redis_url: str) -> None:
    """Each check of the suite, also the recommended ones; none is skipped."""
    clocks: dict[int, Callable[[], float]] = {}

    def make(clock: Callable[[], float]) -> RedisJobStore:
        store = RedisJobStore(redis_url, clock=clock)
        clocks[id(store)] = clock
        return store

    def reopen(store: FullJobStore) -> RedisJobStore:
        assert isinstance(store, RedisJobStore)
        store.close()
        return make(clocks[id(store)])

    report = exercise_job_store(make, reopen=reopen, spoil=spoiler(redis_url), only={check})
    report.raise_for_failures(recommended=True)
    assert not report.skipped


def test_the_store_serves_all_three_ports(redis_url: str) -> None:
    """A type checker accepts it wherever a port is asked for."""
    store = RedisJobStore(redis_url)
    ports: tuple[JobStore, JobAdmin, ScheduleStore] = (store, store, store)
    assert all(port is store for port in ports)
    store.close()
