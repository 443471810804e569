"""The health summary over HTTP, as a FastAPI router that a host includes."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from ergon_framework.errors import ConfigurationError, MissingExtraError, StoreError
from ergon_framework.providers.stores import open_store
from ergon_framework.providers.telling import logger

if TYPE_CHECKING:
    from fastapi import APIRouter, Request

    from ergon_framework.ports.providerstore import ProviderStore

Authorize = Callable[["Request", str], bool | Awaitable[bool]]
"""Whether a request may read a tenant's summary: ``True``, and nothing else, is a yes.

It gets the tenant as a lower-case uuid. One that takes a single argument gets the tenant if that is
its name, and the request otherwise. One that is not async runs on a thread. If it raises an
``HTTPException``, that is the answer; any other exception is a no.
"""


def create_router(store: str | ProviderStore, authorize: Authorize | None = None) -> APIRouter:
    """A router with ``GET /api/v1/provider-health/summary?tenant_id=<uuid>``.

    Without ``authorize`` only requests from this machine are answered. A store that is away is
    asked again with every request; a URL that names none is refused here.
    """
    try:
        import fastapi  # noqa: F401 - looked for here, so that the error can say what to install
    except ImportError as error:
        raise MissingExtraError(
            "the provider health API needs FastAPI",
            remedy="pip install 'ergon-framework[api]'",
        ) from error
    from ergon_framework.providers.api_routes import build_router

    asked = _adapted(authorize)
    try:
        open_store(store)
    except StoreError as error:
        logger.warning("the provider health API starts without its store: %s", error.code)
    return build_router(store, asked)


def _adapted(authorize: Any) -> Authorize | None:
    """Called with a request and a tenant, or with the one of them that it takes."""
    if authorize is None:
        return None
    remedy = "give a function authorize(request, tenant_id) that returns True or False"
    if not callable(authorize):
        raise ConfigurationError("authorize must be a function", remedy=remedy)
    try:
        signature = inspect.signature(authorize)
    except (ValueError, TypeError):  # some of those written in C have none
        return authorize  # type: ignore[no-any-return]
    if _takes(signature, 2):
        return authorize  # type: ignore[no-any-return]
    if not _takes(signature, 1):
        raise ConfigurationError(
            f"authorize{signature} cannot be called with a request and a tenant", remedy=remedy
        )
    if "tenant" in next(iter(signature.parameters)):
        return lambda _, tenant_id: authorize(tenant_id)
    return lambda request, _: authorize(request)


def _takes(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True
