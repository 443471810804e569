"""Flows that are moved: every store takes them in as any other gave them out."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from ergon_framework.errors import StoreError
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.store_urls import open_store
from ergon_framework.ports.jobstore import Search
from ergon_framework.storage.failpoints import armed
from ergon_framework.testing.suites.jobstore.records import fill_flows
from tests.app.move.stock import copied, job_sums, moved, with_jobs

pytestmark = [pytest.mark.req("SCALE:move"), pytest.mark.slow]


def test_flows_are_moved_between_all_stores(
    tmp_path: Path, postgres_url: str, redis_url: str
) -> None:
    """From a file to PostgreSQL, to Redis, and back into a file: each holds the same."""
    first, last = (f"sqlite:///{tmp_path}/{name}.db" for name in ("first", "last"))
    with_jobs(first, fill_flows)
    for source, target in ((first, postgres_url), (postgres_url, redis_url), (redis_url, last)):
        assert copied(moved(source, target))["flows"] == 4
        assert copied(moved(source, target)) == {}
        assert job_sums(target) == job_sums(first)


def test_a_flow_that_is_half_added_is_not_moved(tmp_path: Path, redis_url: str) -> None:
    """Its client died: the steps that it handed in are no jobs yet, and a copy would lack them."""
    target = f"sqlite:///{tmp_path}/target.db"
    with closing(open_store(redis_url)) as store:
        client = JobClient(store=store)
        with armed("jobs.add.before_commit=error@6"), pytest.raises(OSError):  # noqa: PT011
            client.group(["work"] * 1_100).enqueue()
        with pytest.raises(StoreError, match=r"not all steps of the flow .* have been added yet"):
            moved(redis_url, target)
        for _ in range(8):
            store.prune(1_000)
        assert store.count(Search()) == 1_100
    assert copied(moved(redis_url, target)) == {"flows": 1, "jobs": 1_100}
