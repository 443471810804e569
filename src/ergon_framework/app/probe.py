"""The HTTP probe: ``/live`` and ``/ready``, for the supervisor of the process."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import SHUT_RDWR, socket
from typing import Any

from ergon_framework.app.liveness import Snapshot
from ergon_framework.engine.clocks import SYSTEM_CLOCK
from ergon_framework.errors import ConfigurationError

logger = logging.getLogger("ergon.app")

MAX_CONNECTIONS = 16
REQUEST_TIMEOUT = 5.0
"""Seconds in which a request must have come, all of it."""
PATHS = {"/live": "is_live", "/ready": "is_ready"}


class _Handler(BaseHTTPRequestHandler):
    """Answers in JSON, errors included."""

    server: _Server
    server_version = "ergon"
    sys_version = ""

    def setup(self) -> None:
        """Set the socket's timeout, which is between two bytes; the server limits the whole."""
        super().setup()
        self.connection.settimeout(self.server.request_timeout)

    def parse_request(self) -> bool:
        """Read the rest of the head: from then on the answer is awaited, not the client."""
        is_parsed = super().parse_request()
        self.server.heard(self.request)
        return is_parsed

    def do_GET(self) -> None:
        """Answer ``/live`` or ``/ready``."""
        path = self.path.partition("?")[0]
        if path not in PATHS:
            self.send_error(HTTPStatus.NOT_FOUND, f"there is no {path!r}; ask /live or /ready")
            return
        snapshot = self.server.snapshot()
        is_fine = getattr(snapshot, PATHS[path])
        document = snapshot.to_dict()
        document["status"] = document.pop("state")
        self._answer(HTTPStatus.OK if is_fine else HTTPStatus.SERVICE_UNAVAILABLE, document)

    do_HEAD = do_GET  # noqa: N815 - the name http.server looks for

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """The product's one shape of errors, for malformed requests too."""
        status = HTTPStatus(code)
        document = {
            "code": status.name.lower(),
            "message": message or status.phrase,
            "details": {"explain": explain} if explain else {},
        }
        self.close_connection = True
        self._answer(status, document)

    def log_message(self, format: str, *args: Any) -> None:
        """A probe every few seconds is no news."""

    def _answer(self, status: HTTPStatus, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class _Server(ThreadingHTTPServer):
    """Serves a few connections at once.

    At the limit, the connection that has waited longest without sending its request is closed. Only
    when all of them have sent one is a new connection refused. So silent clients keep nobody out.
    """

    daemon_threads = True
    block_on_close = False
    request_queue_size = 4 * MAX_CONNECTIONS

    def __init__(
        self, address: tuple[str, int], snapshot: Callable[[], Snapshot], request_timeout: float
    ) -> None:
        self.snapshot = snapshot
        self.request_timeout = request_timeout
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._lock = threading.Lock()
        self._silent: dict[Any, float] = {}
        """Connections that have not sent their request, oldest first, and when each was accepted.
        """
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        # The thread of a connection that is sent away gives its place back within a moment.
        if self._free.acquire(blocking=False) or (
            self._send_away(1) and self._free.acquire(timeout=1.0)
        ):
            with self._lock:
                self._silent[request] = SYSTEM_CLOCK.now()
            try:
                super().process_request(request, client_address)
            except Exception:  # no thread was begun, which would have given its place back
                self.heard(request)
                self._free.release()
                raise  # the server closes the connection
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.heard(request)
            self._free.release()

    def service_actions(self) -> None:
        """Close connections whose request is overdue; called several times a second."""
        before = SYSTEM_CLOCK.now() - self.request_timeout
        with self._lock:
            late = sum(since < before for since in self._silent.values())
        self._send_away(late)

    def heard(self, request: Any) -> None:
        """Note that a request has come, or that its client has gone."""
        with self._lock:
            self._silent.pop(request, None)

    def _send_away(self, count: int) -> bool:
        """Close up to ``count`` connections without a request, oldest first; returns whether there
        was one.
        """
        with self._lock:
            oldest = list(self._silent)[:count]
            for request in oldest:
                del self._silent[request]
                with suppress(OSError):  # it has gone by itself
                    request.shutdown(SHUT_RDWR)  # its thread notices
        return bool(oldest)

    def handle_error(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        """A client that went away is not our problem."""
        logger.debug("the connection of a probe broke: %s", sys.exception())


@contextmanager
def probe_server(
    host: str,
    port: int,
    snapshot: Callable[[], Snapshot],
    *,
    request_timeout: float = REQUEST_TIMEOUT,
) -> Iterator[int]:
    """Serve the probes in the background; gives the port, which matters when 0 was asked for."""
    try:
        server = _Server((host, port), snapshot, request_timeout)
    except OSError as error:
        raise ConfigurationError(
            f"the probe cannot listen on {host}:{port}: {error.strerror or error}",
            remedy="choose another port, or 0 for any free one",
        ) from error
    SYSTEM_CLOCK.spawn("ergon-probe", lambda: server.serve_forever(poll_interval=0.1))
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
