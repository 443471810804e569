"""Ways to hang, spin, drift or run twice that a review found, each shown to be gone."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import pytest

from ergon_framework.core.job import JobStatus
from ergon_framework.errors import StoreUnavailableError
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.settings import ExecutorSettings
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.jobs.worker import WorkerReport, WorkerTiming
from ergon_framework.ports.jobstore import WorkerRecord
from tests.jobs.real_worker import (
    PROGRAMS,
    at_work,
    burst,
    executor_status,
    get,
    job,
    quick,
    unruly,
    wait_until,
    worker,
)

pytestmark = [pytest.mark.slow, pytest.mark.req("JOBS:orchestrator")]


def program(name: str, *arguments: str, **options: Any) -> ExecutorSettings:
    """One of the test's executors."""
    command = (sys.executable, str(PROGRAMS / f"{name}.py"), *arguments)
    return ExecutorSettings(command=command, **{"pool_size": 1, "kill_grace": 0.3, **options})


@pytest.mark.req("X2")
@pytest.mark.parametrize("when", ["asked", "always"])
def test_a_flood_on_the_output_disturbs_nobody_else(when: str) -> None:
    """Blocks as large as the pipe: other executors work, deadlines hold, a stop is heard."""
    store = MemoryJobStore()
    store.add([job("bad#any", max_attempts=1, timeout=1.0)])
    executors = {"bad": program("flood", when), "good": unruly()}
    settings = quick(default_executor="good", grace=0.2)
    with at_work(worker(store, executors=executors, settings=settings)) as subject:
        if when == "asked":
            wait_until(lambda: get(store, "bad#any").status.is_final, "the end of the flood")
        else:
            wait_until(store.workers)
            wait_until(lambda: executor_status(subject, "bad")["stray_lines"] > 1000)
        store.add([job("echo")])
        wait_until(lambda: get(store, "echo").status is JobStatus.COMPLETED, "the good job")


def test_a_job_that_expired_is_kept_as_the_workers_settings_say() -> None:
    """Whether a claim ends it or the retention that runs beside."""
    _, store = burst([job("echo", id="late", expires_at=1.0)], settings=quick(failed_ttl=77.0))
    late = get(store, "late")
    assert late.status is JobStatus.FAILED
    assert late.finished_at is not None
    assert late.purge_at == pytest.approx(late.finished_at + 77.0)


def test_a_wait_for_a_signal_ends_with_its_time_limit() -> None:
    """A worker wakes for it, and does not leave it to the next turn of retention."""
    store = MemoryJobStore()
    client = JobClient(store=store)
    with at_work(worker(store)):
        wait_until(store.workers)
        limits = [client.wait_for_signal(f"ok-{n}", timeout=n) for n in (0.2, 1.5)]
        flow = client.group(limits, on_failure="continue").enqueue()
        wait_until(lambda: flow.status() == "completed", "the end of the flow")
    for step in flow.steps():
        assert step.status is JobStatus.FAILED
        assert step.finished_at is not None
        assert step.expires_at is not None
        assert step.finished_at - step.expires_at < 15  # retention runs every 30 seconds


class Slow(MemoryJobStore):
    """A store in which a claim takes until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.is_claiming = threading.Event()
        self.go = threading.Event()

    def settle_and_claim(self, settlements: Any, ask: Any) -> Any:
        answer = super().settle_and_claim(settlements, ask)
        if ask is not None and answer[1].jobs:
            self.is_claiming.set()
            self.go.wait(20)
        return answer


@pytest.mark.req("X25")
def test_a_claim_under_way_at_a_stop_is_given_back() -> None:
    """It comes when every process has gone; it is pending again, excused, and in its history."""
    store = Slow()
    store.add([job("echo")])
    with at_work(worker(store)) as subject:
        assert store.is_claiming.wait(20)
        subject.stop()
        wait_until(lambda: not executor_status(subject)["processes"], "the end of the processes")
        store.go.set()
    back = get(store, "echo")
    assert (back.status, back.deliveries, back.excused) == (JobStatus.PENDING, 1, 1)


class Gone(MemoryJobStore):
    """A store that goes away for good, and counts how often it is asked then."""

    is_away = False
    asked = 0

    def settle_and_claim(self, settlements: Any, ask: Any) -> Any:
        if self.is_away:
            self.asked += 1
            raise StoreUnavailableError("away")
        return super().settle_and_claim(settlements, ask)


@pytest.mark.req("X19")
def test_a_stop_without_a_store_neither_spins_nor_stays() -> None:
    """It asks a few times, then reports what it could not write, and its thread is gone."""
    others = {*threading.enumerate()}  # of other tests
    store = Gone()
    store.add([job("hang")])
    timing = WorkerTiming(shutdown_grace=1.0)
    subject = worker(store, settings=quick(grace=0.0), timing=timing)
    reports: list[WorkerReport] = []
    thread = threading.Thread(target=lambda: reports.append(subject.run()), daemon=True)
    thread.start()
    wait_until(lambda: get(store, "hang").status is JobStatus.ACTIVE)
    store.is_away = True
    subject.stop()
    thread.join(30)
    assert reports[0].unsettled == 1
    assert store.asked < 50
    left = {*threading.enumerate()} - others
    assert not [each for each in left if each.name == "ergon-jobs-store"]


@pytest.mark.req("X13")
def test_a_clock_that_jumps_makes_nobody_run_twice() -> None:
    """Forward by minutes: a living worker's job is renewed, not rescued."""
    jump = [0.0]
    store = MemoryJobStore(clock=lambda: time.time() + jump[0])
    store.add([job("hang", timeout=2.5, max_attempts=1)])
    settings = quick(lease=1.0)
    with at_work(worker(store, settings=settings)), at_work(worker(store, settings=settings)):
        wait_until(lambda: get(store, "hang").is_charged)
        jump[0] = 300.0
        wait_until(lambda: get(store, "hang").status.is_final)
    assert get(store, "hang").deliveries == 1


@pytest.mark.req("X13", "X19")
def test_a_shared_outage_costs_no_lease() -> None:
    """Longer away than a lease lasts: whoever is back first does not take the other's job."""

    class Away(MemoryJobStore):
        until = 0.0

        def _look(self) -> None:
            if time.monotonic() < self.until:
                raise StoreUnavailableError("away")

        def settle_and_claim(self, settlements: Any, ask: Any) -> Any:
            self._look()
            return super().settle_and_claim(settlements, ask)

        def renew(self, holds: Any, lease: float) -> Any:
            self._look()
            return super().renew(holds, lease)

        def heartbeat(self, record: Any) -> None:
            self._look()
            super().heartbeat(record)

        def expired_leases(self, limit: int) -> Any:
            self._look()
            return super().expired_leases(limit)

    store = Away()
    store.add([job("hang", timeout=3.5, max_attempts=1)])
    settings = quick(lease=1.0)
    with at_work(worker(store, settings=settings)), at_work(worker(store, settings=settings)):
        wait_until(lambda: get(store, "hang").is_charged)
        store.until = time.monotonic() + 1.5
        wait_until(lambda: get(store, "hang").status.is_final)
    assert get(store, "hang").deliveries == 1


def test_a_process_that_does_not_leave_after_its_share_is_made_to() -> None:
    """``max_jobs`` with an executor that ignores the end of its input."""
    jobs = [job("any", id=str(n)) for n in range(4)]
    report, _ = burst(jobs, executor=program("lazy", max_jobs=1))
    assert report.completed == 4


def test_an_idle_process_is_not_taken_for_one_that_never_started() -> None:
    """Its first request may come long after its start-up grace."""
    store = MemoryJobStore()
    started: list[int] = []
    subject = worker(store, executor=program("lazy", startup_grace=0.4))
    tell = subject.tell

    def listen(name: str, **fields: Any) -> None:
        if name == "executor.started":
            started.append(fields["pid"])
        tell(name, **fields)

    subject.tell = listen  # type: ignore[method-assign]
    with at_work(subject):
        wait_until(lambda: started)
        looks = iter(range(80))
        wait_until(lambda: next(looks, None) is None)  # longer than its grace
        store.add([job("any")])
        wait_until(lambda: get(store, "any").status.is_final)
    assert len(started) == 1
    assert get(store, "any").deliveries == 1


def test_a_burst_does_not_wait_for_the_executor_of_a_dead_worker() -> None:
    """A record nobody renews says nothing about what can be run; the job is left to wait."""
    store = MemoryJobStore(clock=time.time)
    old = WorkerRecord(id="dead", host="h", pid=1, version="0", started_at=0.0, executors={"x": {}})
    clock = [time.time() - 3600]
    store = MemoryJobStore(clock=lambda: clock[0])
    store.heartbeat(old)
    clock[0] += 3600
    store.add([job("x#any")])
    worker(store, burst=True).run()
    assert get(store, "x#any").status is JobStatus.PENDING


@pytest.mark.req("X21")
def test_a_job_that_came_while_its_executor_started_is_claimed_at_once() -> None:
    """The first slot of a slow executor is news, whatever the others found."""
    store = MemoryJobStore()
    executors = {"fast": unruly(), "slow": program("batching_executor")}
    settings = quick(default_executor="fast", poll=3600.0)
    store.add([job("slow#alone")])
    with at_work(worker(store, executors=executors, settings=settings)):
        wait_until(lambda: get(store, "slow#alone").status is JobStatus.COMPLETED)
