"""What the connections of one server share: limits, who is connected, heads parsed before.

Clients send the same head again and again, and what the parser made of some bytes it would make of
the same bytes again.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import ssl
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from email.utils import formatdate
from typing import Any, Protocol

from ergon_framework.boundary.http.addresses import host_name, is_loopback
from ergon_framework.boundary.http.exchange import Application, Exchange
from ergon_framework.boundary.settings import LimitSettings
from ergon_framework.errors import describe

END = b"\r\n\r\n"
MAX_HEADS = 512
"""Heads that are remembered; after that it begins anew."""
MAX_HEAD_BYTES = 1024
"""Bytes of a head that is worth remembering."""


@dataclass(frozen=True, slots=True)
class Head:
    """What was made of a request line and its headers."""

    method: str
    url: str
    headers: dict[bytes, bytes]
    length: int
    """Bytes of the body."""


class HeadCache:
    """Parsed heads of one server, shared by all its connections. Only valid heads are kept."""

    def __init__(self, max_heads: int = MAX_HEADS) -> None:
        self._max_heads = max_heads
        self._known: dict[bytes, Head] = {}

    def __len__(self) -> int:
        return len(self._known)

    def known_request(self, data: bytes) -> tuple[Head, bytes] | None:
        """The head and the body, when ``data`` is one whole request whose head is known."""
        end = data.find(END) + len(END)
        head = self._known.get(data[:end])
        if head is None or len(data) != end + head.length:
            return None
        return head, data[end:]

    def remember(self, data: bytes, head: Head) -> None:
        """``data`` was one whole request, and this is what was made of its head."""
        end = data.find(END) + len(END)
        if len(data) != end + head.length or end > MAX_HEAD_BYTES or not self._max_heads:
            return  # it did not begin and end there
        if len(self._known) >= self._max_heads:
            self._known.clear()
        self._known[data[:end]] = head


logger = logging.getLogger("ergon_framework.boundary")

Denied = Callable[[str, str], None]
"""Called with the address of a client that was not served, and why."""
Failed = Callable[[Exchange, BaseException], None]
"""Called with the exchange and an error that is not part of the protocol."""


class Member(Protocol):
    """A connection, as the housekeeping sees it."""

    @property
    def is_busy(self) -> bool:
        """Whether a request waits for its answer."""

    @property
    def ip(self) -> str:
        """The address of the client, without its port."""

    @property
    def idle_since(self) -> float:
        """Since when nothing was answered to it."""

    @property
    def body_bytes(self) -> int:
        """Bytes of a request that has begun to arrive and is not complete."""

    def shed(self) -> None:
        """Refuse the request that is arriving: there is no memory for it."""

    def sweep(self, now: float) -> None:
        """Close the connection if it is overdue."""

    def close(self) -> None:
        """Close once everything written has been sent."""

    def abort(self) -> None:
        """Close at once."""


class ServerState:
    """The application, its limits, and the open connections."""

    def __init__(
        self,
        application: Application,
        limits: LimitSettings,
        clock: Callable[[], float],
        wall: Callable[[], float],
        on_error: Failed | None,
        on_denied: Denied | None,
    ) -> None:
        self.application = application
        self.limits = limits
        self.clock = clock
        """The monotonic clock, for durations."""
        self.wall = wall
        """The wall clock, for dates."""
        self.context: ssl.SSLContext | None = None
        """What new connections are secured with."""
        self.connections: set[Member] = set()
        self.handshakes: dict[Member, None] = {}
        """The connections whose TLS handshake is under way, oldest first."""
        self.addresses: Counter[str] = Counter()
        """How many connections each address has."""
        self.names: frozenset[str] | None = None
        """Under which names, besides those of loopback, it may be asked; None: under any."""
        self.crowds_out = False
        """Whether an idle connection is closed to make room for a new one."""
        self.held_bytes = 0
        """Bytes of all request bodies in memory."""
        self.heads = HeadCache()
        self.is_stopping = False
        self.date = formatdate(wall(), usegmt=True)
        self.changed = asyncio.Event()
        """Set, while the server stops, whenever a connection has less to do than before."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._on_error = on_error
        self._on_denied = on_denied

    def spawn(
        self, work: Coroutine[Any, Any, None], inner: Coroutine[Any, Any, None] | None = None
    ) -> None:
        """Run a coroutine as a task of the server. ``inner``, which it awaits, is closed at the
        end, as the task may be cancelled before it begins.
        """
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if inner is not None:  # cancelled before it began, the outer one would leave it behind
            task.add_done_callback(lambda _task: inner.close())

    def failed(self, exchange: Exchange, error: BaseException) -> None:
        """Report an error whose details the client does not get."""
        if self._on_error is None:
            # Not its text, which may quote a payload.
            logger.error("%s %s: %s", exchange.method, exchange.path, type(error).__name__)
            return
        try:
            self._on_error(exchange, error)
        except Exception as fault:
            logger.error("on_error itself failed: %s", describe(fault))  # noqa: TRY400

    def denied(self, address: str, why: str) -> None:
        """Report a client that was turned away."""
        if self._on_denied is None:
            logger.warning("%s was not served: %s", address, why)
            return
        try:
            self._on_denied(address, why)
        except Exception as fault:
            logger.error("on_denied itself failed: %s", describe(fault))  # noqa: TRY400

    def add(self, connection: Member) -> None:
        """A connection is there."""
        # Added when it shakes hands, and again when it is admitted.
        if connection not in self.connections:
            self.connections.add(connection)
            self.addresses[connection.ip] += 1

    def forget(self, connection: Member) -> None:
        """A connection is no more."""
        self.handshakes.pop(connection, None)
        if connection in self.connections:
            self.connections.discard(connection)
            self.addresses[connection.ip] -= 1
            if not self.addresses[connection.ip]:
                del self.addresses[connection.ip]
        self.changed.set()

    def why_full(self, ip: str) -> str:
        """Why no connection of this address can be served; empty when one can."""
        # Handshakes have a limit of their own: they must not keep out clients that have shown who
        # they are.
        if len(self.connections) - len(self.handshakes) >= self.limits.connections:
            return f"{self.limits.connections} connections are open already"
        most = self.limits.address_connections
        if self.addresses[ip] >= most and not _is_own(ip):
            return f"{most} connections of this address are open already"
        return ""

    def connection_to_evict(self, members: Iterable[Member]) -> Member | None:
        """The connection to end when there is no room: the oldest of the address that has most.

        A client that keeps many connections without using them loses its own ones.
        """
        waiting = list(members)
        if not waiting:
            return None
        counts = Counter(each.ip for each in waiting)
        most = max(counts.values())
        return next(each for each in waiting if counts[each.ip] == most)

    def is_asked_for(self, host: bytes) -> bool:
        """Whether a request with this Host header is meant for this server.

        A page elsewhere can lead a browser here under a name of its own, but not under ours.
        """
        if self.names is None:
            return True
        name = host_name(host.decode("latin-1"))
        return is_loopback(name) or name in self.names

    def make_room(self) -> bool:
        """Close a connection that waits for no answer; returns whether there was one."""
        idle = sorted(
            (each for each in self.connections if not each.is_busy),
            key=lambda each: each.idle_since,
        )
        oldest = self.connection_to_evict(idle) if self.crowds_out else None
        if oldest is None:
            return False
        # At once, not politely: a client that does not read would keep its place.
        oldest.abort()
        self.forget(oldest)
        return True

    def refuse_largest_request(self) -> None:
        """Refuse the largest request that is arriving, while all of them are too large."""
        # One request of the largest size is always taken in, or no one could ever send it.
        most = max(self.limits.bodies_bytes, self.limits.body_bytes)
        while self.held_bytes > most:
            largest = max(self.connections, key=lambda each: each.body_bytes, default=None)
            if largest is None or not largest.body_bytes:
                return  # the rest is complete, and is being answered
            largest.shed()

    def sweep(self) -> None:
        """Update the ``Date`` header, and let each connection close itself if it is overdue."""
        self.date = formatdate(self.wall(), usegmt=True)
        now = self.clock()
        # A copy: closing changes the set.
        for connection in tuple(self.connections):
            connection.sweep(now)

    async def until_quiet(self) -> None:
        """Wait until no request is under way; new ones are refused meanwhile."""
        await self._until(lambda: not any(each.is_busy for each in self.connections))

    async def until_empty(self) -> None:
        """Close all connections; wait until they are gone and every coroutine has ended."""
        for connection in tuple(self.connections):
            connection.close()
        await self._until(lambda: not self.connections)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def cut(self) -> None:
        """Abort the connections that are left."""
        for connection in tuple(self.connections):
            connection.abort()
        for task in self._tasks:
            task.cancel()
        # Cancelled tasks need a turn of the loop to end.
        await self.until_empty()

    async def _until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self.changed.clear()
            await self.changed.wait()


def _is_own(ip: str) -> bool:
    """Whether an address belongs to this machine: a proxy, or many processes, may use it."""
    try:
        return ipaddress.ip_address(ip.partition("%")[0]).is_loopback
    except ValueError:
        return False
