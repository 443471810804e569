"""A zone's node for the tests of its connector: in memory, in this process, or over HTTP."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

from ergon_framework.boundary.facts.validation import validate_fact
from ergon_framework.boundary.factstore.memory import MemoryFactStore
from ergon_framework.boundary.model import Envelope, Fact
from ergon_framework.boundary.node.app import NodeApplication
from ergon_framework.boundary.node.inprocess import InProcessTransport
from ergon_framework.boundary.node.node import Node
from ergon_framework.boundary.node.policy import Policy
from ergon_framework.boundary.settings import LimitSettings, ZoneSettings
from ergon_framework.boundary.zone import LocalZone
from ergon_framework.connector.boundary import BoundaryConnector
from ergon_framework.errors import BoundaryError, NotPermittedError
from ergon_framework.ports.transaction import Transaction
from ergon_framework.storage.objectstore.memory import MemoryObjectStore
from ergon_framework.testing.clock import VirtualClock
from tests import waiting
from tests.boundary.client.scripted import MemoryNode
from tests.servers.server import free_port

T = TypeVar("T")
PATIENCE = 30.0
CALLS = ("FetchFacts", "ConfirmReceipt", "QuarantineFact", "ReleaseLease")
"""The methods of a node that a consumer calls."""
OPTIONS: dict[str, Any] = {"consumer": "c", "log": "outbound", "from_zone": "a", "to_zone": "b"}


def told(n: int, **fields: Any) -> Transaction:
    """The n-th transaction, which becomes a fact."""
    payload = {"subject": f"order:{n}", "predicate": "created", "object_json": {"n": n}}
    return Transaction(f"order:{n}:created", payload, **fields)


def numbers(transactions: list[Transaction]) -> list[int]:
    """Which facts these are."""
    return [each.payload["object_json"]["n"] for each in transactions]


def new_zone(clock: Callable[[], float] | None = None) -> LocalZone:
    """A zone in memory."""
    limits = LimitSettings(fact_bytes=4 << 20)
    settings = ZoneSettings(listen="127.0.0.1:0", insecure=True, limits=limits)
    if clock is None:
        return LocalZone("a", MemoryFactStore("a"), MemoryObjectStore(), settings)
    return LocalZone(
        "a", MemoryFactStore("a", clock=clock), MemoryObjectStore(), settings, clock=clock
    )


def dead_letters(zone: LocalZone) -> list[tuple[str, str]]:
    """The ids and reasons of what was set aside."""
    found = []
    for item in zone.store.quarantine():
        page = zone.store.page("outbound", item.offset - 1, 1, 1 << 20)
        found.append((page.facts[0].message_id, item.message))
    return found


def cursor(zone: LocalZone, consumer: str = "c") -> int:
    """How far a consumer has confirmed."""
    return zone.store.consumer(consumer).cursor


def settled(zone: LocalZone) -> set[int]:
    """Offsets that are done with: below the cursor, or set aside."""
    return {*range(1, cursor(zone) + 1)} | {item.offset for item in zone.store.quarantine()}


def fill(zone: LocalZone, *ns: int) -> None:
    """Append facts directly."""
    facts = []
    for n in ns:
        envelope = Envelope(
            message_id=f"order:{n}:created",
            from_zone="a",
            to_zone="b",
            produced_at_unix_ms=1_741_248_600_000,
        )
        fact = Fact(subject=f"order:{n}", predicate="created", object_json={"n": n})
        facts.append(validate_fact(envelope, fact, LimitSettings()).new_fact)
    zone.store.append("outbound", facts)


def eventually(condition: Callable[[], bool]) -> None:
    """Wait for something that another thread brings about."""
    waiting.until(condition, seconds=PATIENCE)


def die(connector: BoundaryConnector, node: MemoryNode) -> None:
    """Its process is killed: the node hears nothing more of it, and the lease of ``c`` ends."""
    faults = node.faults
    refused: list[BoundaryError] = [NotPermittedError("nobody is there")] * 9
    node.faults = {method: list(refused) for method in CALLS}
    connector.close()
    node.faults = faults
    end_lease(node)


def end_lease(node: MemoryNode) -> None:
    """Let the lease of the consumer ``c`` end."""
    with node.store.database.step() as state:
        state.consumer("c").held_until = 0.0


@contextmanager
def taking_part(clock: VirtualClock) -> Iterator[None]:
    """Let time stand still for as long as this thread does anything but sleep."""
    with clock:
        clock.join_time()
        try:
            yield
        finally:
            clock.leave_time()


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine that runs there."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE)

    def close(self) -> None:
        """End it."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE)
        self.loop.close()


class HttpNode:
    """A node that can go away and come back, on the same port and with the same zone."""

    def __init__(self, zone: LocalZone, loop: Loop) -> None:
        self.zone = zone
        self._loop = loop
        # No port that a connection is given by chance while the node is away.
        listen = f"127.0.0.1:{free_port()}"
        self._settings = zone.settings.model_copy(update={"listen": listen})
        self._node: Node | None = None
        self.start()

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://{self._settings.listen}"

    def start(self) -> None:
        """Serve."""

        async def begin() -> Node:
            node = Node("a", self._settings, zone=self.zone)
            await node.start()
            return node

        self._node = self._loop.run(begin())

    def stop(self) -> None:
        """Go away; the zone stays as it is."""
        if self._node is not None:
            self._loop.run(self._node.stop(0.0))
            self._node = None


@contextmanager
def http_node(clock: Callable[[], float] | None = None) -> Iterator[HttpNode]:
    """A node over HTTP for a while."""
    loop = Loop()
    node = HttpNode(new_zone(clock), loop)
    try:
        yield node
    finally:
        node.stop()
        node.zone.close()
        loop.close()


@contextmanager
def over_http(**options: Any) -> Iterator[BoundaryConnector]:
    """A connector of a node of its own, over HTTP; the zone is its attribute."""
    with http_node() as node, BoundaryConnector(node.url, **OPTIONS, **options) as connector:
        connector.zone = node.zone  # type: ignore[attr-defined]
        yield connector


@asynccontextmanager
async def in_process(**options: Any) -> AsyncIterator[BoundaryConnector]:
    """A connector of a node on the same event loop."""
    zone = new_zone()
    application = NodeApplication(zone, Policy.open)
    connector = BoundaryConnector(InProcessTransport(application), **OPTIONS, **options)
    connector.zone = zone  # type: ignore[attr-defined]
    try:
        yield connector
    finally:
        await connector.aclose()
        await application.close()
        zone.close()
