"""Pages that only show: flows, and one capability of a provider."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import StrEnum
from functools import partial
from typing import Any, TypeVar

from starlette.datastructures import QueryParams as Given
from starlette.requests import Request
from starlette.responses import Response

from ergon_framework.core.flow import FlowStatus
from ergon_framework.core.job import JobStatus
from ergon_framework.web.backend_pool import BackendPool
from ergon_framework.web.console.answers import View, format_of
from ergon_framework.web.console.capability_page import ATTEMPT_COLUMNS, capability_document
from ergon_framework.web.console.flow_pages import (
    FLOW_COLUMNS,
    STEP_COLUMNS,
    flow_chip,
    flow_document,
    flows_document,
)
from ergon_framework.web.console.formatting import blocks
from ergon_framework.web.job_routes import Place
from ergon_framework.web.responses import MAX_PAGE, InvalidParameterError, cursor_place

Shown = Callable[[Request], Awaitable[View | Response]]
S = TypeVar("S", bound=StrEnum)
SHOWN = 50
"""Rows on a page."""


class ReadingPages:
    """What is looked at and not changed here."""

    def __init__(self, pool: BackendPool) -> None:
        self._pool = pool

    def pages(self) -> dict[str, Shown]:
        """By their paths below the console."""
        return {
            "/flows": self._flows,
            "/flows/{flow_id}": self._flow,
            "/providers/{provider}/{capability:path}": self._capability,
        }

    async def _capability(self, request: Request) -> View:
        names = request.path_params["provider"], request.path_params["capability"]
        found = await capability_document(self._pool, *names)
        extra = {"blocks": blocks(found["sentences"])}
        title, rows = " / ".join(names), found["items"]
        return View("capability.html", title, found, rows, ATTEMPT_COLUMNS, extra, is_live=True)

    async def _flows(self, request: Request) -> View:
        statuses = chosen(request.query_params, FlowStatus)
        source = self._pool.jobs()
        question = partial(flows_document, source, statuses, _most(request))
        found = await self._pool.call("jobs", question)
        extra = {"statuses": FlowStatus, "asked": statuses, "flow_chip": flow_chip}
        rows = found["items"]
        return View("flows.html", "Flows", found, rows, FLOW_COLUMNS, extra, is_live=True)

    async def _flow(self, request: Request) -> View:
        given = request.query_params
        statuses, cursor = chosen(given, JobStatus), given.get("cursor") or None
        below = None if cursor is None else cursor_place(cursor, Place)
        flow_id = request.path_params["flow_id"]
        question = partial(
            flow_document, self._pool.jobs(), flow_id, statuses, _most(request), below
        )
        found = await self._pool.call("jobs", question)
        extra: dict[str, Any] = {
            "asked": statuses,
            "chip_of": flow_chip(found["status"]),
            "blocks": blocks(found["sentences"]),
            "following": None,
            "is_first": cursor is None,
        }
        if found["next_cursor"] is not None:
            url = request.url.include_query_params(cursor=found["next_cursor"])
            extra["following"] = f"{url.path}?{url.query}#steps"
        is_live = not FlowStatus(found["status"]).is_final and cursor is None
        title, rows = found["name"] or "Flow", found["items"]
        return View("flow.html", title, found, rows, STEP_COLUMNS, extra, is_live=is_live)


def _most(request: Request) -> int:
    return SHOWN if format_of(request) == "html" else MAX_PAGE


def chosen(given: Given, states: type[S]) -> list[S]:
    """The states of a filter; a field that was left empty is as one that is not there."""
    try:
        return [states(each) for each in given.getlist("status") if each]
    except ValueError:
        known = ", ".join(states)
        raise InvalidParameterError(
            "query.status", "there is no such state", f"known are {known}"
        ) from None
