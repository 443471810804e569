"""A server with a sample application, and a client that speaks raw bytes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ergon_framework.boundary.http.exchange import Exchange
from ergon_framework.boundary.http.server import Server
from ergon_framework.boundary.settings import LimitSettings
from ergon_framework.errors import BufferFullError

T = TypeVar("T")
PATIENCE = 30.0


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a test's coroutine; one that hangs fails."""
    return asyncio.run(asyncio.wait_for(work, PATIENCE))


class Clock:
    """Time that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Sample:
    """An application with one path for each manner of answering."""

    def __init__(self) -> None:
        self.held: asyncio.Queue[Exchange] = asyncio.Queue()
        self.errors: list[BaseException] = []
        self.pieces: list[bytes] = []
        self.gate = asyncio.Event()
        self.body = b"0123456789"
        self.closed = 0

    def is_streamed(self, method: str, path: str) -> bool:
        return method == "PUT"

    def handle(self, exchange: Exchange) -> Coroutine[Any, Any, None] | None:
        answer = getattr(self, exchange.path.strip("/").replace("-", "_"), None)
        if answer is None:
            exchange.reply(404, b'{"code":"not_found"}')
            return None
        work: Coroutine[Any, Any, None] | None = answer(exchange)
        return work

    def echo(self, exchange: Exchange) -> None:
        headers = (("x-query", exchange.query), ("x-method", exchange.method))
        exchange.reply(200, exchange.body, content_type="text/plain", headers=headers)

    def who(self, exchange: Exchange) -> None:
        caller = exchange.caller
        shape = {"identity": caller.identity, "secure": caller.is_secure}
        exchange.reply(200, json.dumps(shape).encode())

    def hold(self, exchange: Exchange) -> None:
        self.held.put_nowait(exchange)

    def boom(self, exchange: Exchange) -> None:
        raise RuntimeError("a secret")

    def full(self, exchange: Exchange) -> None:
        raise BufferFullError("the log is full", retry_after=1.5)

    def bad_header(self, exchange: Exchange) -> None:
        exchange.reply(200, headers=(("x-evil", "a\r\nx-injected: b"),))

    def twice(self, exchange: Exchange) -> None:
        exchange.reply(200, b"once")
        exchange.reply(200, b"twice")

    async def silent(self, exchange: Exchange) -> None:
        """Ends without an answer."""

    async def upload(self, exchange: Exchange) -> None:
        try:
            while await exchange.has_more():
                self.pieces += exchange.take()
        except Exception as error:
            self.errors.append(error)
            raise
        exchange.reply(200, str(sum(map(len, self.pieces))).encode())

    async def slow_upload(self, exchange: Exchange) -> None:
        self.held.put_nowait(exchange)
        await self.gate.wait()
        await self.upload(exchange)

    def unwanted_upload(self, exchange: Exchange) -> None:
        exchange.reply(409, b"no")

    async def download(self, exchange: Exchange) -> None:
        try:
            await exchange.stream(200, len(self.body), self._pieces())
        except Exception as error:
            self.errors.append(error)
            raise

    async def short(self, exchange: Exchange) -> None:
        await exchange.stream(200, len(self.body) + 1, self._pieces())

    async def long(self, exchange: Exchange) -> None:
        await exchange.stream(200, len(self.body) - 1, self._pieces())

    async def missing(self, exchange: Exchange) -> None:
        async def none() -> AsyncIterator[bytes]:
            raise BufferFullError("not now")
            yield b""  # type: ignore[unreachable]

        await exchange.stream(200, 5, none())

    async def endless(self, exchange: Exchange) -> None:
        async def pieces() -> AsyncIterator[bytes]:
            try:
                while True:
                    yield b"x" * 65536
            finally:
                self.closed += 1

        try:
            await exchange.stream(200, 1 << 40, pieces())
        except Exception as error:
            self.errors.append(error)
            self.gate.set()
            raise

    async def _pieces(self) -> AsyncIterator[bytes]:
        try:
            for at in range(0, len(self.body), 4096):
                yield self.body[at : at + 4096]
        finally:
            self.closed += 1


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        shape: dict[str, Any] = json.loads(self.body)
        assert set(shape) == {"code", "message", "details"}
        return shape

    @property
    def reason(self) -> str:
        return str(self.error["details"].get("reason"))


@dataclass
class Wire:
    """One connection to the server."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, text: str | bytes) -> None:
        self.writer.write(text if isinstance(text, bytes) else text.encode())

    def ask(self, method: str, path: str, body: bytes = b"", *headers: str) -> None:
        lines = [f"{method} {path} HTTP/1.1", "host: here", f"content-length: {len(body)}"]
        self.send("\r\n".join([*lines, *headers, "", ""]).encode() + body)

    async def answer(self, *, is_head: bool = False) -> Answer:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")[:-2]
        headers = dict(line.split(": ", 1) for line in lines)
        length = 0 if is_head else int(headers.get("content-length", "0"))
        body = await self.reader.readexactly(length)
        return Answer(int(first.split()[1]), headers, body)

    async def call(self, method: str, path: str, body: bytes = b"", *headers: str) -> Answer:
        self.ask(method, path, body, *headers)
        return await self.answer()

    async def rest(self) -> bytes:
        """Whatever else comes, to the end; a reset is an end too."""
        with contextlib.suppress(ConnectionError):
            return await self.reader.read()
        return b""

    def reset(self) -> None:
        """Go without a word."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


@dataclass
class RunningServer:
    """A running server and its application."""

    app: Sample
    server: Server
    clock: Clock
    wall: Clock
    denied: list[str] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)
    was_denied: asyncio.Event = field(default_factory=asyncio.Event)
    wires: list[Wire] = field(default_factory=list)

    async def wire(self, tls: ssl.SSLContext | None = None) -> Wire:
        host, port = self.server.address
        name = {"server_hostname": "localhost"} if tls is not None else {}
        wire = Wire(*await asyncio.open_connection(host, port, ssl=tls, **name))  # type: ignore[arg-type]
        self.wires.append(wire)
        return wire

    @property
    def connection(self) -> Any:
        """The server's side of the only connection."""
        (connection,) = self.server.state.connections
        return connection

    def later(self, seconds: float) -> None:
        """Let time pass, and the server look around."""
        self.clock.now += seconds
        self.server.sweep()

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Let the loop turn until something is so."""
        while not is_so():  # noqa: ASYNC110 - what it waits for has no event to tell
            await asyncio.sleep(0)

    def on_denied(self, address: str, why: str) -> None:
        self.denied.append(why)
        self.was_denied.set()

    def on_error(self, exchange: Exchange, error: BaseException) -> None:
        self.failures.append(error)


@contextlib.asynccontextmanager
async def serving(
    tls: Any = None, host: str = "127.0.0.1", **limits: Any
) -> AsyncIterator[RunningServer]:
    """A server with these limits."""
    app, clock, wall = Sample(), Clock(), Clock()
    running = RunningServer(app, None, clock, wall)  # type: ignore[arg-type]
    running.server = Server(
        app,
        host=host,
        port=0,
        limits=LimitSettings(**limits),
        tls=tls,
        on_denied=running.on_denied,
        on_error=running.on_error,
        clock=clock,
        wall=wall,
    )
    await running.server.start()
    try:
        yield running
    finally:
        await running.server.stop(0)
        for wire in running.wires:
            await wire.close()
