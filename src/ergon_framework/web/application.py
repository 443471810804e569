"""The application behind ``ergon serve``, for whoever runs it under a server of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ergon_framework.errors import MissingExtraError
from ergon_framework.ports.providerstore import ProviderStore

if TYPE_CHECKING:
    from fastapi import FastAPI


def create_app(store: str | ProviderStore, *, token: str | None = None) -> FastAPI:
    """An application that tells how the providers in ``store`` stand.

    With a ``token`` every request needs ``Authorization: Bearer <token>``. Without one, the summary
    is told to callers on this machine only. A store that is away is asked again with every request.
    """
    try:
        import fastapi  # noqa: F401 - looked for here, so that the error can say what to install
    except ImportError as error:
        raise MissingExtraError(
            "the server needs FastAPI", remedy="pip install 'ergon-framework[api]'"
        ) from error
    from ergon_framework.web.routes import build_app

    return build_app(store, token)
