"""``/api/v1/boundary``: the zones of the settings, their consumers, quarantine and losses."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from pydantic import Field

from ergon_framework.web.backend_pool import BackendPool
from ergon_framework.web.backends import zone_name
from ergon_framework.web.job_routes import ListParams, by_name
from ergon_framework.web.responses import (
    MISSING,
    BackendUnavailableError,
    Cursor,
    Limit,
    Page,
    QueryParams,
    cursor_place,
    cursor_text,
    json_response,
    page,
)
from ergon_framework.web.schemas import ConsumerItem, GapItem, QuarantineItem, ZoneItem

State = Literal["quarantined", "released", "discarded", "settled", "all"]


class QuarantineParams(QueryParams):
    """A filter of the facts that were set aside."""

    state: State = "quarantined"
    consumer: str | None = Field(None, description="Only of this consumer.")
    limit: Limit = 100
    cursor: Cursor = None


def boundary_routes(pool: BackendPool) -> APIRouter:
    """The routes about zones."""
    router = APIRouter(prefix="/api/v1/boundary", tags=["boundary"])

    @router.get("", summary="Zones, by name", response_model=Page[ZoneItem])
    async def zones(asked: Annotated[ListParams, Query()]) -> Response:
        """Every zone of the settings. A zone that does not answer is marked."""
        after = None if asked.cursor is None else cursor_place(asked.cursor, str)
        rows = await asyncio.gather(*(zone_state(pool, name) for name in pool.backends.zones))
        return json_response(by_name(list(rows), "zone", asked.limit, after))

    _add_consumers(router, pool)
    _add_losses(router, pool)
    return router


def _add_consumers(router: APIRouter, pool: BackendPool) -> None:
    @router.get(
        "/{zone:path}/consumers",
        summary="Consumers of a zone, by name",
        response_model=Page[ConsumerItem],
        responses=MISSING,
    )
    async def consumers(zone: str, asked: Annotated[ListParams, Query()]) -> Response:
        """The consumers of a zone with their cursors and backlogs."""
        source = pool.zone(zone)
        after = None if asked.cursor is None else cursor_place(asked.cursor, str)
        found = await pool.call(zone_name(zone), source.consumers)
        return json_response(by_name(found["consumers"], "consumer_name", asked.limit, after))


def _add_losses(router: APIRouter, pool: BackendPool) -> None:
    @router.get(
        "/{zone:path}/quarantine",
        summary="Facts of a zone that were set aside, the oldest first",
        response_model=Page[QuarantineItem],
        responses=MISSING,
    )
    async def quarantine(zone: str, asked: Annotated[QuarantineParams, Query()]) -> Response:
        """The facts that were set aside, without their content."""
        source = pool.zone(zone)
        after = 0 if asked.cursor is None else cursor_place(asked.cursor, int)
        found = await pool.call(
            zone_name(zone), lambda: source.quarantine(asked.state, asked.consumer)
        )
        left = [item for item in found["items"] if item["id"] > after]
        shown = left[: asked.limit]
        more = cursor_text(shown[-1]["id"]) if len(left) > len(shown) else None
        return json_response(page(shown, more))

    @router.get(
        "/{zone:path}/gaps",
        summary="Recorded losses of a zone, the oldest first",
        response_model=Page[GapItem],
        responses=MISSING,
    )
    async def gaps(zone: str, asked: Annotated[ListParams, Query()]) -> Response:
        """Facts that were given up on purpose."""
        source = pool.zone(zone)
        start = 0 if asked.cursor is None else cursor_place(asked.cursor, int)
        found = (await pool.call(zone_name(zone), source.gaps))["gaps"][max(0, start) :]
        shown = found[: asked.limit]
        more = cursor_text(max(0, start) + len(shown)) if len(found) > len(shown) else None
        return json_response(page(shown, more))


async def zone_state(pool: BackendPool, name: str) -> dict[str, Any]:
    """The status of a zone, or that it does not answer."""
    try:
        status = await pool.call(zone_name(name), pool.backends.zones[name].status)
    except BackendUnavailableError as error:
        return {"zone": name, "up": False, "source": None, "problem": error.code}
    return {**status, "zone": name, "up": True, "problem": None}
