"""Pages that change nothing: flows, a capability, a zone, tasks, traces, the journal,
the settings.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Awaitable, Callable
from enum import StrEnum
from functools import partial
from typing import Any, TypeVar

from starlette.datastructures import QueryParams as Given
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from ergon_framework.core.flow import FlowStatus
from ergon_framework.core.job import JobStatus
from ergon_framework.web.addresses import address_of
from ergon_framework.web.audit import OF_FLOWS
from ergon_framework.web.backend_pool import BackendPool
from ergon_framework.web.console.answers import ROOT, View, address_with, format_of, unit_of
from ergon_framework.web.console.audit_page import changes_of, outcome_chip
from ergon_framework.web.console.capability_page import ATTEMPT_COLUMNS, capability_document
from ergon_framework.web.console.flow_pages import (
    FLOW_COLUMNS,
    STEP_COLUMNS,
    flow_chip,
    flow_document,
    flows_document,
)
from ergon_framework.web.console.formatting import blocks
from ergon_framework.web.console.journal_look import JournalLook
from ergon_framework.web.console.journal_pages import (
    ENTRY_COLUMNS,
    MOST_ROWS,
    SPAN_COLUMNS,
    TASK_COLUMNS,
    TRACE_COLUMNS,
    journal_document,
    query_of,
    tasks_document,
    trace_document,
    traces_document,
)
from ergon_framework.web.console.part_pages import zone_chip
from ergon_framework.web.console.settings_page import SETTING_COLUMNS, settings_document
from ergon_framework.web.console.sharing import SharedLook
from ergon_framework.web.console.zone_page import (
    MOST_ITEMS,
    QUARANTINE_COLUMNS,
    content_document,
    gate_chip,
    item_number,
    zone_document,
)
from ergon_framework.web.fact_actions import FACT_ACTIONS, fact_actions_for
from ergon_framework.web.flow_actions import FLOW_ACTIONS
from ergon_framework.web.job_routes import Place
from ergon_framework.web.middleware import caller_of
from ergon_framework.web.responses import (
    MAX_PAGE,
    InvalidParameterError,
    cursor_place,
)

Shown = Callable[[Request], Awaitable[View | Response]]
S = TypeVar("S", bound=StrEnum)
SHOWN, MOST_TOLD = 50, 100
"""How many rows a page has, and how many entries of the journal."""
_CONTENT = ("envelope", "fact")


class ReadingPages:
    """The pages that change nothing."""

    def __init__(self, pool: BackendPool) -> None:
        self._pool = pool
        self._journal = JournalLook(pool.backends.settings)
        self._journal_mark = SharedLook(self._journal.mark)
        self._tasks_look = SharedLook(partial(tasks_document, self._journal))
        self._traces_look = SharedLook(partial(traces_document, self._journal, failed_only=False))

    async def mark(self) -> str:
        """A value that changes when the journal has something new; one query for all who watch."""
        return await self._journal_mark.get()

    async def has_trace(self, unit: str) -> bool:
        """Whether a trace mentions this id."""
        found: list[str] = await self._journal.ask(lambda journal: journal.traces_of(unit), [])
        return bool(found)

    def pages(self) -> dict[str, Shown]:
        """The pages by their paths below the console."""
        return {
            "/flows": self._flows,
            "/flows/{flow_id:path}": self._flow,
            "/providers/{provider}/{capability:path}": self._capability,
            "/zones/{zone:path}/quarantine/{item}": self._set_aside,
            "/zones/{zone:path}": self._zone,
            "/tasks": self._tasks,
            "/traces": self._traces,
            "/traces/find": self._find_trace,
            "/traces/{trace:path}": self._trace,
            "/journal": self._journal_page,
            "/settings": self._settings,
        }

    async def _zone(self, request: Request) -> View:
        name, most = request.path_params["zone"], MAX_PAGE
        limit = MOST_ITEMS if format_of(request) == "html" else most
        found = await zone_document(self._pool, name, limit)
        extra = {
            "zone_chip": zone_chip,
            "gate_chip": gate_chip,
            "actions": fact_actions_for("quarantined"),
        }
        rows = found["items"]
        return View("zone.html", name, found, rows, QUARANTINE_COLUMNS, extra, is_live=True)

    async def _set_aside(self, request: Request) -> View:
        name = request.path_params["zone"]
        item = item_number(name, request.path_params["item"])
        found = await content_document(self._pool, name, item)
        is_wanted = request.query_params.get("payloads") in ("true", "1")
        is_whole = is_wanted and self._pool.shows_payloads and "fact" in found
        if is_whole:
            what = f"the fact that the zone {name!r} had set aside under the id {item}"
            await self._pool.note_look(caller_of(request.scope), detail=what)
        else:
            found = {key: value for key, value in found.items() if key not in _CONTENT}
        extra = {
            "zone": name,
            "zone_operand": shlex.quote(name),
            "is_whole": is_whole,
            "may_show": self._pool.shows_payloads,
            "actions": [FACT_ACTIONS[each] for each in found["actions"]],
            "outcome_chip": outcome_chip,
        }
        return View("set_aside.html", f"Fact {found['offset']}", found, extra=extra)

    async def _tasks(self, _request: Request) -> View:
        found = await self._tasks_look.get()
        title, rows = "Transactions and tasks", found["items"]
        return View("tasks.html", title, found, rows, TASK_COLUMNS, is_live=True)

    async def _traces(self, request: Request) -> View:
        if request.query_params.get("failed") in ("true", "1"):
            found = await traces_document(self._journal, failed_only=True)
        else:
            found = await self._traces_look.get()
        return View("traces.html", "Traces", found, found["items"], TRACE_COLUMNS, is_live=True)

    async def _find_trace(self, request: Request) -> Response:
        wanted = request.query_params.get("q", "").strip()
        root = request.scope.get("root_path", "") + ROOT
        folder = f"{root}/traces"
        return RedirectResponse(address_of(folder, wanted) if wanted else folder, 303)

    async def _trace(self, request: Request) -> View:
        found = await trace_document(self._journal, unit_of(request, "trace"))
        rows, extra = found["items"], {"most": MOST_ROWS}
        return View("trace.html", "Trace", found, rows, SPAN_COLUMNS, extra)

    async def _journal_page(self, request: Request) -> View:
        limit = MOST_TOLD if format_of(request) == "html" else MAX_PAGE
        found = await journal_document(self._journal, query_of(request.query_params), limit)
        extra, rows = {"asked": found["filter"]}, found["items"]
        return View("journal.html", "Journal", found, rows, ENTRY_COLUMNS, extra, is_live=True)

    async def _settings(self, _request: Request) -> View:
        found = settings_document(self._pool.backends.settings)
        return View("settings.html", "Settings", found, found["items"], SETTING_COLUMNS)

    async def _capability(self, request: Request) -> View:
        names = request.path_params["provider"], request.path_params["capability"]
        found = await capability_document(self._pool, self._journal, *names)
        extra = {"blocks": blocks(found["sentences"])}
        title, rows = " / ".join(names), found["items"]
        return View("capability.html", title, found, rows, ATTEMPT_COLUMNS, extra, is_live=True)

    async def _flows(self, request: Request) -> View:
        statuses, cursor = chosen(request.query_params, FlowStatus), _cursor(request)
        source = self._pool.jobs()
        question = partial(flows_document, source, statuses, _most(request), cursor)
        found = await self._pool.call("jobs", question)
        extra: dict[str, Any] = {"statuses": FlowStatus, "asked": statuses, "flow_chip": flow_chip}
        extra |= {"is_first": cursor is None, "following": None}
        if found["next_cursor"] is not None:
            extra["following"] = address_with(request, cursor=found["next_cursor"])
        rows, is_live = found["items"], cursor is None
        return View("flows.html", "Flows", found, rows, FLOW_COLUMNS, extra, is_live=is_live)

    async def _flow(self, request: Request) -> View:
        given = request.query_params
        statuses, cursor = chosen(given, JobStatus), _cursor(request)
        below = None if cursor is None else cursor_place(cursor, Place)
        flow_id = request.path_params["flow_id"]
        question = partial(
            flow_document, self._pool.jobs(), flow_id, statuses, _most(request), below
        )
        found = await self._pool.call("jobs", question)
        # In a thread, because a locked file makes the caller wait.
        found["changes"] = await asyncio.to_thread(changes_of, self._pool.audit, flow_id, OF_FLOWS)
        extra: dict[str, Any] = {
            "actions": [FLOW_ACTIONS[name] for name in found["actions"]],
            "outcome_chip": outcome_chip,
            "asked": statuses,
            "chip_of": flow_chip(found["status"]),
            "blocks": blocks(found["sentences"]),
            "following": None,
            "is_first": cursor is None,
        }
        if found["next_cursor"] is not None:
            extra["following"] = f"{address_with(request, cursor=found['next_cursor'])}#steps"
        is_live = not FlowStatus(found["status"]).is_final and cursor is None
        title, rows = found["name"] or "Flow", found["items"]
        return View("flow.html", title, found, rows, STEP_COLUMNS, extra, is_live=is_live)


def _most(request: Request) -> int:
    return SHOWN if format_of(request) == "html" else MAX_PAGE


def _cursor(request: Request) -> str | None:
    return request.query_params.get("cursor") or None


def chosen(given: Given, states: type[S]) -> list[S]:
    """The states of a filter. A field that was left empty is ignored."""
    try:
        return [states(each) for each in given.getlist("status") if each]
    except ValueError:
        known = ", ".join(states)
        raise InvalidParameterError(
            "status", "there is no such state", f"known are {known}"
        ) from None
