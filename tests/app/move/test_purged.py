"""A source that has none of the jobs any more that were copied before."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest

from ergon_framework.errors import StoreError
from ergon_framework.jobs.store_urls import open_store
from ergon_framework.ports.jobstore import Search
from ergon_framework.ports.transfer import JobRecord, records_of
from ergon_framework.testing.suites.jobstore.under_test import JobStoreSubject
from tests.app.move.stock import copied, discarded, job_sums, moved, with_jobs

pytestmark = pytest.mark.req("SCALE:move")


@pytest.fixture
def target(tmp_path: Path) -> str:
    """Where the jobs went."""
    return f"sqlite:///{tmp_path}/new.db"


def done_and_purged(s: JobStoreSubject) -> None:
    """The jobs run, and go when their time has come; others come."""
    for name in "abc":
        s.ended(name, keep=5.0)
    s.clock.forward(10.0)
    assert s.store.prune(100).purged == 3
    s.put("d")


def test_jobs_that_were_purged_meanwhile_are_discarded(jobs: str, target: str) -> None:
    """The very same store went on without them."""
    moved(jobs, target)
    with_jobs(jobs, done_and_purged)
    again = moved(jobs, target)
    assert (copied(again), discarded(again)) == ({"jobs": 1}, {"jobs": 3})
    assert job_sums(target) == job_sums(jobs)


def test_jobs_whose_time_has_come_are_discarded(jobs: str, target: str) -> None:
    """Although nothing is left in the source: they would have gone from the copy as well."""

    def ended(s: JobStoreSubject) -> None:
        for name in "abc":
            s.ended(name, keep=5.0)

    with_jobs(jobs, ended)
    moved(jobs, target)
    with_jobs(jobs, _purge)
    assert discarded(moved(jobs, target)) == {"jobs": 3}


def test_jobs_that_were_waiting_are_kept(jobs: str, target: str) -> None:
    """The source was emptied: what was copied may be all there is, and both are said."""
    moved(jobs, target)
    before = job_sums(target)
    with_jobs(jobs, _empty)
    with pytest.raises(StoreError, match=r"emptied or replaced, or all of them were purged") as no:
        moved(jobs, target)
    assert "name an empty store as TO" in no.value.remedy
    assert job_sums(target) == before


@pytest.mark.slow
def test_a_store_that_took_the_place_of_another(redis_url: str, target: str) -> None:
    """It has jobs, but it is not the one that was copied."""
    with_jobs(redis_url, lambda s: s.put(*"abc"))
    moved(redis_url, target)
    with closing(open_store(redis_url)) as store:
        store.transactions.client.call("FLUSHDB")  # type: ignore[attr-defined]
    with_jobs(redis_url, lambda s: s.put("d"))
    with pytest.raises(StoreError, match="emptied or replaced"):
        moved(redis_url, target)


def test_a_store_that_was_put_back_from_a_backup(tmp_path: Path, target: str) -> None:
    """It is the very same one by all that it says of itself, but the copies are newer than it."""
    source = with_jobs(f"sqlite:///{tmp_path}/old.db", lambda s: s.put("early"))
    shutil.copy(tmp_path / "old.db", tmp_path / "backup.db")

    def went_on(s: JobStoreSubject) -> None:
        s.clock.forward(10.0)
        _empty(s)
        s.put(*"abc")

    with_jobs(source, went_on)
    moved(source, target)
    before = job_sums(target)
    for each in tmp_path.glob("old.db*"):
        each.unlink()
    shutil.copy(tmp_path / "backup.db", tmp_path / "old.db")
    with pytest.raises(StoreError, match="emptied or replaced"):
        moved(source, target)
    assert job_sums(target) == before


def _purge(s: JobStoreSubject) -> None:
    assert s.store.purge(list(s.store.search(Search()))) == 3


def _empty(s: JobStoreSubject) -> None:
    archive = records_of(s.store)
    archive.discard(archive.dump(JobRecord, None, 10))
