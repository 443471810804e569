"""Claiming on PostgreSQL: the quick way and the careful one agree, and limits hold among many."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ergon_framework.core.claim import ClaimBounds, ClaimRequest
from ergon_framework.jobs.stores.postgres import PostgresJobStore
from ergon_framework.jobs.stores.postgres.exchange import WorkerExchange
from ergon_framework.ports.jobstore import ClaimResult, Search
from ergon_framework.testing.suites.drivers import START, HandClock
from ergon_framework.testing.suites.jobstore.under_test import (
    SUCCEEDED,
    JobStoreSubject,
    ask,
    ids_of,
    new,
)

pytestmark = pytest.mark.req("SCALE:jobs-postgres", "SCALE:fleet-limits")
TABLES = b"TRUNCATE ergon_jobs, ergon_queues"
PATIENCE = 30.0
QUEUES = ("a", "b", "c")
EXECUTORS = ("", "python", "node", "cobol")

Open = Callable[..., PostgresJobStore]


@pytest.fixture
def clock() -> HandClock:
    """The time of all stores of a test."""
    return HandClock()


@pytest.fixture
def open_store(jobs_url: str, clock: HandClock) -> Iterator[Open]:
    """Opens stores as different hosts would, and closes them after the test."""
    opened: list[PostgresJobStore] = []

    def open_one(**options: Any) -> PostgresJobStore:
        opened.append(PostgresJobStore(jobs_url, clock=clock, **options))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


def together(calls: list[Callable[[], Any]]) -> list[Any]:
    """Make calls at the same time; their answers in order."""
    found: list[Any] = [None] * len(calls)
    errors: list[BaseException] = []
    gate = threading.Barrier(len(calls))

    def run(n: int) -> None:
        try:
            gate.wait(PATIENCE)
            found[n] = calls[n]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert errors == []
    return found


# ---- two ways to the same jobs ------------------------------------------------------------------

jobs = st.lists(
    st.fixed_dictionaries(
        {
            "queue": st.sampled_from(QUEUES),
            "executor": st.sampled_from(EXECUTORS),
            "priority": st.integers(-1, 1),
            "delay": st.sampled_from([0.0, 0.0, 30.0]),
        }
    ),
    max_size=12,
)
asks = st.lists(
    st.fixed_dictionaries(
        {
            "slots": st.dictionaries(st.sampled_from(["python", "node"]), st.integers(0, 4)),
            "queues": st.none() | st.lists(st.sampled_from(QUEUES), unique=True).map(tuple),
            "routes": st.dictionaries(st.sampled_from(QUEUES), st.just("node")),
        }
    ),
    min_size=1,
    max_size=4,
)


def claims_of(
    url: str, wanted: list[Any], asked: list[Any], *, is_careful: bool
) -> list[ClaimResult]:
    """What some workers get, one after the other."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(TABLES)
    clock = HandClock()
    known = frozenset({"python", "node"})
    with closing(PostgresJobStore(url, clock=clock)) as store:
        if is_careful:
            for queue in QUEUES:
                store.set_queue(queue, max_active=1_000)
        store.add([new(f"j{n}", **fields) for n, fields in enumerate(wanted)])
        found = []
        for fields in asked:
            made = ClaimRequest(worker="w", lease=9.0, default="python", own=known, **fields)
            found.append(store.settle_and_claim([], made)[1])
            clock.forward(20.0)
        return found


@pytest.mark.slow
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(wanted=jobs, asked=asks)
def test_the_quick_and_the_careful_way_agree(
    jobs_url: str, wanted: list[Any], asked: list[Any]
) -> None:
    """A queue with a limit that nobody reaches is served like one without settings."""
    quick = claims_of(jobs_url, wanted, asked, is_careful=False)
    careful = claims_of(jobs_url, wanted, asked, is_careful=True)
    for one, other in zip(quick, careful, strict=True):
        assert sorted(ids_of(one.jobs)) == sorted(ids_of(other.jobs))
        assert (one.next_at, one.more) == (other.next_at, other.more)
        for queue in QUEUES:
            mine = [[job.id for job in each.jobs if job.queue == queue] for each in (one, other)]
            assert mine[0] == mine[1]


def test_one_claim_has_plain_jobs_and_others_in_order(open_store: Open, clock: HandClock) -> None:
    """Jobs with limit keys and expiries come where they would without them."""
    store = open_store()
    for n in range(4):
        store.add([new(f"plain-{n}"), new(f"key-{n}", limit_key=f"k{n}")])
        store.add([new(f"soon-{n}", expires_at=START + 50.0)])
    for _ in range(2):
        came = ids_of(store.settle_and_claim([], ask(6))[1].jobs)
        first = [f"{word}-{n}" for n in (0, 1) for word in ("plain", "key", "soon")]
        assert came in (first, [each.replace("0", "2").replace("1", "3") for each in first])


@pytest.mark.parametrize("count", [3, 7])
def test_every_lane_has_its_turn_when_there_are_many(open_store: Open, count: int) -> None:
    """More lanes than one look shows are all served, in one claim or in a few."""
    store = open_store(claim_bounds=ClaimBounds(max_lanes=count))
    names = [f"q{n:02}" for n in range(20)]
    store.add([new(name, queue=name) for name in names])
    assert sorted(ids_of(store.settle_and_claim([], ask(50))[1].jobs)) == names
    store.add([new(f"{name}-2", queue=name) for name in names])
    came: list[str] = []
    for _ in range(20):
        came += ids_of(store.settle_and_claim([], ask(1))[1].jobs)
    assert len(set(came)) == 20
    assert not store.settle_and_claim([], ask(0, own=frozenset({"python"})))[1].more


def test_what_is_left_is_found_beyond_the_first_lanes(
    open_store: Open,
) -> None:
    """A worker without slots learns of a job for it that stands behind those of others."""
    store = open_store(claim_bounds=ClaimBounds(max_lanes=2))
    store.add([new(f"{n}", queue=f"q{n}", executor="node") for n in range(9)])
    store.add([new("mine", queue="z", executor="python")])
    own = frozenset({"python"})
    assert store.settle_and_claim([], ask(0, own=own))[1].more
    assert ids_of(store.settle_and_claim([], ask(1, own=own))[1].jobs) == ["mine"]
    assert not store.settle_and_claim([], ask(0, own=own))[1].more


# ---- many hosts ---------------------------------------------------------------------------------


def test_limits_hold_across_stores(open_store: Open, clock: HandClock) -> None:
    """Keys, numbers and rates are kept by all hosts together, settling and claiming at once."""
    stores = [open_store() for _ in range(4)]
    stores[0].set_queue("some", max_active=3)
    stores[0].set_queue("slow", rate=0.001, burst=5)
    for n in range(40):
        stores[0].add([new(f"key-{n}", queue="keys", limit_key=f"k{n % 2}", limit=2)])
        stores[0].add([new(f"some-{n}", queue="some"), new(f"slow-{n}", queue="slow")])
    done: Counter[str] = Counter()
    most: Counter[str] = Counter()
    lock = threading.Lock()

    def work(store: PostgresJobStore) -> None:
        s = JobStoreSubject(store, clock, None, PATIENCE)
        for _ in range(12):
            jobs = store.settle_and_claim([], ask(5))[1].jobs
            with lock:
                running = Counter(
                    job.limit_key or job.queue
                    for job in store.search(Search())
                    if job.status == "active"
                )
                for name, count in running.items():
                    most[name] = max(most[name], count)
                done.update(job.queue for job in jobs)
            told = [s.told(job, SUCCEEDED, keep=60.0) for job in jobs]
            assert all(store.settle_and_claim(told, None)[0])

    together([partial(work, store) for store in stores])
    assert most["some"] <= 3
    assert max(most["k0"], most["k1"]) <= 2
    assert done["slow"] == 5
    stores[0].prune(100)
    s = JobStoreSubject(stores[0], clock, None, PATIENCE)
    while jobs := stores[0].settle_and_claim([], ask(50))[1].jobs:
        done.update(job.queue for job in jobs)
        stores[0].settle_and_claim([s.told(job, SUCCEEDED) for job in jobs], None)
    assert done == {"keys": 40, "some": 40, "slow": 5}


def test_no_wake_up_is_lost(open_store: Open, clock: HandClock) -> None:
    """However claims and ends of one key meet, somebody runs until nobody waits."""
    stores = [open_store() for _ in range(3)]
    stores[0].add([new(f"j{n}", limit_key="k") for n in range(60)])
    done: list[str] = []

    def work(store: PostgresJobStore) -> None:
        s = JobStoreSubject(store, clock, None, PATIENCE)
        idle = 0
        while idle < 15:
            jobs = store.settle_and_claim([], ask(2))[1].jobs
            idle = 0 if jobs else idle + 1
            assert len(jobs) <= 1
            done.extend(ids_of(jobs))
            assert all(store.settle_and_claim([s.told(job, SUCCEEDED) for job in jobs], None)[0])

    together([partial(work, store) for store in stores])
    assert sorted(done) == sorted(f"j{n}" for n in range(60))


def test_sweeps_come_to_every_limit_key(
    open_store: Open,
    clock: HandClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A wake-up that was lost with its worker is made up for, behind keys that are not free."""
    store = open_store()
    s = JobStoreSubject(store, clock, None, PATIENCE)
    for n in range(7):
        s.put(f"first-{n}", f"next-{n}", limit_key=f"k{n}")
    jobs = {job.id: job for job in s.claim(20)}
    assert len(jobs) == 7
    with monkeypatch.context() as dying:
        dying.setattr(WorkerExchange, "_follow", lambda _self, _claim: None)
        assert s.settle(jobs["first-6"], SUCCEEDED)
    for _ in range(4):
        store.prune(2)
    assert s.ids(20) == ["next-6"]
    assert s.settle(jobs["first-0"], SUCCEEDED)
    assert s.ids(20) == ["next-0"]


def test_two_operators_change_one_queue(open_store: Open) -> None:
    """One takes its settings away while the other sets them: both are served."""

    def change(store: PostgresJobStore, is_paused: bool) -> None:
        for _ in range(100):
            assert store.set_queue("q", is_paused=is_paused).is_paused is is_paused

    stores = [open_store(), open_store()]
    together([partial(change, store, n == 0) for n, store in enumerate(stores)])
