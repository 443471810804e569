"""The application behind ``ergon serve``, for whoever runs it under a server of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ergon_framework.app.settings import Settings, check_server_packages, revealed
from ergon_framework.ports.providerstore import ProviderStore

if TYPE_CHECKING:
    from fastapi import FastAPI


def create_app(
    store: str | ProviderStore | None = None,
    *,
    token: str | None = None,
    settings: Settings | None = None,
) -> FastAPI:
    """An application that tells how everything stands that the ``settings`` name.

    ``store`` is the URL of another store than theirs, or a store of provider calls by itself. With
    a ``token``, here or in the settings, every request but the probes needs ``Authorization:
    Bearer <token>``; without one only callers on this machine are answered. A store that is away
    is asked again with every request.
    """
    check_server_packages()
    from ergon_framework.app.settings.tokens import parsed
    from ergon_framework.web.provider_source import ProviderSource
    from ergon_framework.web.routes import build_app, plan_of
    from ergon_framework.web.sources import PROVIDERS, Sources, sources_of
    from ergon_framework.web.tokens import FixedTokens

    known = settings or Settings()
    named = token or revealed(known.server.token)
    tokens = FixedTokens(parsed(named, "the token")) if named else None
    if store is None or isinstance(store, str):
        sources = sources_of(known, store)
    else:
        sources = Sources(providers={PROVIDERS: ProviderSource(store)})
    return build_app(plan_of(known.server, sources, tokens))
