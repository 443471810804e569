"""``/api/v1/jobs``, ``queues``, ``schedules`` and ``workers``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import Field

from ergon_framework.core.job import JobStatus
from ergon_framework.errors import JobError
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.finding import search_of
from ergon_framework.jobs.flow_why import what_a_step_waits_for
from ergon_framework.jobs.scheduler import Scheduler
from ergon_framework.jobs.views import job_view, queue_views, schedule_view, worker_view
from ergon_framework.jobs.why import Starters, explain_job, token_of
from ergon_framework.ports.jobstore import Job, Queue, Search, WorkerRecord, bound_for
from ergon_framework.web.addresses import named
from ergon_framework.web.backend_pool import BackendPool
from ergon_framework.web.backends import JobBackend
from ergon_framework.web.middleware import caller_of
from ergon_framework.web.responses import (
    MISSING,
    Cursor,
    InvalidParameterError,
    Limit,
    Page,
    Payloads,
    QueryParams,
    cursor_place,
    cursor_text,
    json_response,
    page,
)
from ergon_framework.web.schemas import JobItem, JobWhy, QueueItem, ScheduleItem, WorkerItem

Place = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""The place at which a page of jobs ended."""

_CONTENT = ("args", "kwargs", "result")


class JobsParams(QueryParams):
    """A filter of jobs."""

    status: list[JobStatus] = Field([], description="Only in these states; may be repeated.")
    queue: str | None = Field(None, description="Only of this queue.")
    handler: str | None = Field(None, description="Only for this handler.")
    tag: list[str] = Field([], description="Only with this tag; may be repeated.")
    metadata: list[str] = Field(
        [], description="KEY=VALUE: only with this in the metadata; may be repeated."
    )
    error: str | None = Field(None, description="Only with this last error: its code, or its kind.")
    since: str | None = Field(None, description="Only created then or later, in RFC 3339.")
    until: str | None = Field(None, description="Only created before then, in RFC 3339.")
    limit: Limit = 100
    cursor: Cursor = None
    payloads: Payloads = False


Id = Annotated[
    str | None,
    Query(description="The id, where a path cannot carry it: write `-` in its place there."),
]


def job_named(job_id: str, id: Id = None) -> str:
    """The id of a job, from the path or from the query."""
    return named(job_id, id)


JobNamed = Annotated[str, Depends(job_named)]


class JobParams(QueryParams):
    """Which parts of a job are wanted."""

    id: Id = None
    payloads: Payloads = False


def job_routes(pool: BackendPool) -> APIRouter:
    """The routes about jobs."""
    router = APIRouter(prefix="/api/v1/jobs", tags=["jobs"])

    @router.get("", summary="Jobs, the newest first", response_model=Page[JobItem])
    async def list_jobs(request: Request, asked: Annotated[JobsParams, Query()]) -> Response:
        """One page of the jobs that match."""
        source = pool.jobs()
        below = None if asked.cursor is None else cursor_place(asked.cursor, Place)
        search = search_for(asked, below)
        is_whole = pool.shows_payloads and asked.payloads
        if is_whole:
            await pool.note_look(caller_of(request.scope), detail=_listed(asked))
        look = partial(jobs_page, source, search, asked.limit, is_whole=is_whole)
        return json_response(await pool.call("jobs", look))

    # An id may contain slashes, so the longer path must come first.
    @router.get(
        "/{job_id:path}/why",
        summary="Why a job is where it is",
        response_model=JobWhy,
        responses=MISSING,
    )
    async def explain(job_id: JobNamed) -> Response:
        """Sentences that say why a job is in its state."""
        return json_response(await pool.call("jobs", partial(_why, pool.jobs(), job_id)))

    @router.get("/{job_id:path}", summary="One job", response_model=JobItem, responses=MISSING)
    async def show_job(
        request: Request, job_id: str, asked: Annotated[JobParams, Query()]
    ) -> Response:
        """Everything about a job, including its history."""
        source, job_id = pool.jobs(), named(job_id, asked.id)
        is_whole = pool.shows_payloads and asked.payloads
        if is_whole:
            await pool.note_look(caller_of(request.scope), job_id)
        return json_response(
            await pool.call("jobs", partial(_one, source, job_id, is_whole=is_whole))
        )

    return router


def _listed(asked: JobsParams) -> str:
    """Which arguments somebody looks at, for the audit log."""
    left_out = {"limit", "cursor", "payloads"}
    given = asked.model_dump(mode="json", exclude=left_out, exclude_defaults=True)
    chosen = "; ".join(f"{name}={value}" for name, value in given.items())
    return f"the arguments of jobs: {chosen or 'all'}"


def search_for(asked: JobsParams, below: int | None) -> Search:
    """The search that the parameters describe. An error names the parameter that is wrong."""
    found = Search(statuses=tuple(asked.status), below=below)
    given = {
        "queue": asked.queue,
        "handler": asked.handler,
        "tags": asked.tag or None,
        "metadata": _pairs(asked.metadata) or None,
        "error": asked.error,
        "since": asked.since,
        "until": asked.until,
    }
    # One by one, because the error of search_of does not say which parameter it is about.
    for field, value in given.items():
        try:
            found = search_of(found, {field: value})
        except JobError as error:
            name = "tag" if field == "tags" else field
            # Not the text of the error, which may repeat what was sent.
            raise InvalidParameterError(
                name, "is not what it must be", error.remedy or "leave it out"
            ) from error
    return found


def _pairs(texts: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        key, mark, value = text.partition("=")
        if not mark:
            raise InvalidParameterError("metadata", "has no value", "write metadata=KEY=VALUE")
        found[key] = value
    return found


def found_jobs(client: JobClient, search: Search, most: int) -> list[Job]:
    """Matching jobs, the newest first."""
    return list(islice(client.store.search(search, most), most))


def shown_job(
    client: JobClient, job: Job, *, is_whole: bool, workers: Sequence[WorkerRecord] = ()
) -> dict[str, Any]:
    """A job as plain values. Its arguments and result are included only if they are wanted.

    ``workers`` have the progress of running jobs.
    """
    view = job_view(job, client.settings, workers)
    left_out = () if is_whole else _CONTENT
    return {name: value for name, value in view.items() if name not in left_out}


def workers_of(client: JobClient, jobs: Sequence[Job]) -> Sequence[WorkerRecord]:
    """The workers, if one of the jobs runs, because they know its progress."""
    is_any_running = any(job.status is JobStatus.ACTIVE for job in jobs)
    return client.store.workers() if is_any_running else ()


def jobs_page(source: JobBackend, search: Search, limit: int, *, is_whole: bool) -> dict[str, Any]:
    """One page of the jobs that match, as ``/api/v1/jobs`` returns it."""
    with source.opened() as client:
        found = found_jobs(client, search, limit + 1)
        shown = found[:limit]
        workers = workers_of(client, shown)
        items = [shown_job(client, job, is_whole=is_whole, workers=workers) for job in shown]
    return page(items, cursor_text(shown[-1].key) if len(found) > len(shown) else None)


def _one(source: JobBackend, job_id: str, *, is_whole: bool) -> dict[str, Any]:
    with source.opened() as client:
        job = client.find(job_id)
        workers = workers_of(client, [job])
        return shown_job(client, job, is_whole=is_whole, workers=workers)


def _why(source: JobBackend, job_id: str) -> dict[str, Any]:
    with source.opened() as client:
        job = client.find(job_id)
        sentences = why_of(source, client, job)
    return {"id": job.id, "status": job.status.value, "why": sentences}


def why_of(source: JobBackend, client: JobClient, job: Job) -> list[str]:
    """Sentences that say why a job is in its state."""
    store = client.store
    return explain_job(
        job,
        store.look_at_queues([job.queue])[0],
        store.workers(),
        store.now(),
        client.settings,
        starters=Starters(source.setup.executors),
        step=what_a_step_waits_for(job, store, ""),
        token_at=token_of(job, store),
    )


Rows = list[dict[str, Any]]


class ListParams(QueryParams):
    """Which part of a list is wanted."""

    limit: Limit = 100
    cursor: Cursor = None


class QueuesParams(ListParams):
    """A filter of queues."""

    prefix: str = Field("", description="Only with names that begin so.")


def admin_routes(pool: BackendPool) -> APIRouter:
    """The routes about queues, schedules and workers."""
    router = APIRouter(prefix="/api/v1", tags=["jobs"])

    async def listed(rows: Callable[[JobClient], Rows], key: str, asked: ListParams) -> Response:
        source = pool.jobs()

        def look() -> Rows:
            with source.opened() as client:
                return rows(client)

        after = None if asked.cursor is None else cursor_place(asked.cursor, str)
        return json_response(by_name(await pool.call("jobs", look), key, asked.limit, after))

    @router.get("/queues", summary="Queues, by name", response_model=Page[QueueItem])
    async def queues(asked: Annotated[QueuesParams, Query()]) -> Response:
        """Every queue that has jobs or limits. Each state is counted up to a bound."""
        after = "" if asked.cursor is None else cursor_place(asked.cursor, str)
        look = partial(_queues, pool.jobs(), asked.prefix, after, asked.limit)
        return json_response(await pool.call("jobs", look))

    @router.get("/schedules", summary="Schedules, by name", response_model=Page[ScheduleItem])
    async def schedules(asked: Annotated[ListParams, Query()]) -> Response:
        """Every schedule in the store."""
        return await listed(_schedules, "name", asked)

    @router.get("/workers", summary="Workers, by id", response_model=Page[WorkerItem])
    async def workers(asked: Annotated[ListParams, Query()]) -> Response:
        """The workers with a heartbeat."""
        return await listed(_workers, "id", asked)

    return router


def by_name(rows: Rows, key: str, limit: int, after: str | None) -> dict[str, Any]:
    """One page of a list that is read as a whole and ordered by name."""
    rows = sorted(rows, key=lambda row: str(row[key]))
    left = rows if after is None else [row for row in rows if row[key] > after]
    shown = left[:limit]
    return page(shown, cursor_text(shown[-1][key]) if len(left) > limit else None)


def queues_page(
    client: JobClient, prefix: str, after: str, limit: int
) -> tuple[list[Queue], str | None]:
    """The next queues by name, and the name after which the next page begins, if there are more."""
    names = client.store.queue_names(prefix=prefix, after=after, limit=limit + 1)
    shown = names[:limit]
    found = client.store.look_at_queues(shown, most=bound_for(len(shown)))
    return found, shown[-1] if len(names) > len(shown) else None


def _queues(source: JobBackend, prefix: str, after: str, limit: int) -> dict[str, Any]:
    with source.opened() as client:
        found, following = queues_page(client, prefix, after, limit)
        store = client.store
        rows = queue_views(found, store.named(), store.workers(), store.now())
    return page(rows, None if following is None else cursor_text(following))


def _schedules(client: JobClient) -> Rows:
    found = Scheduler(client.store).preview(1)
    return [{**schedule_view(each.schedule), "problem": each.problem or None} for each in found]


def _workers(client: JobClient) -> Rows:
    now = client.store.now()
    return [worker_view(each, now) for each in client.store.workers()]
