"""What a connection to ``ergon serve`` is held to: whole requests in time, and not too many."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from ergon_framework.web.protocol import DEFAULT_LIMITS, ConnectionLimits, LimitedProtocol

pytestmark = pytest.mark.req("ONE:serve")
TIMEOUT = 30.0


async def sample(scope: Any, receive: Any, send: Any) -> None:
    """Answers when the whole request is there."""
    while (await receive()).get("more_body"):
        pass
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
    )
    await send({"type": "http.response.body", "body": b"ok"})


@contextlib.asynccontextmanager
async def served(limits: ConnectionLimits = DEFAULT_LIMITS) -> AsyncIterator[tuple[str, int]]:
    """The protocol on a port."""
    config = uvicorn.Config(
        sample, http=LimitedProtocol, log_config=None, lifespan="off", ws="none"
    )
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(
        lambda: LimitedProtocol(config=config, server_state=state, app_state={}, limits=limits),
        "127.0.0.1",
        0,
    )
    try:
        yield listener.sockets[0].getsockname()[:2]
    finally:
        listener.close()
        for each in tuple(state.connections):
            each.transport.abort()


def run(work: Any) -> None:
    """Run a test's coroutine; one that hangs fails."""
    asyncio.run(asyncio.wait_for(work, TIMEOUT))


@pytest.mark.parametrize(
    "said",
    [b"", b"GET / HT", b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nab"],
    ids=["nothing", "half a head", "half a body"],
)
def test_half_a_request_has_a_deadline(said: bytes) -> None:
    """Its connection is ended, whatever is missing; a head is answered with why."""
    limits = ConnectionLimits(request_timeout=0.2)

    async def main() -> None:
        async with served(limits) as place:
            reader, writer = await asyncio.open_connection(*place)
            writer.write(said)
            answer = b""
            with contextlib.suppress(ConnectionError):
                answer = await reader.read()
            assert answer[:12] in (b"HTTP/1.1 408", b"")
            assert (answer == b"") == said.startswith(b"POST")
            writer.close()

    run(main())


def test_a_whole_request_is_not_hurried() -> None:
    """Two on one connection, each within its time."""
    limits = ConnectionLimits(request_timeout=5.0)

    async def main() -> None:
        async with served(limits) as place:
            reader, writer = await asyncio.open_connection(*place)
            for _ in range(2):
                writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200")
                assert await reader.readexactly(2) == b"ok"
            writer.close()

    run(main())


def test_silent_connections_make_room() -> None:
    """More of them than there may be connections: whoever asks is answered at once."""
    limits = ConnectionLimits(max_connections=4)

    async def main() -> None:
        async with served(limits) as place:
            crowd = [await asyncio.open_connection(*place) for _ in range(12)]
            for _, writer in crowd[::2]:
                writer.write(b"GET / HT")
            reader, writer = await asyncio.open_connection(*place)
            writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            for _, each in (*crowd, (reader, writer)):
                each.close()

    run(main())


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\nhost: a\r\nx: ", b"GET /"])
def test_a_head_without_an_end_is_too_large(said: bytes) -> None:
    """It is told as one that came whole is, and not as something that is no HTTP."""

    async def body() -> None:
        async with served() as place:
            reader, writer = await asyncio.open_connection(*place)
            writer.write(said + b"x" * 20_000)
            answer = await reader.read()
            writer.close()
        assert answer.startswith(b"HTTP/1.1 431 ")
        assert b'"code":"too_large"' in answer

    run(body())
