"""Several nodes of one zone that share its store, and pull from the same peer."""

from __future__ import annotations

import asyncio

import pytest

from ergon_framework.boundary.linking.puller import Puller
from ergon_framework.boundary.objects.memory import MemoryObjectStore
from ergon_framework.boundary.zone import Zone
from ergon_framework.engine.clocks import AsyncSignal
from ergon_framework.testing import VirtualClock
from tests.boundary.zones.test_puller import SETTINGS, Bench

pytestmark = pytest.mark.req("BOUNDARY:zones", "SCALE:boundary-postgres")


def pullers(bench: Bench, count: int) -> list[Puller]:
    """One for each node: they share the log of b, and nothing else."""
    made = []
    for _ in range(count):
        zone = Zone("b", bench.b.store, MemoryObjectStore(), SETTINGS, clock=bench.b.clock)
        made.append(
            Puller(
                zone,
                "a",
                bench.link,
                in_thread=bench.sink.in_thread,
                policy=lambda: bench.policy,
                dice=lambda: 0.5,
            )
        )
    return made


def test_nodes_that_pull_at_once_do_not_set_each_other_back() -> None:
    """Every fact arrives once and in order, and nobody moves the cursor at the peer backwards."""

    async def whole() -> None:
        bench = Bench()
        loop, signal = asyncio.get_running_loop(), AsyncSignal()
        nodes = pullers(bench, 3)
        tasks = [asyncio.create_task(node.run()) for node in nodes]
        names = [f"order:{number}" for number in range(60)]
        for name in names:
            bench.append(name)
            await signal.wait(loop.time() + 0.3)
        await signal.wait(loop.time() + 20.0)
        for node in nodes:
            node.stop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert bench.inbound() == names
        assert bench.b.store.link("a").offset == 60
        assert bench.a.store.consumer("zone:b").cursor == 60
        assert [action for _, action, _ in bench.a.store.journal()] == []
        assert [node.zone.gates["a"]["mode"] for node in nodes] == ["normal"] * 3

    VirtualClock().run(whole())
