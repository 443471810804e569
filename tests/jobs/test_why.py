"""The words of ``ergon why``: each reason has its sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from ergon_framework.core.failure import Failure, Kind
from ergon_framework.core.job import (
    Discarded,
    Failed,
    HeldBack,
    LeaseExpired,
    ProcessDied,
    Succeeded,
    Unread,
)
from ergon_framework.core.rfc3339 import format_rfc3339
from ergon_framework.jobs.claims import Settler
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.settings import JobsSettings
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.jobs.why import Starters, explain_job
from ergon_framework.ports.jobstore import Job, Queue, WorkerRecord
from tests.jobs.manual_worker import BROKEN, Clock, Hand

pytestmark = pytest.mark.req("JOBS:operator")
SETTINGS = JobsSettings(default_executor="python", max_attempts=2)
POOL = {"slots": 1, "in_flight": 0, "opens_at": None, "failed_starts": 0, "reason": ""}


def worker(**changes: Any) -> WorkerRecord:
    """A worker that told of itself just now."""
    known: dict[str, Any] = {
        "id": "w", "host": "here", "pid": 1, "version": "1", "started_at": 0.0,
        "seen_at": Clock.now, "executors": {"python": POOL},
    }  # fmt: skip
    return WorkerRecord(**{**known, **changes})


class Desk:
    """A store with one job, and the words about it."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.store = MemoryJobStore(self.clock)
        self.client = JobClient(store=self.store, settings=SETTINGS)
        self.hand = Hand(self.store)

    def add(self, **options: Any) -> None:
        self.id = self.client.enqueue("h", **{"id": "a", **options})

    def job(self) -> Job:
        return self.client.find(self.id)

    def why(self, *workers: WorkerRecord, job: Job | None = None, **queue: Any) -> str:
        job = job or self.job()
        found = Queue(name=job.queue, **queue) if queue else None
        return "\n".join(explain_job(job, found, workers, self.clock.now, SETTINGS))


@pytest.fixture
def desk() -> Desk:
    """A desk of this test's own."""
    return Desk()


# ---- waiting ----


def test_a_due_job_that_nothing_holds(desk: Desk) -> None:
    """It is merely waiting for its turn."""
    desk.add()
    desk.clock.now += 5
    told = desk.why(worker(seen_at=desk.clock.now), counts={"pending": 1200})
    assert "It has been due for 5.0 seconds and waits." in told
    assert "Nothing holds it" in told
    assert "1,200 jobs are pending in its queue" in told


def test_a_scheduled_job(desk: Desk) -> None:
    """Its time has not come."""
    desk.add(delay=7200, expires_in=9000)
    told = desk.why()
    assert "scheduled for later: it is due at 2030-03-17T19:46:40Z, in 2.0 hours." in told
    assert "If it is not started before 2030-03-17T20:16:40Z, it expires." in told


def test_a_paused_queue(desk: Desk) -> None:
    """With the command that resumes it."""
    desk.add(queue="mail")
    told = desk.why(worker(), is_paused=True)
    assert "Its queue 'mail' is paused. This starts it again:  ergon queues resume mail" in told
    assert "Nothing holds it" not in told


def test_a_queue_with_limits(desk: Desk) -> None:
    """How many may run, how many do, and how fast."""
    desk.add()
    told = desk.why(worker(), max_active=3, counts={"active": 3}, rate=2.5)
    assert "may run 3 at once, and 3 run now." in told
    assert "limited to 2.5 jobs per second." in told
    assert "at once" not in desk.why(worker(), max_active=3, counts={"active": 2}, rate=1.0)


@pytest.mark.parametrize(("limit", "told"), [(1, "Only one job"), (3, "Only 3 jobs")])
def test_a_limit_key(desk: Desk, limit: int, told: str) -> None:
    """The key is named."""
    desk.add(limit_key="customer-1", limit=limit)
    job = msgspec.structs.replace(desk.job(), is_limited=True)
    expected = f"{told} with the limit key 'customer-1' may run at once."
    assert expected in desk.why(worker(), job=job)


def test_no_worker_is_alive(desk: Desk) -> None:
    """One that has been silent for long counts as gone."""
    desk.add()
    for workers in ((), (worker(seen_at=Clock.now - 61),)):
        assert "No worker is alive. This starts one:  ergon worker" in desk.why(*workers)


def test_no_worker_runs_what_a_script_declares(desk: Desk) -> None:
    """Whatever the file of its store is called, no worker of the settings knows its handlers."""
    desk.id = desk.client.enqueue("thumbs#shrink", id="a")
    options = " --store sqlite:///options.db"

    def told(starters: Starters) -> str:
        job = desk.job()
        return "\n".join(explain_job(job, None, (), desk.clock.now, SETTINGS, options, starters))

    unknown = "Run the script that declares it, 'thumbs', or a worker with [executors.thumbs]."
    assert unknown in told(Starters())
    assert "ergon worker" not in told(Starters(executors=["python"]))
    script = Path("/srv/my work/thumbs.py")
    assert "its script:  ergon run '/srv/my work/thumbs.py'" in told(Starters(script=script))
    known = Starters(executors=["thumbs"], script=script)
    assert f"This starts one:  ergon worker{options}" in told(known)


def test_no_worker_takes_the_queue(desk: Desk) -> None:
    """Workers may be told which queues to take."""
    desk.add(queue="mail")
    assert "No living worker takes the queue 'mail'." in desk.why(worker(queues=("other",)))


def test_no_worker_has_the_executor(desk: Desk) -> None:
    """The job's own, or that of its queue, or the default."""
    desk.id = desk.client.enqueue("js#h", id="a")
    told = desk.why(worker())
    assert "has the executor 'js'." in told
    assert "is dead-lettered (unknown_executor) when none had for 24.0 hours" in told
    assert "start a worker with [executors.js], or the script of this name." in told


def test_an_executor_that_does_not_start(desk: Desk) -> None:
    """The breaker is open until a known time."""
    desk.add()
    broken = {"slots": 0, "opens_at": Clock.now + 30, "failed_starts": 4, "reason": "exit code 1"}
    pool = {**POOL, **broken}
    told = desk.why(worker(executors={"python": pool}))
    assert "does not start (exit code 1; 4 times so far)" in told
    assert "tried again at 2030-03-17T17:47:10Z. No attempt is charged meanwhile." in told
    assert "does not start" not in desk.why(worker(), worker(executors={"python": pool}))


def test_all_slots_are_taken(desk: Desk) -> None:
    """By how many jobs."""
    desk.add()
    busy = worker(executors={"python": {**POOL, "slots": 0, "in_flight": 2}, "js": POOL})
    assert "All slots of its executor are taken: 2 jobs in flight." in desk.why(busy)


def test_an_executor_is_starting(desk: Desk) -> None:
    """No slot, and nothing in flight: nobody has taken anything."""
    desk.add()
    pool = {**POOL, "slots": 0, "in_flight": 0}
    assert "Its executor is starting." in desk.why(worker(executors={"python": pool}))


def test_a_job_that_names_no_executor_is_anybodys(desk: Desk) -> None:
    """Without a default in these settings, the worker's single executor runs it."""
    desk.add()
    told = explain_job(desk.job(), None, [worker()], Clock.now, JobsSettings())
    assert any("Nothing holds it" in each for each in told)


def test_a_held_job(desk: Desk) -> None:
    """A gate said when to look again; no attempt was charged."""
    desk.add()
    desk.hand.run(HeldBack(Failure(Kind.HELD, "held", "the quota is used up.", 60.0)))
    told = desk.why(worker())
    assert "It is held (held: the quota is used up); it is looked at again" in told
    assert "in 60.0 seconds. No attempt was charged." in told
    assert "1 delivery did not count, being nobody's fault." in told


def test_a_job_that_waits_for_its_next_attempt(desk: Desk) -> None:
    """Which attempt failed, why, and when the next one is due."""
    desk.add()
    desk.hand.run(BROKEN)
    told = desk.why(worker())
    assert "Attempt 1 of 2 failed (ValueError: no such picture); the next one is due" in told
    assert "2030-03-17T17:46:40Z: attempt 1 failed: ValueError: no such picture; due again" in told


def test_a_job_that_is_run_alone_after_a_death(desk: Desk) -> None:
    """Nobody knows which of several jobs killed the process."""
    desk.add()
    desk.hand.run(ProcessDied(was_alone=False))
    told = desk.why(worker())
    assert "it is run alone" in told
    assert "It may have run more than once: 1 delivery ended without an outcome" not in told
    desk.hand.run(Succeeded())
    told = desk.why()
    assert "It completed at 2030-03-17T17:46:40Z, after 1 attempt." in told
    assert "It may have run more than once: 1 delivery ended without an outcome" in told


def test_a_job_whose_request_was_not_read_in_its_time(desk: Desk) -> None:
    """No attempt was charged, and none was made: nothing may have run twice."""
    desk.add(max_deliveries=2)
    desk.hand.run(Unread(3.0))
    told = desk.why(worker())
    assert "it was given back without a charge: request_unread: the executor was busy" in told
    assert "had not read the request" in told
    desk.hand.run(Unread(3.0))
    told = desk.why(worker())
    assert "it was delivered as often as it may be" in told
    assert "it was given up without a charge: request_unread" in told
    assert "may have run more than once" not in told


# ---- running and ended ----


def test_a_running_job(desk: Desk) -> None:
    """Who holds it, and since when."""
    desk.add()
    desk.hand.claim()
    desk.clock.now += 4
    assert desk.why() == "It runs: the worker 'w' has held it for 4.0 seconds."


def test_a_job_whose_worker_is_silent(desk: Desk) -> None:
    """Its lease is over, and somebody must take it over."""
    desk.add()
    desk.hand.claim()
    desk.clock.now += 15
    told = desk.why(worker(seen_at=desk.clock.now))
    assert "lease ended 5.0 seconds ago; the next worker to look takes the job over." in told
    assert "No worker is alive" not in told
    assert "No worker is alive to do so" in desk.why()


@pytest.mark.req("JOBS:operator", "X11")
def test_a_job_that_was_rescued_tells_whose_it_was(desk: Desk) -> None:
    """It may have run twice."""
    desk.add()
    desk.hand.claim()
    desk.clock.now += 15
    settler = Settler(SETTINGS, "rescuer")
    (late,) = desk.store.expired_leases(10)
    desk.store.settle_and_claim([settler.settle_stored(late, LeaseExpired(), desk.clock.now)], None)
    told = desk.why(worker(seen_at=desk.clock.now))
    assert "delivery 1 was lost: lease_expired" in told
    assert "(held by the worker 'w')" in told


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (Failure(Kind.REJECTED, "handler_not_found"), "of a kind that is not tried again"),
        (Failure(Kind.DEFECT, "ValueError"), "all its attempts are spent"),
    ],
)
def test_a_dead_job(desk: Desk, failure: Failure, reason: str) -> None:
    """Why it died, its last failure, and how to send it back."""
    desk.add(max_attempts=1)
    desk.hand.run(Failed(failure))
    told = desk.why()
    assert "It is dead-lettered since 2030-03-17T17:46:40Z, because" in told
    assert reason in told
    assert f"Its last failure was {failure.code}." in told
    assert "This sends it back with fresh counters:  ergon dlq requeue a" in told


def test_a_discarded_job(desk: Desk) -> None:
    """It is over without a result, in the handler's own words; an earlier failure is past."""
    desk.add()
    desk.hand.run(BROKEN)
    desk.clock.now += 3600
    desk.hand.run(Discarded("the order was cancelled"))
    told = desk.why()
    assert told.startswith("Its handler discarded it at 2030-")
    assert "done, without a result, after 2 attempts." in told
    assert "its handler discarded it: the order was cancelled." in told
    assert desk.client.result(desk.id, timeout=0) is None


def test_a_job_that_no_executor_takes(desk: Desk) -> None:
    """It was refused before anything was attempted."""
    desk.add()
    desk.hand.run(Failed(Failure(Kind.REJECTED, "unknown_executor", "no 'x'"), is_written=False))
    assert "it was refused without an attempt: unknown_executor: no 'x'." in desk.why()


def test_a_job_that_died_of_its_deliveries(desk: Desk) -> None:
    """A poison job."""
    desk.add(max_deliveries=1)
    desk.hand.run(ProcessDied(was_alone=False))
    assert "it was delivered as often as it may be without coming to an end" in desk.why()


def test_a_job_that_expired(desk: Desk) -> None:
    """Nobody started it in time."""
    desk.add(expires_in=1)
    desk.clock.now += 5
    desk.store.prune(100)
    told = desk.why()
    assert "because it was not started before its expiry." in told
    assert "Its last failure" not in told


def test_a_cancelled_job(desk: Desk) -> None:
    """By somebody, or for a newer one."""
    desk.add(unique="k")
    first = desk.id
    newer = desk.client.enqueue("h", unique="k", on_duplicate="replace")
    desk.id = first
    assert "because a newer job with the unique key 'k' took its place." in desk.why()
    desk.client.cancel(newer)
    desk.id = newer
    assert desk.why().startswith("It was cancelled at 2030-03-17T17:46:40Z.\n")


def test_a_job_that_is_cancelled_while_it_runs(desk: Desk) -> None:
    """Who asked and why, while it runs and afterwards."""
    desk.add()
    claimed = desk.hand.claim()
    desk.client.cancel("a", running=True, by="ann", reason="the wrong file")
    told = desk.why(worker())
    assert "It runs: the worker 'w' has held it" in told
    at = format_rfc3339(desk.clock.now)
    assert f"ann asked for its cancellation at {at}, because: the wrong file; its worker" in told
    desk.hand.settle(claimed, BROKEN)
    told = desk.why()
    assert f"It was cancelled at {at} while it ran." in told
    assert f"{at}: it was cancelled by ann: the wrong file." in told


def test_a_job_that_was_sent_back_and_hurried(desk: Desk) -> None:
    """People's deeds are in the history too."""
    desk.add(max_attempts=1)
    desk.hand.run(BROKEN)
    desk.client.requeue("a")
    desk.client.retry("a")
    told = desk.why(worker())
    assert "somebody sent it back with fresh counters." in told
    assert "somebody asked for it to run at once." in told


def test_a_long_history_is_cut(desk: Desk) -> None:
    """The rest is one command away; entries of unknown shape do no harm."""
    desk.add()
    many = (b'{"event":"odd"}', b"[]", b"{}") * 5
    told = desk.why(worker(), job=msgspec.structs.replace(desk.job(), history=many))
    assert "5 older events are left out. This shows them:  ergon jobs show a" in told
    assert "At an unknown time: odd." in told


def test_long_and_torn_messages_become_one_short_line(desk: Desk) -> None:
    """A traceback in a message must not break the page."""
    desk.add(max_attempts=1)
    desk.hand.run(Failed(Failure(Kind.DEFECT, "E", "line one\nline two " + "x" * 500)))
    assert all(len(line) < 300 for line in desk.why().splitlines())
    assert "line one line two" in desk.why()


@pytest.mark.parametrize(
    ("seconds", "told"), [(3, "3.0 seconds"), (240, "4.0 minutes"), (200_000, "2.3 days")]
)
def test_durations_have_readable_units(desk: Desk, seconds: float, told: str) -> None:
    """The largest unit that fits twice."""
    desk.add(delay=seconds)
    assert f"in {told}." in desk.why()
