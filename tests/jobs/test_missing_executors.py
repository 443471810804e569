"""Jobs for an executor that no worker has right now: they wait, and somebody is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from ergon_framework.core.job import HandlerMissing, JobStatus
from ergon_framework.core.retention import DAY
from ergon_framework.jobs.missing_executors import MissingExecutors
from ergon_framework.jobs.settings import JobsSettings
from ergon_framework.jobs.settlement import Settler
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.jobs.stores.sqlite import SqliteJobStore
from ergon_framework.testing.suites.jobstore.claim import worker_with
from ergon_framework.testing.suites.jobstore.under_test import ask, new
from tests.jobs.manual_worker import Hand
from tests.jobs.real_worker import burst, get, job, quick

HOUR = 3600.0
INDEXES = ("flow", "join", "signal", "due_keys")
NEW_COLUMNS = ("flow_id", "join_id", "feeds", "wait", "signal")
"""Those that later versions have added."""
NEW_OF_SCHEDULES = ("jitter", "ends_at")
NEW_OF_QUEUES = ("key_max_active", "key_rate", "key_burst", "pinned_version")


class Bench:
    """A store, one worker's look at missing executors, and time."""

    def __init__(self, serves: Any = lambda _lane, _queues: False, **settings: Any) -> None:
        self.serves = serves
        self.wall = self.clock = 1_000_000.0
        self.store = MemoryJobStore(lambda: self.wall)
        self.told: list[tuple[str, str]] = []
        self.settings = JobsSettings(**settings)
        self.begin()

    def begin(self) -> None:
        """A worker starts that has the executor ``python``."""
        self.looking = MissingExecutors(
            self.store,
            self.settings,
            Settler(self.settings, "w1"),
            lambda: self.clock,
            lambda name, fields: self.told.append(
                (name, fields.get("handler") or fields.get("executor", ""))
            ),
            self.serves,
        )
        self.looking.known = frozenset({"python"})

    def pass_time(self, seconds: float) -> None:
        """Time passes, and the worker looks, as its chores let it."""
        until = self.wall + seconds
        while self.wall < until:
            step = min(self.looking.look(), until - self.wall)
            self.wall, self.clock = self.wall + step, self.clock + step
            known = sorted(self.looking.known)
            lanes = tuple(name for name in known if "#" in name)
            record = worker_with("w1", *(name for name in known if "#" not in name))
            self.store.heartbeat(msgspec.structs.replace(record, serves=lanes))
        self.looking.look()

    def status(self, job_id: str) -> JobStatus:
        """Where a job stands."""
        return get(self.store, job_id).status


def unreadable(job_id: str) -> Any:
    """A job for the executor ``node``."""
    return new(job_id, handler="node#work", executor="node")


def test_a_backlog_outlives_the_restart_of_the_only_worker_that_can_run_it() -> None:
    """Jobs that waited for days are not given up because their worker is away for a minute."""
    bench = Bench()
    bench.store.heartbeat(worker_with("w2", "node"))
    bench.store.add([unreadable("old")])
    for _ in range(10):
        bench.wall += DAY
        bench.clock += DAY
        bench.store.heartbeat(worker_with("w2", "node"))
    bench.store.heartbeat(worker_with("w2", state="gone"))
    bench.begin()
    bench.pass_time(10 * 60.0)
    found = get(bench.store, "old")
    assert (found.status, found.deliveries) == (JobStatus.PENDING, 0)
    assert [each.id for each in bench.store.settle_and_claim([], ask({"node": 5}))[1].jobs] == [
        "old"
    ]


def test_a_job_is_given_up_after_a_day_without_its_executor() -> None:
    """Neither a restart of the worker that looks, nor the last minute before it, changes that."""
    bench = Bench()
    bench.store.add([unreadable("a")])
    bench.pass_time(DAY / 2)
    bench.store.add([unreadable("later")])
    bench.begin()
    bench.pass_time(DAY / 2 - 120.0)
    assert bench.status("a") is JobStatus.PENDING
    bench.pass_time(300.0)
    found = get(bench.store, "a")
    assert (found.status, found.why, found.attempts) == (JobStatus.FAILED, "unserved", 0)
    assert found.last_error is not None
    assert found.last_error.code == "unknown_executor"
    assert bench.status("later") is JobStatus.PENDING
    bench.pass_time(DAY / 2)
    assert bench.status("later") is JobStatus.FAILED


def test_who_is_missing_is_told_once_and_when_it_is_back() -> None:
    """Not in the first minute, which a restart takes."""
    bench = Bench()
    bench.store.add([unreadable("a")])
    bench.pass_time(50.0)
    assert bench.told == []
    bench.pass_time(HOUR)
    assert bench.told == [("executor.missing", "node")]
    bench.looking.known |= {"node"}
    bench.looking.look()
    assert bench.told[1:] == [("executor.found", "node")]


def left(bench: Bench, job_id: str) -> None:
    """Add a job, and give it back because the worker that claimed it has no such handler."""
    bench.store.add([new(job_id, handler="resize")])
    hand = Hand(bench.store)
    hand.settle(hand.claim(), HandlerMissing("", "resize"))


def test_a_job_is_given_up_after_a_day_without_its_handler() -> None:
    """As one without its executor: a restart of the worker that looks does not begin the time."""
    bench = Bench()
    left(bench, "a")
    bench.pass_time(DAY / 2)
    bench.begin()
    bench.pass_time(DAY / 2 - 120.0)
    assert bench.status("a") is JobStatus.PENDING
    bench.pass_time(300.0)
    found = get(bench.store, "a")
    assert (found.status, found.why, found.attempts) == (JobStatus.FAILED, "unhandled", 0)
    assert found.last_error is not None
    assert found.last_error.code == "handler_not_found"
    assert "'resize'" in found.last_error.message


def test_a_handler_that_a_worker_has_is_waited_for() -> None:
    """However long its jobs wait for a slot, or in a queue that is paused."""
    bench = Bench()
    left(bench, "a")
    bench.looking.known |= {"#resize"}
    bench.pass_time(3 * DAY)
    assert bench.status("a") is JobStatus.PENDING
    assert bench.told == []
    bench.looking.known -= {"#resize"}
    bench.pass_time(DAY - HOUR)
    assert bench.status("a") is JobStatus.PENDING
    bench.pass_time(2 * HOUR)
    assert bench.status("a") is JobStatus.FAILED


def test_a_worker_does_not_miss_the_handlers_that_it_has() -> None:
    """It finds out by itself, and tells others with its record."""
    bench = Bench(serves=lambda lane, queues: (lane, tuple(queues)) == ("#resize", ("default",)))
    left(bench, "a")
    bench.pass_time(2 * DAY)
    assert bench.status("a") is JobStatus.PENDING
    assert bench.looking.served == ("#resize",)


def test_a_missing_handler_is_told_once_with_those_who_looked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Not in the first minute, in which a worker that has it may not have told so."""
    bench = Bench()
    bench.pass_time(HOUR)
    left(bench, "a")
    bench.looking.lookers = tuple(f"w{n}" for n in range(1, 8))
    bench.pass_time(50.0)
    assert bench.told == []
    bench.pass_time(HOUR)
    assert bench.told == [("handler.missing", "resize")]
    assert "no worker has had the handler 'resize' for" in caplog.text
    assert "These looked: w1, w2, w3, w4, w5 and 2 more" in caplog.text
    bench.looking.known |= {"#resize"}
    bench.looking.look()
    assert bench.told[1:] == [("handler.found", "resize")]


def test_a_clock_that_jumps_by_days_gives_nothing_up() -> None:
    """Workers that live tell of themselves within seconds: that is waited for."""
    bench = Bench()
    bench.store.heartbeat(worker_with("w2", "node"))
    bench.store.add([unreadable("a")])
    bench.wall += 3 * DAY
    bench.looking.look()
    assert bench.status("a") is JobStatus.PENDING
    bench.store.heartbeat(worker_with("w2", "node"))
    bench.looking.known |= {"node"}
    bench.pass_time(HOUR)
    assert bench.status("a") is JobStatus.PENDING


def test_it_can_wait_for_ever() -> None:
    """With ``executor_wait = "none"``."""
    bench = Bench(executor_wait="none")
    bench.store.add([unreadable("a")])
    bench.pass_time(3 * DAY)
    assert bench.status("a") is JobStatus.PENDING


@pytest.mark.slow
@pytest.mark.req("EXEC:Selection")
def test_a_worker_leaves_alone_what_it_has_no_executor_for() -> None:
    """A burst runs what it can; the other job waits, neither delivered nor charged."""
    report, store = burst([job("x#y"), job("echo")])
    waits = get(store, "x#y")
    assert (waits.status, waits.deliveries, waits.attempts) == (JobStatus.PENDING, 0, 0)
    assert (report.completed, report.failed) == (1, 0)


@pytest.mark.slow
def test_a_worker_can_be_told_not_to_wait() -> None:
    """With ``executor_wait = 0`` such a job is dead-lettered at once."""
    _, store = burst([job("x#y")], settings=quick(executor_wait=0.0))
    dead = get(store, "x#y")
    assert (dead.status, dead.why) == (JobStatus.FAILED, "unserved")


def test_an_existing_file_learns_to_note_executors(tmp_path: Path) -> None:
    """A store of the version before is brought up to date, and begins to count from then."""
    path = tmp_path / "old.db"
    store = SqliteJobStore(path)
    store.add([unreadable("a")])
    store.transactions.write(  # as the version before left it
        lambda moves: [
            moves.cursor.execute(each)
            for each in (
                "DROP TABLE ergon_executors",
                *(f"DROP TABLE ergon_{each}" for each in ("flows", "flow_joins", "flow_work")),
                *(f"DROP INDEX ergon_jobs_{each}" for each in INDEXES),
                *(f"ALTER TABLE ergon_jobs DROP COLUMN {each}" for each in NEW_COLUMNS),
                *(f"DROP TRIGGER ergon_jobs_forget_{each}" for each in ("tags", "keys")),
                *("DROP TABLE ergon_job_tags", "DROP TABLE ergon_queue_keys"),
                "DROP TABLE ergon_job_keys",
                *(f"ALTER TABLE ergon_queues DROP COLUMN {each}" for each in NEW_OF_QUEUES),
                "DROP INDEX ergon_schedules_next",
                *(f"ALTER TABLE ergon_schedules DROP COLUMN {each}" for each in NEW_OF_SCHEDULES),
                "UPDATE ergon_schema SET version = 2 WHERE part = 'jobs'",
            )
        ],
        "desk",
    )
    store.close()
    store = SqliteJobStore(path)
    assert [each.seen_at for each in store.named()] == [None]
    store.heartbeat(worker_with("w1", "python"))
    assert [each.seen_at for each in store.named()] != [None]
    store.close()
