"""An HTTP API that has a bad day, on this machine only.

    python examples/providers/bad_api.py [PORT]

Each path misbehaves in its own way, the same way every time: ``/shaky`` fails twice and then
answers, and then fails twice again. ``/requests`` tells how many there were, by path.
"""

from __future__ import annotations

import json
import select
import socket
import sys
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from urllib.parse import urlsplit

LONGEST = 60.0
"""Seconds after which even a request that is never answered is let go."""


class Answers(BaseHTTPRequestHandler):
    """What the API says. Connections stay open between requests, as with most APIs."""

    protocol_version = "HTTP/1.1"
    server: BadApi

    def do_GET(self) -> None:
        """Misbehave as the path says."""
        path = urlsplit(self.path).path
        if path == "/requests":
            self.say(200, json.dumps(self.server.requests))
            return
        behave = PATHS.get(path)
        if behave is None:
            self.say(404, '{"error": "no such path"}')
            return
        behave(self, self.server.count(path))

    def say(self, status: int, body: str, kind: str = "application/json", **headers: str) -> None:
        """Send an answer."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body.encode())))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body.encode())

    def hang_up(self) -> None:
        """End the connection in the middle of it."""
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""


class BadApi(ThreadingHTTPServer):
    """The server; port 0 is any free one."""

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Answers)
        self.requests: Counter[str] = Counter()
        self._lock = Lock()

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.server_port}"

    def count(self, path: str) -> int:
        """One more request for a path; how many there were before it."""
        with self._lock:
            self.requests[path] += 1
            return self.requests[path] - 1


# -- how each path behaves; the number is that of the request, from 0 ------------------------------


def steady(answers: Answers, number: int) -> None:
    """As agreed."""
    answers.say(200, json.dumps({"degrees": 21, "request": number + 1}))


def shaky(answers: Answers, number: int) -> None:
    """500 twice, then an answer."""
    if number % 3 < 2:
        answers.say(500, '{"error": "something broke"}')
    else:
        steady(answers, number)


def busy(answers: Answers, number: int) -> None:
    """429 with a Retry-After, then an answer."""
    if number % 2 == 0:
        answers.say(429, '{"error": "slow down"}', Retry_After="1")
    else:
        steady(answers, number)


def dropped(answers: Answers, number: int) -> None:
    """The connection ends without an answer, then there is one."""
    if number % 2 == 0:
        answers.hang_up()
    else:
        steady(answers, number)


def slow(answers: Answers, number: int) -> None:
    """No answer, for as long as the client waits for one."""
    select.select([answers.connection], [], [], LONGEST)
    answers.close_connection = True


def garbage(answers: Answers, number: int) -> None:
    """A page for people where JSON was agreed."""
    answers.say(200, "<html>We will be back soon!</html>", "text/html")


def denied(answers: Answers, number: int) -> None:
    """The key is not accepted."""
    answers.say(401, '{"error": "who are you?"}')


def down(answers: Answers, number: int) -> None:
    """Not today."""
    answers.say(503, '{"error": "maintenance"}')


PATHS: dict[str, Callable[[Answers, int], None]] = {
    f"/{behave.__name__}": behave
    for behave in (steady, shaky, busy, dropped, slow, garbage, denied, down)
}


if __name__ == "__main__":
    with BadApi(int(sys.argv[1]) if len(sys.argv) > 1 else 0) as api:
        print(f"a bad day at {api.url}", flush=True)
        api.serve_forever()
