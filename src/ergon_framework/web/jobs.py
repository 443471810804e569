"""``/api/v1/jobs``: jobs, the newest first; one job; why it is where it is."""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Response
from pydantic import Field

from ergon_framework.core.job import JobStatus
from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.shape import job_shape
from ergon_framework.jobs.why import explain_job
from ergon_framework.ports.jobstore import Job, Search
from ergon_framework.web.answers import answer
from ergon_framework.web.house import House
from ergon_framework.web.job_source import JobSource
from ergon_framework.web.pages import (
    Asked,
    Cursor,
    Limit,
    Page,
    Payloads,
    cursor_place,
    cursor_text,
    page,
)
from ergon_framework.web.refusals import MISSING
from ergon_framework.web.shapes import JobItem, JobWhy

Place = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""Where a page of jobs ended."""

_CONTENT = ("args", "kwargs", "result")


class JobsAsked(Asked):
    """Which jobs."""

    status: list[JobStatus] = Field([], description="Only in these states; may be repeated.")
    queue: str | None = Field(None, description="Only of this queue.")
    handler: str | None = Field(None, description="Only for this handler.")
    limit: Limit = 100
    cursor: Cursor = None
    payloads: Payloads = False


class JobAsked(Asked):
    """How much of a job."""

    payloads: Payloads = False


def job_routes(house: House) -> APIRouter:
    """The routes about jobs."""
    router = APIRouter(prefix="/api/v1/jobs", tags=["jobs"])

    @router.get("", summary="Jobs, the newest first", response_model=Page[JobItem])
    async def list_jobs(asked: Annotated[JobsAsked, Query()]) -> Response:
        """One page of the jobs that match."""
        source = house.jobs()
        below = None if asked.cursor is None else cursor_place(asked.cursor, Place)
        search = Search(
            statuses=tuple(asked.status), queue=asked.queue, handler=asked.handler, below=below
        )
        is_whole = house.shows_payloads and asked.payloads
        look = partial(_page, source, search, asked.limit, is_whole=is_whole)
        return answer(await house.ask("jobs", look))

    # An id may have slashes in it, so that the longer path must come first.
    @router.get(
        "/{job_id:path}/why",
        summary="Why a job is where it is",
        response_model=JobWhy,
        responses=MISSING,
    )
    async def explain(job_id: str) -> Response:
        """In plain sentences, from what is recorded."""
        return answer(await house.ask("jobs", partial(_why, house.jobs(), job_id)))

    @router.get("/{job_id:path}", summary="One job", response_model=JobItem, responses=MISSING)
    async def show_job(job_id: str, asked: Annotated[JobAsked, Query()]) -> Response:
        """Everything about a job, its history included."""
        source = house.jobs()
        is_whole = house.shows_payloads and asked.payloads
        return answer(await house.ask("jobs", partial(_one, source, job_id, is_whole=is_whole)))

    return router


def found_jobs(client: JobClient, search: Search, most: int) -> list[Job]:
    """Matching jobs, the newest first."""
    return list(islice(client.store.search(search, most), most))


def shown_job(client: JobClient, job: Job, *, is_whole: bool) -> dict[str, Any]:
    """A job as plain values; only a whole one has what was sent and what came back."""
    shape = job_shape(job, client.settings)
    left_out = () if is_whole else _CONTENT
    return {name: value for name, value in shape.items() if name not in left_out}


def _page(source: JobSource, search: Search, limit: int, *, is_whole: bool) -> dict[str, Any]:
    with source.opened() as client:
        found = found_jobs(client, search, limit + 1)
        shown = found[:limit]
        items = [shown_job(client, job, is_whole=is_whole) for job in shown]
    return page(items, cursor_text(shown[-1].key) if len(found) > len(shown) else None)


def _one(source: JobSource, job_id: str, *, is_whole: bool) -> dict[str, Any]:
    with source.opened() as client:
        return shown_job(client, client.find(job_id), is_whole=is_whole)


def _why(source: JobSource, job_id: str) -> dict[str, Any]:
    with source.opened() as client:
        job, store = client.find(job_id), client.store
        queue = next((each for each in store.queues() if each.name == job.queue), None)
        sentences = explain_job(job, queue, store.workers(), store.now(), client.settings)
    return {"id": job.id, "status": job.status.value, "why": sentences}
