"""How a worker stops, holds its leases, and lives through a store that goes away."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.core.claim import ClaimRequest
from ergon_framework.core.job import JobStatus, LeaseExpired
from ergon_framework.errors import JobError, StoreUnavailableError
from ergon_framework.jobs.scheduler import Scheduler, ScheduleSettings
from ergon_framework.jobs.settlement import Settler
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.jobs.worker import BurstEnd, WorkerTiming
from ergon_framework.ports.jobstore import Job, Schedule, Search
from tests.jobs.real_worker import (
    PATIENCE,
    at_work,
    burst,
    executor_status,
    get,
    history,
    is_alive,
    job,
    quick,
    unruly,
    wait_until,
    worker,
)

pytestmark = [pytest.mark.slow, pytest.mark.req("JOBS:orchestrator")]


def test_a_stop_lets_what_runs_finish(tmp_path: Path) -> None:
    """Within the grace the running job ends and is recorded; the next is left alone."""
    gate = tmp_path / "gate"
    store = MemoryJobStore()
    store.add([job("crash_once", str(gate), id="first"), job("hang", timeout=0.8, id="slow")])
    subject = worker(store, settings=quick(max_attempts=1))
    with at_work(subject):
        wait_until(lambda: get(store, "slow").attempts)  # claimed alone is not begun
        subject.stop()
    assert get(store, "slow").last_error is not None
    assert get(store, "slow").status is JobStatus.FAILED  # by its own timeout, not by the stop


@pytest.mark.req("X10", "X20")
def test_what_outlasts_the_grace_is_given_back_uncharged() -> None:
    """It is pending again, spent no attempt, and its process is gone."""
    store = MemoryJobStore()
    store.add([job("hang"), job("echo", id="waiting")])
    subject = worker(store, settings=quick(grace=0.1))
    with at_work(subject):
        wait_until(lambda: get(store, "hang").is_charged)
        subject.stop()
    back = get(store, "hang")
    assert (back.status, back.attempts, back.deliveries) == (JobStatus.PENDING, 0, 1)
    assert back.excused == 1
    assert history(back)[-1]["event"] == "released"
    assert get(store, "waiting").status is JobStatus.PENDING
    assert executor_status(subject)["processes"] == 0


def test_a_second_stop_ends_everything_at_once(tmp_path: Path) -> None:
    """A stubborn process is killed without waiting for the grace."""
    trace = tmp_path / "pid"
    store = MemoryJobStore()
    store.add([job("stubborn", str(trace))])
    subject = worker(store, settings=quick(grace=3600), executor=unruly(kill_grace=3600))
    with at_work(subject):
        wait_until(lambda: trace.exists() and trace.read_text(encoding="utf-8"))
        subject.stop()
        subject.stop()
    assert get(store, "stubborn").status is JobStatus.PENDING
    assert not is_alive(int(trace.read_text(encoding="utf-8")))


def test_a_stop_before_the_run_is_heard() -> None:
    """A worker that was stopped before it ran returns without claiming."""
    store = MemoryJobStore()
    store.add([job("echo")])
    subject = worker(store)
    subject.stop()
    assert subject.run().completed == 0
    assert get(store, "echo").status is JobStatus.PENDING


def store_threads() -> list[threading.Thread]:
    """The threads in which workers talk to their stores."""
    return [each for each in threading.enumerate() if each.name == "ergon-jobs-store"]


MANY = {f"s{n:02}": ScheduleSettings(every=3600, handler="echo") for n in range(20)}


class Slow(MemoryJobStore):
    """A store in which ``between`` happens whenever a schedule has been written."""

    between: Callable[[], object] = staticmethod(lambda: None)

    def put_schedule(self, schedule: Schedule) -> None:
        super().put_schedule(schedule)
        self.between()


def test_a_stop_is_heard_while_many_schedules_are_written() -> None:
    """What is under way is the last; the next worker writes the others."""
    store = Slow()
    is_told = threading.Event()

    class Told(Scheduler):
        """A scheduler that hears of the stop."""

        def stop(self) -> None:
            super().stop()
            is_told.set()

    subject = worker(store, schedules=Told(store, MANY))

    def stop_at_the_third() -> None:
        if len(store.schedules()) == 3:
            subject.stop()
            assert is_told.wait(PATIENCE)

    store.between = stop_at_the_third
    assert subject.run().stop_reason == "stopped"
    assert len(store.schedules()) == 3
    assert store.workers() == []
    assert len(Scheduler(store, MANY).sync().added) == 17


def test_a_store_closed_under_a_chore_is_nothing_to_tell(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody waits for it any longer, and what its driver raises then is anything."""
    hangs, closed = threading.Event(), threading.Event()

    def hang() -> None:
        hangs.set()
        closed.wait(PATIENCE)
        raise ValueError("I/O operation on closed file")

    store = Slow()
    store.between = hang
    timing = WorkerTiming(shutdown_grace=0.05)
    subject = worker(store, schedules=Scheduler(store, MANY), timing=timing)
    others = {*store_threads()}  # of other tests
    with at_work(subject):
        assert hangs.wait(PATIENCE)
        [thread] = {*store_threads()} - others
        subject.stop()
    closed.set()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert [each.getMessage() for each in caplog.records] == []


@pytest.mark.req("X13")
def test_a_long_job_keeps_its_lease() -> None:
    """A job that runs longer than its lease is not rescued while its worker lives."""
    store = MemoryJobStore()
    store.add([job("hang", timeout=2.0, max_attempts=1)])
    settings = quick(lease=0.5)
    with at_work(worker(store, settings=settings)), at_work(worker(store, settings=settings)):
        wait_until(lambda: get(store, "hang").status.is_final)
    done = get(store, "hang")
    assert (done.deliveries, done.attempts) == (1, 1)


@pytest.mark.req("X11", "X13")
def test_a_job_of_a_dead_worker_is_rescued_and_poison_ends() -> None:
    """Expired leases are taken over; each counts as a delivery, and the limit ends it."""
    store = MemoryJobStore()
    store.add([job("echo"), job("echo", id="poison", max_deliveries=1, queue="p")])
    ask = ClaimRequest(worker="dead", lease=0.2, slots={"python": 9}, default="python")
    _, claimed = store.settle_and_claim([], ask)
    assert len(claimed.jobs) == 2
    with at_work(worker(store, settings=quick(lease=0.5))):
        wait_until(lambda: get(store, "echo").status.is_final)
        wait_until(lambda: get(store, "poison").status.is_final)
    rescued, poison = get(store, "echo"), get(store, "poison")
    assert (rescued.status, rescued.deliveries, rescued.attempts) == (JobStatus.COMPLETED, 2, 1)
    first = history(rescued)[0]
    assert (first["event"], first["code"], first["lost_by"]) == ("lost", "lease_expired", "dead")
    assert (poison.status, poison.why) == (JobStatus.FAILED, "deliveries_spent")


def test_a_burst_waits_for_jobs_of_workers_that_may_be_dead() -> None:
    """It does not leave behind a job whose holder died, and does not wait for a live one."""
    store = MemoryJobStore()
    store.add([job("echo")])
    ask = ClaimRequest(worker="dead", lease=0.6, slots={"python": 9}, default="python")
    store.settle_and_claim([], ask)
    report = worker(store, settings=quick(lease=0.5), burst=True).run()
    assert report.completed == 1
    assert report.rescued == 1


def test_a_burst_leaves_no_job_that_was_rescued_while_it_looked() -> None:
    """It was held when the burst asked what is due, and no longer when it asked what is held."""

    class Rescued(MemoryJobStore):
        """A store where somebody rescues the dead worker's job just before the second question."""

        def search(self, search: Search, limit: int | None = None) -> Iterator[Job]:
            for held in [*super().search(search)]:
                back = Settler(quick(), "saviour").settle_stored(held, LeaseExpired(), self.now())
                super().settle_and_claim([back], None)
            return super().search(search, limit)

    store = Rescued()
    store.add([job("echo")])
    store.settle_and_claim(
        [], ClaimRequest(worker="dead", lease=60.0, slots={"python": 9}, default="python")
    )
    report = worker(store, settings=quick(), burst=True).run()
    assert (report.completed, report.rescued) == (1, 0)


def test_a_burst_ends_although_its_store_is_slower_than_its_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A store far away answers after several turns, each of which finds its question under way."""
    turns = threading.Semaphore(0)
    looks = 0
    is_over = BurstEnd.is_over

    def counted(self: BurstEnd, now: float) -> bool:
        nonlocal looks
        looks += 1
        turns.release()
        return is_over(self, now) or looks > 5000

    class Far(MemoryJobStore):
        """Answers when the loop has gone round three times."""

        def settle_and_claim(self, *args: Any, **kwargs: Any) -> Any:
            while turns.acquire(blocking=False):
                pass
            for _ in range(3):
                turns.acquire(timeout=0.5)  # before the loop runs, and at its end, nobody turns
            return super().settle_and_claim(*args, **kwargs)

    monkeypatch.setattr(BurstEnd, "is_over", counted)
    store = Far()
    store.add([job("echo")])
    timing = WorkerTiming(burst_poll_interval=0.001)
    report = worker(store, settings=quick(), burst=True, timing=timing).run()
    assert report.completed == 1
    assert looks <= 5000


@pytest.mark.req("X12")
def test_a_late_result_is_ignored_and_counted() -> None:
    """A worker whose lease was taken over cannot settle; the newer holder can."""

    class Deaf(MemoryJobStore):
        """A store that forgets to renew for one worker."""

        def renew(self, holds: Any, lease: float) -> list[bool]:
            return [True for _ in holds]

    store = Deaf()
    store.add([job("hang", timeout=1.2, max_attempts=3)])
    first = worker(store, settings=quick(lease=0.5), name="first")
    with at_work(first):
        wait_until(lambda: get(store, "hang").status is JobStatus.ACTIVE)
        with at_work(worker(store, settings=quick(lease=0.5), name="second")):
            wait_until(lambda: get(store, "hang").fence >= 2, "the rescue")
            wait_until(lambda: first.record().counters["late"] >= 1, "the late result")
    entries = history(get(store, "hang"))
    assert (entries[0]["event"], entries[0]["lost_by"]) == ("lost", "first")


class Moody(MemoryJobStore):
    """A store that is away while ``is_away`` is set, for the first time after its first claim."""

    is_away = False
    has_been_away = False
    refusals = 0
    was_told_outcomes = False  # … which it did not take

    def _look(self) -> None:
        if self.is_away:
            self.refusals += 1
            raise StoreUnavailableError("the store is away")

    def settle_and_claim(self, settlements: Any, ask: Any) -> Any:
        self.was_told_outcomes = self.was_told_outcomes or (self.is_away and bool(settlements))
        self._look()
        answer = super().settle_and_claim(settlements, ask)
        if answer[1].jobs and not self.has_been_away:
            self.is_away = self.has_been_away = True
        return answer

    def renew(self, *args: Any, **kwargs: Any) -> Any:
        self._look()
        return super().renew(*args, **kwargs)

    def heartbeat(self, *args: Any, **kwargs: Any) -> Any:
        self._look()
        return super().heartbeat(*args, **kwargs)

    def expired_leases(self, *args: Any, **kwargs: Any) -> Any:
        self._look()
        return super().expired_leases(*args, **kwargs)


@pytest.mark.req("X19")
def test_a_store_that_goes_away_loses_nothing() -> None:
    """Outcomes are kept until it is back; then they are written and work goes on."""
    store = Moody()
    store.add([job("hang", timeout=0.5, max_attempts=1), job("echo", id="later", delay=0.1)])
    with at_work(worker(store, settings=quick(lease=10.0))) as subject:
        wait_until(lambda: store.is_away)
        wait_until(lambda: store.refusals >= 4)
        assert get(store, "hang").status is JobStatus.ACTIVE
        store.is_away = False
        wait_until(lambda: get(store, "hang").status is JobStatus.FAILED)
        wait_until(lambda: get(store, "later").status is JobStatus.COMPLETED)
    assert subject.record().counters["outages"] == 1


def test_who_leaves_during_an_outage_claims_no_recovery(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing was left to ask the store, so nobody knows whether it answers."""
    store = Moody()
    with at_work(worker(store, settings=quick(lease=10.0, poll=0.05))) as subject:
        wait_until(store.workers)
        store.is_away = True
        wait_until(lambda: store.refusals >= 3)
        subject.stop()
    assert "the store does not answer" in caplog.text
    assert "answers again" not in caplog.text


def test_outcomes_that_the_store_never_took_are_named(caplog: pytest.LogCaptureFixture) -> None:
    """Those jobs run again: somebody will ask why."""
    store = Moody()
    store.add([job("hang", timeout=0.2, max_attempts=1)])
    timing = WorkerTiming(shutdown_grace=0.1)
    with at_work(worker(store, settings=quick(lease=10.0), timing=timing)) as subject:
        wait_until(lambda: store.is_away)
        wait_until(lambda: store.was_told_outcomes)
        subject.stop()
    assert "did not take how 1 job(s) ended, which will be rescued: hang" in caplog.text


def test_a_burst_leaves_a_job_that_is_held_again_and_again(tmp_path: Path) -> None:
    """For so short that it is always as good as due: nobody would ever see the burst's end."""
    timing = WorkerTiming(held_only_timeout=0.5)
    done, store = burst([job("held", str(tmp_path / "never"), 0), job("echo")], timing=timing)
    assert done.completed == 1
    assert done.held > 1
    assert get(store, "held").status == "pending"


def test_burst_ends_when_only_later_work_is_left() -> None:
    """Scheduled jobs and retries that are not due stay behind."""
    report, store = burst(
        [job("echo"), job("echo", id="tomorrow", delay=86_400.0), job("retry", 3600, id="later")]
    )
    assert (report.completed, report.retried) == (1, 1)
    assert get(store, "tomorrow").status is JobStatus.PENDING
    assert get(store, "later").status is JobStatus.RETRYING


def test_burst_waits_for_what_is_as_good_as_due() -> None:
    """A backoff of milliseconds does not decide what is left behind."""
    report, store = burst([job("crash", max_attempts=3)], settings=quick(max_attempts=3))
    assert (report.retried, report.failed) == (2, 1)
    assert get(store, "crash").attempts == 3


def test_only_the_queues_asked_for_are_served() -> None:
    """``queues`` names them; the rest stays."""
    jobs = [job("echo", queue="a", id="a"), job("echo", queue="b", id="b")]
    _, store = burst(jobs, queues=["b"])
    assert get(store, "a").status is JobStatus.PENDING
    assert get(store, "b").status is JobStatus.COMPLETED


@pytest.mark.req("X21")
def test_a_job_added_later_wakes_an_idle_worker() -> None:
    """The worker sleeps on its subscription, and a notification is enough."""

    class Asked(MemoryJobStore):
        """Notes a claim for a free slot that found nothing."""

        was_empty = threading.Event()

        def settle_and_claim(self, settlements: Any, ask: Any) -> Any:
            answer = super().settle_and_claim(settlements, ask)
            if ask is not None and ask.slots and not answer[1].jobs:
                self.was_empty.set()
            return answer

    store = Asked()
    with at_work(worker(store, settings=quick(poll=3600.0))):
        assert store.was_empty.wait(PATIENCE)
        store.add([job("echo")])
        wait_until(lambda: get(store, "echo").status is JobStatus.COMPLETED)


def test_a_job_that_becomes_due_wakes_the_worker() -> None:
    """The worker knows the next due time."""
    store = MemoryJobStore()
    store.add([job("echo", delay=0.4)])
    with at_work(worker(store, settings=quick(poll=3600.0))):
        wait_until(lambda: get(store, "echo").status is JobStatus.COMPLETED)


def test_workers_tell_of_themselves_and_leave() -> None:
    """While it runs its record is there, with its executors; afterwards it is gone."""
    store = MemoryJobStore()
    with at_work(worker(store, name="w1")):
        wait_until(lambda: [each.id for each in store.workers()] == ["w1"])
        record = store.workers()[0]
        assert record.state == "running"
        assert record.executors["python"]["pool_size"] == 1
    assert store.workers() == []


def test_a_name_of_two_lines_is_refused() -> None:
    """One that embeds a worker is told what the command tells."""
    with pytest.raises(JobError, match=r"worker name holds the control character '\\n'"):
        worker(MemoryJobStore(), name="a\nb")
    assert worker(MemoryJobStore(), name="").name


def test_threads_are_not_left_behind() -> None:
    """A worker that has stopped leaves no thread of its own."""
    others = {*store_threads()}  # of other tests
    burst([job("echo")])
    assert not {*store_threads()} - others
