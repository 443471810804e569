"""Makes a page that was rendered once the page of each person who looks at it."""

from __future__ import annotations

import secrets
from dataclasses import replace
from html import escape

from starlette.responses import Response

from ergon_framework.web.sessions import BrowserSession


class StandIn:
    """Stands in a shared page for whoever has signed in: with marks that nobody can know."""

    def __init__(self) -> None:
        self._name, self._secret = (f"mark-{secrets.token_hex(16)}" for _ in range(2))

    def alike(self, session: BrowserSession | None) -> BrowserSession | None:
        """A session with the same role, and with marks for what belongs to one person."""
        if session is None:
            return None
        return replace(session, name=self._name, form_secret=self._secret, token=None)

    def made_for(self, session: BrowserSession | None, page: Response) -> Response:
        """A copy of the page with the name and the secret of the session."""
        body = bytes(page.body)
        if session is not None:
            body = body.replace(self._name.encode(), escape(session.name).encode())
            body = body.replace(self._secret.encode(), escape(session.form_secret).encode())
        headers = {name: value for name, value in page.headers.items() if name != "content-length"}
        return Response(body, page.status_code, headers)
