"""The words of ``ergon why``: each reason has its sentence."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ergon_framework.core.claim import ClaimRequest
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
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.settings import JobsSettings
from ergon_framework.jobs.settlement import Settler
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.jobs.stores.sqlite import SqliteJobStore
from ergon_framework.jobs.why import Starters, explain_job, token_of
from ergon_framework.ports.jobstore import Job, Queue, WorkerRecord
from ergon_framework.ports.unique import Unique
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


class OneJob:
    """A store with one job, and what is said about it."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.store = MemoryJobStore(self.clock)
        self.client = JobClient(store=self.store, settings=SETTINGS)
        self.hand = Hand(self.store)

    def add(self, **options: Any) -> None:
        self.id = self.client.enqueue("h", **{"id": "a", **options})

    def job(self) -> Job:
        return self.client.find(self.id)

    def why(
        self,
        *workers: WorkerRecord,
        job: Job | None = None,
        token_at: float | None = None,
        **queue: Any,
    ) -> str:
        job = job or self.job()
        found = Queue(name=job.queue, **queue) if queue else None
        sentences = explain_job(job, found, workers, self.clock.now, SETTINGS, token_at=token_at)
        return "\n".join(sentences)


@pytest.fixture
def one() -> OneJob:
    """A job of this test's own."""
    return OneJob()


# ---- waiting ----


def test_a_due_job_that_nothing_holds(one: OneJob) -> None:
    """It is merely waiting for its turn."""
    one.add()
    one.clock.now += 5
    told = one.why(worker(seen_at=one.clock.now), counts={"pending": 1200})
    assert "It has been due for 5.0 seconds and waits." in told
    assert "Nothing holds it" in told
    assert "1,200 jobs are pending in its queue" in told


def test_a_scheduled_job(one: OneJob) -> None:
    """Its time has not come."""
    one.add(delay=7200, expires_in=9000)
    told = one.why()
    assert "scheduled for later: it is due at 2030-03-17T19:46:40Z, in 2.0 hours." in told
    assert "If it is not started before 2030-03-17T20:16:40Z, it expires." in told


def test_a_paused_queue(one: OneJob) -> None:
    """With the command that resumes it."""
    one.add(queue="mail")
    told = one.why(worker(), is_paused=True)
    assert "Its queue 'mail' is paused. This starts it again:  ergon queues resume mail" in told
    assert "Nothing holds it" not in told


def test_a_queue_of_another_version(one: OneJob) -> None:
    """Which version it waits for, which worker runs which, and both ways out."""
    one.add(queue="mail")
    workers = [worker(id="w1", app_version="1"), worker(id="w2"), worker(id="w3", app_version="1")]
    told = one.why(*workers, pinned_version="2 b")
    assert "Its queue 'mail' is pinned to version '2 b'." in told
    assert "Living workers by version: without a version: w2; '1': w1, w3." in told
    assert "None of them runs version '2 b'." in told
    assert "This starts one:  ergon worker --version '2 b'\n" in told
    assert "any version take its jobs:  ergon queues unpin mail" in told
    assert "Nothing holds it" not in told


def test_a_pinned_queue_without_any_worker(one: OneJob) -> None:
    """A worker that has been silent for long is none."""
    one.add(queue="mail")
    silent = worker(app_version="2", seen_at=one.clock.now - 3600.0)
    told = one.why(silent, pinned_version="2")
    assert "is pinned to version '2', and no worker is alive. This starts one:" in told
    assert "ergon worker --version 2\n" in told
    assert "Nothing holds it" not in told


def test_a_pinned_queue_with_a_worker_of_its_version(one: OneJob) -> None:
    """Only workers of that version count, whatever the others have."""
    one.add(queue="mail")
    old, new = worker(id="old", app_version="1"), worker(id="new", app_version="2")
    told = one.why(old, new, pinned_version="2")
    assert "Living workers by version: '1': old; '2': new." in told
    assert "Nothing holds it: it is run when a slot is free" in told
    assert "None of them" not in told
    elsewhere = worker(id="new", app_version="2", queues=("other",))
    told = one.why(old, elsewhere, pinned_version="2")
    assert "No living worker of that version takes the queue 'mail'." in told
    lacking = worker(id="new", app_version="2", executors={"node": POOL})
    told = one.why(old, lacking, pinned_version="2")
    assert "No living worker of that version that takes its queue has the executor" in told


def test_the_script_of_a_pinned_queue(one: OneJob) -> None:
    """A script takes its version from the environment."""
    one.id = one.client.enqueue("mine#h", id="a", queue="mail")
    script = Starters(script=Path("work.py"))
    queue = Queue(name="mail", pinned_version="2")
    told = explain_job(one.job(), queue, [], one.clock.now, SETTINGS, starters=script)
    assert any("ERGON_JOBS__VERSION=2 ergon run work.py" in each for each in told)


def test_a_queue_with_limits(one: OneJob) -> None:
    """How many may run, how many do, and how fast."""
    one.add()
    told = one.why(worker(), max_active=3, counts={"active": 3}, rate=2.5)
    assert "may run 3 at once, and 3 run now." in told
    assert "limited to 2.5 jobs per second." in told
    assert "at once" not in one.why(worker(), max_active=3, counts={"active": 2}, rate=1.0)


@pytest.mark.parametrize(("limit", "told"), [(1, "Only one job"), (3, "Only 3 jobs")])
def test_a_limit_key(one: OneJob, limit: int, told: str) -> None:
    """The key is named."""
    one.add(limit_key="customer-1", limit=limit)
    job = msgspec.structs.replace(one.job(), is_limited=True)
    expected = f"{told} with the limit key 'customer-1' may run at once."
    assert expected in one.why(worker(), job=job)


def test_a_queue_that_limits_its_keys(one: OneJob) -> None:
    """The key is named, what the queue allows it, and when it has the next token."""
    one.add(limit_key="customer-1", queue="mail")
    job = msgspec.structs.replace(one.job(), is_limited=True)
    told = one.why(worker(), job=job, key_rate=2.5, token_at=one.clock.now + 4)
    assert "Its queue 'mail' starts 2.5 jobs of each limit key per second" in told
    assert f"'customer-1' has the next token at {format_rfc3339(one.clock.now + 4)}." in told
    told = one.why(worker(), job=job, key_max_active=2, key_rate=2.5)
    assert "Its queue 'mail' runs at most 2 jobs of each limit key at once" in told
    assert "as many of 'customer-1' run now." in told
    told = one.why(worker(), job=job, key_rate=2.5)
    assert "'customer-1' comes with the next claim." in told


def test_the_next_token_is_asked_of_the_store(tmp_path: Path) -> None:
    """Only for a job that waits for its limit key."""
    with closing(SqliteJobStore(tmp_path / "jobs.db")) as store:
        client = JobClient(store=store)
        store.set_queue("mail", key_rate=0.001)
        ids = [client.enqueue("send", queue="mail", limit_key="k").id for _ in range(2)]
        assert token_of(client.find(ids[1]), store) is None
        asked = ClaimRequest(worker="w", lease=60.0, slots={"": 9})
        assert len(store.settle_and_claim([], asked)[1].jobs) == 1
        assert token_of(client.find(ids[0]), store) is None
        assert token_of(client.find(ids[1]), store) == store.key_wakes_at("mail", "k")
        assert store.key_wakes_at("mail", "k") is not None


def test_no_worker_is_alive(one: OneJob) -> None:
    """One that has been silent for long counts as gone."""
    one.add()
    for workers in ((), (worker(seen_at=Clock.now - 61),)):
        assert "No worker is alive. This starts one:  ergon worker" in one.why(*workers)


def test_a_handler_that_no_worker_has(one: OneJob) -> None:
    """Who looked, how long it waits, and what to do; nothing of that where a worker has it."""
    one.add()
    job = msgspec.structs.replace(one.job(), executor="#resize")
    two = [worker(id=name) for name in ("w1", "w2")]
    told = one.why(*two, job=job)
    assert "No worker has said that it has the handler 'resize'." in told
    assert "Those that have its executor looked: w1, w2." in told
    assert "dead-lettered (handler_not_found) when none had for 24.0 hours" in told
    assert "Nothing holds it" not in told
    served = msgspec.structs.replace(two[0], serves=("#resize",))
    assert "Nothing holds it" in one.why(served, two[1], job=job)


def test_no_worker_runs_what_a_script_declares(one: OneJob) -> None:
    """Whatever the file of its store is called, no worker of the settings knows its handlers."""
    one.id = one.client.enqueue("thumbs#shrink", id="a")
    options = " --store sqlite:///options.db"

    def told(starters: Starters) -> str:
        job = one.job()
        return "\n".join(explain_job(job, None, (), one.clock.now, SETTINGS, options, starters))

    unknown = "Run the script that declares it, 'thumbs', or a worker with [executors.thumbs]."
    assert unknown in told(Starters())
    assert "ergon worker" not in told(Starters(executors=["python"]))
    script = Path("/srv/my work/thumbs.py")
    assert "its script:  ergon run '/srv/my work/thumbs.py'" in told(Starters(script=script))
    known = Starters(executors=["thumbs"], script=script)
    assert f"This starts one:  ergon worker{options}" in told(known)
    one.id = one.client.enqueue("shrink", id="b")
    assert f"This starts one:  ergon worker{options}" in told(Starters())
    assert "No executor is defined that could run it: add [executors.NAME]" in told(Starters([]))


def test_no_worker_takes_the_queue(one: OneJob) -> None:
    """Workers may be told which queues to take."""
    one.add(queue="mail")
    assert "No living worker takes the queue 'mail'." in one.why(worker(queues=("other",)))


def test_no_worker_has_the_executor(one: OneJob) -> None:
    """The job's own, or that of its queue, or the default."""
    one.id = one.client.enqueue("js#h", id="a")
    told = one.why(worker())
    assert "has the executor 'js'." in told
    assert "is dead-lettered (unknown_executor) when none had for 24.0 hours" in told
    assert "start a worker with [executors.js], or the script of this name." in told


def test_an_executor_that_does_not_start(one: OneJob) -> None:
    """The breaker is open until a known time."""
    one.add()
    broken = {"slots": 0, "opens_at": Clock.now + 30, "failed_starts": 4, "reason": "exit code 1"}
    pool = {**POOL, **broken}
    told = one.why(worker(executors={"python": pool}))
    assert "does not start (exit code 1; 4 times so far)" in told
    assert "tried again at 2030-03-17T17:47:10Z. No attempt is charged meanwhile." in told
    assert "does not start" not in one.why(worker(), worker(executors={"python": pool}))


def test_all_slots_are_taken(one: OneJob) -> None:
    """By how many jobs."""
    one.add()
    busy = worker(executors={"python": {**POOL, "slots": 0, "in_flight": 2}, "js": POOL})
    assert "All slots of its executor are taken: 2 jobs in flight." in one.why(busy)


def test_an_executor_is_starting(one: OneJob) -> None:
    """No slot, and nothing in flight: nobody has taken anything."""
    one.add()
    pool = {**POOL, "slots": 0, "in_flight": 0}
    assert "Its executor is starting." in one.why(worker(executors={"python": pool}))


def test_a_job_that_names_no_executor_is_anybodys(one: OneJob) -> None:
    """Without a default in these settings, the worker's single executor runs it."""
    one.add()
    told = explain_job(one.job(), None, [worker()], Clock.now, JobsSettings())
    assert any("Nothing holds it" in each for each in told)


def test_a_held_job(one: OneJob) -> None:
    """A gate said when to look again; no attempt was charged."""
    one.add()
    one.hand.run(HeldBack(Failure(Kind.HELD, "held", "the quota is used up.", 60.0)))
    told = one.why(worker())
    assert "It is held (held: the quota is used up); it is looked at again" in told
    assert "in 60.0 seconds. No attempt was charged." in told
    assert "1 delivery did not count, being nobody's fault." in told


def test_a_job_that_waits_for_its_next_attempt(one: OneJob) -> None:
    """Which attempt failed, why, and when the next one is due."""
    one.add()
    one.hand.run(BROKEN)
    told = one.why(worker())
    assert "Attempt 1 of 2 failed (ValueError: no such picture); the next one is due" in told
    assert "2030-03-17T17:46:40Z: attempt 1 failed: ValueError: no such picture; due again" in told


def test_a_job_that_is_run_alone_after_a_death(one: OneJob) -> None:
    """Nobody knows which of several jobs killed the process."""
    one.add()
    one.hand.run(ProcessDied(was_alone=False))
    told = one.why(worker())
    assert "it is run alone" in told
    assert "It may have run more than once: 1 delivery ended without an outcome" not in told
    one.hand.run(Succeeded())
    told = one.why()
    assert "It completed at 2030-03-17T17:46:40Z, after 1 attempt." in told
    assert "It may have run more than once: 1 delivery ended without an outcome" in told


def test_a_job_whose_request_was_not_read_in_its_time(one: OneJob) -> None:
    """No attempt was charged, and none was made: nothing may have run twice."""
    one.add(max_deliveries=2)
    one.hand.run(Unread(3.0))
    told = one.why(worker())
    assert "it was given back without a charge: request_unread: the executor was busy" in told
    assert "had not read the request" in told
    one.hand.run(Unread(3.0))
    told = one.why(worker())
    assert "it was delivered as often as it may be" in told
    assert "it was given up without a charge: request_unread" in told
    assert "may have run more than once" not in told


# ---- running and ended ----


def test_a_running_job(one: OneJob) -> None:
    """Who holds it, and since when."""
    one.add()
    one.hand.claim()
    one.clock.now += 4
    assert one.why() == "It runs: the worker 'w' has held it for 4.0 seconds."


def test_a_job_whose_worker_is_silent(one: OneJob) -> None:
    """Its lease is over, and somebody must take it over."""
    one.add()
    one.hand.claim()
    one.clock.now += 15
    told = one.why(worker(seen_at=one.clock.now))
    assert "lease ended 5.0 seconds ago; the next worker to look takes the job over." in told
    assert "No worker is alive" not in told
    assert "No worker is alive to do so" in one.why()


@pytest.mark.req("JOBS:operator", "X11")
def test_a_job_that_was_rescued_tells_whose_it_was(one: OneJob) -> None:
    """It may have run twice."""
    one.add()
    one.hand.claim()
    one.clock.now += 15
    settler = Settler(SETTINGS, "rescuer")
    (late,) = one.store.expired_leases(10)
    one.store.settle_and_claim([settler.settle_stored(late, LeaseExpired(), one.clock.now)], None)
    told = one.why(worker(seen_at=one.clock.now))
    assert "delivery 1 was lost: lease_expired" in told
    assert "(held by the worker 'w')" in told


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (Failure(Kind.REJECTED, "handler_not_found"), "of a kind that is not tried again"),
        (Failure(Kind.DEFECT, "ValueError"), "all its attempts are spent"),
    ],
)
def test_a_dead_job(one: OneJob, failure: Failure, reason: str) -> None:
    """Why it died, its last failure, and how to send it back."""
    one.add(max_attempts=1)
    one.hand.run(Failed(failure))
    told = one.why()
    assert "It is dead-lettered since 2030-03-17T17:46:40Z, because" in told
    assert reason in told
    assert f"Its last failure was {failure.code}." in told
    assert "This sends it back with fresh counters:  ergon dlq requeue a" in told


def test_a_discarded_job(one: OneJob) -> None:
    """It is over without a result, in the handler's own words; an earlier failure is past."""
    one.add()
    one.hand.run(BROKEN)
    one.clock.now += 3600
    one.hand.run(Discarded("the order was cancelled"))
    told = one.why()
    assert told.startswith("Its handler discarded it at 2030-")
    assert "done, without a result, after 2 attempts." in told
    assert "its handler discarded it: the order was cancelled." in told
    assert one.client.result(one.id, timeout=0) is None


def test_a_job_that_no_executor_takes(one: OneJob) -> None:
    """It was refused before anything was attempted."""
    one.add()
    one.hand.run(Failed(Failure(Kind.REJECTED, "unknown_executor", "no 'x'"), is_written=False))
    assert "it was refused without an attempt: unknown_executor: no 'x'." in one.why()


def test_a_job_that_died_of_its_deliveries(one: OneJob) -> None:
    """A poison job."""
    one.add(max_deliveries=1)
    one.hand.run(ProcessDied(was_alone=False))
    assert "it was delivered as often as it may be without coming to an end" in one.why()


def test_a_job_that_expired(one: OneJob) -> None:
    """Nobody started it in time."""
    one.add(expires_in=1)
    one.clock.now += 5
    one.store.prune(100)
    told = one.why()
    assert "because it was not started before its expiry." in told
    assert "Its last failure" not in told


def test_a_cancelled_job(one: OneJob) -> None:
    """By somebody, or for a newer one."""
    one.add(unique="k")
    first = one.id
    newer = one.client.enqueue("h", unique="k", on_duplicate="replace")
    one.id = first
    assert "because a newer job with the unique key 'k' took its place." in one.why()
    one.client.cancel(newer)
    one.id = newer
    assert one.why().startswith("It was cancelled at 2030-03-17T17:46:40Z.\n")


def test_a_job_that_is_cancelled_while_it_runs(one: OneJob) -> None:
    """Who asked and why, while it runs and afterwards."""
    one.add()
    claimed = one.hand.claim()
    one.client.cancel("a", running=True, by="ann", reason="the wrong file")
    told = one.why(worker())
    assert "It runs: the worker 'w' has held it" in told
    at = format_rfc3339(one.clock.now)
    assert f"ann asked for its cancellation at {at}, because: the wrong file; its worker" in told
    one.hand.settle(claimed, BROKEN)
    told = one.why()
    assert f"It was cancelled at {at} while it ran." in told
    assert f"{at}: it was cancelled by ann: the wrong file." in told


def test_a_job_that_was_sent_back_and_hurried(one: OneJob) -> None:
    """People's deeds are in the history too."""
    one.add(max_attempts=1)
    one.hand.run(BROKEN)
    one.client.requeue("a")
    one.client.retry("a")
    told = one.why(worker())
    assert "somebody sent it back with fresh counters." in told
    assert "somebody asked for it to run at once." in told


def test_a_long_history_is_cut(one: OneJob) -> None:
    """The rest is one command away; entries of unknown shape do no harm."""
    one.add()
    many = (b'{"event":"odd"}', b"[]", b"{}") * 5
    told = one.why(worker(), job=msgspec.structs.replace(one.job(), history=many))
    assert "5 older events are left out. This shows them:  ergon jobs show a" in told
    assert "At an unknown time: odd." in told


def test_long_and_torn_messages_become_one_short_line(one: OneJob) -> None:
    """A traceback in a message must not break the page."""
    one.add(max_attempts=1)
    one.hand.run(Failed(Failure(Kind.DEFECT, "E", "line one\nline two " + "x" * 500)))
    assert all(len(line) < 300 for line in one.why().splitlines())
    assert "line one line two" in one.why()


@pytest.mark.parametrize(
    ("seconds", "told"), [(3, "3.0 seconds"), (240, "4.0 minutes"), (200_000, "2.3 days")]
)
def test_durations_have_readable_units(one: OneJob, seconds: float, told: str) -> None:
    """The largest unit that fits twice."""
    one.add(delay=seconds)
    assert f"in {told}." in one.why()


# ---- unique keys ----


def test_a_key_that_is_held_until_the_end(one: OneJob) -> None:
    """The plain one."""
    one.add(unique="nightly")
    assert "It holds the unique key 'nightly' until it ends." in one.why()


def test_a_key_that_is_held_for_a_period(one: OneJob) -> None:
    """Also after the end of the job, with the instant at which it is free."""
    one.add(unique=Unique(key="k", period=60))
    until = format_rfc3339(one.clock.now + 60)
    told = one.why()
    assert f"It holds the unique key 'k' until it ends, and if completed, until {until}." in told
    one.hand.run(Succeeded())
    told = one.why()
    assert f"It holds the unique key 'k' until {until}: no other job with it is added" in told
    one.clock.now += 61
    assert "unique key" not in one.why()


def test_a_key_that_is_held_while_waiting(one: OneJob) -> None:
    """And no more once it runs."""
    one.add(unique=Unique(key="k", states="pending"))
    assert "It holds the unique key 'k' until it begins to run." in one.why()
    one.hand.claim()
    assert "It held the unique key 'k' while it waited" in one.why()
