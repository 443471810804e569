"""One request with its reply: what the server and the node say to each other.

The server knows HTTP and nothing of facts; the node knows operations and nothing of sockets.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from ergon_framework.boundary.http.statuses import Headers


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks. Without TLS the identity is empty."""

    identity: str = ""
    """The zone in the certificate's SAN URI ``bsfg://zone/<name>``, else its common name."""
    address: str = ""
    is_secure: bool = False


class Exchange(Protocol):
    """Lives on the event loop's thread. Exactly one of ``reply`` and ``stream`` is called."""

    method: str
    path: str
    """As sent, without the query, still percent-encoded."""
    query: str
    caller: Caller
    body: bytes
    """The whole body, unless the application wanted to stream it."""

    @property
    def is_gone(self) -> bool:
        """Whether the client has hung up, or has said that it sends nothing more."""

    def header(self, name: str) -> str | None:
        """A request header by its lower-case name."""

    def reply(
        self,
        status: int,
        body: bytes = b"",
        *,
        content_type: str = "application/json",
        headers: Headers = (),
    ) -> None:
        """Answer. May be called at once or later; a client that has gone is no error."""

    def fail(self, error: BaseException) -> None:
        """Answer with an error, as if ``handle`` had raised it."""

    async def has_more(self, least: int = 1) -> bool:
        """Wait for ``least`` bytes of a streamed body, or for its end; whether there are any."""

    def take(self) -> list[bytes]:
        """All of them that have arrived, piece by piece; taking them paces the client.

        Any thread may call it, even while none have: what came meanwhile need not wait.
        """

    async def stream(
        self,
        status: int,
        length: int,
        chunks: AsyncIterator[bytes],
        *,
        content_type: str = "application/octet-stream",
        headers: Headers = (),
    ) -> None:
        """Answer with ``length`` bytes, as fast as the client takes them.

        Raises ``ConnectionError`` when the client goes or stops taking them.
        """


class Application(Protocol):
    """What the server serves."""

    def is_streamed(self, method: str, path: str) -> bool:
        """Whether the body of such a request is read with ``take``; asked before the body."""

    def handle(self, exchange: Exchange) -> Coroutine[Any, Any, None] | None:
        """Answer the exchange, now, later, or in the coroutine returned.

        A ``BoundaryError`` that it raises becomes the reply; anything else an ``internal`` error
        without its text.
        """
