"""The SQLite store under the behaviour suite."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from ergon_framework.jobs.stores.sqlite import SqliteJobStore
from ergon_framework.ports.jobstore import FullJobStore, JobAdmin, JobStore, ScheduleStore
from ergon_framework.testing.suites.jobstore import JOB_STORE_CHECKS, exercise_job_store
from tests.jobs.planted_store_rows import spoil


@pytest.mark.req("JOBS:store", "X24")
@pytest.mark.parametrize("check", [check.name for check in JOB_STORE_CHECKS])
def test_the_sqlite_store_keeps_its_promises(check: str, tmp_path: Path) -> None:
    """Each check of the suite, also the recommended ones; none is skipped."""
    numbers = itertools.count()
    clocks: dict[Path, Callable[[], float]] = {}

    def make(clock: Callable[[], float]) -> SqliteJobStore:
        path = tmp_path / f"{next(numbers)}.db"
        clocks[path] = clock
        return SqliteJobStore(path, clock=clock)

    def reopen(store: FullJobStore) -> SqliteJobStore:
        assert isinstance(store, SqliteJobStore)
        store.close()
        return SqliteJobStore(store.path, clock=clocks[store.path])

    report = exercise_job_store(make, reopen=reopen, spoil=spoil, only={check})
    report.raise_for_failures(recommended=True)
    assert not report.skipped


def test_the_store_serves_all_three_ports(tmp_path: Path) -> None:
    """A type checker accepts it wherever a port is asked for."""
    store = SqliteJobStore(tmp_path / "jobs.db")
    ports: tuple[JobStore, JobAdmin, ScheduleStore] = (store, store, store)
    assert all(port is store for port in ports)
    store.close()
