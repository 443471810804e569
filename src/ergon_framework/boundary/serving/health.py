"""What whoever watches a node asks: does it live, and does it take facts?"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from ergon_framework.boundary.http.exchange import Exchange
from ergon_framework.errors import BoundaryNotFoundError

LIVES = ("/healthz", "/livez")
READY = "/readyz"


def lives(exchange: Exchange) -> None:
    """The process answers, so it lives."""
    exchange.reply(200, b'{"status":"ok"}')


async def ready(exchange: Exchange, is_ready: Callable[[], Awaitable[bool]]) -> None:
    """Whether it takes facts."""
    is_good = await is_ready()
    exchange.reply(200 if is_good else 503, b'{"ready":%b}' % str(is_good).lower().encode())


class HealthApplication:
    """Answers probes that have no certificate, and has nothing else to tell anybody."""

    def __init__(self, is_ready: Callable[[], Awaitable[bool]]) -> None:
        self._is_ready = is_ready

    def is_streamed(self, method: str, path: str) -> bool:
        """Nothing is taken in."""
        return False

    def handle(self, exchange: Exchange) -> Coroutine[Any, Any, None] | None:
        """Answer, now or when the store has."""
        is_read = exchange.method in ("GET", "HEAD")
        if is_read and exchange.path in LIVES:
            lives(exchange)
            return None
        if is_read and exchange.path == READY:
            return ready(exchange, self._is_ready)
        raise BoundaryNotFoundError(
            f"there is nothing at {exchange.path[:200]}",
            code="unimplemented",
            reason="unknown_path",
            remedy="get /healthz or /readyz here; facts are served where the zone listens",
        )
