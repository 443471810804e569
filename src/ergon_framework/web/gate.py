"""Who may ask: callers with a token, or, where there is none, callers on this machine."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ergon_framework.boundary.http.addresses import is_loopback
from ergon_framework.providers.health_api.access import is_from_here
from ergon_framework.web.answers import refusal
from ergon_framework.web.tokens import Tokens

PROBES = frozenset({"/live", "/ready", "/health/live", "/health/ready"})
CALLER = "ergon.caller"
"""Where in the scope the name of a known caller stands; absent for one who is not known."""
LOCAL = "local"
"""What a caller on this machine is called."""


@dataclass(frozen=True, slots=True)
class Doorkeeper:
    """What it takes to be let in."""

    tokens: Tokens | None = None
    names: Collection[str] | None = None
    """Which names of this server a request may use, besides those of loopback; None: any."""
    probes_open: bool = True


class Gate:
    """Lets requests through that may be answered, and refuses others."""

    def __init__(self, app: ASGIApp, keeper: Doorkeeper) -> None:
        self._app = app
        self._keeper = keeper
        self._names = {name.lower().rstrip(".") for name in keeper.names or ()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it; whatever else a server tells is passed on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refused = self._foreign(headers)
        if refused is None:
            caller = self._caller(scope, headers)
            if caller is not None:
                scope[CALLER] = caller
            elif not (self._keeper.probes_open and scope["path"] in PROBES):
                refused = self._unknown()
        await (self._app if refused is None else refused)(scope, receive, send)

    def _foreign(self, headers: Headers) -> Response | None:
        """A page elsewhere can send a browser here under a name of its own; not under ours."""
        if self._keeper.names is None:
            return None
        given = headers.getlist("host")
        name = _name_in(given[0]) if len(given) == 1 else ""
        if name and (is_loopback(name) or name in self._names):
            return None
        return refusal(
            403,
            "foreign_host",
            "this server is not known under the name in the header Host",
            {"remedy": "ask for localhost or 127.0.0.1, or list the name under [server] names"},
        )

    def _caller(self, scope: Scope, headers: Headers) -> str | None:
        if self._keeper.tokens is None:
            return LOCAL if self._is_local(scope, headers) else None
        given = headers.getlist("authorization")
        scheme, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        caller = self._keeper.tokens.caller(token.strip().encode("latin-1"))
        return caller if scheme.lower() == "bearer" else None

    def _is_local(self, scope: Scope, headers: Headers) -> bool:
        client = scope.get("client")
        host = headers.get("host", "")
        known = "localhost" if _name_in(host) in self._names else host
        return is_from_here(None if client is None else client[0], headers.keys(), known)

    def _unknown(self) -> Response:
        if self._keeper.tokens is None:
            return refusal(
                403,
                "not_permitted",
                "without a token, only callers on this machine are answered",
                {"remedy": "start the server with a token, and send it"},
            )
        return refusal(
            401,
            "unauthenticated",
            "this server wants a token",
            {"remedy": "send the header Authorization: Bearer <token>"},
            {"WWW-Authenticate": "Bearer"},
        )


def _name_in(host: str) -> str:
    """A host without its port, and without the brackets of an IPv6 address."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return name.lower().rstrip(".")
