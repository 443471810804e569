"""Several nodes of one zone that share its store, and pull from the same peer."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.boundary.factstore.memory import MemoryFactStore
from ergon_framework.boundary.factstore.sqlite import SqliteFactStore
from ergon_framework.boundary.node.replication import Puller, holder_of
from ergon_framework.boundary.node.status import status
from ergon_framework.boundary.zone import LocalZone
from ergon_framework.engine.clocks import AsyncSignal
from ergon_framework.errors import ConsumerHeldError
from ergon_framework.storage.objectstore.memory import MemoryObjectStore
from ergon_framework.testing import VirtualClock
from tests.boundary.zones.test_puller import SETTINGS, PulledPair

pytestmark = pytest.mark.req("BOUNDARY:zones", "SCALE:boundary-postgres")


def pullers(pair: PulledPair, count: int) -> list[Puller]:
    """One for each node: they share the log of b, and nothing else."""
    made = []
    for number in range(count):
        zone = LocalZone("b", pair.b.store, MemoryObjectStore(), SETTINGS, clock=pair.b.clock)
        made.append(
            Puller(
                zone,
                "a",
                pair.link,
                in_thread=pair.sink.in_thread,
                policy=lambda: pair.policy,
                dice=lambda: 0.5,
                holder=f"node-{number}",
            )
        )
    return made


async def until(condition: Callable[[], bool], seconds: float) -> None:
    """Let the nodes work until something is so, for as long as it may take."""
    loop, signal = asyncio.get_running_loop(), AsyncSignal()
    end = loop.time() + seconds
    while not condition():
        assert loop.time() < end, "not in time"
        await signal.wait(loop.time() + 0.05)


def holder(pair: PulledPair) -> str | None:
    """Who holds the name of b at a."""
    return pair.a.store.consumer("zone:b").holder


def test_nodes_that_pull_at_once_do_not_set_each_other_back() -> None:
    """Every fact arrives once and in order, and nobody moves the cursor at the peer backwards."""

    async def whole() -> None:
        pair = PulledPair()
        loop, signal = asyncio.get_running_loop(), AsyncSignal()
        nodes = pullers(pair, 3)
        tasks = [asyncio.create_task(node.run()) for node in nodes]
        names = [f"order:{number}" for number in range(60)]
        for name in names:
            pair.append(name)
            await signal.wait(loop.time() + 0.3)
        await signal.wait(loop.time() + 20.0)
        for node in nodes:
            node.stop()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert pair.inbound() == names
        assert pair.b.store.link("a").offset == 60
        assert pair.a.store.consumer("zone:b").cursor == 60
        assert [action for _, action, _ in pair.a.store.journal()] == []
        assert [node.zone.gates["a"]["mode"] for node in nodes] == ["normal"] * 3

    VirtualClock().run(whole())


def test_one_node_pulls_and_the_others_wait_for_their_turn() -> None:
    """To wait is no trouble: the link is as it should be, and says who pulls."""

    async def whole() -> None:
        pair = PulledPair()
        first, second = pullers(pair, 2)
        pair.append("order:1")
        await first.turn()
        waiting = asyncio.create_task(second.run())
        for number in range(2, 30):
            pair.append(f"order:{number}")
            await first.turn()
            await asyncio.sleep(0.3)  # the other one looks in between
            assert holder(pair) == "node-0"
        assert second.zone.gates["a"]["held_by"] == "node-0"
        assert pair.inbound() == [f"order:{number}" for number in range(1, 30)]
        assert [each["kind"] for each in status(second.zone)["alerts"]] == ["unsynced"]  # memory
        assert second.zone.events.counts["pulled", "a"] == 0
        second.stop()
        await second.leave()  # which takes nothing from the one that pulls
        assert holder(pair) == "node-0"
        await waiting

    VirtualClock().run(whole())


@pytest.mark.parametrize("how", ["dies", "leaves"])
def test_another_node_takes_over(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From one that has died when its lease ends, from one that leaves at its next look.

    Whoever sees what it received sees that it waits for nobody any more.
    """

    async def whole() -> None:
        pair = PulledPair()
        first, second = pullers(pair, 2)
        receive, held_by = pair.b.store.receive, []

        def received(*arguments: Any, **named: Any) -> Any:
            held_by.append(second.zone.gates["a"].get("held_by"))
            return receive(*arguments, **named)

        monkeypatch.setattr(pair.b.store, "receive", received)
        pair.append("order:1")
        await first.turn()
        waiting = asyncio.create_task(second.run())
        await until(lambda: second.zone.gates["a"].get("held_by") == "node-0", 5.0)
        pair.append("order:2")
        if how == "leaves":
            await first.leave()
        else:
            lease = 2 * (SETTINGS.pull.wait + SETTINGS.pull.timeout)
            pair.now += lease - 0.1
            await asyncio.sleep(5.0)
            assert pair.inbound() == ["order:1"]
            pair.now += 0.2
        await until(lambda: pair.inbound() == ["order:1", "order:2"], 2.0)
        assert holder(pair) == "node-1"
        assert held_by == [None, None]
        second.stop()
        second.wake()
        waiting.cancel()

    VirtualClock().run(whole())


def test_who_comes_late_takes_no_turn() -> None:
    """A node that lost its lease while it worked confirms nothing, and waits like the others."""

    async def whole() -> None:
        pair = PulledPair()
        first, second = pullers(pair, 2)
        pair.append("order:1")
        await first.turn()
        pair.now += 3600
        pair.append("order:2")
        await second.turn()
        assert holder(pair) == "node-1"
        with pytest.raises(ConsumerHeldError):
            await first.turn()
        assert pair.inbound() == ["order:1", "order:2"]

    VirtualClock().run(whole())


def test_each_process_has_its_name(tmp_path: Path) -> None:
    """As long as it lives; the one node of a folder has the name of its zone, life after life."""
    code = (
        "from ergon_framework.boundary.node.replication import holder_of\n"
        "from ergon_framework.boundary.factstore.memory import MemoryFactStore\n"
        "print(holder_of(MemoryFactStore('b')), end='')"
    )
    words = [sys.executable, "-c", code]
    other = subprocess.run(words, capture_output=True, text=True, check=True).stdout  # noqa: S603
    mine = holder_of(MemoryFactStore("b"))
    assert mine == holder_of(MemoryFactStore("b"))
    assert mine != other
    found = []
    for _ in range(2):
        with closing(SqliteFactStore(tmp_path / "facts.db", zone="b")) as store:
            found.append((holder_of(store), store.info().epoch))
    assert found[0] == found[1]
    assert found[0][0] == found[0][1]
