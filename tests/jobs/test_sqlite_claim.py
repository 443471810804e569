"""Who gets which job from an SQLite store, and what a claim may cost."""

from __future__ import annotations

import functools
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.core.claim import ClaimBounds
from ergon_framework.core.job import JobStatus
from ergon_framework.jobs.stores.sqlite import SqliteJobStore
from ergon_framework.ports.jobstore import ClaimResult, NewJob, Search, Topic
from ergon_framework.testing.suites.drivers import HandClock
from ergon_framework.testing.suites.jobstore.under_test import (
    RELEASED,
    SUCCEEDED,
    JobStoreSubject,
    ask,
    hold,
    new,
)

Mine = JobStoreSubject


@pytest.fixture
def bounds() -> ClaimBounds:
    """Of one claim; a test may have others."""
    return ClaimBounds()


@pytest.fixture
def s(tmp_path: Path, bounds: ClaimBounds) -> Iterator[Mine]:
    """A fresh store with a clock set by hand."""
    clock = HandClock()
    store = SqliteJobStore(tmp_path / "jobs.db", clock=clock, claim_bounds=bounds)
    yield JobStoreSubject(store, clock, None, 15.0)
    store.close()


def fill(s: Mine, queue: str, count: int, **fields: Any) -> None:
    """Put so many jobs into a queue."""
    s.store.add([new(f"{queue}-{n}", queue=queue, **fields) for n in range(count)])


def claim(s: Mine, slots: int | dict[str, int], **changes: Any) -> ClaimResult:
    """What a worker with one executor gets."""
    return s.store.settle_and_claim([], ask(slots, **changes))[1]


def by_queue(claimed: ClaimResult) -> Counter[str]:
    """How many jobs came from each queue."""
    return Counter(job.queue for job in claimed.jobs)


# ---- fairness -----------------------------------------------------------------------------------


@pytest.mark.req("JOBS:store")
def test_queues_get_equal_shares(s: Mine) -> None:
    """A long queue does not crowd out a short one, and what one leaves goes to the others."""
    fill(s, "long", 100)
    fill(s, "middle", 30)
    fill(s, "short", 2)
    assert by_queue(claim(s, 30)) == {"long": 14, "middle": 14, "short": 2}


@pytest.mark.req("JOBS:store")
def test_every_queue_has_its_turn(s: Mine) -> None:
    """With fewer slots than queues, nobody is served twice before everybody is served once."""
    for queue in "abcdefg":
        fill(s, queue, 10)
    served = [queue for _ in range(7) for queue in by_queue(claim(s, 2)).elements()]
    assert Counter(served) == dict.fromkeys("abcdefg", 2)
    assert len(set(served[:6])) == 6


def test_the_rest_goes_round(s: Mine) -> None:
    """What equal shares leave over goes to another queue each time."""
    fill(s, "a", 50)
    fill(s, "b", 50)
    assert sum((by_queue(claim(s, 3)) for _ in range(6)), Counter()) == {"a": 9, "b": 9}


def test_priority_decides_within_a_queue_only(s: Mine) -> None:
    """An urgent job overtakes its queue, also across the names of its executor."""
    s.store.add(
        [
            new("late", priority=1),
            new("named", executor="python", priority=5),
            new("first", priority=9),
            new("other", queue="quiet"),
        ]
    )
    claimed = claim(s, 4)
    assert [job.id for job in claimed.jobs if job.queue == "default"] == ["first", "named", "late"]
    assert by_queue(claimed)["quiet"] == 1


# ---- lanes --------------------------------------------------------------------------------------


@pytest.mark.req("JOBS:orchestrator")
@pytest.mark.parametrize("bounds", [ClaimBounds(max_lanes=4)])
def test_busy_executors_cost_nothing(s: Mine) -> None:
    """Due jobs for executors without a slot hide nothing, however many queues they stand in."""
    s.store.add([new(f"b{n}", executor="busy", queue=f"q{n:02}") for n in range(20)])
    s.store.add([new(f"d{n}", queue=f"d{n:02}") for n in range(20)])
    s.store.add([new("gpu-1", queue="zz")])
    claimed = claim(s, {"gpu": 1}, routes={"zz": "gpu"})
    assert [job.id for job in claimed.jobs] == ["gpu-1"]
    assert claimed.more


@pytest.mark.parametrize("bounds", [ClaimBounds(max_lanes=4)])
def test_many_queues_are_served_over_several_claims(s: Mine) -> None:
    """A claim looks at a bounded number of queues; the next one goes on where it stopped."""
    for n in range(10):
        fill(s, f"q{n}", 1)
    seen: list[str] = []
    for _ in range(5):
        seen += by_queue(claim(s, 4)).elements()
    assert sorted(seen) == [f"q{n}" for n in range(10)]


@pytest.mark.parametrize("bounds", [ClaimBounds(max_lanes=2)])
def test_paused_queues_hide_nothing(s: Mine) -> None:
    """However many are paused, the one behind them is served, and then nothing more is due."""
    for n in range(10):
        fill(s, f"q{n}", 1)
        s.store.set_queue(f"q{n}", is_paused=n < 9)
    claimed = claim(s, 3)
    assert by_queue(claimed) == {"q9": 1}
    assert not claimed.more
    s.store.set_queue("q4", is_paused=False)
    assert by_queue(claim(s, 3)) == {"q4": 1}


@pytest.mark.parametrize("bounds", [ClaimBounds(max_lanes=2)])
def test_a_worker_for_some_queues_reaches_the_last_one(s: Mine) -> None:
    """Queues it does not serve stand in nobody's way."""
    for n in range(10):
        fill(s, f"q{n}", 1)
    assert by_queue(claim(s, 5, queues=("q9", "q3"))) == {"q3": 1, "q9": 1}
    assert not claim(s, 5, queues=("q9", "q3")).more


# ---- bounds -------------------------------------------------------------------------------------


@pytest.mark.req("JOBS:store")
@pytest.mark.parametrize("bounds", [ClaimBounds(max_promoted=10)])
def test_many_due_at_once_are_promoted_step_by_step(s: Mine) -> None:
    """A claim makes so many due and no more, and says that asking again at once makes sense."""
    fill(s, "default", 25, delay=60.0)
    s.clock.forward(60.0)
    first = claim(s, 100)
    assert len(first.jobs) == 10
    assert first.next_at is not None
    assert first.next_at <= s.store.now()
    assert [len(claim(s, 100).jobs) for _ in range(3)] == [10, 5, 0]


@pytest.mark.req("JOBS:store")
@pytest.mark.parametrize("bounds", [ClaimBounds(max_refused=20)])
def test_refusing_is_bounded(s: Mine) -> None:
    """A queue full of jobs that cannot start does not make one claim long, and hides nothing."""
    fill(s, "default", 300, limit_key="tenant", priority=1)
    s.put("free")
    assert [job.id for job in claim(s, 1).jobs] == ["default-0"]
    claims = 0
    while not (claimed := claim(s, 1)).jobs:
        assert claimed.next_at is not None
        assert claimed.next_at <= s.store.now()
        claims += 1
    assert [job.id for job in claimed.jobs] == ["free"]
    assert 3 <= claims <= 20


@pytest.mark.parametrize(
    ("bounds", "seconds"), [(ClaimBounds(), 50.0), (ClaimBounds(scan_size=1), 5.0)]
)
def test_next_at_beyond_the_queues_of_others(s: Mine, seconds: float) -> None:
    """Jobs that wait in queues of other workers are looked over, as far as one scan reaches."""
    s.put("theirs", queue="theirs", delay=5.0)
    s.put("mine", queue="mine", delay=50.0)
    assert claim(s, 1, queues=("mine",)).next_at == s.store.now() + seconds


# ---- limit keys ---------------------------------------------------------------------------------


@pytest.mark.req("JOBS:store")
def test_a_lost_wake_is_mended_by_the_sweep(s: Mine, tmp_path: Path) -> None:
    """A job that waits for a key nobody holds runs again after pruning, and workers are woken."""
    s.put("a", "b", limit_key="k")
    held = s.take("a")
    assert claim(s, 1).jobs == []
    assert s.get("b").is_limited
    s.must(held, SUCCEEDED, keep=60.0)
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as other, other:
        other.execute("UPDATE ergon_jobs SET stage = 4 WHERE id = 'b'")
    assert claim(s, 1).jobs == []
    subscription = s.store.subscribe(Topic.WORK)
    assert not s.store.prune(10).more
    assert subscription.wait(0)
    subscription.close()
    s.take("b")


def test_different_limits_of_one_key(s: Mine) -> None:
    """Each job counts against its own limit: a stricter one does not hold up a milder one."""
    s.put("a", limit_key="k", limit=2)
    s.put("strict", limit_key="k", limit=1, priority=9)
    first = s.take("strict")
    assert [job.id for job in claim(s, 5).jobs] == ["a"]
    s.put("again", limit_key="k", limit=1)
    assert claim(s, 5).jobs == []
    s.must(first, RELEASED)
    assert claim(s, 5).jobs == []  # "a" still runs, and both want the key for themselves
    assert {job.id for job in s.store.search(Search(statuses=(JobStatus.PENDING,)))} == {
        "strict",
        "again",
    }


# ---- the row ------------------------------------------------------------------------------------


@pytest.mark.req("JOBS:store")
def test_large_arguments_are_whole(s: Mine, tmp_path: Path) -> None:
    """Arguments with a row of their own come back with the claim, the job and the search."""
    args, kwargs = b'["' + b"x" * 100_000 + b'"]', b'{"n":1}'
    big = NewJob(id="big", handler="work", args=args, kwargs=kwargs, timeout=5.0)
    s.store.add([big, NewJob(id="two", handler="work", args=args), new("small")])
    first, second, _ = claim(s, 3).jobs
    assert (first.args, first.kwargs, first.timeout) == (args, kwargs, 5.0)
    assert (second.args, second.kwargs) == (args, b"{}")
    assert s.get("big").args == args
    assert [job.args for job in s.store.search(Search(ids=("big", "two")))] == [args, args]
    s.must(first, SUCCEEDED, keep=1.0)
    s.clock.forward(1.0)
    assert s.store.prune(10).purged == 1
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as other:
        assert other.execute("SELECT count(*) FROM ergon_job_payloads").fetchone() == (1,)


@pytest.mark.req("JOBS:store")
def test_a_sweep_does_so_much_and_no_more(s: Mine) -> None:
    """It stops at the limit, in the middle of a queue, and the next one goes on there."""
    for queue in "ab":
        fill(s, queue, 3)
    s.put("c", expires_at=s.store.now() + 1.0, delay=9.0)
    for job in claim(s, 6).jobs:
        s.must(job, SUCCEEDED, keep=1.0)
    s.clock.forward(1.0)
    sweeps = [s.store.prune(2) for _ in range(5)]
    assert [each.purged for each in sweeps] == [2, 2, 2, 0, 0]
    assert [each.outdated for each in sweeps] == [0, 0, 0, 1, 0]
    assert [each.more for each in sweeps] == [True, True, True, False, False]


def test_an_executor_without_a_name(s: Mine) -> None:
    """Jobs that nobody routes wait for a worker that takes them as they are."""
    s.put("a")
    assert claim(s, 1, default="").jobs == []
    assert [job.id for job in claim(s, {"": 1}, default="").jobs] == ["a"]


def test_a_paused_queue_with_a_route(s: Mine) -> None:
    """Paused is paused, and a route does not show it to anybody."""
    s.put("a", queue="q")
    s.store.set_queue("q", is_paused=True)
    claimed = claim(s, {"gpu": 1}, routes={"q": "gpu"})
    assert (claimed.jobs, claimed.more) == ([], False)


def test_a_rate_of_a_queue_that_is_full(s: Mine) -> None:
    """While its limit is reached no instant is named: it is not time that has to pass."""
    s.store.set_queue("q", max_active=1, rate=1.0, burst=1)
    s.put("a", "b", queue="q")
    claimed = claim(s, 5)
    assert (len(claimed.jobs), claimed.next_at, claimed.more) == (1, None, True)
    s.must(claimed.jobs[0], SUCCEEDED)
    assert claim(s, 5).next_at == s.store.now() + 1.0


def test_upkeep_can_be_asked_for(s: Mine) -> None:
    """A worker may ask the store at any time to look after its file."""
    assert isinstance(s.store, SqliteJobStore)
    s.put("a")
    s.store.maintain()
    assert s.status("a") is JobStatus.PENDING


@pytest.mark.req("JOBS:store")
def test_a_late_worker_does_not_meet_another_job(s: Mine) -> None:
    """A new job of the same id and number is none of its business."""
    s.put("a")
    late = s.take("a")
    s.must(late, SUCCEEDED, keep=1.0)
    assert s.store.purge([s.get("a")]) == 1
    s.put("a")
    again = s.take("a")
    assert again.key == late.key
    assert not s.settle(late, SUCCEEDED)
    assert s.store.renew([hold(late), hold(again)], 30.0) == [False, True]


def test_history_is_bounded_in_bytes(s: Mine) -> None:
    """Long entries push out the oldest; the last one stays, however long it is."""
    s.put("a")
    for n in range(40):
        s.must(s.take("a"), RELEASED, entry=b'{"n":%d,"text":"%s"}' % (n, b"x" * 1500))
    history = s.get("a").history
    assert history[-1].startswith(b'{"n":39,')
    assert sum(map(len, history)) <= 34 * 1024
    giant = b'{"text":"%s"}' % (b"y" * 100_000)
    s.must(s.take("a"), RELEASED, entry=giant)
    assert s.get("a").history == (giant,)


@pytest.mark.slow
@pytest.mark.req("JOBS:store")
def test_threads_that_share_commits_do_not_disturb_each_other(s: Mine) -> None:
    """Batches of many threads are committed together, and none drops what another still uses."""
    count = 12

    def work(me: int) -> int:
        done = 0
        for n in range(15):
            s.store.add([new(f"{me}-{n}-{m}", queue=f"q{me}") for m in range(1 + n % 3)])
            jobs = claim(s, 3, worker=f"w{me}").jobs
            done += sum(s.store.settle_and_claim([s.told(job, SUCCEEDED) for job in jobs], None)[0])
            assert s.get(f"{me}-{n}-0").queue == f"q{me}"
            assert s.store.queues()
        return done

    done = s.together([functools.partial(work, me) for me in range(count)])
    assert sum(done) == s.store.count(Search(statuses=(JobStatus.COMPLETED,))) > 0
    assert s.store.count(Search()) == count * 30


def _counted_steps(store: SqliteJobStore) -> Counter[str]:
    """Counts hundreds of steps of SQLite from now on, under ``n``."""
    steps = Counter[str]()

    def count(tx: Any) -> None:
        tx.cursor.connection.set_progress_handler(lambda: steps.update("n"), 100)

    store.transactions.write(count, "desk")
    return steps


def _steps_of_an_end(path: Path, waiting: int) -> int:
    """What the end of a job costs for whose limit key so many wait, and the claim of the next."""
    clock = HandClock()
    with closing(SqliteJobStore(path, clock=clock)) as store:
        s = JobStoreSubject(store, clock, None, 15.0)
        store.add([new(f"{n}", limit_key="k") for n in range(waiting)])
        running = s.take("0")
        while s.settle_and_claim((), 1)[1].next_at is not None:
            pass
        steps = _counted_steps(store)
        _, claimed = s.settle_and_claim([s.told(running, SUCCEEDED)], 2)
        assert [job.id for job in claimed.jobs] == ["1"]
        return steps["n"]


@pytest.mark.req("JOBS:store")
def test_the_end_of_a_job_costs_the_same_however_many_wait_for_its_key(tmp_path: Path) -> None:
    """A tenant with many waiting jobs does not slow down all others."""
    few, many = (_steps_of_an_end(tmp_path / f"{n}.db", n) for n in (20, 3000))
    assert many < 1.5 * few + 5


def _steps_of_a_claim(path: Path, keys: int) -> int:
    """What a claim of ten jobs costs, in hundreds of steps of SQLite, with so many keys used up."""
    clock = HandClock()
    with closing(SqliteJobStore(path, clock=clock)) as store:
        s = JobStoreSubject(store, clock, None, 15.0)
        store.set_queue("q", key_max_active=1)
        names = [(f"{each}{n}", f"tenant:{n:06}") for n in range(keys) for each in "ab"]
        store.add([new(name, queue="q", limit_key=key) for name, key in names])
        while s.settle_and_claim((), 2000)[1].next_at is not None:
            pass  # one job of each key runs, and the other waits
        for n in range(20):
            s.put(f"c{n}", f"d{n}", queue="q", limit_key=f"new:{n}")
        steps = _counted_steps(store)
        assert len(s.claim(10)) == 10
        return steps["n"]


@pytest.mark.req("JOBS:store")
def test_a_claim_costs_the_same_however_many_keys_are_used_up(tmp_path: Path) -> None:
    """With 20 keys and with 2,000, of which each has a running job and another that waits."""
    few, many = (_steps_of_a_claim(tmp_path / f"{n}.db", n) for n in (20, 2000))
    assert many < 1.5 * few + 5


def test_paused_queues_are_walked_past_by_sqlite(tmp_path: Path) -> None:
    """A claim holds the lock of the file: it asks for none of very many paused queues by itself."""
    with closing(SqliteJobStore(tmp_path / "jobs.db")) as store:
        names = [f"q{n:03}" for n in range(200)]
        for name in names:
            store.set_queue(name, is_paused=True)
        store.add([new(f"shut-{name}", queue=name) for name in names])
        store.add([new("first", queue="a"), new("next", queue="q100a"), new("last", queue="z")])
        s = JobStoreSubject(store, HandClock(), None, 15.0)
        statements: list[str] = []

        def trace(tx: Any) -> None:
            tx.cursor.connection.set_trace_callback(statements.append)

        store.transactions.write(trace, "desk")
        assert [s.ids() for _ in range(4)] == [["first"], ["next"], ["last"], []]
        assert len(statements) < 4 * 60
        store.set_queue("q007", is_paused=False)
        assert s.ids(9) == ["shut-q007"]


def test_an_idle_worker_asks_for_little(tmp_path: Path) -> None:
    """A claim of one job and the settlement with the next claim are a few statements each."""
    with closing(SqliteJobStore(tmp_path / "jobs.db")) as store:
        s = JobStoreSubject(store, HandClock(), None, 15.0)
        store.add([new("first")])
        assert s.ids() == ["first"]  # looks at limit keys once
        statements: list[str] = []

        def trace(tx: Any) -> None:
            tx.cursor.connection.set_trace_callback(statements.append)

        store.transactions.write(trace, "desk")
        store.add([new("a")])
        statements.clear()
        request = ask(wants_more=False)
        [job] = store.settle_and_claim([], request)[1].jobs
        assert len(statements) <= 8
        statements.clear()
        applied, claimed = store.settle_and_claim([s.told(job, SUCCEEDED)], request)
        assert (applied, claimed.jobs, claimed.next_at) == ([True], [], None)
        assert len(statements) <= 7


@pytest.mark.parametrize("executor", [b"\xff", b"python", 7])
def test_a_damaged_name_of_an_executor_hides_nothing(
    s: Mine, tmp_path: Path, executor: object
) -> None:
    """A row that names its executor by a number or by bytes stands beside the others."""
    s.put("odd", "named", executor="python")
    s.put("plain")
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
        connection.execute("UPDATE ergon_jobs SET executor = ? WHERE id = 'odd'", (executor,))
        connection.commit()
    assert sorted(s.ids(9)) == ["named", "plain"]
