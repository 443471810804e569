"""The one route of the health API: what it takes, who may ask, how it answers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping
from http import HTTPStatus
from typing import Annotated, Any
from uuid import UUID

import msgspec
from fastapi import APIRouter, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from ergon_framework.errors import StoreError
from ergon_framework.ports.providerstore import ProviderStore
from ergon_framework.providers.authorization import Authorize, is_local_request
from ergon_framework.providers.schemas import (
    ProviderHealthDetail,
    ProviderHealthError,
    ProviderHealthLevel,
    ProviderHealthSummary,
)
from ergon_framework.providers.service import ProviderHealthService
from ergon_framework.providers.telemetry import logger

PATH = "/api/v1/provider-health/summary"
_RETRY_AFTER = 5  # seconds

_Tenant = Annotated[UUID, Query(description="Whose providers.")]
_Detail = Annotated[
    ProviderHealthLevel,
    Query(description="`full` adds streaks, cooldowns and the like to the contract."),
]
_REFUSALS: dict[int | str, dict[str, Any]] = {
    403: {"model": ProviderHealthError, "description": "The caller may not read this tenant."},
    422: {"model": ProviderHealthError, "description": "The tenant is missing or is no uuid."},
    503: {
        "model": ProviderHealthError,
        "description": "The store does not answer.",
        "headers": {
            "Retry-After": {
                "description": "Seconds after which asking again is worth it.",
                "schema": {"type": "integer"},
            }
        },
    },
}
_PROBLEMS = {"missing": "missing", "uuid_parsing": "not a uuid"}


class _SummaryRoute(APIRoute):
    """Answers invalid input with our error document, whatever the host's other routes do."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            try:
                return await handle(request)
            except RequestValidationError as error:
                return _wrong_input(error)

        return guarded


def build_router(store: str | ProviderStore, authorize: Authorize | None) -> APIRouter:
    """The router, once FastAPI is known to be there."""
    router = APIRouter(route_class=_SummaryRoute, tags=["provider health"])
    service = ProviderHealthService(store)

    @router.get(
        PATH,
        summary="How a tenant's providers stand",
        response_model=ProviderHealthSummary | ProviderHealthDetail,
        responses=_REFUSALS,
    )
    async def provider_health_summary(
        request: Request, tenant_id: _Tenant, detail: _Detail = ProviderHealthLevel.SUMMARY
    ) -> Response:
        """Circuit, success rate, latency and quota of every provider that the tenant has used.

        Rates are of the last hour. A tenant that nobody knows has no providers.
        """
        given = request.query_params.getlist("tenant_id")
        if len(given) > 1:
            return _invalid({"query.tenant_id": "given more than once"})
        refusal = await _refusal(request, str(tenant_id), authorize)
        if refusal is not None:
            return refusal
        return await run_in_threadpool(_answer, service, given[0], detail)

    return router


def _answer(
    service: ProviderHealthService, tenant_id: str, detail: ProviderHealthLevel
) -> Response:
    try:
        told = service.summary(tenant_id, detail is ProviderHealthLevel.FULL)
    except StoreError as error:
        # Its text may name hosts and files: that is for our log, not for the caller.
        logger.warning("the provider health API cannot read its store: %s", error)
        return _error(
            HTTPStatus.SERVICE_UNAVAILABLE,
            error.code,
            "the store of provider calls does not answer",
            {"remedy": f"ask again in {_RETRY_AFTER} seconds"},
            {"Retry-After": str(_RETRY_AFTER)},
        )
    return _json(HTTPStatus.OK, told)


# -- who may ask -----------------------------------------------------------------------------------


async def _refusal(
    request: Request, tenant_id: str, authorize: Authorize | None
) -> Response | None:
    if authorize is not None:
        is_allowed = await _is_authorized(request, tenant_id, authorize)
        return None if is_allowed else _not_permitted("this caller may not read this tenant")
    address = None if request.client is None else request.client.host
    if is_local_request(address, request.headers.keys(), request.headers.get("host", "")):
        return None
    return _not_permitted(
        "provider health is told to callers on this machine only",
        remedy="give create_router a function authorize(request, tenant_id) to let others read it",
    )


async def _is_authorized(request: Request, tenant_id: str, authorize: Authorize) -> bool:
    try:
        if _is_async(authorize):
            answer: Any = authorize(request, tenant_id)
        else:
            answer = await run_in_threadpool(authorize, request, tenant_id)
        if inspect.isawaitable(answer):
            answer = await answer
    except Exception as error:
        if isinstance(error, HTTPException) and error.status_code >= HTTPStatus.BAD_REQUEST:
            raise
        logger.warning("an authorizer failed, which is a no: %s", type(error).__name__)
        return False
    if not isinstance(answer, bool):
        logger.warning("an authorizer returned no bool, which is a no: %s", type(answer).__name__)
    return answer is True


def _is_async(authorize: Authorize) -> bool:
    call = getattr(authorize, "__call__", None)  # noqa: B004 - of an object that has one
    return inspect.iscoroutinefunction(authorize) or inspect.iscoroutinefunction(call)


# -- answers ---------------------------------------------------------------------------------------


def _not_permitted(message: str, remedy: str = "") -> Response:
    details = {"remedy": remedy} if remedy else {}
    return _error(HTTPStatus.FORBIDDEN, "not_permitted", message, details)


def _wrong_input(error: RequestValidationError) -> Response:
    """What is wrong and where; never what was sent."""
    problems = {
        ".".join(map(str, each["loc"])): _PROBLEMS.get(each["type"], each["msg"])
        for each in error.errors()
    }
    return _invalid(problems)


def _invalid(problems: Mapping[str, str]) -> Response:
    message = "; ".join(f"{field}: {problem}" for field, problem in problems.items())
    found = [{"field": field, "message": problem} for field, problem in problems.items()]
    return _error(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid_request", message, {"errors": found})


def _error(
    status: HTTPStatus,
    code: str,
    message: str,
    details: Mapping[str, Any],
    headers: Mapping[str, str] | None = None,
) -> Response:
    return _json(status, {"code": code, "message": message, "details": details}, headers)


def _json(status: HTTPStatus, body: Any, headers: Mapping[str, str] | None = None) -> Response:
    return Response(
        msgspec.json.encode(body),
        status,
        {"Cache-Control": "no-store", **(headers or {})},
        media_type="application/json",
    )
