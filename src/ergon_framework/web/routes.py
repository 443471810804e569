"""What the application answers: probes, the provider health summary, OpenAPI, and refusals."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any, Literal

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from fastapi.security import HTTPBearer
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from ergon_framework.errors import StoreError
from ergon_framework.ports.providerstore import LaneKey, ProviderStore
from ergon_framework.providers.api import create_router
from ergon_framework.providers.schemas import ProviderHealthError
from ergon_framework.providers.stores import open_store
from ergon_framework.web.answers import NO_STORE, refusal
from ergon_framework.web.gate import TokenGate

logger = logging.getLogger("ergon.web")

_RETRY_AFTER = 5  # seconds
_NOBODY = LaneKey("*", "ergon", "readiness")
"""A lane that nobody uses: reading it shows that the store answers."""
_UNREADY: dict[int | str, dict[str, Any]] = {
    503: {
        "model": ProviderHealthError,
        "description": "The store does not answer.",
        "headers": {
            "Retry-After": {
                "description": "Seconds after which asking again is worth it.",
                "schema": {"type": "integer"},
            }
        },
    }
}
_NO_TOKEN: dict[int | str, dict[str, Any]] = {
    401: {"model": ProviderHealthError, "description": "The token is missing or wrong."}
}


class Probe(BaseModel):
    """That all is well."""

    status: Literal["live", "ready"]


def build_app(store: str | ProviderStore, token: str | None) -> FastAPI:
    """The application, once FastAPI is known to be there."""
    app = FastAPI(
        title="Ergon",
        version="1",  # of the paths, not of the program: that is nobody's business
        docs_url=None,  # their pages load scripts from elsewhere
        redoc_url=None,
        # For the OpenAPI document only: the gate has decided before.
        dependencies=[] if token is None else [Depends(HTTPBearer(auto_error=False))],
        responses={} if token is None else _NO_TOKEN,
    )
    # Whoever has the token may read every tenant.
    app.include_router(create_router(store, None if token is None else lambda _, __: True))
    app.include_router(_probes(store))
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(Exception, _failed)
    if token is not None:
        app.add_middleware(TokenGate, token=token)
    return app


def _probes(store: str | ProviderStore) -> APIRouter:
    router = APIRouter(prefix="/health", tags=["probes"])

    @router.get("/live", summary="Whether the process answers", response_model=Probe)
    async def live() -> Response:
        """Yes, as long as it does."""
        return JSONResponse({"status": "live"}, headers=NO_STORE)

    @router.get(
        "/ready", summary="Whether the store answers", response_model=Probe, responses=_UNREADY
    )
    def ready() -> Response:  # not async, so that it waits on a thread
        """Whether the summary can be told."""
        try:
            open_store(store).standing(_NOBODY)
        except StoreError as error:
            # Its text may name hosts and files: that is for our log, not for the caller.
            logger.warning("not ready, the store does not answer: %s", error)
            return refusal(
                HTTPStatus.SERVICE_UNAVAILABLE,
                error.code,
                "the store of provider calls does not answer",
                {"remedy": f"ask again in {_RETRY_AFTER} seconds"},
                {"Retry-After": str(_RETRY_AFTER)},
            )
        return JSONResponse({"status": "ready"}, headers=NO_STORE)

    return router


async def _refused(_request: Request, error: Any) -> Response:
    """Also for paths and methods that are not there."""
    status = HTTPStatus(error.status_code)
    remedy = {"remedy": "/openapi.json tells what there is"}
    is_unknown = status in {HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED}
    return refusal(
        status,
        status.name.lower(),
        str(error.detail).lower(),
        remedy if is_unknown else {},
        error.headers,
    )


async def _failed(_request: Request, _error: Exception) -> Response:
    return refusal(500, "internal", "the server failed; its log says how")
