"""The memory store under the behaviour suite, and the suite itself."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from ergon_framework.core.job import JobStatus
from ergon_framework.errors import JobError, StoreUnavailableError, WiringError
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.jobs.stores.memory.queues import Heap
from ergon_framework.ports.jobstore import (
    FullJobStore,
    JobAdmin,
    JobStore,
    ScheduleStore,
    Search,
    Topic,
)
from ergon_framework.testing.suites.drivers import HandClock
from ergon_framework.testing.suites.jobstore import (
    JOB_STORE_CHECKS,
    JobStoreSuiteError,
    exercise_job_store,
)
from ergon_framework.testing.suites.jobstore.under_test import (
    RELEASED,
    SUCCEEDED,
    JobStoreSubject,
    new,
)


@pytest.mark.req("JOBS:store")
@pytest.mark.parametrize("check", [check.name for check in JOB_STORE_CHECKS])
def test_the_memory_store_keeps_its_promises(check: str) -> None:
    """Each check of the suite, also the recommended ones."""
    report = exercise_job_store(MemoryJobStore, only={check})
    report.raise_for_failures(recommended=True)


@pytest.mark.req("JOBS:store")
def test_only_durability_is_left_out() -> None:
    """The memory store is exempt from surviving its process, and has no rows to be spoilt."""
    report = exercise_job_store(MemoryJobStore)
    spoilt = tuple(check.name for check in JOB_STORE_CHECKS if "spoil" in check.needs)
    assert report.skipped == (
        "rules_survive_a_restart",
        "last_sight_of_an_executor_survives",
        "pin_survives",
        "cancel_request_survives_the_process",
        "jobs_survive",
        "fences_survive",
        *spoilt,
        "flow_survives_a_new_process",
        "erased_job_stays_erased",
    )
    assert report.subject == "MemoryJobStore"


@pytest.mark.req("JOBS:store")
def test_there_are_enough_checks() -> None:
    """The suite has at least sixty required checks, each with a sentence and a name of its own."""
    assert sum(check.required for check in JOB_STORE_CHECKS) >= 60
    assert len({check.name for check in JOB_STORE_CHECKS}) == len(JOB_STORE_CHECKS)
    assert all(check.sentence.endswith(".") for check in JOB_STORE_CHECKS)


def test_the_store_serves_all_three_ports() -> None:
    """A type checker accepts it wherever a port is asked for."""
    store = MemoryJobStore()
    ports: tuple[JobStore, JobAdmin, ScheduleStore] = (store, store, store)
    assert all(port is store for port in ports)


# ---- the suite ----------------------------------------------------------------------------------


def test_unknown_checks_are_refused() -> None:
    """A misspelt name does not silently run nothing."""
    with pytest.raises(WiringError, match="did you mean 'settled_once'"):
        exercise_job_store(MemoryJobStore, only={"settled_onc"})
    with pytest.raises(WiringError, match="no check 'xyzzy'"):
        exercise_job_store(MemoryJobStore, skip={"xyzzy"})


def test_checks_can_be_waived() -> None:
    """A check that was left out is in the report, and not among those that passed."""
    report = exercise_job_store(MemoryJobStore, only={"settled_once"}, skip={"settled_once"})
    assert (report.skipped, report.passed, report.ok) == (("settled_once",), (), True)


def test_a_store_that_hangs_is_rejected() -> None:
    """The suite does not wait for ever, nor hang with its subject."""
    woken = threading.Event()

    class Hangs(MemoryJobStore):
        def now(self) -> float:
            woken.wait(60.0)
            return super().now()

    try:
        with pytest.raises(JobStoreSuiteError, match="did not return within"):
            exercise_job_store(Hangs, only={"added_job_is_found"}, patience=0.05)
    finally:
        woken.set()


def test_durability_is_checked_where_a_store_can_be_reopened() -> None:
    """A store that forgets everything when it is opened anew is rejected."""

    def forgetful(store: FullJobStore) -> FullJobStore:
        store.close()
        return MemoryJobStore(HandClock())

    with pytest.raises(JobStoreSuiteError) as caught:
        exercise_job_store(MemoryJobStore, reopen=forgetful, only={"jobs_survive"})
    assert caught.value.report.failed == ("jobs_survive",)


@pytest.mark.slow
def test_the_suite_needs_no_test_framework() -> None:
    """The suite is importable where pytest is not installed."""
    program = (
        "import sys; sys.modules['pytest'] = None; "
        "from ergon_framework.testing.suites.jobstore import exercise_job_store; "
        "from ergon_framework.jobs.stores.memory import MemoryJobStore; "
        "print(exercise_job_store(MemoryJobStore, only={'settled_once'}).ok)"
    )
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "True"


# ---- what only the memory store promises --------------------------------------------------------


def subject() -> JobStoreSubject:
    """A memory store with a clock set by hand."""
    clock = HandClock()
    return JobStoreSubject(MemoryJobStore(clock), clock, None, 10.0)


def test_a_closed_store_says_so() -> None:
    """Every call on a closed store names the reason and the remedy."""
    store = MemoryJobStore()
    store.close()
    for call in (store.queues, store.workers, store.schedules, lambda: store.find("a")):
        with pytest.raises(StoreUnavailableError, match="memory store is closed"):
            call()


def test_closing_wakes_whoever_waits() -> None:
    """A subscription that is closed lets its waiter go."""
    store = MemoryJobStore()
    subscription = store.subscribe(Topic.WORK)
    done: list[bool] = []
    waiter = threading.Thread(target=lambda: done.append(subscription.wait(60.0)))
    waiter.start()
    store.close()
    waiter.join(60.0)
    assert done == [False]


@pytest.mark.parametrize(
    "changes",
    [{"max_active": 0}, {"rate": -1.0}, {"burst": 0}, {"max_active": "many"}, {"burst": None}],
)
def test_a_queue_refuses_impossible_limits(changes: dict[str, object]) -> None:
    """A limit that nothing could meet is refused, and the queue stays as it was."""
    store = MemoryJobStore()
    store.set_queue("q", max_active=3)
    with pytest.raises(JobError, match=next(iter(changes))):
        store.set_queue("q", **changes)
    assert store.queues()[0].max_active == 3


def test_what_was_given_out_cannot_change_what_is_kept() -> None:
    """A handler that scribbles in its trace context does not reach the store."""
    s = subject()
    s.put("a", trace_context={"k": "v"})
    leased = s.take("a")
    assert leased.trace_context is not None
    leased.trace_context["k"] = "scribbled"
    assert s.get("a").trace_context == {"k": "v"}


def test_nothing_grows_with_what_has_passed() -> None:
    """After many jobs came and went, the store's tables are as empty as at first."""
    s = subject()
    for n in range(50):
        s.store.add(
            [
                new(f"a{n}", queue=f"q{n}", unique_key=f"u{n}", limit_key=f"l{n}"),
                new(f"b{n}", queue=f"q{n}", limit_key=f"l{n}", expires_at=s.store.now() + 5.0),
            ]
        )
        for job in s.claim(9):
            s.must(job, RELEASED)
        while jobs := s.claim(9):
            for job in jobs:
                s.must(job, SUCCEEDED, keep=1.0)
        s.clock.forward(10.0)
        s.store.prune(100)
    jobs_kept = s.store.table  # type: ignore[attr-defined]
    tables = (jobs_kept.records, jobs_kept.by_id, jobs_kept.active, jobs_kept.holders)
    assert [len(table) for table in tables] == [0, 0, 0, 0]
    assert (len(jobs_kept.expiring), len(jobs_kept.leaving)) == (0, 0)
    assert (len(jobs_kept.queues.running), len(jobs_kept.queues.blocked)) == (0, 0)
    assert list(jobs_kept.queues) == []


def test_a_heap_tidies_up_after_those_who_left() -> None:
    """Members that were taken out of the middle do not stay behind for ever."""
    heap = Heap()
    for key in range(10_000):
        heap.push(key, (float(key),))
        if key % 100:
            heap.discard(key)
    assert (len(heap), heap.entries < 400) == (100, True)
    assert [heap.pop() for _ in range(3)] == [0, 100, 200]


def test_an_empty_heap_has_no_first() -> None:
    """Asking for the first of none is answered, and taking it is an error."""
    heap = Heap()
    heap.push(1, (1.0,))
    heap.discard(1)
    assert heap.first() is None
    with pytest.raises(IndexError):
        heap.pop()


def test_jobs_with_different_limits_of_one_key() -> None:
    """A job that allows more company is not held up by one that allows less."""
    s = subject()
    s.put("a", "b", limit_key="k", limit=2)
    s.claim(2)
    s.put("lonely", limit_key="k", limit=1)
    s.put("sociable", limit_key="k", limit=3)
    assert s.ids(9) == ["sociable"]
    assert s.store.count(Search(statuses=(JobStatus.ACTIVE,))) == 3
