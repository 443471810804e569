"""Shows refusals from outside of the console, such as those of a busy server, as pages to people.

They are decided before the console is called, or for paths outside of it, and are JSON. The page
contains its own style: a server that is too busy for a page is too busy for a stylesheet.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from html import escape
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ergon_framework.web.console.answers import SAFETY, named_format
from ergon_framework.web.console.formatting import sentence
from ergon_framework.web.middleware import CONSOLE, PROBES, route_path

FOR_PROGRAMS = ("/api/", "/metrics", "/openapi.json", *sorted(PROBES))
"""The beginnings of paths whose refusals are JSON for everybody."""
MOST = 64 * 1024
"""How many bytes a refusal may have to become a page; a longer one is passed on as it is."""
_STYLE = """
:root{color-scheme:light dark;--bg:#f6f7f9;--card:#fff;--ink:#16181d;--soft:#5b6270;--line:#dfe2e8;
--act:#2450c8}
@media (prefers-color-scheme:dark){:root{--bg:#101216;--card:#181b21;--ink:#e7e9ee;--soft:#9aa2b1;
--line:#2b303a;--act:#8fb0ff}}
body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.55 system-ui,sans-serif}
main{max-width:38rem;margin:12vh auto 0;padding:0 1.25rem}
h1{font-size:1.45rem;line-height:1.3;margin:0 0 .35rem}
p{margin:0 0 .75rem}.sub{color:var(--soft)}
code{font:.92em ui-monospace,monospace;overflow-wrap:anywhere}
section{background:var(--card);border:1px solid var(--line);border-radius:10px;
padding:1rem 1.25rem;margin-top:1.25rem}
h2{font-size:1rem;margin:0 0 .35rem}a{color:var(--act);margin-right:1rem}
"""
_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_POLICY = (
    f"default-src 'none'; style-src 'sha256-{_HASH}'; form-action 'self'; base-uri 'none';"
    " frame-ancestors 'none'"
)
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} · Ergon</title>
<style>{style}</style>
</head>
<body>
<main>
<h1>{title}</h1>
<p class="sub"><code>{status} {code}</code> for <code>{path}</code></p>
<section aria-label="What to do">
<h2>What to do</h2>
<p>{remedy}</p>
<p>{links}</p>
</section>
</main>
</body>
</html>
"""


class RefusalPages:
    """Turns refusals of the application into pages for requests that ask for pages."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and its response back. A refusal in JSON becomes a page."""
        if scope["type"] != "http" or not wants_page(scope):
            await self._app(scope, receive, send)
            return
        held = _Held(scope, send)
        await self._app(scope, receive, held.send)


class _Held:
    """The response to one request. A refusal is held back until it is complete."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope, self._send = scope, send
        self._start: Message | None = None
        self._body = b""

    async def send(self, message: Message) -> None:
        """Send a part of the response, or keep it."""
        if message["type"] == "http.response.start" and _is_refusal(message):
            self._start = message
        elif self._start is None or message["type"] != "http.response.body":
            await self._send(message)
        else:
            self._body += message.get("body", b"")
            if not message.get("more_body", False) or len(self._body) > MOST:
                await self._let_go(message)

    async def _let_go(self, last: Message) -> None:
        start, self._start = self._start, None
        page = None if start is None else _page_of(self._scope, start, self._body)
        if start is not None and page is not None:
            headers = [*_kept(start), *page.raw_headers]
            start = {**start, "headers": headers}
            self._body = bytes(page.body)
        if start is not None:
            await self._send(start)
        await self._send({**last, "body": self._body})


def wants_page(scope: Scope) -> bool:
    """Whether a person with a browser asks, and not for a path that only programs read."""
    if scope["method"] == "HEAD" or route_path(scope).startswith(FOR_PROGRAMS):
        return False
    return named_format(Request(scope)) == "html"


def page_of(scope: Scope, refusal: Response) -> Response:
    """The refusal as a page, if the request wants one, and unchanged otherwise."""
    if not wants_page(scope):
        return refusal
    told = _told(bytes(refusal.body))
    return refusal if told is None else _shown(scope, refusal.status_code, told)


def _is_refusal(start: Message) -> bool:
    media = Headers(raw=start["headers"]).get("content-type", "")
    return bool(start["status"] >= 400 and media.startswith("application/json"))


def _kept(start: Message) -> list[tuple[bytes, bytes]]:
    """The headers that concern the refusal itself, and not its JSON."""
    replaced = {b"content-type", b"content-length", *(name.lower().encode() for name in SAFETY)}
    replaced |= {b"cache-control"}
    return [each for each in start["headers"] if each[0].lower() not in replaced]


def _page_of(scope: Scope, start: Message, body: bytes) -> Response | None:
    told = _told(body)
    return None if told is None else _shown(scope, start["status"], told)


def _told(body: bytes) -> Mapping[str, Any] | None:
    """The text of a refusal of this server; None for anything else."""
    try:
        found = json.loads(body)
    except ValueError:
        return None
    is_ours = isinstance(found, dict) and {"code", "message", "details"} <= found.keys()
    return found if is_ours else None


def _shown(scope: Scope, status: int, told: Mapping[str, Any]) -> Response:
    base = str(scope.get("root_path", ""))
    path = Request(scope).url.path
    message, remedy = str(told["message"]), str(told["details"].get("remedy") or "")
    links = [(f"{base}{CONSOLE}", "Overview of the console")]
    if status == 404:
        message, remedy = "there is no such page", "the console links every page that there is"
    elif scope["method"] == "GET" and status >= 500:
        links.insert(0, (path, "Try again"))
    text = _PAGE.format(
        title=escape(sentence(message)),
        style=_STYLE,
        status=status,
        code=escape(str(told["code"])),
        path=escape(path),
        remedy=escape(sentence(remedy or "the log of the server says more", 1000)) + ".",
        links="".join(f'<a href="{escape(to)}">{text}</a>' for to, text in links),
    )
    headers = {**SAFETY, "Content-Security-Policy": _POLICY, "Cache-Control": "no-store"}
    return Response(text, status, {**headers, "Vary": "Accept"}, "text/html")
