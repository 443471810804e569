"""What every request passes before a route: the access log, authentication, and limits.

Callers with a token or a session are answered, and people whom the proxy names; without tokens and
proxy, callers on this machine. Only forms of the console and posts to the API may change anything.
The size of a request, its time, and the number of requests at once are bounded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from dataclasses import dataclass, field
from time import monotonic

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ergon_framework.boundary.http.addresses import is_loopback
from ergon_framework.providers.authorization import is_local_request
from ergon_framework.web.proxy_login import ProxyLogin
from ergon_framework.web.responses import (
    NotAllowedError,
    UnknownOutcomeError,
    answer_of,
    error_response,
)
from ergon_framework.web.sessions import COOKIE, Sessions
from ergon_framework.web.tokens import CallerRole, CallerRoles, Tokens

logger = logging.getLogger("ergon.web.access")


PROBES = frozenset({"/live", "/ready", "/health/live", "/health/ready"})
CONSOLE = "/console"
"""The path of the console; all its pages are below it."""
SIGN_IN = f"{CONSOLE}/sign-in"
EVENTS = f"{CONSOLE}/events"
"""The path of the event stream. It lasts as long as its page is open, and is bounded by the number
of streams instead.
"""
_FOR_ALL = (SIGN_IN, f"{CONSOLE}/static/")
CALLER = "ergon.caller"
"""The key in the scope for the name of a known caller. Absent for an unknown one."""
ROLE = "ergon.role"
"""The key in the scope for the role of a known caller."""
HAS_HEADER = "ergon.has_header"
"""The key in the scope for whether a header has a token, which a page of another site
cannot send.
"""
PROXIED = "ergon.proxied"
"""The key in the scope for a person whom the proxy has signed in."""
LOCAL = "local"
"""The name of a caller on this machine."""


def caller_of(scope: Scope) -> str:
    """The name of the caller, for logs."""
    return str(scope.get(CALLER, "somebody"))


@dataclass(frozen=True, slots=True)
class AuthRules:
    """The rules by which requests are let in."""

    tokens: Tokens | None = None
    names: Collection[str] | None = None
    """The names of this server that a request may use, besides those of loopback. None: any."""
    probes_open: bool = True
    sessions: Sessions | None = None
    """The sessions of browsers. None: nobody can sign in."""
    roles: CallerRoles = field(default_factory=CallerRoles)
    """The roles of the holders of tokens."""
    proxy: ProxyLogin | None = None
    """A proxy that identifies people. With it, nobody is identified by being on this machine."""


class Authentication:
    """Lets requests in by the rules, and refuses others."""

    def __init__(self, app: ASGIApp, rules: AuthRules) -> None:
        self._app = app
        self._rules = rules
        self._names = {name.lower().rstrip(".") for name in rules.names or ()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it. Events that are no requests are passed on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        # Before the caller is identified: a browser that another site sent here brings along
        # everything that its user may do.
        refused = self._foreign(headers)
        if refused is None:
            try:
                is_known = self._identify(scope, headers)
            except NotAllowedError as error:
                await answer_of(error)(scope, receive, send)
                return
            if not is_known and not self._is_open(route_path(scope)):
                refused = self._unknown(scope, headers)
        await (self._app if refused is None else refused)(scope, receive, send)

    def _foreign(self, headers: Headers) -> Response | None:
        """The refusal of a request under a host name that is not this server's; None for others.

        A page of another site can send a browser here under a name of its own, but not under one of
        these.
        """
        if self._rules.names is None:
            return None
        given = headers.getlist("host")
        # Two Host headers: which of them a proxy has checked is not known.
        name = _name_in(given[0]) if len(given) == 1 else ""
        if name and (is_loopback(name) or name in self._names):
            return None
        return error_response(
            403,
            "foreign_host",
            "this server is not known under the name in the header Host",
            {"remedy": "ask for localhost or 127.0.0.1, or list the name under [server] names"},
        )

    def _identify(self, scope: Scope, headers: Headers) -> bool:
        """Record in the scope who asks. Returns whether that is known."""
        proxy, tokens = self._rules.proxy, self._rules.tokens
        client = scope.get("client")
        told = None
        # Also for a request with a token: one with a forged header is refused.
        if proxy is not None:
            told = proxy.identity(None if client is None else client[0], headers)
        shown = None if tokens is None else self._by_token(tokens, headers)
        if shown is not None:
            scope[CALLER], scope[ROLE] = shown, self._rules.roles.of(shown)
            scope[HAS_HEADER] = True
        elif told is not None:
            scope[CALLER], scope[ROLE], scope[PROXIED] = told.name, told.role, True
        elif tokens is None and proxy is None and self._is_local(scope, headers):
            # Whoever is on the machine of a server without tokens could read its files as well.
            scope[CALLER], scope[ROLE] = LOCAL, CallerRole.ADMIN
        elif (session := self._session(headers)) is not None and tokens is not None:
            scope[CALLER], scope[ROLE] = session, self._rules.roles.of(session)
        return CALLER in scope

    def _by_token(self, tokens: Tokens, headers: Headers) -> str | None:
        given = headers.getlist("authorization")
        scheme, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        caller = tokens.caller(token.strip().encode("latin-1"))
        return caller if scheme.lower() == "bearer" else None

    def _session(self, headers: Headers) -> str | None:
        """The session of the browser. A header Authorization takes precedence over its cookie."""
        if self._rules.sessions is None or "authorization" in headers:
            return None
        cookie = cookie_parser(headers.get("cookie", "")).get(COOKIE)
        found = self._rules.sessions.find(cookie)
        return None if found is None else found.name

    def _is_open(self, path: str) -> bool:
        if path in PROBES:
            return self._rules.probes_open
        has_tokens = self._rules.sessions is not None and self._rules.sessions.has_tokens
        return has_tokens and path.startswith(_FOR_ALL)

    def _is_local(self, scope: Scope, headers: Headers) -> bool:
        client = scope.get("client")
        host = headers.get("host", "")
        # A name that the settings list stands for this machine.
        known = "localhost" if _name_in(host) in self._names else host
        return is_local_request(None if client is None else client[0], headers.keys(), known)

    def _unknown(self, scope: Scope, headers: Headers) -> Response:
        if self._rules.tokens is None and self._rules.proxy is not None:
            remedy = {"remedy": "ask through the proxy, which says in a header who you are"}
            text = "the proxy has not said who asks"
            return error_response(401, "unauthenticated", text, remedy)
        if self._rules.tokens is None:
            return error_response(
                403,
                "not_permitted",
                "without a token, only callers on this machine are answered",
                {"remedy": "start the server with a token, and send it"},
            )
        if self._rules.sessions is not None and _is_page(scope, headers):
            return RedirectResponse(scope.get("root_path", "") + SIGN_IN, 303)
        return error_response(
            401,
            "unauthenticated",
            "this server wants a token",
            {"remedy": "send the header Authorization: Bearer <token>"},
            {"WWW-Authenticate": "Bearer"},
        )


def route_path(scope: Scope) -> str:
    """The path below the place where this application is mounted, if it is mounted in another one.

    A proxy may have removed that place from the path, and ``/ops`` is no part of ``/opsroom``.
    """
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path[len(root) :] if path == root or path.startswith(f"{root}/") else path


def _is_page(scope: Scope, headers: Headers) -> bool:
    """Whether a person with a browser asks for a page of the console."""
    path = route_path(scope)
    is_below = path in {"/", CONSOLE} or path.startswith(f"{CONSOLE}/")
    return is_below and "text/html" in headers.get("accept", "")


def _name_in(host: str) -> str:
    """A host without its port, and an IPv6 address without its brackets."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return name.lower().rstrip(".")


class AccessLog:
    """Logs who requested which path, without the query, which may name tenants."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and log its response."""
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
            # Still percent-encoded, so it cannot control a terminal.
            path = scope["raw_path"].decode("latin-1")
            who = caller_of(scope)
            spent = 1000 * (monotonic() - begun)
            logger.info("%s %s %d %.0f ms for %s", scope["method"], path, status, spent, who)


MAX_HEAD = 16 * 1024
"""How many bytes a request may have before its body."""
MAX_BODY = 64 * 1024
"""How many bytes a body may have. Only forms of the console and posts to the API have one that is
read.
"""
MAX_EDIT_BODY = 2 * 1024 * 1024
"""How many bytes a body with the arguments of a job, or the value of a signal, may have."""
EDIT = "edit-and-requeue"
"""The last part of the paths at which the API takes the arguments of a job."""
EDIT_FORM = f"{CONSOLE}/edit/"
"""The path of a form with the arguments of a job."""
JOBS_API, FLOWS_API = "/api/v1/jobs/", "/api/v1/flows/"
CHANGING = (
    f"{CONSOLE}/",
    JOBS_API,
    FLOWS_API,
    *(f"/api/v1/{each}/" for each in ("queues", "schedules", "boundary")),
)
"""The beginnings of the paths at which something can be changed."""
SIGNAL = "/signal"
"""The last part of the paths at which the API takes the value of a signal."""
_METHODS = "GET, HEAD"


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """The limits of a server."""

    requests: int = 64
    seconds: float = 10.0


class RequestLimiter:
    """Handles requests within the limits, or refuses them."""

    def __init__(self, app: ASGIApp, limits: RequestLimits) -> None:
        self._app = app
        self._limits = limits
        self._running = 0
        self._left: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, a HEAD as a GET, or refuse it. Events that are no requests are passed
        on.
        """
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = _Answer(send, is_head=scope["method"] == "HEAD")
        refused = self._refused(scope)
        if refused is not None:
            await refused(scope, receive, answer.send)
        elif route_path(scope) == EVENTS:
            await self._app(scope, receive, answer.send)
        else:
            # Routes declare GET only; ``_Answer`` leaves out the body of a HEAD.
            method = "POST" if scope["method"] == "POST" else "GET"
            await self._bounded({**scope, "method": method}, receive, answer)

    def _refused(self, scope: Scope) -> Response | None:
        if scope["method"] not in {"GET", "HEAD"} and not _may_change(scope):
            remedy = {
                "remedy": "ask with GET or HEAD; /openapi.json tells what a POST changes, and where"
            }
            text = "method not allowed"
            return error_response(405, "method_not_allowed", text, remedy, {"Allow": _METHODS})
        if _head_bytes(scope) > MAX_HEAD:
            remedy = {"remedy": f"send at most {MAX_HEAD} bytes of path, query and headers"}
            return error_response(431, "too_large", "the head of the request is too large", remedy)
        length, most = Headers(scope=scope).get("content-length", "0"), _most(scope)
        # Cut before it is read as a number, because thousands of digits would take long.
        if not length.isdecimal() or int(length[:20]) > most:
            remedy = {"remedy": f"send at most {most} bytes, or use ergon jobs edit"}
            if scope["method"] != "POST":
                remedy = {"remedy": "send no body"}
            closing = {"Connection": "close"}
            return error_response(413, "too_large", "the body is too large", remedy, closing)
        # Probes are always answered, because a busy server must not be restarted for being busy.
        if self._running >= self._limits.requests and route_path(scope) not in (*PROBES, EVENTS):
            return _later(
                "too_busy", f"the server is busy: {self._running} requests are being answered"
            )
        return None

    async def _bounded(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        """The response, in time. What a thread still does afterwards cannot be stopped, and goes
        on.
        """
        task = asyncio.ensure_future(self._app(scope, receive, answer.send))
        task.add_done_callback(self._ended)
        # Referenced until it is done, because the event loop holds tasks only weakly.
        self._left.add(task)
        self._running += 1
        try:
            await asyncio.wait({task}, timeout=self._limits.seconds)
        finally:
            # Also for a task that is too late: its thread may hang for long, and others need the
            # place.
            self._running -= 1
            if not task.done():  # It is too late, or the server stops.
                # Set before it is cancelled: what it still sends must not follow the refusal.
                answer.is_late = True
                task.cancel()
        if not answer.is_late:
            await task  # What it raised is for the server's log.
        # A response that has begun can only be cut off: a second status would be read as part of
        # the body.
        elif answer.status == 0:
            await self._late(scope)(scope, receive, answer.send_now)

    def _late(self, scope: Scope) -> Response:
        if scope["method"] == "POST":  # Whoever sends the request again may do the action twice.
            return answer_of(UnknownOutcomeError())
        return _later("timeout", f"no answer within {self._limits.seconds:g} s")

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._left.discard(task)
        if not task.cancelled():
            task.exception()  # Read, or asyncio warns. Its caller has the exception, or has left.


class _Answer:
    """The response to one request: without a body for a HEAD, and nothing when it is too late."""

    def __init__(self, send: Send, *, is_head: bool) -> None:
        self._send = send
        self._is_head = is_head
        self.is_late = False
        self.status = 0

    async def send(self, message: Message) -> None:
        """Send a part of the response."""
        if not self.is_late:
            await self.send_now(message)

    async def send_now(self, message: Message) -> None:
        """Send it even if it is late."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif self._is_head and message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await self._send(message)


def _may_change(scope: Scope) -> bool:
    """Whether the request may be a form of the console or a post to the API, with its
    length given.
    """
    has_length = any(name == b"content-length" for name, _ in scope["headers"])
    path = route_path(scope)
    return scope["method"] == "POST" and path.startswith(CHANGING) and has_length


def _most(scope: Scope) -> int:
    path = route_path(scope)
    is_edit = path.startswith(EDIT_FORM) or (path.startswith(JOBS_API) and path.endswith(EDIT))
    is_signal = path.startswith(FLOWS_API) and path.endswith(SIGNAL)
    return MAX_EDIT_BODY if (is_edit or is_signal) and scope["method"] == "POST" else MAX_BODY


def _head_bytes(scope: Scope) -> int:
    named = sum(len(name) + len(value) for name, value in scope["headers"])
    return len(scope["path"]) + len(scope["query_string"]) + named


def _later(code: str, text: str) -> Response:
    return error_response(
        503, code, text, {"remedy": "ask again in a second"}, {"Retry-After": "1"}
    )
