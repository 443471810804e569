"""``/api/v1/queues``, ``schedules`` and ``workers``: what jobs wait in and who runs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from ergon_framework.jobs.client import JobClient
from ergon_framework.jobs.desk_shape import queue_shapes, schedule_shape, worker_shape
from ergon_framework.jobs.schedules import Scheduler
from ergon_framework.web.answers import answer
from ergon_framework.web.house import House
from ergon_framework.web.pages import Asked, Cursor, Limit, Page, cursor_place, cursor_text, page
from ergon_framework.web.shapes import QueueItem, ScheduleItem, WorkerItem

Rows = list[dict[str, Any]]


class ListAsked(Asked):
    """How much of a list."""

    limit: Limit = 100
    cursor: Cursor = None


def desk_routes(house: House) -> APIRouter:
    """The routes about queues, schedules and workers."""
    router = APIRouter(prefix="/api/v1", tags=["jobs"])

    async def listed(rows: Callable[[JobClient], Rows], key: str, asked: ListAsked) -> Response:
        source = house.jobs()

        def look() -> Rows:
            with source.opened() as client:
                return rows(client)

        after = None if asked.cursor is None else cursor_place(asked.cursor, str)
        return answer(by_name(await house.ask("jobs", look), key, asked.limit, after))

    @router.get("/queues", summary="Queues, by name", response_model=Page[QueueItem])
    async def queues(asked: Annotated[ListAsked, Query()]) -> Response:
        """Every queue that has jobs or limits."""
        return await listed(_queues, "name", asked)

    @router.get("/schedules", summary="Schedules, by name", response_model=Page[ScheduleItem])
    async def schedules(asked: Annotated[ListAsked, Query()]) -> Response:
        """Every schedule that a worker has stored."""
        return await listed(_schedules, "name", asked)

    @router.get("/workers", summary="Workers, by id", response_model=Page[WorkerItem])
    async def workers(asked: Annotated[ListAsked, Query()]) -> Response:
        """Those that told of themselves."""
        return await listed(_workers, "id", asked)

    return router


def by_name(rows: Rows, key: str, limit: int, after: str | None) -> dict[str, Any]:
    """One page of a list that is read as a whole, in the order of a name."""
    rows = sorted(rows, key=lambda row: str(row[key]))
    left = rows if after is None else [row for row in rows if row[key] > after]
    shown = left[:limit]
    return page(shown, cursor_text(shown[-1][key]) if len(left) > limit else None)


def _queues(client: JobClient) -> Rows:
    store = client.store
    return queue_shapes(store.queues(), store.named(), store.workers(), store.now())


def _schedules(client: JobClient) -> Rows:
    found = Scheduler(client.store).preview(1)
    return [{**schedule_shape(each.schedule), "problem": each.problem or None} for each in found]


def _workers(client: JobClient) -> Rows:
    now = client.store.now()
    return [worker_shape(each, now) for each in client.store.workers()]
