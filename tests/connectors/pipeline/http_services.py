"""The service that is asked for a rate, and the receiver of webhooks, on loopback."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from ergon_framework.connector.webhook import HmacSignature

SECRET = "of-the-hook"  # noqa: S105 - of the tests
RATE = 2.0
CHECK = HmacSignature(
    SECRET,
    header="webhook-signature",
    encoding="base64",
    prefix="v1,",
    content="{webhook-id}.{webhook-timestamp}.{body}",
    timestamp="webhook-timestamp",
)


@dataclass(frozen=True)
class Call:
    """A request that came."""

    path: str
    key: str
    trace: str
    body: bytes


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Connections of the killed break; anything else is told."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class HttpServices:
    """Both services. ``before`` is called with each request, before it is answered."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.refused = 0
        self.before: Callable[[Call], None] = lambda _call: None
        services = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                services.take(self, b"")
                self.answer(200, {"rate": RATE})

            def do_POST(self) -> None:
                size = int(self.headers["content-length"])
                body = self.rfile.read(size)
                if len(body) < size:  # who sent it was killed
                    return
                try:
                    CHECK.verify({k.lower(): v for k, v in self.headers.items()}, body, time.time())
                except Exception:
                    services.refused += 1
                    self.answer(401, {})
                    return
                services.take(self, body)
                self.answer(202, {})

            def answer(self, status: int, found: Any) -> None:
                body = json.dumps(found).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_words: object) -> None:
                """The tests say what came."""

        self._server = _Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def take(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        """Note a request."""
        headers = request.headers
        key, trace = headers.get("webhook-id", ""), headers.get("traceparent", "")
        call = Call(request.path, key, trace, body)
        self.calls.append(call)
        self.before(call)

    def hooks(self) -> list[Call]:
        """The webhooks that came, repeats included."""
        return [each for each in self.calls if each.key]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
