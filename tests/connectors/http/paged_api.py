"""An HTTP API on loopback that answers with pages of items, in the ways that real ones do."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass
class Request:
    """One that came."""

    path: str
    query: dict[str, str]
    headers: Mapping[str, str]


@dataclass
class Reply:
    """What is answered."""

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    raw: bytes | None = None


class PagedApi:
    """A list of items, answered page by page; ``answer`` may be replaced."""

    def __init__(self, size: int = 3) -> None:
        self.size = size
        self.items: list[Any] = []
        self.requests: list[Request] = []
        self.asked = threading.Event()
        """A request has come; it may have to wait for the lock."""
        self.answer: Callable[[Request], Reply] = self.by_offset
        self.lock = threading.Lock()
        self.port = 0

    @property
    def host(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """The address of the list."""
        return f"{self.host}/items"

    def part(self, start: int) -> list[Any]:
        """One page."""
        return self.items[start : start + self.size]

    def by_offset(self, request: Request) -> Reply:
        """``?offset=…``, and nothing about a next page."""
        return Reply({"data": self.part(int(request.query.get("offset", 0)))})

    def by_link(self, request: Request) -> Reply:
        """A Link header, as RFC 8288 has it."""
        start = int(request.query.get("from", 0))
        headers = {}
        if start + self.size < len(self.items):
            headers["Link"] = (
                f'</items?from={start + self.size}>; title="a, b"; rel="next last", <x>; rel=self'
            )
        return Reply({"data": self.part(start)}, headers=headers)

    def by_body(self, request: Request) -> Reply:
        """A link in the body."""
        start = int(request.query.get("from", 0))
        more = start + self.size < len(self.items)
        link = f"{self.url}?from={start + self.size}" if more else None
        return Reply({"data": self.part(start), "links": {"next": link}})

    def by_cursor(self, request: Request) -> Reply:
        """A cursor in the body and in the query."""
        start = int(request.query.get("cursor", "c0")[1:])
        more = start + self.size < len(self.items)
        return Reply({"data": self.part(start), "next": f"c{start + self.size}" if more else ""})

    def by_page(self, request: Request) -> Reply:
        """The number of a page."""
        return Reply({"data": self.part((int(request.query["page"]) - 1) * self.size)})

    def by_since(self, request: Request) -> Reply:
        """Items from a value of ``at`` on, and links to further pages."""
        found = [each for each in self.items if each["at"] >= request.query.get("since", "")]
        start = int(request.query.get("from", 0))
        reply = Reply({"data": found[start : start + self.size]})
        if start + self.size < len(found):
            since = request.query.get("since", "")
            link = f"/items?since={since}&from={start + self.size}"
            reply.headers["Link"] = f"<{link}>; rel=next"
        return reply


@contextmanager
def serving(api: PagedApi, port: int = 0) -> Iterator[PagedApi]:
    """The server, until the end of the block."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 1 << 16  # head and body in one packet: the client would wait for the second

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            query = {
                name: values[-1]
                for name, values in parse_qs(parts.query, keep_blank_values=True).items()
            }
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Request(parts.path, query, headers)
            api.asked.set()
            with api.lock:
                api.requests.append(request)
                reply = api.answer(request)
            body = reply.raw if reply.raw is not None else json.dumps(reply.body).encode()
            body = b"" if reply.status in (204, 304) else body
            self.send_response(reply.status)
            self.send_header("Content-Length", str(len(body)))
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None: ...

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *args: object) -> None: ...

    server = Server(("127.0.0.1", port), Handler)
    api.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield api
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
