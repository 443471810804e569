"""How long the jobs of a dead worker rest: no longer than the lease of the settings."""

from __future__ import annotations

from typing import Any

import pytest

from ergon_framework.connector.jobs import JobsConnector
from ergon_framework.core.claim import ClaimRequest
from ergon_framework.core.job import JobStatus
from ergon_framework.jobs.maintenance import Maintenance
from ergon_framework.jobs.settings import JobsSettings
from ergon_framework.jobs.settlement import Settler
from ergon_framework.jobs.store_thread import StoreThread
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.ports.jobstore import WorkerRecord
from tests.jobs.real_worker import get, job, quick, worker

pytestmark = pytest.mark.req("X13")

LEASE = 10.0
TICK = 0.05
"""Seconds after which a worker looks at what is due."""


class Clock:
    """The time, for the store and for those who ask it."""

    def __init__(self) -> None:
        self.seconds = 1_000_000.0

    def now(self) -> float:
        """What it says."""
        return self.seconds


class ThreadlessStoreLink:
    """A worker's link to the store, without its thread."""

    def __init__(self, name: str, store: MemoryJobStore, clock: Clock, settings: JobsSettings):
        self.name, self.clock = name, clock
        lease = settings.claimed_for
        ask = ClaimRequest(worker=name, lease=lease, slots={"python": 1}, default="python")
        self.store_thread = StoreThread(
            store,
            settings,
            lambda _slots, is_thorough: ask,
            lambda _claims: None,
            lambda _settlements: None,
            lambda _name, _fields: None,
            now=clock.now,
        )
        self.store_thread.offset = store.now() - clock.now()
        self.store_thread.maintenance = Maintenance(
            store,
            settings,
            Settler(settings, name),
            self._record,
            self.store_thread.leases.holds,
            lambda _name, _fields: None,
            now=clock.now,
        )

    def _record(self) -> WorkerRecord:
        now = self.clock.now()
        return WorkerRecord(
            id=self.name, host="here", pid=1, version="1", started_at=now, seen_at=now
        )


@pytest.mark.parametrize("alive", [0.0, 1.3, 2.7, 3.9, 6.6, 20.0])
@pytest.mark.parametrize("ahead", [0.0, 0.4, 0.8, 1.2, 1.6])
def test_it_is_at_most_the_lease(alive: float, ahead: float) -> None:
    """Whenever the holder died, and whenever the other one last looked."""
    clock = Clock()
    store = MemoryJobStore(clock=clock.now)
    settings = JobsSettings(lease=LEASE)
    other = ThreadlessStoreLink("other", store, clock, settings)
    other.store_thread.run_once()
    clock.seconds += ahead
    store.add([job("echo")])
    holder = ThreadlessStoreLink("holder", store, clock, settings)
    holder.store_thread.offer("python", 1)
    died_at = clock.seconds + alive
    holder.store_thread.run_once()
    while get(store, "echo").status is JobStatus.ACTIVE:
        clock.seconds += TICK
        if clock.seconds <= died_at:
            holder.store_thread.run_once()
        other.store_thread.run_once()
        assert clock.seconds <= died_at + LEASE
    assert clock.seconds > died_at + LEASE / 3  # who lives has had the time to renew


@pytest.mark.parametrize("is_alive", [True, False])
def test_a_worker_that_starts_after_the_clock_was_set_forward_takes_no_job_from_a_living_one(
    is_alive: bool,
) -> None:
    """It cannot know of the jump, so that its first rescue waits for half a lease; no longer."""
    clock, wall = Clock(), Clock()
    store = MemoryJobStore(clock=lambda: wall.seconds + clock.seconds)
    settings = JobsSettings(lease=LEASE)
    store.add([job("echo")])
    holder = ThreadlessStoreLink("holder", store, clock, settings)
    holder.store_thread.offer("python", 1)
    holder.store_thread.run_once()
    wall.seconds += 3600.0
    begun = ThreadlessStoreLink("begun", store, clock, settings)
    begun.store_thread.run_once()
    began_at = clock.seconds
    while get(store, "echo").deliveries == 1 and clock.seconds < began_at + LEASE:
        if is_alive:
            holder.store_thread.run_once()
        begun.store_thread.run_once()
        clock.seconds += TICK
        if get(store, "echo").status is not JobStatus.ACTIVE:
            break
    found = get(store, "echo")
    assert (found.status is JobStatus.ACTIVE) == is_alive
    assert is_alive or clock.seconds - began_at <= settings.claimed_for / 2 + 2 * TICK


class Noting(MemoryJobStore):
    """Remembers for how long jobs were claimed."""

    def __init__(self) -> None:
        super().__init__()
        self.leases: set[float] = set()

    def settle_and_claim(self, settlements: Any, ask: Any) -> Any:
        if ask is not None:
            self.leases.add(ask.lease)
        return super().settle_and_claim(settlements, ask)

    def renew(self, holds: Any, lease: float) -> Any:
        self.leases.add(lease)
        return super().renew(holds, lease)


def test_workers_and_connectors_claim_for_less_than_the_lease() -> None:
    """So that there is time to notice."""
    store = Noting()
    store.add([job("sleep", 0.2), job("echo")])
    settings = quick(lease=LEASE)
    worker(store, settings=settings, burst=True).run()
    assert store.leases == {settings.claimed_for}
    store.add([job("echo", id="another")])
    with JobsConnector(store, lease=LEASE / 2) as connector:
        connector.fetch_transactions(1)
    assert store.leases == {settings.claimed_for, settings.claimed_for / 2}
