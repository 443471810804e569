"""``POST /api/v1/boundary/{zone}/quarantine/…``: release or discard a fact that was set aside."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Depends, Path, Response
from fastapi.security import HTTPBearer
from pydantic import Field

from ergon_framework.web.action_routes import Operator
from ergon_framework.web.backend_pool import BackendPool
from ergon_framework.web.fact_actions import FACT_ACTIONS, MOST_ITEM, MOST_REASON, FactActions
from ergon_framework.web.responses import CHANGES, MISSING, QueryParams, json_response
from ergon_framework.web.schemas import FactChange

Item = Annotated[int, Path(ge=1, le=MOST_ITEM, description="As the list of the quarantine has it.")]


class FactReasonBody(QueryParams):
    """The reason of a change, for the audit log and the journal of the zone."""

    reason: str = Field(
        "",
        max_length=MOST_REASON,
        description="Why; kept in the audit log and in the journal of the zone.",
    )


FactReasons = Annotated[FactReasonBody, Body(default_factory=FactReasonBody)]


def fact_routes(pool: BackendPool) -> APIRouter:
    """The routes that change what zones have set aside."""
    actions = FactActions(pool)
    router = APIRouter(
        prefix="/api/v1/boundary",
        tags=["boundary"],
        dependencies=[Depends(HTTPBearer(auto_error=False))],
        responses={**CHANGES, **MISSING},
    )
    for name in FACT_ACTIONS:
        _add_action(router, actions, name)
    return router


def _add_action(router: APIRouter, actions: FactActions, name: str) -> None:
    action = FACT_ACTIONS[name]

    async def change(zone: str, item: Item, asked: FactReasons, actor: Operator) -> Response:
        found = await actions.settle(action, zone, item, actor, asked.reason)
        return json_response({"zone": zone, "id": item, "action": name, "state": found["state"]})

    change.__doc__ = action.consequence
    router.post(
        f"/{{zone:path}}/quarantine/{{item}}/{name}",
        name=f"{name}_fact",
        summary=f"{action.title}: a fact that was set aside",
        response_model=FactChange,
    )(change)
