"""Who may ask a server that has a token."""

from __future__ import annotations

import hmac
from collections.abc import Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

from ergon_framework.web.answers import refusal


class TokenGate:
    """Lets through only requests with ``Authorization: Bearer <token>``."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it; whatever else a server tells is passed on."""
        if scope["type"] == "http" and not self._is_known(scope["headers"]):
            answer = refusal(
                401,
                "unauthenticated",
                "this server wants a token",
                {"remedy": "send the header Authorization: Bearer <token>"},
                {"WWW-Authenticate": "Bearer"},
            )
            await answer(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _is_known(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        given = [value for name, value in headers if name.lower() == b"authorization"]
        scheme, _, token = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
        # In a time that does not tell how much of it is right.
        return hmac.compare_digest(token.strip(), self._token) and scheme.lower() == b"bearer"
