"""A browser without a window: follows redirects and keeps cookies, inside this process."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import httpx
from fastapi import FastAPI

from tests.providers.asgi_client import HERE

HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


class ConsoleClient:
    """Asks an application from this machine, as a browser does."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self.cookies = httpx.Cookies()

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> httpx.Response:
        """What is at a path."""
        return self.request("GET", path, headers)

    def request(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, **more: Any
    ) -> httpx.Response:
        """One request, and those that it leads to."""

        async def go() -> httpx.Response:
            async with httpx.AsyncClient(
                transport=httpx.ASGITransport(self._app, client=HERE),
                base_url="http://localhost",
                headers=HTML,
                cookies=self.cookies,
                follow_redirects=True,
            ) as client:
                answer = await client.request(method, path, headers=headers, **more)
                self.cookies = client.cookies
                return answer

        return asyncio.run(go())
