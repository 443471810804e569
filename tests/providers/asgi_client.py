"""Asks an ASGI application inside this process, from whichever address a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import httpx
from fastapi import FastAPI

PATH = "/api/v1/provider-health/summary"
HERE = ("127.0.0.1", 40_000)


def ask(
    app: FastAPI,
    tenant_id: str | None = None,
    *,
    path: str = PATH,
    method: str = "GET",
    peer: tuple[str, int] | None = HERE,
    headers: Mapping[str, str] | None = None,
    **query: Any,
) -> httpx.Response:
    """One request and its answer."""

    async def go() -> httpx.Response:
        transport = httpx.ASGITransport(app, client=peer or HERE)
        if peer is None:
            transport = httpx.ASGITransport(_without_peer(app))
        params = query if tenant_id is None else {"tenant_id": tenant_id, **query}
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, path, params=params, headers=dict(headers or {}))

    return asyncio.run(go())


def _without_peer(app: FastAPI) -> Any:
    """As behind a Unix socket: nobody knows who called."""

    async def wrapped(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "client": None}, receive, send)

    return wrapped
