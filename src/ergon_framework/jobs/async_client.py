"""The client for event loops: the same calls as coroutines.

What blocks is done by a few threads of the client's own, and by one for each connection that is
lent; results are waited for by one thread more, however many are awaited. A call that is cancelled
is given up, not undone: an ``enqueue`` that was under way may have stored its job. Give it an id
and ask, when that matters.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar, Unpack

from ergon_framework.core.job import JobStatus
from ergon_framework.engine.atfork import renew_after_fork
from ergon_framework.errors import ResultTimeoutError, StoreUnavailableError
from ergon_framework.jobs.admin import Progress, batches
from ergon_framework.jobs.client import EnqueuedJob, JobClient, _JobId, default_settings
from ergon_framework.jobs.finding import JobFilter
from ergon_framework.jobs.flow_client import AsyncEnqueuedFlow, EnqueuedFlow
from ergon_framework.jobs.flows import (
    Chain,
    Draft,
    FlowClients,
    Group,
    SignalStep,
    signal_step,
)
from ergon_framework.jobs.newjob import HandlerOptions, JobSpec
from ergon_framework.jobs.payload_codec import names_object
from ergon_framework.jobs.payload_codec_store import codec_of
from ergon_framework.jobs.results import (
    MIN_POLL_INTERVAL,
    POLL_INTERVAL,
    check_timeout,
    found,
    not_found,
    refuse_to_wait,
    result_of,
    timed_out,
    unanswered,
)
from ergon_framework.jobs.schedule_client import AsyncScheduleClient
from ergon_framework.lazy_exports import LateModule
from ergon_framework.ports.job_fields import Instant
from ergon_framework.ports.job_options import Handlers
from ergon_framework.ports.jobstore import FullJobStore, Job, NewJob, Search, Topic
from ergon_framework.storage.deadlines import CALL_BUDGET, MIN_TIMEOUT
from ergon_framework.storage.external_transactions import run_on
from ergon_framework.storage.urls import option_for

if TYPE_CHECKING:
    import ergon_framework.jobs.settings as job_settings
else:
    job_settings = LateModule("ergon_framework.jobs.settings")

FINAL = tuple(status for status in JobStatus if status.is_final)
IDS_PER_QUERY = 200
"""How many ids one query of the store has."""

WhenEnded: TypeAlias = Callable[[Job | Exception], None]


class ResultWatcher:
    """Tells each caller the outcome of its job once: its final state, or why that cannot be known.

    Callers are told from the thread of this watcher, which sleeps while no caller waits.
    """

    def __init__(self, store: FullJobStore, poll: float) -> None:
        self._store = store
        self._poll = poll
        self._subscription = store.subscribe(Topic.DONE)
        self._lock = threading.Lock()
        self._awaited: dict[str, set[WhenEnded]] = {}
        self._is_new = False  # A caller came since the last read.
        self._is_over = False  # The callers' event loops are gone.
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ergon-results", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """How many callers wait."""
        with self._lock:
            return sum(len(each) for each in self._awaited.values())

    def add(self, job_id: str, when_ended: WhenEnded) -> None:
        """Wait for one job. When the job has already ended, the caller is told at once."""
        with self._lock:
            is_over = self._is_over
            if not is_over:
                self._awaited.setdefault(job_id, set()).add(when_ended)
                self._is_new = True
        if is_over:
            when_ended(_closed())
        self._subscription.wake()

    def remove(self, job_id: str, when_ended: WhenEnded) -> None:
        """Wait no longer."""
        with self._lock:
            waiting = self._awaited.get(job_id)
            if waiting is not None:
                waiting.discard(when_ended)
                if not waiting:
                    del self._awaited[job_id]

    def close(self) -> None:
        """Stop; callers that still wait are told that the store is closed."""
        self._closing.set()
        self._subscription.wake()
        self._thread.join()
        self._subscription.close()

    def _run(self) -> None:
        try:
            self._watch()
        finally:
            with self._lock:
                self._is_over = True
            self._tell_all(_closed())

    def _watch(self) -> None:
        is_notified = False
        while not self._closing.is_set():
            looked_at = time.monotonic()
            with self._lock:
                ids = list(self._awaited)
                # Notifications announce ends only. That a job was deleted is found by asking the
                # store now and then.
                is_thorough, self._is_new = self._is_new or not is_notified, False
            try:
                self._look(ids, is_thorough=is_thorough)
            except Exception as error:
                self._tell_all(error)
            is_notified = self._subscription.wait(self._poll if self._awaited else None)
            if is_notified and not self._is_new:
                self._closing.wait(max(0.0, looked_at + MIN_POLL_INTERVAL - time.monotonic()))

    def _look(self, ids: list[str], *, is_thorough: bool) -> None:
        for batch in batches(ids, IDS_PER_QUERY):
            statuses = () if is_thorough else FINAL
            missing = set(batch)
            for job in self._store.search(Search(ids=tuple(batch), statuses=statuses)):
                missing.discard(job.id)
                if job.status.is_final:
                    self._tell(job.id, job)
            if is_thorough:
                for job_id in missing:
                    self._tell(job_id, not_found(job_id, option_for(self._store)))

    def _tell(self, job_id: str, what: Job | Exception) -> None:
        with self._lock:
            waiting = self._awaited.pop(job_id, set())
        for when_ended in waiting:
            when_ended(what)

    def _tell_all(self, error: Exception) -> None:
        for job_id in list(self._awaited):
            self._tell(job_id, error)


def _closed() -> StoreUnavailableError:
    return StoreUnavailableError("the client was closed", remedy="open another")


T = TypeVar("T")

MAX_THREADS = 8
"""How many enqueues run at once. Those that arrive together share a commit."""
MAX_LENT_THREADS = 100_000
"""How many threads there are for calls on connections that callers lend: more than any server has
connections. No call may wait for a free thread here, because the commit of the waiting call may be
what all other calls wait for.
"""
DEADLINE_MARGIN = 2 * MIN_TIMEOUT
"""Seconds that a call waits beyond its deadline for the thread that asks the store."""


class AsyncEnqueuedJob(_JobId):
    """The id of an enqueued job, for event loops: its methods are coroutines."""

    __slots__ = ("_client",)

    _client: AsyncJobClient

    @classmethod
    def like(cls, job: EnqueuedJob, client: AsyncJobClient) -> Self:
        """The id of a job that the synchronous client enqueued, for use with ``client``."""
        made = cls(str(job))
        made.is_new = job.is_new
        made.replaced = job.replaced
        made._client = client
        return made

    async def status(self) -> JobStatus:
        """Where the job stands."""
        return await self._client.status(self)

    async def result(self, timeout: float | None = None) -> Any:  # noqa: ASYNC109 - as the other
        """What the job returned; see :meth:`AsyncJobClient.result`."""
        return await self._client.result(self, timeout)

    async def cancel(
        self, *, running: bool = False, by: str | None = None, reason: str = ""
    ) -> bool:
        """Cancel it while it waits, or also while it runs; see :meth:`JobClient.cancel`."""
        return await self._client.cancel(self, running=running, by=by, reason=reason)


class AsyncJobClient:
    """Enqueues jobs and follows them from an event loop.

    ::

        async with AsyncJobClient("sqlite:///work.db") as client:
            job = await client.enqueue("resize", ["a.png"], {"width": 3})
            print(await job.result(timeout=30))
    """

    def __init__(
        self,
        url: str = "",
        *,
        settings: job_settings.JobsSettings | None = None,
        store: FullJobStore | None = None,
        registry: Handlers | None = None,
    ) -> None:
        """``registry``: see :class:`JobClient`."""
        self._url = url
        self._handlers = registry
        self.settings = settings or default_settings()
        self._given_settings = settings
        self._store = store
        self._client: JobClient | None = None
        self._is_shut = False
        self._begin()
        renew_after_fork(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._watcher: ResultWatcher | None = None
        self._threads = ThreadPoolExecutor(MAX_THREADS, "ergon-client")
        # The pool starts a thread only when one is needed.
        self._guests = ThreadPoolExecutor(MAX_LENT_THREADS, "ergon-guest")

    def renew(self) -> None:
        """Make new threads in a forked process; the old ones, and their callers, belong to the
        parent.

        A client that was closed stays closed.
        """
        if not self._is_shut:
            self._begin()

    @property
    def waiting(self) -> int:
        """How many callers wait for a result."""
        watcher = self._watcher
        return 0 if watcher is None else watcher.waiting

    # ---- putting jobs in ----

    async def enqueue(
        self,
        handler: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        connection: Any = None,
        **options: Unpack[HandlerOptions],
    ) -> AsyncEnqueuedJob:
        """Store one job; see :meth:`JobClient.enqueue`.

        ``connection`` may be an asynchronous one of psycopg, or of SQLAlchemy with psycopg, or an
        ``AsyncSession``. Any other is used where it is, and the event loop waits for it. A call
        with a connection that is cancelled is waited for: its transaction is yours to roll back.
        """

        def add(lent: Any) -> EnqueuedJob:
            return self._sync().enqueue(handler, args, kwargs, connection=lent, **options)

        return AsyncEnqueuedJob.like(await self._add(add, connection), self)

    async def enqueue_many(
        self,
        jobs: Iterable[JobSpec],
        *,
        chunk: int | None = None,
        progress: Progress | None = None,
        connection: Any = None,
        **options: Unpack[HandlerOptions],
    ) -> list[AsyncEnqueuedJob]:
        """Store many jobs in one commit; see :meth:`JobClient.enqueue_many`.

        The iterable is read, and ``progress`` called, in another thread. For ``connection`` see
        :meth:`enqueue`.
        """

        def add(lent: Any) -> list[EnqueuedJob]:
            return self._sync().enqueue_many(
                jobs, chunk=chunk, progress=progress, connection=lent, **options
            )

        return [AsyncEnqueuedJob.like(done, self) for done in await self._add(add, connection)]

    async def job(
        self,
        handler: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[HandlerOptions],
    ) -> NewJob:
        """The job that :meth:`enqueue` would store, checked; see :meth:`JobClient.job`."""
        return await self._call(lambda: self._sync().job(handler, args, kwargs, **options))

    # ---- flows ----

    def chain(self, *parts: Any, name: str = "", on_failure: str | None = None) -> Chain:
        """Steps one after another; see :meth:`JobClient.chain`. Store it with ``aenqueue``."""
        return Chain(self._clients(), parts, name, on_failure)

    def group(
        self,
        parts: Iterable[Any],
        *,
        then: Any = None,
        name: str = "",
        on_failure: str | None = None,
    ) -> Group:
        """Steps side by side; see :meth:`JobClient.group`. Store it with ``aenqueue``."""
        return Group(self._clients(), parts, then, name, on_failure)

    def wait_for_signal(self, name: str, *, timeout: float | None = None) -> SignalStep:
        """A step that waits for a signal, so many seconds at most from when it is reached."""
        return signal_step(name, timeout)

    async def enqueue_flow(self, draft: Draft, *, connection: Any = None) -> AsyncEnqueuedFlow:
        """Store a chain or group in one commit; returns the id of the flow."""

        def add(lent: Any) -> EnqueuedFlow:
            return self._sync().enqueue_flow(draft, connection=lent)

        return AsyncEnqueuedFlow.of(str(await self._add(add, connection)), self)

    def flow(self, flow_id: str) -> AsyncEnqueuedFlow:
        """The flow of that id. Whether it exists is found out by the first question to it."""
        return AsyncEnqueuedFlow.of(str(flow_id), self)

    async def of_flow(
        self, flow_id: str, ask: Callable[[EnqueuedFlow], T], *, waits: bool = False
    ) -> T:
        """Ask a flow something in another thread: in one of its own if that may take long."""

        def call() -> T:
            return ask(EnqueuedFlow.of(str(flow_id), self._sync()))

        return await (self._call_as_guest(call) if waits else self._call(call))

    def _clients(self) -> FlowClients:
        return FlowClients(self._sync, lambda: self)

    @property
    def schedules(self) -> AsyncScheduleClient:
        """Put, pause and delete schedules while workers run."""
        return AsyncScheduleClient(lambda ask: self._call(lambda: ask(self._sync().schedules)))

    async def announce(self) -> None:
        """Wake workers after you committed jobs on a connection of your own."""
        await self._call(lambda: self._sync().announce())

    # ---- asking ----

    async def find(self, job_id: str) -> Job:
        """The whole record of a job."""
        return await self._call(lambda: self._sync().find(job_id))

    async def status(self, job_id: str) -> JobStatus:
        """Where the job stands."""
        return await self._call(lambda: self._sync().status(job_id))

    async def show(self, job_id: str) -> dict[str, Any]:
        """Everything about a job as plain values."""
        return await self._call(lambda: self._sync().show(job_id))

    async def jobs(
        self,
        search: Search | None = None,
        *,
        limit: int | None = None,
        **criteria: Unpack[JobFilter],
    ) -> AsyncIterator[Job]:
        """The jobs that match, the newest first; see :meth:`JobClient.jobs`."""
        found = await self._call(lambda: self._sync().jobs(search, limit=limit, **criteria))
        pages = batches(found, IDS_PER_QUERY)
        while page := await self._call(lambda: next(pages, None)):
            for job in page:
                yield job

    async def count(self, search: Search | None = None, **criteria: Unpack[JobFilter]) -> int:
        """How many jobs match."""
        return await self._call(lambda: self._sync().count(search, **criteria))

    async def result(
        self,
        job_id: str,
        timeout: float | None = None,  # noqa: ASYNC109 - as the other client
        *,
        poll: float = POLL_INTERVAL,
    ) -> Any:
        """What the job returned, waiting for its end; see :meth:`JobClient.result`.

        ``poll`` counts at the first call; one thread waits for all.
        """
        check_timeout(timeout)
        job_id = str(job_id)
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[Job] = loop.create_future()

        def when_ended(what: Job | Exception) -> None:
            with suppress(RuntimeError):  # Its event loop is closed, so no caller waits there.
                loop.call_soon_threadsafe(_give, ended, what)

        until = None if timeout is None else loop.time() + timeout
        in_time = partial(self._call_in_time, job_id, timeout, until)
        watcher = await in_time(lambda: self._watching(poll, job_id))
        watcher.add(job_id, when_ended)
        try:
            left = None if until is None else until - loop.time()
            return await self._result_of(await asyncio.wait_for(ended, left))
        except TimeoutError:
            job = await in_time(lambda: found(self._sync().store, job_id))
            if job.status.is_final:  # just now
                return await self._result_of(job)
            raise timed_out(job, timeout, self._sync().store) from None
        finally:
            watcher.remove(job_id, when_ended)

    async def _result_of(self, job: Job) -> Any:
        """What it returned; what is in an object store is fetched in a thread."""
        store = self._sync().store
        if job.result is None or not names_object(job.result):
            return result_of(job, store)
        codec = codec_of(store, self._sync().settings)
        return await self._call(lambda: result_of(job, store, codec))

    # ---- moving ----

    async def cancel(
        self, job_id: str, *, running: bool = False, by: str | None = None, reason: str = ""
    ) -> bool:
        """Cancel a job that waits, or also one that runs; see :meth:`JobClient.cancel`."""
        return await self._call(
            lambda: self._sync().cancel(job_id, running=running, by=by, reason=reason)
        )

    async def retry(self, job_id: str, *, by: str | None = None) -> None:
        """Run a waiting job now, or start one again that failed or was cancelled."""
        await self._call(lambda: self._sync().retry(job_id, by=by))

    async def requeue(self, job_id: str, *, by: str | None = None) -> None:
        """Send a dead-lettered job back with fresh counters; ``by`` stands in its history."""
        await self._call(lambda: self._sync().requeue(job_id, by=by))

    async def edit_and_requeue(
        self,
        job_id: str,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        by: str | None = None,
        reason: str = "",
        new_id: str | None = None,
    ) -> AsyncEnqueuedJob:
        """Send a dead-lettered job back as a new one; see :meth:`JobClient.edit_and_requeue`."""
        added = await self._call(
            lambda: self._sync().edit_and_requeue(
                job_id, args, kwargs, by=by, reason=reason, new_id=new_id
            )
        )
        return AsyncEnqueuedJob.like(added, self)

    async def reschedule(
        self, job_id: str, *, run_at: Instant | None = None, delay: float | None = None
    ) -> None:
        """Change when a waiting job is due: at another time, or in so many seconds."""
        await self._call(lambda: self._sync().reschedule(job_id, run_at=run_at, delay=delay))

    async def delete(self, job_id: str) -> None:
        """Delete a job that has ended, for good. A step of a flow stays as long as its flow."""
        await self._call(lambda: self._sync().delete(job_id))

    # ---- moving many; ``progress`` is called in another thread ----

    async def cancel_many(
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
        """Cancel every job that matches and waits; see :meth:`JobClient.cancel_many`."""
        return await self._call_as_guest(
            lambda: self._sync().cancel_many(
                search,
                running=running,
                by=by,
                reason=reason,
                limit=limit,
                progress=progress,
                **criteria,
            )
        )

    async def reschedule_many(
        self,
        search: Search | None = None,
        *,
        run_at: Instant | None = None,
        delay: float | None = None,
        limit: int | None = None,
        progress: Progress | None = None,
        **criteria: Unpack[JobFilter],
    ) -> int:
        """Change when every waiting job that matches is due; returns how many."""
        return await self._call_as_guest(
            lambda: self._sync().reschedule_many(
                search, run_at=run_at, delay=delay, limit=limit, progress=progress, **criteria
            )
        )

    async def delete_many(
        self,
        search: Search | None = None,
        *,
        limit: int | None = None,
        progress: Progress | None = None,
        **criteria: Unpack[JobFilter],
    ) -> int:
        """Delete every job that matches and has ended; see :meth:`JobClient.delete_many`."""
        return await self._call_as_guest(
            lambda: self._sync().delete_many(search, limit=limit, progress=progress, **criteria)
        )

    async def requeue_many(
        self,
        search: Search | None = None,
        limit: int | None = None,
        progress: Progress | None = None,
        *,
        by: str | None = None,
        **criteria: Unpack[JobFilter],
    ) -> int:
        """Send back every dead-lettered job that matches; see :meth:`JobClient.requeue_many`."""
        return await self._call_as_guest(
            lambda: self._sync().requeue_many(search, limit, progress, by=by, **criteria)
        )

    async def purge_many(
        self, search: Search, limit: int | None = None, progress: Progress | None = None
    ) -> int:
        """Delete every dead-lettered job that matches, for good; returns how many."""
        return await self._call(lambda: self._sync().purge_many(search, limit, progress))

    # ---- the end ----

    async def close(self) -> None:
        """Finish what is under way and let go of the store; may be called twice."""
        await asyncio.to_thread(self.shut)

    def shut(self) -> None:
        """Close from code that is not in an event loop."""
        self._is_shut = True
        self._threads.shutdown()
        self._guests.shutdown()
        if self._watcher is not None:
            self._watcher.close()
            self._watcher = None
        if self._client is not None:
            self._client.close()

    async def __aenter__(self) -> Self:
        await self._call(self._sync)  # A store that cannot be opened is reported here.
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # ---- inside, in threads ----

    async def _add(self, add: Callable[[Any], T], connection: Any) -> T:
        if connection is None:
            return await self._call(lambda: add(None))
        await self._call_as_guest(self._sync)  # opening the store may take its time
        return await run_on(connection, add, self._call_as_guest)

    async def _call(self, call: Callable[[], T]) -> T:
        return await self._under_way(call, self._threads)

    def _call_as_guest(self, call: Callable[[], T]) -> asyncio.Future[T]:
        return self._under_way(call, self._guests)

    def _under_way(self, call: Callable[[], T], threads: ThreadPoolExecutor) -> asyncio.Future[T]:
        # In a copy of the context, so that the trace of the caller is that of the job.
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        try:
            return loop.run_in_executor(threads, context.run, call)
        except RuntimeError as error:  # its threads take no more calls
            raise StoreUnavailableError("the client is closed", remedy="open another") from error

    async def _call_in_time(
        self, job_id: str, said: float | None, until: float | None, call: Callable[[], T]
    ) -> T:
        """Make a call that must end by its caller's deadline; leave a thread behind that hangs."""
        if until is None or said is None:
            return await self._call(call)
        loop = asyncio.get_running_loop()
        seconds = max(0.0, until - loop.time())
        try:
            under_way = self._call(lambda: CALL_BUDGET.run_within(seconds, call))
            return await asyncio.wait_for(under_way, seconds + DEADLINE_MARGIN)
        except StoreUnavailableError as error:
            if loop.time() < until:
                raise
            raise unanswered(job_id, said, error) from error
        except ResultTimeoutError:
            raise  # The call's own timeout, not the wait's.
        except TimeoutError as error:
            raise unanswered(job_id, said, None) from error

    def _sync(self) -> JobClient:
        with self._lock:
            if self._client is None:
                self._client = JobClient(
                    self._url,
                    settings=self._given_settings,
                    store=self._store,
                    registry=self._handlers,
                )
            return self._client

    def _watching(self, poll: float, job_id: str) -> ResultWatcher:
        client = self._sync()
        refuse_to_wait(client.store, job_id)
        with self._lock:
            if self._watcher is None:
                self._watcher = ResultWatcher(client.store, poll)
            return self._watcher


def _give(ended: asyncio.Future[Job], what: Job | Exception) -> None:
    if ended.done():
        return
    if isinstance(what, Exception):
        ended.set_exception(what)
    else:
        ended.set_result(what)
