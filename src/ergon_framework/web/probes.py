"""``/live`` and ``/ready``, also under ``/health``."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from ergon_framework.web.backend_pool import BackendPool, backend_title
from ergon_framework.web.middleware import CALLER
from ergon_framework.web.responses import (
    REFUSALS,
    BackendUnavailableError,
    json_response,
    unavailable,
)

PROBE_TIMEOUT = 2.0
"""Seconds that each store and zone has to answer a probe."""

_UNREADY: dict[int | str, dict[str, Any]] = {503: REFUSALS[503]}


class Probe(BaseModel):
    """The answer of a probe."""

    status: Literal["live", "ready"]


def probe_routes(pool: BackendPool, prefix: str = "") -> APIRouter:
    """The routes of both probes."""
    router = APIRouter(prefix=prefix, tags=["probes"])
    readiness = _ReadinessCheck(pool)

    @router.get("/live", summary="Whether the process answers", response_model=Probe)
    async def live() -> Response:
        """Answers as long as the server runs."""
        return json_response({"status": "live"})

    @router.get(
        "/ready",
        summary="Whether every store and zone answers",
        response_model=Probe,
        responses=_UNREADY,
    )
    async def ready(request: Request) -> Response:
        """Whether all backends answer. Only callers who may read are told which one does not."""
        away = await readiness.away()
        if not away:
            return json_response({"status": "ready"})
        first, code = next(iter(away.items()))
        if CALLER not in request.scope:
            return unavailable(code, "a store does not answer")
        return unavailable(code, f"{backend_title(first)} does not answer", {"away": away})

    return router


class _ReadinessCheck:
    """Checks all backends. Probes that arrive meanwhile share the result."""

    def __init__(self, pool: BackendPool) -> None:
        self._pool = pool
        self._task: asyncio.Task[dict[str, str]] | None = None

    async def away(self) -> dict[str, str]:
        """The backends that do not answer, each with its error code."""
        task = self._task
        if task is None or task.done() or task.get_loop() is not asyncio.get_running_loop():
            task = self._task = asyncio.ensure_future(self._look())
        # Shielded: other probes wait for the same check when the caller of this one leaves.
        return await asyncio.shield(task)

    async def _look(self) -> dict[str, str]:
        async def problem(name: str, check: Any) -> tuple[str, str | None]:
            try:
                await self._pool.call(
                    name, check, min(PROBE_TIMEOUT, self._pool.bulkheads[name].seconds)
                )
            except BackendUnavailableError as error:
                return name, error.code
            return name, None

        checks = [problem(name, source.check) for name, source in self._pool.backends.parts()]
        return {name: code for name, code in await asyncio.gather(*checks) if code is not None}
