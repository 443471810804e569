"""HTTP: our server beside uvicorn, our clients beside httpx, urllib3, http.client and aiohttp."""

from __future__ import annotations

import http.client
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

from comparison import ContestantError, Record, RunOptions, Turn
from provider_parts.costs import contestant

from ergon_framework.boundary.http.async_client import AsyncHttpTransport
from ergon_framework.boundary.http.client import HttpTransport
from library_parts.compare import OURS, AsyncCall, Call, compare, compare_contestants, session_turns
from library_parts.http_programs import CPU

PROGRAM = Path(__file__).with_name("http_programs.py")
METHOD = "bsfg.v1.Boundary/AppendFact"
BODY = b'{"envelope":{},"fact":{"object_json":"' + b"x" * 460 + b'"}}'
JSON = {"Content-Type": "application/json"}
CONNECTIONS = 16
"""Of the load generator, each with one request in flight."""


@contextmanager
def server(kind: str) -> Iterator[int]:
    """The port of a server in a process of its own."""
    command = [sys.executable, str(PROGRAM), kind]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:  # noqa: S603
        assert process.stdin is not None  # noqa: S101 - tells a type checker
        assert process.stdout is not None  # noqa: S101
        try:
            port = process.stdout.readline()
            if not port:
                raise ContestantError(f"the server {kind} did not start")
            yield int(port)
        finally:
            process.stdin.close()
            process.wait(10.0)


def http_server(options: RunOptions) -> Iterator[Record]:
    """Processor time of the server for a small request; one load generator for both."""
    with ExitStack() as stack:

        def started(kind: str) -> Callable[[], Turn]:
            return loaded(stack.enter_context(server(kind)), options.seconds)

        made = {
            OURS: contestant(OURS, partial(started, "ergon")),
            "uvicorn": contestant("uvicorn", partial(started, "uvicorn")),
        }
        yield from compare_contestants("http-server", options, made)


def loaded(port: int, seconds: float) -> Callable[[], Turn]:
    """A turn is as many requests as take about so long."""
    trial = _load(port, 200)
    return partial(_load, port, max(200, int(seconds * trial.rate)))


def _load(port: int, count: int) -> Turn:
    head = (
        f"POST /{METHOD} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    )
    request = f"{head}Content-Length: {len(BODY)}\r\n\r\n".encode() + BODY
    with ExitStack() as stack:
        address = ("127.0.0.1", port)
        connections = [
            stack.enter_context(socket.create_connection(address)) for _ in range(CONNECTIONS)
        ]
        lengths = {_first_answer(connection, request) for connection in connections}
        length = lengths.pop()
        cpu_time, began = _cpu_time(port), time.perf_counter()
        for _ in range(count // CONNECTIONS):
            for connection in connections:
                connection.sendall(request)
            for connection in connections:
                left = length
                while left > 0:
                    data = connection.recv(left)
                    if not data:
                        raise ContestantError("the server hung up")
                    left -= len(data)
        seconds = time.perf_counter() - began
        done = count // CONNECTIONS * CONNECTIONS
        return Turn(done, seconds, cpu_time=_cpu_time(port) - cpu_time)


def _first_answer(connection: socket.socket, request: bytes) -> int:
    """How many bytes an answer has: all have as many."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(request)
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    body = answer.read()
    if answer.status != 200:
        raise ContestantError(f"answered with {answer.status}")
    connection.sendall(request)
    seen = b""
    while not seen.endswith(body):
        seen += connection.recv(65536)
    return len(seen)


def _cpu_time(port: int) -> float:
    """Seconds of processor time that the server says it has taken."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    try:
        connection.request("GET", CPU)
        return float(connection.getresponse().read())
    finally:
        connection.close()


def http_client(options: RunOptions) -> Iterator[Record]:
    """Processor time of a client that waits for each answer."""
    with server("ergon") as port, ExitStack() as stack:
        base = f"http://127.0.0.1:{port}"

        def ours() -> Call:
            transport = stack.enter_context(HttpTransport(base))
            return lambda: transport.call(METHOD, BODY)

        def with_httpx() -> Call:
            import httpx

            client = stack.enter_context(httpx.Client(base_url=base))
            return lambda: client.post(f"/{METHOD}", content=BODY, headers=JSON).content

        def with_urllib3() -> Call:
            import urllib3

            pool = stack.enter_context(urllib3.HTTPConnectionPool("127.0.0.1", port))
            return lambda: pool.request("POST", f"/{METHOD}", body=BODY, headers=JSON).data

        def with_http_client() -> Call:
            connection = http.client.HTTPConnection("127.0.0.1", port)
            stack.callback(connection.close)

            def call() -> bytes:
                connection.request("POST", f"/{METHOD}", BODY, JSON)
                return connection.getresponse().read()

            return call

        others = {"httpx": with_httpx, "urllib3": with_urllib3, "http.client": with_http_client}
        yield from compare("http-client", options, ours, others)


def http_client_async(options: RunOptions) -> Iterator[Record]:
    """The same in an event loop."""
    with server("ergon") as port:
        base = f"http://127.0.0.1:{port}"

        @asynccontextmanager
        async def ours() -> AsyncIterator[AsyncCall]:
            async with AsyncHttpTransport(base) as transport:
                yield lambda: transport.call(METHOD, BODY)

        @asynccontextmanager
        async def with_httpx() -> AsyncIterator[AsyncCall]:
            import httpx

            async with httpx.AsyncClient(base_url=base) as client:
                yield lambda: client.post(f"/{METHOD}", content=BODY, headers=JSON)

        @asynccontextmanager
        async def with_aiohttp() -> AsyncIterator[AsyncCall]:
            import aiohttp

            async with aiohttp.ClientSession(base) as session:

                async def call() -> bytes:
                    async with session.post(f"/{METHOD}", data=BODY, headers=JSON) as answer:
                        return await answer.read()

                yield call

        sessions = {OURS: ours, "httpx": with_httpx, "aiohttp": with_aiohttp}
        made = {
            name: contestant(name, partial(session_turns, session, options.seconds))
            for name, session in sessions.items()
        }
        yield from compare_contestants("http-client-async", options, made)
