"""A server that answers every request at once: ours, or uvicorn.

    python benchmarks/library_parts/http_programs.py ergon|uvicorn

Prints its port, serves until its standard input ends, and tells at ``/cpu`` how many seconds of
processor time it has taken.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
import time
from typing import Any

ANSWER = b'{"disposition":"STORED","offset":1234567,"digest":"' + b"0" * 64 + b'"}'
CPU = "/cpu"


def serve_ergon() -> None:
    """Our server with an application that does nothing."""
    from ergon_framework.boundary.http.exchange import Exchange
    from ergon_framework.boundary.http.server import Server

    class Application:
        def is_streamed(self, method: str, path: str) -> bool:
            return False

        def handle(self, exchange: Exchange) -> None:
            exchange.reply(200, cpu_time() if exchange.path == CPU else ANSWER)

    async def serve() -> None:
        stopped = asyncio.Event()
        server = Server(Application(), host="127.0.0.1", port=0)
        await server.start()
        stop_at_end_of_input(asyncio.get_running_loop(), stopped)
        print(server.address[1], flush=True)
        await stopped.wait()
        await server.stop(0.0)

    asyncio.run(serve())


def serve_uvicorn() -> None:
    """uvicorn with httptools and a bare ASGI application, without its log of requests."""
    import uvicorn

    headers = [(b"content-type", b"application/json")]

    async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        body = cpu_time() if scope["path"] == CPU else ANSWER
        length = (b"content-length", b"%d" % len(body))
        start = {"type": "http.response.start", "status": 200, "headers": [*headers, length]}
        await send(start)
        await send({"type": "http.response.body", "body": body})

    async def serve() -> None:
        stopped = asyncio.Event()
        config = uvicorn.Config(
            application, http="httptools", loop="asyncio", lifespan="off", ws="none",
            log_config=None, access_log=False, timeout_keep_alive=60,
        )  # fmt: skip
        server = uvicorn.Server(config)
        listening = socket.create_server(("127.0.0.1", 0))
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        stop_at_end_of_input(asyncio.get_running_loop(), stopped)
        print(listening.getsockname()[1], flush=True)
        await stopped.wait()
        server.should_exit = server.force_exit = True
        await serving

    asyncio.run(serve())


def cpu_time() -> bytes:
    """Seconds of processor time of this process."""
    return repr(time.process_time()).encode()


def stop_at_end_of_input(loop: asyncio.AbstractEventLoop, stopped: asyncio.Event) -> None:
    """Set the event when standard input ends, by which the parent says that it is done."""

    def wait() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(stopped.set)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    {"ergon": serve_ergon, "uvicorn": serve_uvicorn}[sys.argv[1]]()
