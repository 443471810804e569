"""The client: puts jobs into a store, asks about them, cancels and requeues them.

A job is stored, as durably as the store's sentence says, when ``enqueue`` returns. Cancelling,
retrying, requeueing and purging are decided in ``admin``.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self, Unpack

import msgspec

from ergon_framework.core.flow import OnFailure
from ergon_framework.core.job import (
    JobStatus,
    RescheduleRequested,
    RunRequested,
)
from ergon_framework.core.unique import OnDuplicate
from ergon_framework.errors import JobError, JobStateError
from ergon_framework.jobs.admin import (
    MAX_CONFLICTS,
    Progress,
    batches,
    purge_all,
    request_cancel,
    request_transition,
    requeue_all,
    too_busy,
)
from ergon_framework.jobs.bulk import BulkChange
from ergon_framework.jobs.change_requests import (
    cancellation,
    checked_reason,
    due_instant,
    requeueing,
)
from ergon_framework.jobs.editing import JobEdit, edit_and_requeue, latest_of
from ergon_framework.jobs.finding import JobFilter, refuse_empty, search_of, whole_or_none
from ergon_framework.jobs.flow_client import (
    AsyncEnqueuedFlow,
    EnqueuedFlow,
    EnqueuedId,
    flows_of,
    found_flow,
    hints_for,
)
from ergon_framework.jobs.flows import (
    Chain,
    Draft,
    FlowClients,
    FlowPlanner,
    Group,
    SignalStep,
    plan_after,
    signal_step,
)
from ergon_framework.jobs.newjob import (
    HandlerOptions,
    JobSpec,
    check_options,
    new_job,
    spread,
    with_handler,
    without_unique,
)
from ergon_framework.jobs.payload_codec_store import codec_of, loaded_job, with_codec
from ergon_framework.jobs.results import (
    POLL_INTERVAL,
    SharedSubscription,
    found,
    result_of,
    wait_in_time,
)
from ergon_framework.jobs.schedule_client import ScheduleClient
from ergon_framework.jobs.settlement import Settler
from ergon_framework.jobs.tracing import (
    describe_enqueue,
    enqueue_span,
    is_observed,
    with_trace_context,
)
from ergon_framework.jobs.views import job_view
from ergon_framework.lazy_exports import LateModule
from ergon_framework.ports.context import current_attempt
from ergon_framework.ports.flow import NewFlow
from ergon_framework.ports.job_fields import (
    Instant,
    choice,
    listed,
    refusal,
)
from ergon_framework.ports.job_options import Handlers
from ergon_framework.ports.jobstore import (
    EnqueueResult,
    FullJobStore,
    Job,
    NewJob,
    Search,
)
from ergon_framework.storage.conflicts import retry_conflicts
from ergon_framework.telemetry import outgoing_metadata
from ergon_framework.telemetry.conventions import (
    MessagingInstruments,
    messaging_instruments,
    queue_place,
)
from ergon_framework.telemetry.notices import emit, has_listeners

if TYPE_CHECKING:
    import ergon_framework.jobs.settings as job_settings
else:
    job_settings = LateModule("ergon_framework.jobs.settings")

__all__ = ["EnqueuedJob", "JobClient", "JobSpec", "OnDuplicate"]


class _JobId(EnqueuedId):
    """The id of a job, and what became of the call that enqueued it."""

    __slots__ = ("is_new", "replaced")

    is_new: bool
    """False: a job with the same unique key was there, and this is its id."""
    replaced: str | None
    """The id of the job that was cancelled for this one."""


class EnqueuedJob(_JobId):
    """The id of a job, which remembers the client it came from and can be asked about the job."""

    __slots__ = ("_client",)

    _client: JobClient

    @classmethod
    def of(cls, added: EnqueueResult, client: JobClient) -> Self:
        """What a store answered, as a client hands it out."""
        made = cls(added.id)
        made.is_new = added.is_new
        made.replaced = added.replaced
        made._client = client
        return made

    def status(self) -> JobStatus:
        """Where the job stands."""
        return self._client.status(self)

    def result(self, timeout: float | None = None) -> Any:
        """What the job returned; see :meth:`JobClient.result`."""
        return self._client.result(self, timeout)

    def cancel(self, *, running: bool = False, by: str | None = None, reason: str = "") -> bool:
        """Cancel it while it waits, or also while it runs; see :meth:`JobClient.cancel`."""
        return self._client.cancel(self, running=running, by=by, reason=reason)


logger = logging.getLogger("ergon.jobs")

MAX_BATCH = 100_000
"""Jobs in one commit."""
MAX_STEPS = 250_000
"""Steps of one flow, which are stored in one commit as well."""


class JobClient:
    """Enqueues jobs and follows them; safe to share between threads.

    ::

        with JobClient("sqlite:///work.db") as client:
            job = client.enqueue("resize", ["a.png"], {"width": 3}, queue="images")
            print(job.result(timeout=30))
    """

    def __init__(
        self,
        url: str = "",
        *,
        settings: job_settings.JobsSettings | None = None,
        store: FullJobStore | None = None,
        registry: Handlers | None = None,
        max_batch: int = MAX_BATCH,
        max_steps: int = MAX_STEPS,
    ) -> None:
        """``max_batch``: how many jobs ``enqueue_many`` stores in one commit at most.
        ``max_steps``: how many steps a flow has at most.

        With the ``registry`` of the handlers, calls are checked before they are stored, and jobs
        have the options of their handlers; those of a call win.
        """
        self._handlers = registry
        for own in () if registry is None else registry.options.values():
            check_options(own)
        self.settings = settings or default_settings()
        self._max_batch = max_batch
        self._max_steps = max_steps
        opened = _open(url) if store is None else store
        if settings is not None:
            opened.retention = settings.retention
        self.store = with_codec(opened, self.settings)
        self.before_storing: Callable[[], None] | None = None
        """Called before jobs are stored in a commit of their own; what it raises stops that."""
        self._settler = Settler(self.settings, "client")
        # By process: a subscription holds descriptors and threads wait on it, so that a forked
        # child, which has none of these threads, needs one of its own.
        self._shared: dict[int, SharedSubscription] = {}

    @property
    def waiting(self) -> int:
        """How many threads of this process wait for a result."""
        shared = self._shared.get(os.getpid())
        return 0 if shared is None else shared.waiters

    @property
    def schedules(self) -> ScheduleClient[EnqueuedJob]:
        """Put, pause and delete schedules while workers run."""
        return ScheduleClient(
            self.store, self.settings.max_payload, lambda added: EnqueuedJob.of(added, self)
        )

    # ---- putting jobs in ----

    def enqueue(
        self,
        handler: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        connection: Any = None,
        **options: Unpack[HandlerOptions],
    ) -> EnqueuedJob:
        """Store one job and return its id, which also answers questions about it.

        With ``connection``, the job is stored in the caller's own transaction on the same SQLite
        file or PostgreSQL database: it exists when that is committed, and never when it is rolled
        back. It is a connection of sqlite3 or psycopg, of SQLAlchemy or Django with one of them, or
        a session. On PostgreSQL the commit wakes workers; on SQLite they find the job at their next
        look, or at once after :meth:`announce`.

        With ``after`` the job waits until these jobs have completed; ``on_failure`` says what
        becomes of it when one of them does not: ``cancel``, ``continue`` or ``hold``.
        """
        if not options and connection is None and not is_observed():
            return self._enqueue_usual(handler, args, kwargs)
        after, on_failure = options.pop("after", None), options.pop("on_failure", None)
        ids = [] if after is None else _ids_in(after)
        if on_failure is not None and not ids:
            raise refusal("on_failure", "says nothing without after", "name the jobs to wait for")
        with enqueue_span(options) as span:
            context = {**self._context(), **with_trace_context(span, options)}
            job = self._new(handler, args, kwargs, context)
            if ids:
                added = self._added_after(job, ids, on_failure, connection)
            else:
                (added,) = self._added([job], connection)
            if span.is_recording():
                describe_enqueue(span, job, added.id, is_new=added.is_new)
        return added

    def enqueue_many(
        self,
        jobs: Iterable[JobSpec],
        *,
        chunk: int | None = None,
        progress: Progress | None = None,
        connection: Any = None,
        **options: Unpack[HandlerOptions],
    ) -> list[EnqueuedJob]:
        """Store many jobs in one commit: all of them or, on any mistake, none.

        Options are those of every job that does not set its own. With ``chunk``, each so many jobs
        are a commit of their own, ``progress`` hears how many are stored, and what was stored
        before a mistake stays; its error then tells in ``details["stored"]`` how many those are.
        With ``connection``, all of them are the caller's to commit; call :meth:`announce` then.
        """
        ids: list[EnqueuedJob] = []
        size = whole_or_none(chunk, "chunk") or self._max_batch + 1
        if progress is not None and not callable(progress):
            raise refusal("progress", "cannot be called", "give a function of one number")
        with enqueue_span(options, begins=False) as span:
            common = {**self._context(), **with_trace_context(span, options)}
            specs = listed("jobs", jobs, "jobs", 'enqueue_many([("mail", ["ada"])])')
            made = (self._new(*spread(spec, common)) for spec in specs)
            try:
                for batch in batches(made, size):
                    ids += self._added(self._bounded(batch), connection)
                    if progress is not None:
                        progress(len(ids))
            except JobError as error:
                error.details["stored"] = len(ids)
                raise
            span.set_attribute("ergon.jobs", len(ids))
        return ids

    # ---- flows ----

    def chain(self, *parts: Any, name: str = "", on_failure: str | None = None) -> Chain:
        """Steps one after another; each gets the result of the one before it.

        A part is a step as :meth:`enqueue_many` takes jobs, a chain or a group. Nothing is stored
        before ``enqueue`` of the chain.
        """
        return Chain(FlowClients(lambda: self), parts, name, on_failure)

    def group(
        self,
        parts: Iterable[Any],
        *,
        then: Any = None,
        name: str = "",
        on_failure: str | None = None,
    ) -> Group:
        """Steps side by side; ``then`` follows when all have ended, and gets their results."""
        return Group(FlowClients(lambda: self), parts, then, name, on_failure)

    def wait_for_signal(self, name: str, *, timeout: float | None = None) -> SignalStep:
        """A step that waits for a signal, so many seconds at most from when it is reached."""
        return signal_step(name, timeout)

    def enqueue_flow(self, draft: Draft, *, connection: Any = None) -> EnqueuedFlow:
        """Store a chain or group in one commit; returns the id of the flow."""
        common = self._context()
        limit, now = self.settings.max_payload, self.store.now
        known: dict[str, dict[str, Any]] = {}  # by handler, as many steps have the same

        def make(
            handler: str,
            args: Sequence[Any],
            kwargs: Mapping[str, Any],
            options: Mapping[str, Any],
        ) -> NewJob:
            merged: Any = known.get(handler)
            if merged is None:
                own = without_unique(self._handler_options(handler))
                merged = known[handler] = {**common, **own}
            if options:
                merged = {**merged, **options}
            # No id: the planner gives each step one that names its flow.
            return new_job(
                handler, args, kwargs, max_payload=limit, now=now, default_id=str, **merged
            )

        planner = FlowPlanner(draft, max_steps=self._max_steps, keep=self.settings.result_ttl)
        flow, steps = planner.plan(make)
        self._add_flow(flow, steps, connection)
        if connection is None and has_listeners("job.enqueued"):
            for job in steps:
                emit("job.enqueued", job_id=job.id, handler=job.handler, queue=job.queue)
        return EnqueuedFlow.of(flow.id, self)

    def flow(self, flow_id: str) -> EnqueuedFlow:
        """The flow of that id, which can be asked, signalled, cancelled, retried and skipped."""
        found_flow(self.store, flow_id)
        return EnqueuedFlow.of(str(flow_id), self)

    @property
    def subscription(self) -> SharedSubscription:
        """The subscription to ends of jobs that all threads of this process share."""
        return self._shared.setdefault(os.getpid(), SharedSubscription(self.store))

    def announce(self) -> None:
        """Wake workers after a commit of one's own that brought jobs.

        The store does not see that commit: without this, workers find the jobs at their next look.
        It is the store's ``announce``; one that stores no jobs with a ``connection`` needs none.
        """
        wake: Any = getattr(self.store, "announce", None)
        if wake is not None:
            wake()

    def job(
        self,
        handler: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[HandlerOptions],
    ) -> NewJob:
        """The job as it would be stored, checked, in the current trace; nothing is stored."""
        return self._new(handler, args, kwargs, {**self._context(), **options})

    # ---- asking ----

    def find(self, job_id: str) -> Job:
        """The whole record of a job."""
        return found(self.store, str(job_id))

    def status(self, job_id: str) -> JobStatus:
        """Where the job stands; a word that can be compared with text."""
        return self.find(job_id).status

    def show(self, job_id: str) -> dict[str, Any]:
        """Everything about a job as plain values, the same as ``ergon jobs show --json``."""
        job, problems = loaded_job(self.find(job_id), codec_of(self.store, self.settings))
        is_running = job.status is JobStatus.ACTIVE
        workers = self.store.workers() if is_running else ()
        return job_view(job, self.settings, workers, problems)

    def jobs(
        self,
        search: Search | None = None,
        *,
        limit: int | None = None,
        **criteria: Unpack[JobFilter],
    ) -> Iterator[Job]:
        """The jobs that match, the newest first; they are read in pages.

        ::

            for job in client.jobs(tags=["customer:42"], status="failed", error="timeout"):
                print(job.id)
        """
        return self.store.search(search_of(search, criteria), whole_or_none(limit))

    def count(self, search: Search | None = None, **criteria: Unpack[JobFilter]) -> int:
        """How many jobs match."""
        return self.store.count(search_of(search, criteria))

    def result(
        self, job_id: str, timeout: float | None = None, *, poll: float = POLL_INTERVAL
    ) -> Any:
        """What the job returned, waiting for its end at most ``timeout`` seconds.

        Raises JobFailedError when it ended otherwise, ResultTimeoutError when it has not ended, or
        when the store has not told by then; one that is away is told at once.
        """
        job = wait_in_time(self.store, self.subscription, str(job_id), timeout, poll)
        return result_of(job, self.store, codec_of(self.store, self.settings))

    # ---- moving ----

    def cancel(
        self, job_id: str, *, running: bool = False, by: str | None = None, reason: str = ""
    ) -> bool:
        """Cancel a job that waits. False: it was cancelled already; JobStateError: too late.

        With ``running`` also one that runs: its worker is asked to end it, and this returns before
        it has ended. If it completes first, it has completed. ``by`` and ``reason`` stand in its
        history; without ``by`` that is the user of this process.
        """
        request = cancellation(by, reason)
        apply = request_cancel if running else request_transition
        try:
            apply(self.store, self._settler, str(job_id), request)
        except JobStateError as error:
            if error.details.get("status") == JobStatus.CANCELLED:
                return False
            raise
        return True

    def retry(self, job_id: str, *, by: str | None = None) -> None:
        """Let a waiting job run now, or one that failed or was cancelled begin anew.

        Raises DuplicateJobError when another job holds its unique key by now; so does ``requeue``.
        """
        request = RunRequested(requeueing(by).by)
        request_transition(self.store, self._settler, str(job_id), request)

    def requeue(self, job_id: str, *, by: str | None = None) -> None:
        """Send a dead-lettered job back with fresh counters; ``by`` stands in its history."""
        request_transition(self.store, self._settler, str(job_id), requeueing(by))

    def edit_and_requeue(
        self,
        job_id: str,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        by: str | None = None,
        reason: str = "",
        new_id: str | None = None,
    ) -> EnqueuedJob:
        """Send a dead-lettered job back with other arguments, as a new job; returns its id.

        What is left out stays as it was. The old job is cancelled in the same commit, and its
        history names the new one; the metadata of that names the old one, as ``edited_from``. With
        a ``new_id`` the same call may be made again when its answer was lost.
        """
        request = requeueing(by)
        edit = JobEdit(
            args=args,
            kwargs=kwargs,
            by=request.by,
            reason=checked_reason(reason),
            new_id=new_id,
        )
        added = edit_and_requeue(
            self.store,
            self._settler,
            codec_of(self.store, self.settings),
            self._handlers,
            str(job_id),
            edit,
            self.settings.max_payload,
        )
        return EnqueuedJob.of(added, self)

    def reschedule(
        self, job_id: str, *, run_at: Instant | None = None, delay: float | None = None
    ) -> None:
        """Let a job that waits be due at another time, or in so many seconds."""
        now = self.store.now()
        request = RescheduleRequested(max(0.0, due_instant(run_at, delay, now) - now))
        request_transition(self.store, self._settler, str(job_id), request)

    def delete(self, job_id: str) -> None:
        """Delete a job that has ended, for good. A step stays as long as its flow."""
        job = self.find(job_id)
        if self.store.purge([job] if job.status.is_final else []):
            emit("jobs.deleted", count=1)
            return
        what, remedy = f"is {job.status} and cannot be deleted", "only a job that has ended can"
        if job.step is not None:
            what, remedy = "is a step and is kept as long as its flow", "delete its flow"
        details = {"job_id": job.id, "status": job.status.value}
        raise JobStateError(f"the job {job.id} {what}", remedy=remedy, details=details)

    # ---- moving many ----

    def cancel_many(
        self,
        search: Search | None = None,
        *,
        running: bool = False,
        by: str | None = None,
        reason: str = "",
        limit: int | None = None,
        progress: Progress | None = None,
        **criteria: Unpack[JobFilter],
    ) -> int:
        """Cancel every job that matches and waits, or also those that run. Returns how many.

        ::

            client.cancel_many(tags=["customer:42"], reason="the account was closed")

        Jobs are changed in slices, each a commit of its own, between which workers go on. What was
        changed when it is stopped in the middle stays so, and the same call goes on with the rest.
        The other methods for many jobs do the same.
        """
        change = self._bulk(search, criteria, limit, progress)
        return change.cancel(cancellation(by, reason), running=running)

    def reschedule_many(
        self,
        search: Search | None = None,
        *,
        run_at: Instant | None = None,
        delay: float | None = None,
        limit: int | None = None,
        progress: Progress | None = None,
        **criteria: Unpack[JobFilter],
    ) -> int:
        """Let every job that matches and waits be due at another time. Returns how many."""
        due = due_instant(run_at, delay, self.store.now())
        return self._bulk(search, criteria, limit, progress).reschedule(due)

    def delete_many(
        self,
        search: Search | None = None,
        *,
        limit: int | None = None,
        progress: Progress | None = None,
        **criteria: Unpack[JobFilter],
    ) -> int:
        """Delete every job that matches and has ended, for good. Returns how many.

        Steps are left: they are kept as long as their flow.
        """
        return self._bulk(search, criteria, limit, progress).delete()

    def requeue_many(
        self,
        search: Search | None = None,
        limit: int | None = None,
        progress: Progress | None = None,
        *,
        by: str | None = None,
        **criteria: Unpack[JobFilter],
    ) -> int:
        """Send back every dead-lettered job that matches. Returns how many.

        Those whose unique key another job holds by now are left, and the log says how many.
        """
        search = _failed(_meant(search, criteria))
        most = whole_or_none(limit)
        request = requeueing(by)
        requeued = requeue_all(
            self.store, self._settler, search, most, progress or _unheard, request
        )
        if requeued.held:
            logger.warning(
                "jobs not requeued because others hold their unique keys: %d", requeued.held
            )
        return requeued.done

    def purge_many(
        self, search: Search, limit: int | None = None, progress: Progress | None = None
    ) -> int:
        """Delete every dead-lettered job that matches, for good. Returns how many."""
        return purge_all(self.store, _failed(search), limit, progress or _unheard)

    # ---- the end ----

    def close(self) -> None:
        """Let go of the store; may be called twice."""
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- inside ----

    def _bulk(
        self,
        search: Search | None,
        criteria: Mapping[str, Any],
        limit: int | None,
        progress: Progress | None,
    ) -> BulkChange:
        meant = _meant(search, criteria)
        return BulkChange(self.store, self._settler, meant, whole_or_none(limit), progress)

    def _new(
        self,
        handler: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
        options: Mapping[str, Any],
    ) -> NewJob:
        if self._handlers is not None:
            args, kwargs, options = with_handler(self._handlers, handler, args, kwargs, options)
        limit, now = self.settings.max_payload, self.store.now
        return new_job(handler, args, kwargs, max_payload=limit, now=now, **options)

    def _enqueue_usual(
        self, handler: str, args: Sequence[Any], kwargs: Mapping[str, Any] | None
    ) -> EnqueuedJob:
        """Store a job without options that nobody hears of: ``enqueue`` in fewer steps.

        A test holds it to the long way.
        """
        job = self._new(handler, args, kwargs, {})
        if self.before_storing is not None:
            self.before_storing()
        (added,) = self.store.add((job,))
        return EnqueuedJob.of(added, self)

    def _handler_options(self, handler: str) -> Mapping[str, Any]:
        """The options of all jobs of a handler, where it is known."""
        return {} if self._handlers is None else self._handlers.options.get(handler, {})

    def _add_flow(self, flow: NewFlow, steps: Sequence[NewJob], connection: Any) -> None:
        flows: Any = flows_of(self.store)
        if connection is None:
            if self.before_storing is not None:
                self.before_storing()
            flows.add(flow, steps)
        elif hasattr(flows, "add_in"):
            flows.add_in(connection, flow, steps)
        else:
            raise _no_external(self.store)

    def _added_after(
        self, job: NewJob, ids: Sequence[str], on_failure: Any, connection: Any
    ) -> EnqueuedJob:
        """Store a job that waits for others: it and they are steps of one flow from then on."""
        if job.unique_key is not None:
            raise refusal(
                "unique",
                "cannot be given together with after",
                "leave one of them out, or pass unique=False where the handler has it",
            )
        policy = OnFailure.CANCEL
        if on_failure is not None:
            policy = OnFailure(choice(OnFailure)("on_failure", on_failure))

        def attempt() -> EnqueuedJob:
            jobs = {each.id: each.step for each in (latest_of(self.store, one) for one in ids)}
            known = {step.flow_id for step in jobs.values() if step is not None}
            if len(known) > 1:
                raise JobError(
                    f"the jobs to wait for belong to {len(known)} flows",
                    remedy="wait for jobs of one flow, or let a step of each enqueue what follows",
                    details={"flows": sorted(known)},
                )
            flow, step = plan_after(job, list(jobs), next(iter(known), None), policy)
            with hints_for(self.store):
                self._add_flow(flow, [step], connection)
            return EnqueuedJob.of(EnqueueResult(job.id, True), self)

        give_up = partial(too_busy, ids[0])
        return retry_conflicts(attempt, max_attempts=MAX_CONFLICTS, give_up=give_up)

    def _bounded(self, jobs: list[NewJob]) -> list[NewJob]:
        if len(jobs) > self._max_batch:
            remedy = "let enqueue_many(chunk=1000) commit them in parts"
            raise JobError(f"more than {self._max_batch:,} jobs in one commit", remedy=remedy)
        return jobs

    def _added(self, jobs: Sequence[NewJob], connection: Any) -> list[EnqueuedJob]:
        add = self.store.add if connection is None else _adder(self.store, connection)
        if connection is None and self.before_storing is not None:
            self.before_storing()
        messaging, began_at = messaging_instruments(), time.perf_counter()
        found = add(jobs)
        if messaging is not None:
            _measure(messaging, jobs, time.perf_counter() - began_at)
        if connection is None and has_listeners("job.enqueued"):
            for job, added in zip(jobs, found, strict=True):
                if added.is_new:
                    emit("job.enqueued", job_id=added.id, handler=job.handler, queue=job.queue)
        return [EnqueuedJob.of(added, self) for added in found]

    def _context(self) -> dict[str, Any]:
        """The trace and the correlation id of the code that enqueues."""
        context: dict[str, Any] = {}
        carrier = outgoing_metadata()
        if carrier:
            context["trace_context"] = carrier
        attempt = current_attempt()
        if attempt is not None and attempt.run is not None:
            transaction = attempt.transaction
            context["correlation_id"] = transaction.correlation_id or transaction.transaction_id
        return context


def default_settings() -> job_settings.JobsSettings:
    """The settings of a client that was given none."""
    from ergon_framework.jobs.settings import JobsSettings  # late: pydantic takes its time

    return JobsSettings()


def _open(url: str) -> FullJobStore:
    from ergon_framework.jobs.store_urls import open_store

    return open_store(url)


def _adder(
    store: FullJobStore, connection: Any
) -> Callable[[Sequence[NewJob]], list[EnqueueResult]]:
    add_in: Any = getattr(store, "add_in", None)
    if add_in is None:
        raise _no_external(store)
    return lambda jobs: add_in(connection, jobs)


def _ids_in(after: Any) -> list[str]:
    """The jobs that another one is to wait for; one alone may stand without a list."""
    given = [after] if isinstance(after, str) else listed("after", after, "jobs", "after=[job]")
    ids: dict[str, None] = {}
    for each in given:
        if isinstance(each, EnqueuedFlow | AsyncEnqueuedFlow):
            remedy = "put the job into the flow: chain(flow, resize.step(80)), and enqueue that"
            raise refusal("after", "names a flow, and waits for jobs", remedy)
        if not isinstance(each, str):
            problem = f"names a job by {type(each).__name__}"
            raise refusal("after", problem, "give what enqueue returned, or the ids of jobs")
        ids[str(each)] = None
    return list(ids)


def _no_external(store: FullJobStore) -> JobError:
    return JobError(
        f"{type(store).__name__} cannot store a job in another's transaction",
        remedy="leave connection out, or use a store on SQLite or PostgreSQL",
    )


def _meant(search: Search | None, criteria: Mapping[str, Any]) -> Search:
    """Which jobs are to be changed; nobody means all of them without saying so."""
    if search is None and all(value is None for value in criteria.values()):
        raise JobError(
            "which jobs are meant?",
            remedy='give a filter such as tags=["customer:42"], or Search() for all of them',
        )
    found = search_of(search, criteria)
    refuse_empty(criteria, found)
    return found


def _failed(search: Search) -> Search:
    return msgspec.structs.replace(search, statuses=(JobStatus.FAILED,))


def _measure(messaging: MessagingInstruments, jobs: Sequence[NewJob], seconds: float) -> None:
    """Jobs are stored; those of one commit share its time."""
    for queue, number in Counter(job.queue for job in jobs).items():
        place = queue_place(queue)
        messaging.sent("enqueue", place, number)
        messaging.operated("enqueue", "send", place, seconds, None)


def _unheard(_done: int) -> None:
    """Nobody listens."""
