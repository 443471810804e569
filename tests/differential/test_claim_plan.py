"""Claims of stores that decide for themselves are those that the planner of the core would make."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from ergon_framework.jobs.stores.redis import RedisJobStore
from ergon_framework.jobs.stores.sqlite import SqliteJobStore
from ergon_framework.testing.suites.drivers import HandClock
from ergon_framework.testing.suites.jobstore.under_test import JobStoreSubject
from tests.differential.claim_plan import compare

pytestmark = pytest.mark.req("JOBS:store")
LIVES = range(40)


def test_redis_claims_what_the_planner_would(redis_url: str) -> None:
    """The script repeats the rules of the core, and has to give the same answers."""
    for seed in LIVES:
        clock = HandClock()
        with closing(RedisJobStore(redis_url, clock=clock, prefix=f"plan{seed}")) as store:
            # Its script puts expired jobs aside, and a second one ends them. From some number of
            # paused queues on, it looks past all of them at once.
            subject = JobStoreSubject(store, clock, None, 15.0)
            compare(subject, clock, seed, ends_later=True, shut=0 if seed % 4 else 70)


def test_sqlite_claims_what_the_planner_would(tmp_path: Path) -> None:
    """The store asks the planner, and shows it the right lanes and candidates."""
    for seed in LIVES:
        clock = HandClock()
        with closing(SqliteJobStore(tmp_path / f"{seed}.db", clock=clock)) as store:
            shut = 0 if seed % 4 else 20  # paused queues are walked past by SQLite itself
            compare(JobStoreSubject(store, clock, None, 15.0), clock, seed, shut=shut)
