"""A line in the log for each request, where the settings ask for it."""

from __future__ import annotations

import logging
from time import monotonic

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ergon_framework.web.gate import CALLER

logger = logging.getLogger("ergon.web.access")


class AccessLog:
    """Tells who asked for what; not the query, which names tenants."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and write down how it was answered."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, begun = 500, monotonic()

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, noting)
        finally:
            path = scope["raw_path"].decode("latin-1")  # still quoted: it cannot steer a terminal
            who = scope.get(CALLER, "somebody")
            spent = 1000 * (monotonic() - begun)
            logger.info("%s %s %d %.0f ms for %s", scope["method"], path, status, spent, who)
