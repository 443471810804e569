"""Two versions of a program beside each other: a worker runs only what its executor says it has."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ergon_framework.core.claim import ClaimRequest
from ergon_framework.core.job import HandlerMissing, JobStatus
from ergon_framework.jobs.settings import ExecutorSettings, JobsSettings
from ergon_framework.jobs.store_thread import StoreThread
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.jobs.stores.sqlite import SqliteJobStore
from ergon_framework.jobs.views import queue_views
from ergon_framework.jobs.worker import Worker
from ergon_framework.testing.suites.jobstore.claim import worker_with
from tests.jobs.manual_worker import Clock, Hand
from tests.jobs.real_worker import PROGRAMS, at_work, get, history, job, quick, wait_until, worker

pytestmark = pytest.mark.req("JOBS:orchestrator")

MakeVersion = Callable[..., Worker]


@pytest.fixture
def version(tmp_path: Path) -> MakeVersion:
    """Makes a worker of one version, by the handlers that its executor has."""

    def make(
        store: Any,
        name: str,
        *handlers: str,
        how: str = "report",
        burst: bool = False,
        app_version: str = "",
        **options: Any,
    ) -> Worker:
        path = tmp_path / name
        path.write_text("\n".join(handlers), encoding="utf-8")
        command = (sys.executable, str(PROGRAMS / "versioned.py"), str(path), how)
        executor = ExecutorSettings(command=command, **{"pool_size": 1, **options})
        settings = quick(poll=0.05, executor_wait=None, version=app_version)
        return worker(store, executor=executor, name=name, settings=settings, burst=burst)

    return make


def is_left(store: Any, job_id: str) -> bool:
    """Whether a job was given back because its handler is missing."""
    return get(store, job_id).why == "handler_missing"


@pytest.mark.slow
def test_a_new_version_beside_the_old_one_never_meets_handler_not_found(
    tmp_path: Path, version: MakeVersion
) -> None:
    """Jobs of both handlers, whoever claims them first, complete with one attempt each."""
    store = SqliteJobStore(tmp_path / "work.db")
    ids = [f"{handler}-{n}" for n in range(40) for handler in ("old", "new")]
    with ExitStack() as both:
        for subject in (version(store, "v1", "old"), version(store, "v2", "old", "new")):
            both.enter_context(at_work(subject))
        store.add([job(each.partition("-")[0], id=each) for each in ids])
        wait_until(lambda: all(get(store, each).status.is_final for each in ids), "all of them")
    found = [get(store, each) for each in ids]
    assert {each.status for each in found} == {JobStatus.COMPLETED}
    assert {each.attempts for each in found} == {1}
    ran = {msgspec.json.decode(each.result or b"") for each in found if each.handler == "new"}
    assert ran == {str(tmp_path / "v2")}
    assert max(each.deliveries for each in found) <= 2  # given back once, and not again and again


@pytest.mark.slow
def test_a_job_waits_for_the_version_that_has_its_handler(
    caplog: pytest.LogCaptureFixture, version: MakeVersion
) -> None:
    """The old version gives it back uncharged and goes on; the new one runs it when it comes."""
    store = MemoryJobStore()
    with at_work(version(store, "v1", "old")), caplog.at_level(logging.WARNING):
        store.add([job("new")])
        wait_until(lambda: is_left(store, "new"))
        for n in range(5):
            store.add([job("old", id=f"old-{n}")])
            wait_until(lambda n=n: get(store, f"old-{n}").status.is_final)  # type: ignore[misc]
        waiting = get(store, "new")
        assert (waiting.status, waiting.attempts, waiting.deliveries) == (JobStatus.PENDING, 0, 1)
        assert waiting.handler == "new"
        with at_work(version(store, "v2", "new")):
            wait_until(lambda: get(store, "new").status.is_final)
    done = get(store, "new")
    assert (done.status, done.attempts, done.deliveries) == (JobStatus.COMPLETED, 1, 2)
    assert [each["worker"] for each in history(done)] == ["v1", "v2"]
    assert history(done)[0]["message"] == "this worker's executor 'python' has no handler 'new'"
    told = "this worker's executor 'python' has no handler 'new': its jobs wait for a worker"
    assert caplog.text.count(told) == 1


@pytest.mark.slow
@pytest.mark.parametrize("how", ["slow", "silent"])
def test_a_burst_waits_until_its_executor_has_said_what_it_has(
    how: str, version: MakeVersion
) -> None:
    """Nothing else is due, and what waits for a handler must not be left behind for that."""
    store = MemoryJobStore()
    store.add([job("new")])
    version(store, "v1", "old", burst=True).run()
    assert is_left(store, "new")
    version(store, "v2", "new", how=how, burst=True, startup_grace=3.0).run()
    assert get(store, "new").status is JobStatus.COMPLETED


@pytest.mark.slow
@pytest.mark.req("EXEC:error_type")
def test_an_executor_that_says_nothing_of_its_handlers_is_asked_and_believed(
    version: MakeVersion,
) -> None:
    """As the protocol says: it is there, and answers that it will never run the job."""
    store = MemoryJobStore()
    with at_work(version(store, "v1", "old", how="silent")):
        store.add([job("new")])
        wait_until(lambda: get(store, "new").status.is_final)
    dead = get(store, "new")
    assert dead.last_error is not None
    assert (dead.status, dead.last_error.code) == (JobStatus.FAILED, "handler_not_found")


@pytest.mark.slow
def test_an_executor_that_says_nothing_of_its_handlers_may_have_a_missing_one(
    version: MakeVersion,
) -> None:
    """A job that another worker gave back is offered to it, as every job is."""
    store = MemoryJobStore()
    with at_work(version(store, "v1", "old")):
        store.add([job("new")])
        wait_until(lambda: is_left(store, "new"))
    with at_work(version(store, "v2", "old", "new", how="silent")):
        store.add([job("old")])  # its first answer shows that it is up
        wait_until(lambda: get(store, "new").status.is_final)
    assert get(store, "new").status is JobStatus.COMPLETED


@pytest.mark.slow
def test_an_answer_before_the_report_loses_no_job(version: MakeVersion) -> None:
    """A process that starts slowly gets a request before it has said what it can run."""
    store = MemoryJobStore()
    store.add([job("new")])
    with at_work(version(store, "v1", "old", how="late")):
        wait_until(lambda: is_left(store, "new"))
    waiting = get(store, "new")
    assert (waiting.status, waiting.attempts) == (JobStatus.PENDING, 0)


@pytest.mark.slow
def test_code_that_is_replaced_in_place_is_noticed(tmp_path: Path, version: MakeVersion) -> None:
    """A worker serves what its processes have said last, not what its first one had."""
    store = MemoryJobStore()
    with at_work(version(store, "v1", "old", max_jobs=1)):
        store.add([job("new")])
        wait_until(lambda: is_left(store, "new"))
        (tmp_path / "v1").write_text("old\nnew", encoding="utf-8")
        store.add([job("old")])  # after it, the process is replaced
        wait_until(lambda: get(store, "new").status.is_final)
    assert get(store, "new").status is JobStatus.COMPLETED


class Rounds:
    """The rounds of a store thread by a clock that is set, and what each claim asked for."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.store = MemoryJobStore()
        self.asked: list[ClaimRequest] = []
        self.thread = StoreThread(
            self.store,
            JobsSettings(poll=1.0),
            self.ask,
            self._ignore,
            self._ignore,
            self._ignore,
            now=lambda: self.seconds,
        )

    def _ignore(self, *_: Any) -> None:
        """Nobody listens."""

    def ask(self, slots: Any, is_thorough: bool) -> ClaimRequest:
        """What a worker asks that has the handler ``resize``."""
        lanes = self.thread.handler_lanes
        found = ClaimRequest(
            worker="w1",
            lease=15.0,
            slots=slots,
            default="python",
            handlers={"python": ("resize",)} if "#resize" in lanes else {},
            wants_more=is_thorough,
        )
        self.asked += [found] if slots else []
        return found

    def claim_full(self, seconds: float) -> None:
        """A claim that is filled, as long as there is work."""
        self.seconds += seconds
        self.store.add([job("work", id=f"work-{self.seconds}")])
        self.thread.offer("python", 1)
        self.thread.run_once()


def test_a_worker_that_never_rests_looks_for_handlers_now_and_then() -> None:
    """Not with every claim: once in the time after which an idle worker would look."""
    rounds = Rounds()
    for _ in range(30):
        rounds.claim_full(0.1)
    thorough = sum(each.wants_more for each in rounds.asked)
    assert len(rounds.asked) == 30
    assert 3 <= thorough <= 4


def test_handlers_that_wait_nowhere_are_not_asked_for() -> None:
    """Claims ask for lanes of handlers while jobs wait there, and no longer."""
    rounds = Rounds()
    rounds.store.add([job("resize")])
    Hand(rounds.store).settle(Hand(rounds.store).claim(), HandlerMissing("", "resize"))
    rounds.thread.offer("python", 2)
    rounds.thread.run_once()
    assert [each.handlers for each in rounds.asked] == [{}]
    rounds.thread.run_once()  # at once: there is something that it can run
    assert rounds.asked[-1].handlers == {"python": ("resize",)}
    assert get(rounds.store, "resize").status is JobStatus.ACTIVE
    rounds.claim_full(1.5)
    rounds.claim_full(0.1)
    assert rounds.asked[-1].handlers == {}


def test_queues_tell_which_handlers_are_missing() -> None:
    """Those that no living worker serves; an executor of that name has nothing to do with it."""
    store = MemoryJobStore(clock := Clock())
    store.add([job("resize"), job("node#send", queue="mail")])
    hand = Hand(store)
    hand.settle(hand.claim(), HandlerMissing("", "resize"))

    def shown() -> list[tuple[list[str], list[str]]]:
        rows = queue_views(store.queues(), store.named(), store.workers(), clock.now)
        return [(row["missing_executors"], row["missing_handlers"]) for row in rows]

    assert shown() == [([], ["resize"]), (["node"], [])]
    store.heartbeat(msgspec.structs.replace(worker_with("w1", "python"), serves=("#resize",)))
    assert shown() == [([], []), (["node"], [])]


@pytest.mark.slow
def test_a_pinned_queue_is_run_by_its_version_alone(tmp_path: Path, version: MakeVersion) -> None:
    """Workers of two versions, and one without any, whose handlers have the same name."""
    store = SqliteJobStore(tmp_path / "work.db")
    store.set_queue("mail", pinned_version="2")
    mail, other = [f"mail-{n}" for n in range(30)], [f"other-{n}" for n in range(30)]
    with ExitStack() as all_three:
        for name, app_version in (("v1", "1"), ("v2", "2"), ("none", "")):
            subject = version(store, name, "send", app_version=app_version)
            all_three.enter_context(at_work(subject))
        store.add([job("send", id=each, queue=each.partition("-")[0]) for each in (*mail, *other)])
        ids = (*mail, *other)
        wait_until(lambda: all(get(store, each).status.is_final for each in ids), "all of them")
        told = {each.id: each.app_version for each in store.workers()}
    assert told == {"v1": "1", "v2": "2", "none": ""}
    ran = {msgspec.json.decode(get(store, each).result or b"") for each in mail}
    assert ran == {str(tmp_path / "v2")}


@pytest.mark.slow
def test_a_burst_of_another_version_ends_and_leaves_the_queue(version: MakeVersion) -> None:
    """What it may not claim is nothing to wait for; once it is unpinned, it runs the job."""
    store = MemoryJobStore()
    store.set_queue("mail", pinned_version="2")
    store.add([job("send", queue="mail")])
    version(store, "v1", "send", burst=True, app_version="1").run()
    waiting = get(store, "send")
    assert (waiting.status, waiting.deliveries) == (JobStatus.PENDING, 0)
    store.set_queue("mail", pinned_version=None)
    version(store, "v1", "send", burst=True, app_version="1").run()
    assert get(store, "send").status is JobStatus.COMPLETED


@pytest.mark.slow
def test_a_worker_that_runs_hears_of_an_unpinned_queue(version: MakeVersion) -> None:
    """It goes to work at once, and does not wait until it would look again by itself."""
    store = MemoryJobStore()
    store.set_queue("mail", pinned_version="2")
    with at_work(version(store, "v1", "send", app_version="1")):
        store.add([job("send", queue="mail"), job("send", id="other")])
        wait_until(lambda: get(store, "other").status.is_final)
        assert get(store, "send").deliveries == 0
        store.set_queue("mail", pinned_version=None)
        wait_until(lambda: get(store, "send").status.is_final)


@pytest.mark.slow
def test_a_worker_tells_which_missing_handlers_it_has(version: MakeVersion) -> None:
    """So that others do not warn of them, and do not give their jobs up."""
    store = MemoryJobStore()
    store.add([job("new", queue="mail")])
    with at_work(version(store, "v1", "old")):
        wait_until(lambda: is_left(store, "new"))
    store.set_queue("mail", is_paused=True)
    with at_work(version(store, "v2", "new")):
        wait_until(lambda: any(each.serves == ("#new",) for each in store.workers()))
