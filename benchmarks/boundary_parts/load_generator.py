"""The load generator: one small asyncio client for every server, so that none has a better one.

Requests are made beforehand. Each connection sends one, waits for its answer and sends the next.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass

from comparison import ContestantError, Turn

from boundary_parts.wire_protocols import WireProtocol

TIMEOUT = 60.0
"""Seconds a whole turn may take."""


@dataclass(frozen=True)
class ConnectionPlan:
    """What one connection is to do: its requests, and how many answers each of them has."""

    protocol: WireProtocol
    requests: Sequence[bytes]
    answers: int = 1


class LoadConnection(asyncio.Protocol):
    """One connection."""

    def __init__(self, plan: ConnectionPlan, over: asyncio.Future[None]) -> None:
        self._parse_reply = plan.protocol.parse_reply
        self._greeting = plan.protocol.greeting
        self._requests = iter(plan.requests)
        self._answers = plan.answers
        self._left = 0
        self._began = 0.0
        self._data = b""
        self._over = over
        self.latencies: list[float] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the greeting of protocols that have one."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - tells mypy
        self._transport = transport
        if self._greeting:
            transport.write(self._greeting)

    def begin(self) -> None:
        """Send the next request; when there is none, that was all."""
        request = next(self._requests, None)
        if request is None:
            self._over.set_result(None)
            return
        self._left = self._answers
        self._began = time.perf_counter()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        """Count answers."""
        if self._data:
            data = self._data + data
        try:
            while data:
                size, is_answer = self._parse_reply(data)
                if not size:
                    break
                data = data[size:]
                if is_answer:
                    self._left -= 1
                    if not self._left:
                        self.latencies.append(time.perf_counter() - self._began)
                        self.begin()
        except (ContestantError, ValueError) as error:
            self._fail(ContestantError(str(error)))
        self._data = data

    def connection_lost(self, error: Exception | None) -> None:
        """Too early unless all is done."""
        self._fail(ContestantError(f"the connection was lost: {error}"))

    def close(self) -> None:
        """Hang up."""
        self._transport.abort()

    def _fail(self, error: ContestantError) -> None:
        if not self._over.done():
            self._over.set_exception(error)


def run(port: int, plans: Sequence[ConnectionPlan], tls: ssl.SSLContext | None = None) -> Turn:
    """Open one connection for each plan, then begin with all of them at once."""
    return asyncio.run(_run(port, plans, tls))


async def _run(port: int, plans: Sequence[ConnectionPlan], tls: ssl.SSLContext | None) -> Turn:
    loop = asyncio.get_running_loop()
    overs = [loop.create_future() for _ in plans]
    connections: list[LoadConnection] = []
    name = None if tls is None else "localhost"
    try:
        for plan, over in zip(plans, overs, strict=True):
            connection = LoadConnection(plan, over)
            connections.append(connection)
            await loop.create_connection(
                lambda made=connection: made, "127.0.0.1", port, ssl=tls, server_hostname=name
            )
        began = time.perf_counter()
        for connection in connections:
            connection.begin()
        async with asyncio.timeout(TIMEOUT):
            await asyncio.gather(*overs)
        seconds = time.perf_counter() - began
    except TimeoutError:
        raise ContestantError(f"not all was answered within {TIMEOUT:g} seconds") from None
    finally:
        for over in overs:
            if not over.done():
                over.cancel()
        for connection in connections:
            connection.close()
    latencies = [each for connection in connections for each in connection.latencies]
    return Turn(len(latencies), seconds, latencies)
