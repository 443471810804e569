"""``/api/v1/flows``: lists flows, shows one, and carries out an operator's actions on it."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response
from fastapi.security import HTTPBearer
from pydantic import Field

from ergon_framework.core.flow import FlowStatus
from ergon_framework.web.action_routes import Operator, Reason, Reasons
from ergon_framework.web.backend_pool import BackendPool
from ergon_framework.web.flow_actions import (
    FLOW_ACTIONS,
    FlowActions,
    flow_document,
    flows_document,
)
from ergon_framework.web.job_actions import JobActions
from ergon_framework.web.responses import (
    CHANGES,
    MISSING,
    Cursor,
    Limit,
    QueryParams,
    json_response,
)
from ergon_framework.web.schemas import FlowChanged, FlowList, FlowOne


class FlowsParams(QueryParams):
    """A filter of flows."""

    status: list[FlowStatus] = Field([], description="Only in these states; may be repeated.")
    limit: Limit = 100
    cursor: Cursor = None


class SignalBody(QueryParams):
    """A signal for a step that waits for it."""

    name: str = Field(min_length=1, max_length=255, description="The name of the signal.")
    value: Any = Field(None, description="The result of the step.")
    reason: Reason = ""


def flow_routes(pool: BackendPool) -> APIRouter:
    """The routes about flows, including those that change one."""
    actions = FlowActions(JobActions(pool))
    router = APIRouter(prefix="/api/v1/flows", tags=["flows"])
    bearer = [Depends(HTTPBearer(auto_error=False))]

    @router.get("", summary="Flows, the newest first", response_model=FlowList)
    async def list_flows(asked: Annotated[FlowsParams, Query()]) -> Response:
        """A page of those that match; `is_all` says whether it is the last one."""
        look = partial(flows_document, pool.jobs(), asked.status, asked.limit, asked.cursor)
        return json_response(await pool.call("jobs", look))

    @router.get("/{flow_id:path}", summary="One flow", response_model=FlowOne, responses=MISSING)
    async def show_flow(flow_id: str) -> Response:
        """Its state and the reasons, what can be done, and the signals that it waits for."""
        look = partial(flow_document, pool.jobs(), flow_id)
        return json_response(await pool.call("jobs", look))

    @router.post(
        "/{flow_id:path}/signal",
        summary="Complete the step that waits for a signal",
        response_model=FlowChanged,
        responses={**CHANGES, **MISSING},
        dependencies=bearer,
    )
    async def signal(flow_id: str, asked: SignalBody, actor: Operator) -> Response:
        """A signal that comes before its step is reached is kept for the step."""
        status = await actions.signal(flow_id, asked.name, asked.value, actor, asked.reason)
        return json_response({"id": flow_id, "action": "signal", "status": status})

    for name in FLOW_ACTIONS:
        _add_action(router, actions, name)
    return router


def _add_action(router: APIRouter, actions: FlowActions, name: str) -> None:
    action = FLOW_ACTIONS[name]

    async def change(flow_id: str, asked: Reasons, actor: Operator) -> Response:
        status = await actions.change(action, flow_id, actor, asked.reason)
        return json_response({"id": flow_id, "action": name, "status": status})

    change.__doc__ = action.consequence
    router.post(
        f"/{{flow_id:path}}/{name}",
        name=f"{name}_flow",
        summary=f"{action.title}: a flow",
        response_model=FlowChanged,
        responses={**CHANGES, **MISSING},
        dependencies=[Depends(HTTPBearer(auto_error=False))],
    )(change)
