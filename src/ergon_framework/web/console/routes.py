"""Which pages there are, below ``/console``."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request, Response
from starlette.responses import RedirectResponse

from ergon_framework.errors import ErgonError, JobNotFoundError
from ergon_framework.web.backend_pool import BackendPool
from ergon_framework.web.console.answers import ROOT, Answers, View, format_of
from ergon_framework.web.console.formatting import blocks
from ergon_framework.web.console.job_pages import (
    COLUMNS,
    MOST_SHOWN,
    SHOWN,
    job_document,
    list_document,
    params_of,
    readable,
    same_error,
)
from ergon_framework.web.console.overview import JobsLook, Watch, overview_document, queue_rows
from ergon_framework.web.middleware import CALLER
from ergon_framework.web.responses import (
    MAX_PAGE,
    ResourceNotFoundError,
    cursor_text,
    page,
)

audit = logging.getLogger("ergon.web.audit")

Shown = Callable[[Request], Awaitable[View | Response]]
QUEUE_COLUMNS = (
    "name",
    "state.text",
    "counts.pending",
    "counts.retrying",
    "counts.active",
    "counts.failed",
    "counts.completed",
    "counts.cancelled",
    "oldest_due",
    "done_per_second",
    "max_active",
    "rate",
    "pinned_version",
)
MOST_QUEUES = 100
"""Queues on a page."""


class Console:
    """The pages of one server."""

    def __init__(self, pool: BackendPool) -> None:
        self._pool = pool
        self._watch = Watch(pool)
        self._answers = Answers()

    def router(self) -> APIRouter:
        """All pages. They are no part of the API, whose lists stay as they are."""
        router = APIRouter(include_in_schema=False)
        pages: dict[str, Shown] = {
            "": self._overview,
            "/queues": self._queues,
            "/jobs": self._jobs,
            "/find": self._find,
            "/jobs/{job_id:path}": self._job,
        }
        for path in ("/", f"{ROOT}/"):
            router.add_api_route(path, self._entrance, response_model=None)
        router.add_api_route(f"{ROOT}/static/{{name}}", self._static, response_model=None)
        for path, show in pages.items():
            router.add_api_route(ROOT + path, self._page(show), response_model=None)
        router.add_api_route(
            f"{ROOT}/{{rest:path}}", self._page(self._missing), response_model=None
        )
        return router

    def _page(self, show: Shown) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            counts = await self._watch.counts() if format_of(request) == "html" else {}
            try:
                found = await show(request)
            except ErgonError as error:
                return self._answers.error(request, error, counts)
            if isinstance(found, Response):
                return found
            return self._answers.show(request, found, counts)

        return answer

    async def _entrance(self, request: Request) -> Response:
        return RedirectResponse(request.scope.get("root_path", "") + ROOT, 307)

    async def _static(self, name: str) -> Response:
        if name not in self._answers.static:
            raise ResourceNotFoundError("there is no such file", remedy=f"{ROOT} links those")
        return self._answers.file(name)

    async def _missing(self, _request: Request) -> View:
        remedy = "the links beside this text lead to every page that there is"
        raise ResourceNotFoundError("there is no such page", remedy=remedy)

    async def _overview(self, _request: Request) -> View:
        document = overview_document(await self._watch.overview())
        rows = None if document["jobs"] is None else document["jobs"]["queues"]
        return View("overview.html", "Overview", document, rows, QUEUE_COLUMNS)

    async def _queues(self, request: Request) -> View:
        rows = queue_rows(await self._look())
        wanted = request.query_params.get("name", "").lower()
        found = [each for each in rows if wanted in each["name"].lower()]
        limit = MOST_QUEUES if format_of(request) == "html" else MAX_PAGE
        after = request.query_params.get("after", "")
        left = [each for each in found if each["name"] > after] if after else found
        shown = left[:limit]
        following = shown[-1]["name"] if len(left) > limit else None
        document = {
            **page(shown, None if following is None else cursor_text(following)),
            "number": len(found),
        }
        extra = {"wanted": wanted, "following": following}
        return View("queues.html", "Queues", document, shown, QUEUE_COLUMNS, extra)

    async def _jobs(self, request: Request) -> View:
        source = self._pool.jobs()
        is_page = format_of(request) == "html"
        asked = params_of(request.query_params, SHOWN if is_page else MAX_PAGE)
        if is_page and asked.limit > MOST_SHOWN:
            asked = asked.model_copy(update={"limit": MOST_SHOWN})
        document = await self._pool.call("jobs", partial(list_document, source, asked))
        extra: dict[str, Any] = {"asked": asked, "following": None}
        if document["next_cursor"] is not None:
            url = request.url.include_query_params(cursor=document["next_cursor"])
            extra["following"] = f"{url.path}?{url.query}"
        return View("jobs.html", "Jobs", document, document["items"], COLUMNS, extra)

    async def _job(self, request: Request) -> View:
        job_id = request.path_params["job_id"]
        source, look = self._pool.jobs(), await self._look()
        is_wanted = request.query_params.get("payloads") in ("true", "1")
        is_whole = is_wanted and self._pool.shows_payloads
        question = partial(job_document, source, job_id, look, is_whole=is_whole)
        document = await self._pool.call("jobs", question)
        if is_whole:
            audit.info("%s looked at the arguments of the job %r", _who(request), job_id)
        extra = {
            "blocks": blocks(document["sentences"]),
            "same": same_error(look, document),
            "may_show": self._pool.shows_payloads,
            "is_whole": is_whole,
            "readable": readable,
        }
        return View("job.html", document["handler"], document, extra=extra)

    async def _find(self, request: Request) -> Response:
        wanted = request.query_params.get("q", "").strip()
        root = request.scope.get("root_path", "") + ROOT
        if not wanted:
            return RedirectResponse(f"{root}/jobs", 303)
        source = self._pool.jobs()

        def is_there() -> bool:
            with source.opened() as client:
                return "\0" not in wanted and client.store.find(wanted) is not None

        if await self._pool.call("jobs", is_there):
            return RedirectResponse(f"{root}/jobs/{quote(wanted)}", 303)
        raise JobNotFoundError(
            "there is no job with this id",
            remedy="look for it by queue, handler or tag on the page of jobs; what ended long ago"
            " has been deleted",
        )

    async def _look(self) -> JobsLook:
        found = await self._watch.jobs()
        if found is None:
            self._pool.jobs()  # says that there is no job store, and where to name one
            raise AssertionError
        return found


def _who(request: Request) -> Any:
    return request.scope.get(CALLER, "somebody")


def console_routes(pool: BackendPool) -> APIRouter:
    """The routes of the console."""
    return Console(pool).router()
