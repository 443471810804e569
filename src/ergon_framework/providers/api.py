"""The health summary over HTTP, as a FastAPI router that a host includes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ergon_framework.errors import MissingExtraError, StoreError
from ergon_framework.providers.authorization import Authorize, as_authorizer
from ergon_framework.providers.store_urls import current_store
from ergon_framework.providers.telemetry import logger

if TYPE_CHECKING:
    from fastapi import APIRouter

    from ergon_framework.ports.providerstore import ProviderStore

__all__ = ["Authorize", "create_router"]


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
    from ergon_framework.providers.health_routes import build_router

    asked = as_authorizer(authorize)
    try:
        current_store(store)
    except StoreError as error:
        logger.warning("the provider health API starts without its store: %s", error.code)
    return build_router(store, asked)
