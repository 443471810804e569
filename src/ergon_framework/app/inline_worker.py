"""A worker without processes: it runs due jobs in the thread that asks, one after the other.

For tests and for scripts that want their jobs done before they go on. Everything but the processes
is that of a real worker: the store's claims with their limits, the lines of the executor protocol,
what a reply means, retries, dead letters, the rescue of jobs whose holder died, schedules and
notices.

Handlers that take a list get many jobs in one call, as they do from a worker.

What it cannot do: cut off a plain handler that runs past its time. Such an attempt counts as timed
out when the handler returns. For the same reason a heartbeat limit ends async handlers only: a
plain one that has returned hangs no more, so its outcome counts. Time is that of the store and of
the current clock, so that under a virtual clock nothing waits.

A second thread renews the lease of the job in hand, and tells the store how far it is; it touches
nothing else, and ends with the drain.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol, Self
from weakref import WeakKeyDictionary

from ergon_framework.app.inline_progress import InlineProgress
from ergon_framework.app.jobs import JobSetup
from ergon_framework.core.claim import ClaimRequest
from ergon_framework.core.executor_protocol import (
    ExecutorSession,
    OrchestratorSession,
    Outcome,
    ProgressReport,
    Reply,
    Request,
    Status,
)
from ergon_framework.core.job import JobEvent, JobStatus, Released
from ergon_framework.engine.clocks import SYSTEM_CLOCK, current_clock
from ergon_framework.engine.time_limit import (
    RETURN_GRACE,
    await_within,
    call_within,
    giving_up_by,
)
from ergon_framework.errors import JobError, StoreError, WiringError
from ergon_framework.executor import outcomes
from ergon_framework.executor.batch import Answer, JobBatch
from ergon_framework.executor.hooks import HookRunner, HookStep
from ergon_framework.executor.invocation import CUT_OFF, Invocation
from ergon_framework.executor.registry import Handler, Registry
from ergon_framework.jobs.claims import Claim, decode_claims, progress_record, silence_of
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.flow_notices import flow_notices
from ergon_framework.jobs.flow_results import MAX_ARGUMENTS, hand_over
from ergon_framework.jobs.leases import CHARGE_DELAY, ClaimLeases
from ergon_framework.jobs.maintenance import PRUNE_BATCH
from ergon_framework.jobs.payload_codec_store import codec_of, results_reader, with_codec
from ergon_framework.jobs.pool import request_line
from ergon_framework.jobs.rescue import Rescue
from ergon_framework.jobs.scheduler import Scheduler, ScheduleSettings
from ergon_framework.jobs.settlement import Settler, notice_fields
from ergon_framework.jobs.store_thread import executor_of
from ergon_framework.jobs.totals import DrainTotals, outcome_of
from ergon_framework.jobs.tracing import came_back
from ergon_framework.jobs.worker import NOTICE_OF, WorkerReport, log_failure, version
from ergon_framework.ports.jobstore import ClaimResult, FullJobStore, Settlement
from ergon_framework.ports.unit_of_work import UnitOfWork
from ergon_framework.telemetry.notices import emit, has_listeners

logger = logging.getLogger("ergon.jobs")

CLOSE_TIMEOUT = 5.0
"""Seconds for tasks that are left on the event loop to end, once they are cancelled."""
_TOTALS: WeakKeyDictionary[FullJobStore, DrainTotals] = WeakKeyDictionary()
"""The counts of all drains of this process, by store."""
MAX_JOBS = 10_000
"""The most jobs in one drain. More are probably a handler that enqueues itself without end."""


class HasJobs(Protocol):
    """What an App has: its handlers, and the store of their jobs."""

    registry: Registry

    @property
    def setup(self) -> JobSetup:
        """Settings, store and executors."""

    @property
    def executor(self) -> str:
        """The executor that the App's jobs name; empty where the settings decide."""

    @property
    def client(self) -> JobClient:
        """The client of the App's store."""

    def declared_schedules(self) -> Mapping[str, Mapping[str, ScheduleSettings]]:
        """The schedules that were declared beside its handlers, by source and name."""


def inline_worker(app: HasJobs) -> InlineWorker:
    """An inline worker for the jobs of an App.

    Where the settings define executors and the App has no name of its own, it runs the jobs of all
    of them.
    """
    executors = [app.executor] if app.executor else [*app.setup.executors] or ["python"]
    setup = replace(app.setup, declared=app.declared_schedules())
    return InlineWorker(app.client.store, app.registry, setup=setup, executors=executors)


def drain(
    app: HasJobs,
    *,
    queues: Sequence[str] | None = None,
    max_jobs: int = MAX_JOBS,
    raises: bool = False,
) -> WorkerReport:
    """Run the due jobs of an App here and now; see :meth:`InlineWorker.drain`."""
    with inline_worker(app) as worker:
        return worker.drain(queues=queues, max_jobs=max_jobs, raises=raises)


class InlineWorker:
    """Runs due jobs in the calling thread, with the hooks of their registry around them."""

    def __init__(
        self,
        store: FullJobStore,
        registry: Registry,
        *,
        setup: JobSetup | None = None,
        executors: Collection[str] = ("python",),
    ) -> None:
        """``executors``: the jobs of which executors it claims; the first is that of all jobs that
        name none, unless the settings say otherwise.
        """
        self.name = f"inline-{os.getpid()}"
        self.next_at: float | None = None
        """When the next job or schedule is due, by the store's clock, as the last drain saw it."""
        setup = setup or JobSetup("memory://")
        self._settings = setup.jobs
        self._store = store = with_codec(store, self._settings)
        store.retention = self._settings.retention
        self._codec = codec_of(store, self._settings)
        self._registry = registry
        self._settler = Settler(self._settings, self.name, self._codec)
        self._leases = InlineLeases(store, self._settings.claimed_for, self.name)
        self._rescue = Rescue(
            store, self._settings, self._settler, self._leases.holds, _tell, SYSTEM_CLOCK.now
        )
        self._executors = tuple(executors)
        self._scheduler = Scheduler(
            store, setup.schedules, source=setup.source, more=setup.declared
        )
        self._prepare: Callable[[], object] = lambda: setup.limit_queues(store)
        self._loop = InlineLoop()
        self._hooks = HookRunner(registry, self._loop.wait_for_step, _call_step)
        self._is_begun = False
        # By store and not by worker: each drain of a script makes a worker, and counters must not
        # go down.
        self._totals = _TOTALS.setdefault(store, DrainTotals())

    # ---- use ----

    def drain(
        self,
        *,
        queues: Sequence[str] | None = None,
        max_jobs: int = MAX_JOBS,
        raises: bool = False,
    ) -> WorkerReport:
        """Run jobs until none is due, those included that the jobs enqueue meanwhile.

        A job that fails is retried when its time has come, as ever: after its backoff, in a later
        drain. With ``raises``, a job that fails for good raises its JobFailedError here, once
        nothing is due any more. More than ``max_jobs`` jobs are refused. Before all that, jobs are
        rescued whose leases have expired, such as those of a drain that was killed.
        """
        self._loop.refuse_inside_another()
        if not self._is_begun:
            self._prepare()
            self._scheduler.sync()
        rescued = self._rescue_all()
        tally = _Tally()
        self._totals.begin(self._store.now())
        try:
            self._run_due(queues, max_jobs, tally)
        finally:
            self._leases.end()
            self._leave_totals()
        counts, failed = tally.counts, tally.failed
        if raises and failed:
            # Asked for its error: result() raises the JobFailedError of a job that failed.
            JobClient(settings=self._settings, store=self._store).result(failed[0])
        return WorkerReport(
            completed=counts["completed"],
            retried=counts["retrying"],
            failed=counts["failed"],
            held=counts["held"],
            rescued=rescued,
            late=counts["late"],
            stop_reason="drained",
        )

    def close(self) -> None:
        """Run the shut-down hooks, if the start-up hooks were run."""
        try:
            if self._is_begun:
                self._is_begun = False
                failure = self._hooks.close()
                if failure is not None:
                    raise failure
        finally:
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- inside ----

    def _rescue_all(self) -> int:
        """Rescue jobs as a worker does at its start; returns how many."""
        before = self._rescue.count
        self._rescue.leases = {each.id: each.lease for each in self._store.workers() if each.lease}
        so_far = -1
        while so_far < self._rescue.count:  # in batches; one that rescued nothing is the last
            so_far = self._rescue.count
            if self._rescue.run() > 0:
                break
        return self._rescue.count - before

    def _run_due(self, queues: Sequence[str] | None, max_jobs: int, tally: _Tally) -> None:
        settled: list[Settlement] = []
        while (claim := self._next(settled, queues, tally)) is not None:
            room = max_jobs - tally.counts.total()
            if room <= 0:
                # It is claimed already, and would stay so until its lease ends.
                self._release([claim])
                raise JobError(
                    f"{max_jobs} jobs were run and more are due",
                    remedy="look for a handler that enqueues itself, or raise max_jobs",
                )
            settled = self._run_claims([claim, *self._batch_mates(claim, queues, room - 1)], tally)

    def _next(
        self, settled: list[Settlement], queues: Sequence[str] | None, tally: _Tally
    ) -> Claim | None:
        """Settle what was run and claim one job, in one commit, after firing what is due.

        One at a time: then limits of queues and keys hold as they do for many workers.
        """
        fires_at = self._scheduler.fire_due()
        request = self._claim_request(dict.fromkeys(self._executors, 1), queues)
        applied, found = self._settle(settled, request)
        tally.add(settled, applied)
        times = [at for at in (fires_at, found.next_at, found.expires_at) if at is not None]
        self.next_at = min(times, default=None)
        if found.jobs:
            return Claim(found.jobs[0])
        # A step that waits for a signal is never claimed: its end may let others start.
        expires_at = found.expires_at
        is_over = expires_at is not None and expires_at <= self._store.now()
        if is_over and self._ended_outdated():
            return self._next([], queues, tally)
        return None

    def _ended_outdated(self) -> int:
        """End expired jobs, except those to archive: a worker writes them to the archive."""
        if self._settings.archive is None:
            return self._store.prune(PRUNE_BATCH).outdated
        return self._store.prune(PRUNE_BATCH, purges=False).outdated

    def _claim_request(
        self, slots: Mapping[str, int], queues: Sequence[str] | None
    ) -> ClaimRequest:
        return ClaimRequest(
            worker=self.name,
            lease=self._settings.claimed_for,
            slots=slots,
            default=self._settings.default_executor or self._executors[0],
            routes=self._settings.routes,
            own=frozenset(self._executors),
            queues=None if queues is None else tuple(queues),
            version=self._settings.version,
        )

    def _batch_mates(self, first: Claim, queues: Sequence[str] | None, room: int) -> list[Claim]:
        """Claim more due jobs of the batch handler of ``first``: they may share its call."""
        handler = self._registry.find(first.handler)
        size = 1 if handler is None or first.job.is_solo else handler.batch
        wanted = min(size - 1, room)
        if wanted < 1:
            return []
        request = self._claim_request({}, queues)
        # It is claimed already: a store that fails here must not keep it until its lease ends.
        with self._giving_back([first]):
            slots = {executor_of(request, first.job): wanted}
            found = self._settle([], self._claim_request(slots, queues))[1]
        return [Claim(job) for job in found.jobs]

    def _settle(
        self, settled: list[Settlement], request: ClaimRequest | None = None
    ) -> tuple[list[bool], ClaimResult]:
        applied, found = self._store.settle_and_claim(settled, request)
        for each, was_applied in zip(settled, applied, strict=True):
            transition = each.transition
            if not was_applied:
                text = "job %s: a late result was ignored; somebody else has the job, or it is gone"
                logger.warning(text, each.id)
                emit("job.late", job_id=each.id)
                continue
            if transition.failure is not None and transition.event == "failed":
                log_failure(each)
            name = NOTICE_OF[transition.status]
            # The fields are built only if somebody listens.
            if has_listeners(name):
                emit(name, **notice_fields(each))
        done = [each for each, was_applied in zip(settled, applied, strict=True) if was_applied]
        for name, fields in flow_notices(self._store, done):
            emit(name, **fields)
        return applied, found

    def _run_claims(self, claims: list[Claim], tally: _Tally) -> list[Settlement]:
        """Run claimed jobs, those of one batch handler in one call. The last settlements are
        returned unsent.
        """
        waiting = [*claims]
        settled: list[Settlement] = []
        with self._giving_back(waiting):
            self._leases.hold(waiting)
            with giving_up_by(lambda error: self._give_up([*waiting], error)):
                self._begin()
            while waiting:
                if settled:  # before anything else runs: that may end the process
                    tally.add(settled, self._settle(settled)[0])
                group = self._next_group(waiting)
                settled = self._run_group(group)
                for claim in group:
                    waiting.remove(claim)
        return settled

    def _next_group(self, waiting: Sequence[Claim]) -> list[Claim]:
        """The first job, and the jobs that one call of its handler can take with it."""
        first = waiting[0]
        handler = self._registry.find(first.handler)
        size = 1 if handler is None or first.job.is_solo else max(1, handler.batch)
        mates = [
            each for each in waiting[1:] if each.handler == first.handler and not each.job.is_solo
        ]
        return [first, *mates[: size - 1]]

    def _run_group(self, group: Sequence[Claim]) -> list[Settlement]:
        """Run one attempt of each job, from their requests to their settlements."""
        decode_claims(group, self._codec)
        hand_over(group, results_reader(self._store, MAX_ARGUMENTS))
        refused = [each for each in group if each.outcome is not None]
        if refused:  # their arguments, or the results that they use, cannot be had
            self._leases.drop(refused)
            usable = [each for each in group if each.outcome is None]
            return [*map(self._refusal, refused), *(self._run_group(usable) if usable else ())]
        began_at = current_clock().now()
        timeouts = [self._settler.timeout_of(each.job) for each in group]
        invocations = [
            self._invocation(claim, timeout, began_at)
            for claim, timeout in zip(group, timeouts, strict=True)
        ]
        self._leases.begins(group, invocations)
        answers = self._loop.run(invocations, timeouts)
        seconds = current_clock().now() - began_at
        # An invocation makes an outcome of whatever a handler raises; Ctrl-C is no failure of the
        # job.
        if any(each.error_type == KeyboardInterrupt.__name__ for each in answers):
            raise KeyboardInterrupt
        self._leases.drop(group)
        settled = []
        for claim, invocation, timeout, answer in zip(
            group, invocations, timeouts, answers, strict=True
        ):
            is_late = seconds > timeout
            outcome = outcomes.timed_out(claim.job.id, CUT_OFF) if is_late else answer
            outcome, line = outcomes.written(outcome)
            invocation.end_span(outcome)
            reply = _reply(line)
            event = self._settler.event_of(reply, claim.job)
            if invocation.is_silent and not is_late and reply.status is not Status.SUCCESS:
                event = silence_of(invocation.heartbeat or 0.0)
            settled.append(self._settlement(claim, event, seconds, reply.result))
        return settled

    def _refusal(self, claim: Claim) -> Settlement:
        return self._settlement(claim, claim.outcome or Released(), None, None)

    def _invocation(self, claim: Claim, timeout: float, began_at: float) -> InlineInvocation:
        request = self._request(claim, timeout)
        handler = self._registry.find(request.function_name)

        def report(told: ProgressReport) -> None:
            if self._leases.holds(claim.job.id, claim.job.fence):  # else it has ended
                claim.progress = progress_record(claim, told, self._store.now())
                self._leases.progress.changed()

        return InlineInvocation(request, handler, began_at + timeout, report)

    @contextmanager
    def _giving_back(self, claims: list[Claim]) -> Iterator[None]:
        """Release jobs when something ends the drain: a hook that fails, or Ctrl-C.

        Those that are in the list then: whoever settles one takes it out.
        """
        try:
            yield
        except BaseException:
            self._leases.drop(claims)
            self._release(claims)
            raise

    def _give_up(self, claims: Sequence[Claim], error: BaseException) -> None:
        """A lifespan is stuck in a thread that nobody can interrupt: let others have the jobs."""
        logger.error("%d job(s) go back: %s", len(claims), error)
        self._leases.drop(claims)
        self._release(claims)

    def _release(self, claims: Sequence[Claim]) -> None:
        self._settle([self._settlement(each, Released(), None, None) for each in claims])

    def _settlement(
        self, claim: Claim, event: JobEvent, seconds: float | None, result: bytes | None
    ) -> Settlement:
        if claim.span is not None:
            came_back(claim, event)
        settled = self._settler.settle_claim(claim, event, self._store.now(), seconds, result)
        self._totals.count(claim.job.queue, outcome_of(settled.transition), seconds)
        return settled

    def _leave_totals(self) -> None:
        """Add the counts of this run to the store, where ``/metrics`` of a server reads them."""
        try:
            self._totals.leave(self._store, self._store.now(), version())
        except StoreError as error:  # the jobs are settled, and the next drain tells it all
            logger.warning("what was drained is not in the metrics yet: %s", error)

    def _request(self, claim: Claim, timeout: float) -> Request:
        # The wall clock, as in a worker: the line carries an instant that any process could read.
        line = request_line(claim, self._settler, self.name, time.time() + timeout)
        (request,) = ExecutorSession().feed(line)
        assert isinstance(request, Request)  # noqa: S101 - we have just written it
        return request

    def _begin(self) -> None:
        if self._is_begun:
            return
        self._registry.prepare()
        self._hooks.open()
        self._is_begun = True


class InlineLeases:
    """The leases of the jobs in hand, which a thread renews as the store thread of a worker does.

    The lock keeps a renewal apart from the settlement of the same job: that one waits until the
    renewal is through, or the store would say of a job that has just ended that it was lost.
    Under a virtual clock nothing is renewed: a lease ends there only when the handler says so.
    """

    def __init__(self, store: FullJobStore, lease: float, name: str) -> None:
        self._leases = ClaimLeases(store, lease, _tell)
        self.progress = InlineProgress(store, name, lease, self._leases.progress)
        self._lease = lease
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._invocations: dict[str, Invocation] = {}  # by job id
        self.holds = self._leases.holds
        self._leases.when_cancelled = self._cancel_marked

    def hold(self, claims: Sequence[Claim]) -> None:
        """Renew these claims until they are dropped; the thread starts with the first of them."""
        with self._lock:
            self._leases.add(claims, SYSTEM_CLOCK.now())
        if self._thread is None and current_clock() is SYSTEM_CLOCK:
            self._ended.clear()
            self._thread = SYSTEM_CLOCK.spawn("ergon-inline-leases", self._renew)

    def drop(self, claims: Iterable[Claim]) -> None:
        """Stop renewing claims that are about to be settled. Others are ignored."""
        with self._lock:
            for each in claims:
                if self.holds(each.job.id, each.job.fence):
                    del self._leases.claims[each.job.id]
                    self._invocations.pop(each.job.id, None)

    def begins(self, claims: Sequence[Claim], invocations: Sequence[Invocation]) -> None:
        """Note that a handler begins: from now on a renewal charges the attempt."""
        with self._lock:
            for each, invocation in zip(claims, invocations, strict=True):
                each.written_at = SYSTEM_CLOCK.now()
                each.is_written = True
                self._invocations[each.job.id] = invocation

    def end(self) -> None:
        """End the thread, unless an outer drain still runs a job."""
        if self._leases.claims:
            return
        if self._thread is not None:
            self._ended.set()
            self._thread.join()
            self._thread = None
        self.progress.end()

    def _cancel_marked(self) -> None:
        """Cancel the handlers whose jobs were asked to stop. Called by the thread that renews
        leases.
        """
        for claim in self._leases.claims.values():
            invocation = self._invocations.get(claim.job.id)
            if claim.cancel is not None and invocation is not None:
                invocation.cancel()
                task = invocation.task
                if task is not None and invocation.batch is None:
                    # By its loop: a task must not be cancelled from another thread.
                    task.get_loop().call_soon_threadsafe(task.cancel)

    def _renew(self) -> None:
        is_away = False
        # Often, because the first renewal also charges the attempt; while the store is away a tenth
        # of the lease is enough for some more tries before it ends.
        while not self._ended.wait(self._lease / 10 if is_away else CHARGE_DELAY):
            try:
                with self._lock:
                    self._leases.renew_due(SYSTEM_CLOCK.now())
                    self.progress.write_due(SYSTEM_CLOCK.now())
                is_away = False
            except Exception as error:
                if not is_away:
                    logger.warning("a lease was not renewed, which is tried again: %s", error)
                is_away = True


class InlineInvocation(Invocation):
    """An invocation whose handler reports here, and sees its deadline on the current clock."""

    __slots__ = ("_clock", "_deadline", "_heard_at", "_told", "is_silent")

    def __init__(
        self,
        request: Request,
        handler: Handler | None,
        deadline: float,
        told: Callable[[ProgressReport], object],
    ) -> None:
        """``told`` is called with each progress report of the handler."""
        super().__init__(request, handler, is_traced=False)
        self._deadline = deadline
        self._told = told
        self._clock = current_clock()  # a handler may report from a thread that has another one
        self._heard_at = self._clock.now()
        self.is_silent = False  # it had to report, and was cancelled because it did not

    @property
    def heartbeat(self) -> float | None:
        """How often its handler must report, in seconds."""
        return None if self.handler is None else self.handler.heartbeat

    def silent_in(self) -> float:
        """Seconds until the handler has been silent for too long."""
        return self._heard_at + (self.heartbeat or 0.0) - self._clock.now()

    def report(self, fraction: float | None, message: str) -> None:
        """Pass on a progress report of the handler."""
        self._heard_at = self._clock.now()
        self._told(ProgressReport(self.job_id, fraction, message))

    def unit_of_work(self) -> UnitOfWork:
        """The job as a unit of work, for code that its handler calls."""
        return super().unit_of_work()._replace(deadline=self._deadline)


class InlineLoop:
    """The event loop of async handlers and hooks: one for all, made at the first need.

    Under a virtual clock it follows that clock.
    """

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None

    def refuse_inside_another(self) -> None:
        """Refuse to block an event loop that runs in this thread."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        raise WiringError(
            "jobs cannot be drained inside a running event loop: it would stand still meanwhile",
            remedy="await asyncio.to_thread(app.drain)",
        )

    def run(
        self, invocations: Sequence[InlineInvocation], timeouts: Sequence[float]
    ) -> list[Outcome]:
        """Run a handler of either colour to its end, once for all of these; an outcome for each.

        An async one is cancelled at the first deadline.
        """
        if len(invocations) > 1:
            return self._run_batch(invocations, timeouts)
        return [self._run_one(invocations[0], timeouts[0])]

    def _run_batch(
        self, invocations: Sequence[InlineInvocation], timeouts: Sequence[float]
    ) -> list[Outcome]:
        handler = invocations[0].handler
        assert handler is not None  # noqa: S101 - only handlers that exist take batches
        batch, answers = JobBatch(handler), dict[Invocation, Outcome]()
        for each in invocations:
            batch.add(each)
        if handler.is_async:
            self.wait_for(_cut_off_batch(batch, timeouts, answers.__setitem__))
        else:
            batch.run(answers.__setitem__)
        return [answers[each] for each in invocations]

    def _run_one(self, invocation: InlineInvocation, timeout: float) -> Outcome:
        if invocation.is_async:
            answer: Outcome = self.wait_for(_cut_off(invocation, timeout), invocation.scope)
            return answer
        outcome = invocation.run()
        if hasattr(type(outcome.result), "__await__"):  # a plain function that calls an async one
            return self._awaited(invocation, outcome)
        return outcome

    def wait_for(self, awaitable: Awaitable[Any], scope: Any = None) -> Any:
        """Run an awaitable on the loop; returns its result."""
        if self._runner is None:
            self._runner = asyncio.Runner(
                # A virtual clock has event loops of its own, which jump with it.
                loop_factory=getattr(current_clock(), "new_event_loop", None)
            )
        return self._runner.run(_as_coroutine(awaitable), context=scope)

    def wait_for_step(self, awaitable: Awaitable[Any], step: HookStep) -> Any:
        """Run the awaitable of a lifespan or a hook, within its time limit."""
        bounded = await_within(awaitable, step.timeout, step.overdue)
        return call_within(
            lambda: self.wait_for(bounded),
            None if step.timeout is None else step.timeout + RETURN_GRACE,  # code blocks the loop
            step.overdue,
        )

    def close(self) -> None:
        """Close the event loop if one was started."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        try:
            call_within(runner.close, CLOSE_TIMEOUT, TimeoutError)
        except TimeoutError:  # a task that swallows its cancellation
            logger.warning("the event loop could not be closed in time; something in it hangs")

    def _awaited(self, invocation: Invocation, outcome: Outcome) -> Outcome:
        try:
            result = self.wait_for(outcome.result, invocation.scope)
            return outcomes.succeeded(outcome.job_id, result)
        except Exception as error:
            return outcomes.failed(outcome.job_id, error)


def _call_step(step: HookStep) -> Any:
    return call_within(step.run, step.timeout, step.overdue)


async def _cut_off(invocation: InlineInvocation, seconds: float) -> Outcome:
    task = asyncio.ensure_future(invocation.run_async())
    invocation.task = task  # for whoever cancels the job

    def cancel() -> None:
        invocation.is_cancelled = True
        task.cancel()

    timer = asyncio.get_running_loop().call_later(seconds, cancel)
    watch = None if invocation.heartbeat is None else SilenceWatch(invocation, task)
    try:
        return await task
    finally:
        timer.cancel()
        if watch is not None:
            watch.end()


class SilenceWatch:
    """Cancels an async handler with a heartbeat limit that has not reported in time."""

    def __init__(self, invocation: InlineInvocation, task: asyncio.Task[Outcome]) -> None:
        self._invocation = invocation
        self._task = task
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(invocation.silent_in(), self._look)

    def end(self) -> None:
        """Stop watching."""
        self._timer.cancel()

    def _look(self) -> None:
        left = self._invocation.silent_in()
        if left > 0:  # it has reported since
            self._timer = self._loop.call_later(left, self._look)
            return
        self._invocation.is_silent = True
        self._invocation.cancel()
        self._task.cancel()


async def _cut_off_batch(batch: JobBatch, timeouts: Sequence[float], answer: Answer) -> None:
    first = min(timeouts)
    task = asyncio.ensure_future(batch.run_async(answer))

    def cancel() -> None:
        batch.is_cancelled = True
        for invocation, timeout in zip(batch.members, timeouts, strict=True):
            invocation.is_cancelled = timeout <= first
        task.cancel()

    timer = asyncio.get_running_loop().call_later(first, cancel)
    try:
        await task
    finally:
        timer.cancel()


async def _as_coroutine(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


def _tell(name: str, fields: dict[str, Any]) -> None:
    emit(name, **fields)


def _reply(line: bytes) -> Reply:
    (reply,) = OrchestratorSession().feed(line)
    assert isinstance(reply, Reply)  # noqa: S101 - we have just written it
    return reply


class _Tally:
    """The counts of one drain."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.failed: list[str] = []  # ids of jobs that failed for good

    def add(self, settled: Sequence[Settlement], applied: Sequence[bool]) -> None:
        """Count the settlements that the store accepted. Those that it refused came too late."""
        for each, was_applied in zip(settled, applied, strict=True):
            self.counts[_word(each) if was_applied else "late"] += 1
            if was_applied and each.transition.status is JobStatus.FAILED:
                self.failed.append(each.id)


def _word(settlement: Settlement) -> str:
    """The name under which a report counts the settlement."""
    transition = settlement.transition
    is_held = transition.event == "held" and not transition.status.is_final
    return "held" if is_held else transition.status.value
