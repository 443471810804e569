"""What a request may cost: its size, its time, and how many there are at once. Reading only."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ergon_framework.web.answers import refusal
from ergon_framework.web.gate import PROBES

HEAD = 16 * 1024
"""Bytes of a request before its body."""
BODY = 64 * 1024
"""Bytes of a request's body, which nobody reads."""
_METHODS = "GET, HEAD"


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of a server."""

    requests: int = 64
    seconds: float = 10.0


class Bounds:
    """Answers within its bounds, or says why not."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app = app
        self._limits = limits
        self._running = 0
        self._left: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on as a GET, or refuse it; whatever else a server tells is passed on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = _Answer(send, is_head=scope["method"] == "HEAD")
        refused = self._refused(scope)
        if refused is not None:
            await refused(scope, receive, answer.send)
        else:
            await self._bounded({**scope, "method": "GET"}, receive, answer)

    def _refused(self, scope: Scope) -> Response | None:
        if scope["method"] not in {"GET", "HEAD"}:
            remedy = {"remedy": "this server only tells: ask with GET or HEAD"}
            text = "method not allowed"
            return refusal(405, "method_not_allowed", text, remedy, {"Allow": _METHODS})
        if _head_bytes(scope) > HEAD:
            remedy = {"remedy": f"send at most {HEAD} bytes of path, query and headers"}
            return refusal(431, "too_large", "the head of the request is too large", remedy)
        length = Headers(scope=scope).get("content-length", "0")
        if not length.isdecimal() or int(length[:20]) > BODY:
            remedy = {"remedy": "send no body"}
            closing = {"Connection": "close"}
            return refusal(413, "too_large", "the body is too large", remedy, closing)
        if self._running >= self._limits.requests and scope["path"] not in PROBES:
            return _later("too_busy", f"{self._running} requests are being answered")
        return None

    async def _bounded(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        """The answer in time. What a thread still does then cannot be stopped, and goes on."""
        task = asyncio.ensure_future(self._app(scope, receive, answer.send))
        task.add_done_callback(self._ended)
        self._left.add(task)
        self._running += 1
        try:
            await asyncio.wait({task}, timeout=self._limits.seconds)
        finally:
            self._running -= 1
            if not task.done():  # too late, or the server stops
                answer.is_late = True
                task.cancel()
        if not answer.is_late:
            await task  # what it raised is for the server's log
        elif answer.status == 0:
            late = _later("timeout", f"no answer within {self._limits.seconds:g} s")
            await late(scope, receive, answer.really_send)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._left.discard(task)
        if not task.cancelled():
            task.exception()  # seen: who waited has it, or nobody waits any more


class _Answer:
    """What goes to the caller: no body when only the head was asked for, nothing when too late."""

    def __init__(self, send: Send, *, is_head: bool) -> None:
        self._send = send
        self._is_head = is_head
        self.is_late = False
        self.status = 0

    async def send(self, message: Message) -> None:
        """Send a part of the answer."""
        if not self.is_late:
            await self.really_send(message)

    async def really_send(self, message: Message) -> None:
        """Send it, late or not."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif self._is_head and message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await self._send(message)


def _head_bytes(scope: Scope) -> int:
    named = sum(len(name) + len(value) for name, value in scope["headers"])
    return len(scope["path"]) + len(scope["query_string"]) + named


def _later(code: str, text: str) -> Response:
    return refusal(503, code, text, {"remedy": "ask again in a second"}, {"Retry-After": "1"})
