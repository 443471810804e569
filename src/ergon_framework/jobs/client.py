"""The client: puts jobs into a store and asks about them.

A job is stored, as durably as the store's sentence says, when ``enqueue`` returns.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

import msgspec

from ergon_framework.core.job import CancelAsked, JobStatus, RequeueAsked, RunAsked
from ergon_framework.errors import JobError, JobStateError
from ergon_framework.jobs import tracing
from ergon_framework.jobs.claims import Judgement
from ergon_framework.jobs.edge import JobOptions, JobSpec, new_job, spread
from ergon_framework.jobs.enqueued import EnqueuedJob
from ergon_framework.jobs.requests import Progress, Store, ask, batches, purge_all, requeue_all
from ergon_framework.jobs.results import POLL, Ear, found, result_of, wait_in_time
from ergon_framework.jobs.settings import JobsSettings
from ergon_framework.jobs.shape import job_shape
from ergon_framework.ports.context import current_attempt
from ergon_framework.ports.jobstore import Added, Job, NewJob, OnDuplicate, Search
from ergon_framework.telemetry import outgoing_metadata
from ergon_framework.telemetry.notices import has_listeners, tell

__all__ = ["EnqueuedJob", "JobClient", "JobSpec", "OnDuplicate"]

logger = logging.getLogger("ergon.jobs")

MOST_AT_ONCE = 100_000
"""Jobs in one commit."""


class JobClient:
    """Enqueues jobs and follows them; safe to share between threads.

    ::

        with JobClient("sqlite:///work.db") as client:
            job = client.enqueue("resize", ["a.png"], {"width": 3}, queue="images")
            print(job.result(timeout=30))
    """

    def __init__(
        self, url: str = "", *, settings: JobsSettings | None = None, store: Store | None = None
    ) -> None:
        self.settings = settings or JobsSettings()
        self._url = url  # empty when only an open store was given
        self.store = _open(url) if store is None else store
        self._judgement = Judgement(self.settings, "client")
        self._ears: dict[int, Ear] = {}  # by process: a forked one has a bell of its own

    # ---- putting jobs in ----

    def enqueue(
        self,
        handler: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        connection: Any = None,
        **options: Unpack[JobOptions],
    ) -> EnqueuedJob:
        """Store one job and return its id, which also answers questions about it.

        With ``connection``, the job is stored in the caller's own transaction on the same SQLite
        file or PostgreSQL database: it exists when that is committed, and never when it is rolled
        back. It is a connection of sqlite3 or psycopg, of SQLAlchemy or Django with one of them, or
        a session. On PostgreSQL the commit wakes workers; on SQLite they find the job at their next
        look, or at once after :meth:`announce`.
        """
        with tracing.enqueuing(options) as span:
            joined = tracing.joined(span, options)
            job = self._new(handler, args, kwargs, {**self._context(), **joined})
            (added,) = self._added([job], connection)
            tracing.enqueued(span, job, added.id, is_new=added.is_new)
        return added

    def enqueue_many(
        self,
        jobs: Iterable[JobSpec],
        *,
        chunk: int | None = None,
        progress: Progress | None = None,
        connection: Any = None,
        **options: Unpack[JobOptions],
    ) -> list[EnqueuedJob]:
        """Store many jobs in one commit: all of them or, on any mistake, none.

        Options are those of every job that does not set its own. With ``chunk``, each so many jobs
        are a commit of their own, ``progress`` hears how many are stored, and what was stored
        before a mistake stays; its error then tells in ``details["stored"]`` how many those are.
        With ``connection``, all of them are the caller's to commit; call :meth:`announce` then.
        """
        ids: list[EnqueuedJob] = []
        with tracing.enqueuing(options, begins=False) as span:
            common = {**self._context(), **tracing.joined(span, options)}
            made = (self._new(*spread(spec, common)) for spec in jobs)
            try:
                for batch in batches(made, chunk or MOST_AT_ONCE + 1):
                    ids += self._added(_bounded(batch), connection)
                    if progress is not None:
                        progress(len(ids))
            except JobError as error:
                error.details["stored"] = len(ids)
                raise
            span.set_attribute("ergon.jobs", len(ids))
        return ids

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
        **options: Unpack[JobOptions],
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
        return job_shape(self.find(job_id), self.settings)

    def result(self, job_id: str, timeout: float | None = None, *, poll: float = POLL) -> Any:
        """What the job returned, waiting for its end at most ``timeout`` seconds.

        Raises JobFailedError when it ended otherwise, ResultTimeoutError when it has not ended, or
        when the store has not told by then; one that is away is told at once.
        """
        ear = self._ears.setdefault(os.getpid(), Ear(self.store))
        job = wait_in_time(self.store, ear, str(job_id), timeout, poll)
        return result_of(job, self._url)

    # ---- moving ----

    def cancel(self, job_id: str) -> bool:
        """Cancel a job that waits. False: it was cancelled already; JobStateError: too late."""
        try:
            ask(self.store, self._judgement, str(job_id), CancelAsked())
        except JobStateError as error:
            if error.details.get("status") == JobStatus.CANCELLED:
                return False
            raise
        return True

    def retry(self, job_id: str) -> None:
        """Let a waiting job run now, or one that failed or was cancelled begin anew.

        Raises DuplicateJobError when another job holds its unique key by now; so does ``requeue``.
        """
        ask(self.store, self._judgement, str(job_id), RunAsked())

    def requeue(self, job_id: str) -> None:
        """Send a dead-lettered job back with fresh counters."""
        ask(self.store, self._judgement, str(job_id), RequeueAsked())

    def requeue_many(
        self, search: Search, limit: int | None = None, progress: Progress | None = None
    ) -> int:
        """Send back every dead-lettered job that matches; how many.

        Those whose unique key another job holds by now are left, and the log says how many.
        """
        search = _failed(search)
        requeued = requeue_all(self.store, self._judgement, search, limit, progress or _unheard)
        if requeued.held:
            logger.warning(
                "jobs not requeued because others hold their unique keys: %d", requeued.held
            )
        return requeued.done

    def purge_many(
        self, search: Search, limit: int | None = None, progress: Progress | None = None
    ) -> int:
        """Delete every dead-lettered job that matches, for good; how many."""
        return purge_all(self.store, _failed(search), limit, progress or _unheard)

    # ---- the end ----

    def close(self) -> None:
        """Let go of the store; may be called twice."""
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ---- inside ----

    def _new(
        self,
        handler: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
        options: Mapping[str, Any],
    ) -> NewJob:
        limit, now = self.settings.max_payload, self.store.now
        return new_job(handler, args, kwargs, max_payload=limit, now=now, **options)

    def _added(self, jobs: Sequence[NewJob], connection: Any) -> list[EnqueuedJob]:
        add = self.store.add if connection is None else _adder(self.store, connection)
        found = add(jobs)
        if connection is None and has_listeners("job.enqueued"):
            for job, added in zip(jobs, found, strict=True):
                if added.is_new:
                    tell("job.enqueued", job_id=added.id, handler=job.handler, queue=job.queue)
        return [EnqueuedJob.of(added, self) for added in found]

    def _context(self) -> dict[str, Any]:
        """What the code that enqueues is part of: its trace, and what its work belongs to."""
        context: dict[str, Any] = {}
        carrier = outgoing_metadata()
        if carrier:
            context["trace_context"] = carrier
        attempt = current_attempt()
        if attempt is not None and attempt.run is not None:
            transaction = attempt.transaction
            context["correlation_id"] = transaction.correlation_id or transaction.transaction_id
        return context


def _bounded(jobs: list[NewJob]) -> list[NewJob]:
    if len(jobs) > MOST_AT_ONCE:
        remedy = "let enqueue_many(chunk=1000) commit them in parts"
        raise JobError(f"more than {MOST_AT_ONCE:,} jobs in one commit", remedy=remedy)
    return jobs


def _open(url: str) -> Store:
    from ergon_framework.jobs.stores.opening import open_store

    return open_store(url)


def _adder(store: Store, connection: Any) -> Callable[[Sequence[NewJob]], list[Added]]:
    add_in: Any = getattr(store, "add_in", None)
    if add_in is None:
        raise JobError(
            f"{type(store).__name__} cannot store a job in another's transaction",
            remedy="leave connection out, or use a store on SQLite or PostgreSQL",
        )
    return lambda jobs: add_in(connection, jobs)


def _failed(search: Search) -> Search:
    return msgspec.structs.replace(search, statuses=(JobStatus.FAILED,))


def _unheard(_done: int) -> None:
    """Nobody listens."""
