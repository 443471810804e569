"""Jobs that are run in the thread of the caller, and a whole program in virtual time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ergon_framework import INJECTED, App
from ergon_framework.app.inline_worker import InlineWorker, drain
from ergon_framework.app.jobs import JobSetup
from ergon_framework.core.claim import ClaimRequest
from ergon_framework.engine.clocks import SYSTEM_CLOCK, sleep_until
from ergon_framework.errors import (
    HookError,
    JobError,
    JobFailedError,
    ResultTimeoutError,
    StoreError,
    WiringError,
)
from ergon_framework.executor import Held, JobContext, Registry, RetryLater, current_job
from ergon_framework.jobs import JobClient
from ergon_framework.jobs.scheduler import ScheduleSettings
from ergon_framework.jobs.settings import JobsSettings
from ergon_framework.jobs.stores.memory import MemoryJobStore
from ergon_framework.ports.jobstore import LeaseRenewal, Search, WorkerRecord
from ergon_framework.ports.notice import Notice
from ergon_framework.providers.execution import ProviderExecutionContext
from ergon_framework.providers.retry import RetryPolicy
from ergon_framework.providers.synthetic import SyntheticProvider
from ergon_framework.telemetry.notices import add_listener, remove_listener
from ergon_framework.testing import Sandbox, VirtualClock
from tests import waiting

EVEN = {"backoff": {"base": 10.0, "multiplier": 1.0, "jitter": 0.0}}


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    """An App whose jobs are in a file."""
    with App(f"sqlite:///{tmp_path}/work.db", name="shop") as made:
        yield made


# ---- drain ---


def test_due_jobs_run_in_this_thread(app: App) -> None:
    """Those included that a handler enqueues; the results are in the store."""
    threads = []

    @app.job
    def double(number: int) -> int:
        threads.append(threading.current_thread())
        return 2 * number

    @app.job
    def begin(number: int) -> str:
        return double.enqueue(number)

    first = begin.enqueue(4)
    later = double.options(delay=60).enqueue(1)
    report = drain(app)
    assert (report.completed, report.stop_reason) == (2, "drained")
    assert app.client.result(first.result(0), 0) == 8
    assert later.status() == "pending"
    assert threads == [threading.current_thread()]
    assert app.client.show(first)["correlation_id"] is None
    assert app.client.show(first.result(0))["correlation_id"] == first


def test_a_drain_tells_as_much_of_a_failed_job_as_a_worker(app: App) -> None:
    """Error trackers tell failures apart by the handler, and show where it failed."""
    heard: list[Notice] = []
    listener = heard.append

    @app.job(attempts=1, queue="slow")
    def fail() -> None:
        raise LookupError("no such order")

    fail.enqueue()
    add_listener(listener)
    try:
        app.drain()
    finally:
        remove_listener(listener)
    [told] = [each for each in heard if each.name == "job.dead_lettered"]
    assert (told["handler"], told["queue"], told["attempt"]) == ("shop#fail", "slow", 1)
    assert 'raise LookupError("no such order")' in told["traceback"]


def test_async_handlers_and_hooks_share_one_event_loop(app: App) -> None:
    """What a start-up hook has opened on its loop works in the handlers."""
    seen: list[object] = []

    @app.on_startup
    async def opened() -> None:
        seen.append(asyncio.get_running_loop())

    @app.on_shutdown
    async def closed() -> None:
        seen.append(asyncio.get_running_loop())

    @app.job
    async def ask(context: JobContext) -> str:
        seen.append(asyncio.get_running_loop())
        job = current_job()
        assert job is not None
        assert job.job_id == context.job_id
        return "done"

    @app.job
    def plain() -> object:
        return ask(JobContext(job_id=getattr(current_job(), "job_id", "")))

    jobs = [ask.enqueue(), plain.enqueue()]  # type: ignore[call-arg]
    assert drain(app).completed == 2
    assert [job.result(0) for job in jobs] == ["done", "done"]
    assert len(seen) == 4
    assert len(set(map(id, seen))) == 1


def test_failures_are_recorded_as_a_worker_records_them(app: App) -> None:
    """With history and traceback; a final one raises if that is asked for."""

    @app.job(max_attempts=1)
    def broken() -> None:
        raise ValueError("no such picture")

    job = broken.enqueue()
    assert drain(app).failed == 1
    (entry,) = app.client.show(job)["history"]
    assert (entry["code"], entry["attempt"]) == ("ValueError", 1)
    assert "broken" in entry["traceback"]
    broken.enqueue()
    with pytest.raises(JobFailedError, match="no such picture"):
        drain(app, raises=True)


def test_wrong_arguments_and_unknown_handlers_fail_for_good(app: App) -> None:
    """As they do in an executor."""

    @app.job
    def double(number: int) -> int:
        return 2 * number

    odd = app.client.enqueue("shop#double", ["four"])
    gone = app.client.enqueue("shop#triple", [4])
    elsewhere = app.client.enqueue("other#double", [4])
    assert drain(app).failed == 2
    assert app.client.show(odd)["last_error"]["code"] == "invalid_arguments"
    assert app.client.show(gone)["last_error"]["code"] == "handler_not_found"
    assert elsewhere.status() == "pending"


def test_a_handler_that_enqueues_itself_ends_the_drain(app: App) -> None:
    """And what was claimed last goes back uncharged."""

    @app.job
    def again() -> None:
        again.enqueue()

    again.enqueue()
    with pytest.raises(JobError, match="enqueues itself"):
        drain(app, max_jobs=5)
    assert app.client.store.queues()[0].counts["completed"] == 5
    assert app.client.store.queues()[0].counts["pending"] == 1


def test_ctrl_c_gives_the_job_back(app: App) -> None:
    """The test run ends, and the job was never attempted."""

    @app.job
    def interrupted() -> None:
        raise KeyboardInterrupt

    job = interrupted.enqueue()
    with pytest.raises(KeyboardInterrupt):
        drain(app)
    assert (job.status(), app.client.show(job)["attempts"]) == ("pending", 0)


def test_a_drain_does_not_block_an_event_loop(app: App) -> None:
    """It says what to call instead, and that works."""

    @app.job
    async def answer() -> int:
        return 42

    async def main() -> int:
        job = answer.enqueue()
        with pytest.raises(WiringError, match=r"to_thread\(app\.drain\)"):
            drain(app)
        await asyncio.to_thread(drain, app)
        found: int = job.result(0)
        return found

    assert asyncio.run(main()) == 42


def test_a_start_up_hook_that_fails_is_named() -> None:
    """No job is charged for it."""
    registry, store = Registry(), MemoryJobStore()
    registry.add(lambda: None, "nothing")

    @registry.on_startup
    def connect() -> None:
        raise OSError("no route")

    client = JobClient(store=store)
    job = client.enqueue("nothing")
    with (
        pytest.raises(HookError, match="'connect' failed: OSError"),
        InlineWorker(store, registry) as worker,
    ):
        worker.drain()
    assert client.show(job)["attempts"] == 0


def test_a_lifespan_that_fails_gives_the_job_back(app: App) -> None:
    """The error comes to the caller; the next drain runs the job, which no failure was charged."""
    is_down = True

    @app.lifespan
    def database() -> Iterator[Path]:
        if is_down:
            raise ConnectionError("the database is down")
        yield Path("work")

    @app.job(max_attempts=1)
    def pay(database: Path = INJECTED) -> str:
        return str(database)

    job = pay.enqueue()
    for _ in range(2):
        with pytest.raises(HookError, match="'database' failed before its yield"):
            drain(app)
        shown = app.client.show(job)
        assert (shown["status"], shown["attempts"]) == ("pending", 0)
    is_down = False
    assert drain(app).completed == 1
    assert job.result(0) == "work"


def test_a_handler_that_outlasts_its_lease_keeps_its_job() -> None:
    """The lease is renewed while it runs: another drain finds nothing, and the job runs once."""
    registry, store, runs = Registry(), MemoryJobStore(), []
    setup = JobSetup("memory://", jobs=JobsSettings(lease=1.0))

    def slow() -> int:
        runs.append(threading.current_thread())
        sleep_until(SYSTEM_CLOCK, SYSTEM_CLOCK.now() + 1.3)
        with InlineWorker(store, registry, setup=setup) as other:
            report = other.drain()
        return report.rescued + report.completed

    registry.add(slow, "slow")
    client = JobClient(store=store)
    job = client.enqueue("slow")
    before = set(threading.enumerate())
    with InlineWorker(store, registry, setup=setup) as worker:
        report = worker.drain()
        assert set(threading.enumerate()) == before  # who renewed ends with the drain
    assert (report.completed, report.late, len(runs)) == (1, 0, 1)
    assert client.result(job, 0) == 0


def test_a_drain_leaves_queues_that_are_pinned_to_another_version() -> None:
    """It says which version of the program it runs, as a worker does."""
    registry, store = Registry(), MemoryJobStore()
    registry.add(lambda: "done", "work")
    client = JobClient(store=store)
    job = client.enqueue("work", queue="mail")
    store.set_queue("mail", pinned_version="2")
    for version, completed in (("", 0), ("1", 0), ("2", 1)):
        setup = JobSetup("memory://", jobs=JobsSettings(version=version))
        with InlineWorker(store, registry, setup=setup) as worker:
            assert worker.drain().completed == completed
    assert client.result(job, 0) == "done"


def test_a_store_that_is_away_while_a_handler_runs_is_asked_again() -> None:
    """One renewal that fails costs nothing: the next comes long before the lease ends."""
    registry, store = Registry(), FlakyStore()
    setup = JobSetup("memory://", jobs=JobsSettings(lease=1.0))

    def slow() -> int:
        sleep_until(SYSTEM_CLOCK, SYSTEM_CLOCK.now() + 1.3)
        return len(store.expired_leases(1))

    registry.add(slow, "slow")
    client = JobClient(store=store)
    job = client.enqueue("slow")
    with InlineWorker(store, registry, setup=setup) as worker:
        assert worker.drain().completed == 1
    assert (client.result(job, 0), store.failures) == (0, 2)


class FlakyStore(MemoryJobStore):
    """Does not answer the first two renewals."""

    failures = 0

    def renew(self, renewals: Sequence[LeaseRenewal], lease: float) -> list[bool]:
        """As usual from the third time on."""
        if self.failures < 2:
            self.failures += 1
            raise StoreError("away")
        return super().renew(renewals, lease)


def test_an_attempt_that_takes_a_while_is_charged_before_it_ends() -> None:
    """So that a handler which kills its process spends attempts, and not only deliveries."""
    registry, store = Registry(), MemoryJobStore()
    client = JobClient(store=store)

    def slow() -> int:
        until = SYSTEM_CLOCK.now() + 5
        while not client.show(job)["attempts"] and SYSTEM_CLOCK.now() < until:
            sleep_until(SYSTEM_CLOCK, SYSTEM_CLOCK.now() + 0.02)
        return int(client.show(job)["attempts"])

    registry.add(slow, "slow")
    job = client.enqueue("slow")
    with InlineWorker(store, registry) as worker:
        worker.drain()
    assert (client.result(job, 0), client.show(job)["attempts"]) == (1, 1)


def test_others_see_how_far_a_drained_job_is() -> None:
    """As the jobs of a worker; the record that tells it is gone with the drain."""
    registry, store = Registry(), CountingStore()
    client = JobClient(store=store)
    seen: list[Any] = []

    def counts(job: JobContext) -> None:
        for number in range(1_001):
            job.progress(number / 2_000, f"page {number}, token=hunter2hunter2hunter2")

        def is_seen() -> bool:
            return dict(client.show(job.job_id).get("progress") or {}).get("fraction") == 0.5

        waiting.until(is_seen, "the last report")
        seen.append(client.show(job.job_id)["progress"])
        seen.append(store.heartbeats)

    registry.add(counts, "counts")
    jobs = client.enqueue_many(["counts", "counts"])
    with InlineWorker(store, registry) as worker:
        report = worker.drain()
    assert report.completed == 2
    first, written, *_ = seen
    assert first.keys() == {"fraction", "message", "at"}
    assert first["message"].startswith("page 1000")
    assert "hunter2" not in str(seen)
    assert written <= 3  # of a thousand reports
    assert "progress" not in client.show(jobs[0])
    assert store.workers() == []


class CountingStore(MemoryJobStore):
    """Counts how often somebody told of itself."""

    heartbeats = 0

    def heartbeat(self, record: WorkerRecord) -> None:
        """As usual."""
        self.heartbeats += 1
        super().heartbeat(record)


def test_a_drain_without_reports_writes_no_record() -> None:
    """Nothing is written for handlers that say nothing, and no worker appears."""
    registry, store = Registry(), CountingStore()
    registry.add(lambda: None, "quiet")
    client = JobClient(store=store)
    client.enqueue("quiet")
    with InlineWorker(store, registry) as worker:
        worker.drain()
        before = store.heartbeats  # what it leaves for the metrics
        client.enqueue("quiet")
        worker.drain()
    assert (store.heartbeats, store.workers()) == (2 * before, [])


def test_a_report_that_cannot_be_written_does_not_concern_the_handler(ergon: Sandbox) -> None:
    """Nor does one that comes when its job has ended."""
    app = ergon.use(App(name="shop"))
    kept: list[JobContext] = []

    @app.job
    def reports(job: JobContext = INJECTED) -> int:
        kept.append(job)
        job.progress(0.5, "half")
        return 1

    store: Any = app.client.store
    heartbeat = store.heartbeat

    def away(record: WorkerRecord) -> None:
        if record.progress:
            raise StoreError("away")
        heartbeat(record)

    store.heartbeat = away
    job = reports.enqueue()
    assert ergon.drain().completed == 1
    store.heartbeat = heartbeat
    kept[0].progress(0.9)
    assert job.result(0) == 1
    assert app.client.store.workers() == []


@pytest.mark.parametrize("is_async", [False, True])
def test_a_batch_handler_gets_many_jobs_in_one_call(app: App, is_async: bool) -> None:
    """As in a worker: up to ``batch`` of them, one outcome each, and other handlers in between."""
    calls: list[list[str]] = []

    def body(mails: list[str]) -> list[Any]:
        calls.append(mails)
        return [ValueError("no such box") if each == "m1" else each.upper() for each in mails]

    async def body_async(mails: list[str]) -> list[Any]:
        return body(mails)

    send = app.job("send", batch=3, attempts=1)(body_async if is_async else body)
    note = app.job("note")(lambda: calls.append(["note"]))
    jobs = [send.enqueue("m0"), send.enqueue("m1")]
    note.enqueue()
    jobs += [send.enqueue(f"m{number}") for number in range(2, 5)]
    report = app.drain()
    assert sorted(len(each) for each in calls) == [1, 2, 3]
    assert calls[0][:2] == ["m0", "m1"]
    assert (report.completed, report.failed) == (5, 1)
    assert [job.status() for job in jobs] == ["completed", "failed", *["completed"] * 3]
    assert jobs[4].result(0) == "M4"
    assert app.client.show(jobs[1])["last_error"]["code"] == "ValueError"


def test_the_jobs_of_a_batch_are_given_back_together(app: App) -> None:
    """Ctrl-C in the call charges none of them; what was run before keeps its outcome."""

    @app.job(batch=3, attempts=1)
    def send(mails: list[str]) -> None:
        if "late" in mails:
            raise KeyboardInterrupt

    @app.job(attempts=1)
    def note() -> None: ...

    early = note.enqueue()
    late = [send.enqueue("late"), send.enqueue("m1"), note.enqueue()]
    with pytest.raises(KeyboardInterrupt):
        app.drain()
    assert early.status() == "completed"
    shown = [app.client.show(each) for each in late]
    assert [(each["status"], each["attempts"]) for each in shown] == [("pending", 0)] * 3


def test_a_drain_runs_no_more_jobs_than_it_may(app: App) -> None:
    """Those of a batch count each; the others are as they were."""
    calls: list[int] = []

    @app.job(batch=10)
    def send(mails: list[str]) -> None:
        calls.append(len(mails))

    jobs = [send.enqueue(f"m{number}") for number in range(5)]
    with pytest.raises(JobError, match="4 jobs were run and more are due"):
        app.drain(max_jobs=4)
    assert calls == [4]
    assert [app.client.show(each)["attempts"] for each in jobs] == [1, 1, 1, 1, 0]


def test_a_batch_that_outlasts_its_leases_keeps_its_jobs() -> None:
    """All of them are renewed, and the next in line as well: another drain finds nothing."""
    registry, store, calls = Registry(), MemoryJobStore(), []
    setup = JobSetup("memory://", jobs=JobsSettings(lease=1.0))

    def slow(mails: list[str]) -> None:
        sleep_until(SYSTEM_CLOCK, SYSTEM_CLOCK.now() + 1.3)
        with InlineWorker(store, registry, setup=setup) as other:
            report = other.drain()
        calls.append((len(mails), report.rescued + report.completed))

    registry.add(slow, "slow", batch=3)
    registry.add(lambda: None, "note")
    client = JobClient(store=store)
    client.enqueue("slow", ["a"])
    client.enqueue("note")
    client.enqueue("slow", ["b"])
    with InlineWorker(store, registry, setup=setup) as worker:
        report = worker.drain()
    assert calls == [(2, 0)]
    assert (report.completed, report.late) == (3, 0)


# ---- virtual time ---


def test_retries_run_at_their_instants(ergon: Sandbox) -> None:
    """An hour of backoff takes a moment, and no file is touched."""
    app = ergon.use(App(name="shop"))
    at: list[float] = []

    @app.job(max_attempts=4, retry=EVEN)
    def flaky() -> str:
        at.append(ergon.clock.now())
        if len(at) < 4:
            raise ConnectionError("away")
        return "done"

    job = flaky.enqueue()
    assert ergon.drain().retried == 1
    assert ergon.advance(3600).completed == 1
    assert at == [0.0, 10.0, 20.0, 30.0]
    assert (job.result(0), ergon.clock.now()) == ("done", 3600.0)
    assert not Path(__file__).with_name("ergon.db").exists()


def test_held_and_late_jobs_come_again(ergon: Sandbox) -> None:
    """Each at the instant for which it asked."""
    app = ergon.use(App(name="shop"))
    at: list[float] = []

    @app.job
    def polite() -> None:
        at.append(ergon.clock.now())
        if len(at) == 1:
            raise Held("used up", delay=30)
        if len(at) == 2:
            raise RetryLater("not yet", delay=7)

    polite.enqueue()
    report = ergon.advance(100)
    assert at == [0.0, 30.0, 37.0]
    assert (report.held, report.retried, report.completed) == (1, 1, 1)


def test_a_job_of_a_drain_that_was_killed_runs_in_the_next(ergon: Sandbox) -> None:
    """Once its lease has expired, and not before: until then its holder may be alive."""
    app = ergon.use(App(name="shop"))

    @app.job
    def pay() -> str:
        return "paid"

    job = pay.enqueue()
    store = app.client.store
    claimed = ClaimRequest(worker="killed", lease=12.0, slots={"shop": 1}, default="shop")
    assert len(store.settle_and_claim([], claimed)[1].jobs) == 1
    ergon.clock.advance(11)
    assert app.drain().completed == 0
    ergon.clock.advance(2)
    report = app.drain()
    assert (report.rescued, report.completed, job.result(0)) == (1, 1, "paid")
    lost, _ = app.client.show(job)["history"]
    assert (lost["code"], lost["lost_by"]) == ("lease_expired", "killed")


def test_a_rescued_job_whose_deliveries_are_spent_is_dead_lettered(ergon: Sandbox) -> None:
    """A job that kills whatever runs it is not run for ever."""
    app = ergon.use(App(name="shop"))
    calls: list[float] = []

    @app.job
    def poison() -> None:
        calls.append(ergon.clock.now())

    job = poison.options(max_deliveries=1).enqueue()
    claimed = ClaimRequest(worker="killed", lease=12.0, slots={"shop": 1}, default="shop")
    app.client.store.settle_and_claim([], claimed)
    ergon.clock.advance(13)
    assert ergon.drain().rescued == 1
    assert (job.status(), calls) == ("failed", [])


def test_a_report_that_comes_too_late_is_not_counted_as_completed() -> None:
    """Somebody else had rescued the job and ended it: that result stands."""
    with VirtualClock() as clock:
        registry, store, heard = Registry(), MemoryJobStore(clock.now), []
        client = JobClient(store=store)

        def slow() -> str:
            if clock.now() > 0:
                return "second"
            clock.sleep(20)
            with InlineWorker(store, registry) as other:
                report = other.drain()
            assert (report.rescued, report.completed) == (1, 1)
            return "first"

        registry.add(slow, "slow")
        job = client.enqueue("slow")
        with ExitStack() as stack:
            add_listener(listener := lambda notice: heard.append(notice.name))
            stack.callback(remove_listener, listener)
            report = stack.enter_context(InlineWorker(store, registry)).drain()
        assert (report.completed, report.late) == (0, 1)
        assert client.result(job, 0) == "second"
        assert heard == ["job.rescued", "job.completed", "job.late"]


def test_schedules_fire_at_each_of_their_instants() -> None:
    """A day of a schedule is a loop over its fires."""
    with VirtualClock() as clock:
        store, registry, seen = MemoryJobStore(clock.now), Registry(), []
        registry.add(lambda: seen.append(clock.now()), "sweep")
        schedule = ScheduleSettings.model_validate({"cron": "0 */6 * * *", "handler": "sweep"})
        setup = JobSetup("memory://", schedules={"sweep": schedule})
        with InlineWorker(store, registry, setup=setup) as worker:
            worker.drain()
            for _ in range(4):
                assert worker.next_at is not None
                clock.advance(worker.next_at - clock.now())
                worker.drain()
        assert seen == [6 * 3600.0, 12 * 3600.0, 18 * 3600.0, 24 * 3600.0]


def test_declared_schedules_fire_as_time_passes(ergon: Sandbox) -> None:
    """Those of ``@app.schedule``, in their time zone."""
    app, seen = ergon.use(App(name="shop")), []

    @app.schedule("0 8 * * *", timezone="Europe/Berlin")
    def sweep() -> None:
        seen.append(ergon.clock.now() / 3600)

    ergon.advance(48 * 3600)
    assert seen == [7.0, 31.0]


def test_time_limits_hold_in_virtual_time(ergon: Sandbox) -> None:
    """A plain handler is told when it returns, an async one is cancelled at its deadline."""
    app = ergon.use(App(name="shop"))
    cancelled: list[float] = []

    @app.job(timeout=30, max_attempts=1)
    def slow() -> None:
        ergon.clock.sleep(31)

    @app.job(timeout=30, max_attempts=1)
    async def hung() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            cancelled.append(ergon.clock.now())

    jobs = [slow.enqueue(), hung.enqueue()]
    assert ergon.drain().failed == 2
    assert [app.client.show(job)["last_error"]["code"] for job in jobs] == ["timeout"] * 2
    assert cancelled == [31 + 30.0]


def test_heartbeat_limits_hold_for_async_handlers_in_virtual_time(ergon: Sandbox) -> None:
    """One that falls silent is cancelled; a plain one that has returned does not hang any more."""
    app = ergon.use(App(name="shop"))
    shown: list[Any] = []

    @app.job(heartbeat=10, max_attempts=1)
    async def falls_silent(job: JobContext = INJECTED) -> None:
        for _ in range(3):
            await asyncio.sleep(8)
            job.progress(0.1)
            shown.append(app.client.show(job.job_id)["progress"]["fraction"])
        await asyncio.sleep(100)

    @app.job(heartbeat=10, max_attempts=1)
    async def ends_well(job: JobContext = INJECTED) -> str:
        try:
            await asyncio.sleep(11)
        except asyncio.CancelledError:
            assert job.is_cancelled
        return "after all"

    @app.job(heartbeat=10, max_attempts=1)
    def slow() -> str:
        ergon.clock.sleep(11)
        return "in the end"

    silent, well, plain = falls_silent.enqueue(), ends_well.enqueue(), slow.enqueue()
    began = ergon.clock.now()
    ergon.drain()
    assert shown == [0.1] * 3
    error = app.client.show(silent)["last_error"]
    assert (error["kind"], error["code"]) == ("timeout", "heartbeat_timeout")
    assert error["message"] == "reported nothing for 10 s and was ended"
    assert (well.result(0), plain.result(0)) == ("after all", "in the end")
    assert ergon.clock.now() - began == pytest.approx(3 * 8 + 10 + 10 + 11)


def test_provider_calls_of_a_handler_follow_the_same_clock() -> None:
    """Their waits pass on it, and the job's deadline bounds them on it, at any time of the day."""
    with Sandbox(clock := VirtualClock(start=2e9)) as ergon, clock:
        app = ergon.use(App(name="shop"))
        policy = RetryPolicy(max_attempts=3, base_delay_seconds=2, jitter_ratio=0)
        rates = SyntheticProvider("timeout timeout ok", retry_policy=policy)

        @app.job(max_attempts=1, timeout=60)
        def price() -> bool:
            result = rates.execute(
                tenant_id="acme",
                campaign_id=None,
                operation="eur_usd",
                payload={},
                context=ProviderExecutionContext(),
            )
            return result.success

        job = price.enqueue()
        ergon.drain()
        assert job.result(0) is True
        assert clock.now() == 2e9 + 2 + 4


def test_two_apps_work_for_each_other_in_one_sandbox(ergon: Sandbox, tmp_path: Path) -> None:
    """A drain ends when neither has anything due."""
    url = f"sqlite:///{tmp_path}/work.db"
    shop, stock = ergon.use(App(url, name="shop")), ergon.use(App(url, name="stock"))

    @stock.job
    def take() -> str:
        return note.enqueue()

    @shop.job
    def note() -> None: ...

    job = take.enqueue()
    assert ergon.drain().completed == 2
    assert shop.client.status(job.result(0)) == "completed"
    assert JobClient(url).status(job) == "completed"  # whoever opens this URL sees the same jobs
    assert not (tmp_path / "work.db").exists()


def test_a_sandbox_leaves_no_trace(tmp_path: Path) -> None:
    """Afterwards the App has its own store again, with what was there before."""
    with App(f"sqlite:///{tmp_path}/work.db", name="shop") as app:

        @app.job
        def note() -> None: ...

        kept = note.enqueue()
        with Sandbox() as ergon:
            ergon.use(app)
            lost = note.enqueue()
            assert ergon.drain().completed == 1
        assert app.client.status(kept) == "pending"
        assert [job.id for job in app.client.store.search(Search())] == [kept]
        assert lost != kept


def test_a_sandbox_without_an_app_says_what_to_do(ergon: Sandbox) -> None:
    """Instead of draining nothing."""
    with pytest.raises(WiringError, match=r"ergon\.use\(app\)"):
        ergon.drain()


def test_no_command_is_named_for_a_job_that_is_only_in_memory(tmp_path: Path) -> None:
    """The store of the program is a file, which has no such job."""
    app = App(f"sqlite:///{tmp_path / 'ergon.db'}", name="shop")

    @app.job(attempts=1)
    def bad() -> None:
        raise ValueError("no")

    with Sandbox() as ergon:
        ergon.use(app)
        jobs = bad.enqueue(), app.chain(bad.step(), on_failure="cancel").enqueue()
        ergon.drain()
        for each in jobs:
            with pytest.raises(JobFailedError) as caught:
                each.result(timeout=1)
            assert "ergon why" not in str(caught.value)


def test_who_waits_in_a_sandbox_for_a_job_that_nobody_runs_is_told_so(ergon: Sandbox) -> None:
    """At once, whatever the timeout: only a drain runs jobs there. Both clients say what to do."""
    app = ergon.use(App(name="shop"))
    shrink = app.job(lambda: 3)
    job = shrink.options(delay=60).enqueue()
    for timeout in (None, 3600.0):
        with pytest.raises(ResultTimeoutError, match=r"is pending.*ergon\.drain\(\).*advance"):
            job.result(timeout)
        with pytest.raises(ResultTimeoutError, match="is pending, and in a sandbox nobody runs"):
            ergon.clock.run(app.async_client.result(job, timeout))
    ergon.advance(60)
    assert (job.result(), ergon.clock.run(app.async_client.result(job))) == (3, 3)


def test_a_handler_that_waits_for_another_job_in_a_sandbox_fails(ergon: Sandbox) -> None:
    """It would wait for ever: the drain that could run the other one waits for this handler."""
    app = ergon.use(App(name="shop"))
    inner = app.job("inner")(lambda: 3)

    @app.job(attempts=1)
    def outer() -> int:
        return int(inner.enqueue().result())

    job = outer.enqueue()
    assert ergon.drain().failed == 1
    assert "in a sandbox nobody runs it" in app.client.show(job)["last_error"]["message"]
