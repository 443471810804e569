"""Fetches that wait: a commit wakes those whom it concerns, and nobody else."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.boundary.factstore.sqlite import SqliteFactStore
from ergon_framework.boundary.http.addresses import split_address
from ergon_framework.boundary.node.node import Node
from ergon_framework.boundary.settings import ZoneSettings
from ergon_framework.boundary.zone import LocalZone
from ergon_framework.ports.factstore import OUTBOUND, Fetched
from ergon_framework.storage.objectstore.memory import MemoryObjectStore
from tests.cli.boundary_node import message

pytestmark = pytest.mark.req("BOUNDARY:http", "BOUNDARY:consumer")
ROUNDS, PAUSE = 600, 0.05


class Counted(SqliteFactStore):
    """Counts how often each consumer was served."""

    serves: Counter[str]

    def serve(self, name: str, limit: int, max_bytes: int, **more: Any) -> Fetched:
        self.serves[name] += 1
        return super().serve(name, limit, max_bytes, **more)


async def fetched(node: Node, consumer: str, **more: Any) -> Any:
    """What a long poll answers."""
    host, port = split_address(node.address)
    asked = {"consumer_name": consumer, "wait_ms": 30_000, "holder": f"holder of {consumer}"} | more

    def talk() -> Any:
        connection = http.client.HTTPConnection(host, port, timeout=60)
        try:
            connection.request("POST", "/bsfg.v1.Boundary/FetchFacts", json.dumps(asked))
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    return await asyncio.to_thread(talk)


@pytest.mark.slow
def test_a_commit_wakes_whom_it_concerns(tmp_path: Path) -> None:
    """Polls on another log, and on a view without the fact, are not looked at again."""
    store = Counted(tmp_path / "facts.db", zone="plant-a")
    store.serves = Counter()
    settings = ZoneSettings(data=str(tmp_path), listen="127.0.0.1:0", insecure=True)
    store.create_consumer("log", "inbound:x")
    store.create_consumer("view", OUTBOUND, to_zone="elsewhere")
    store.create_consumer("mine", OUTBOUND, to_zone="hq")
    store.create_consumer("all", OUTBOUND)

    async def waits(names: list[str], times: int) -> None:
        for _round in range(ROUNDS):
            if all(store.serves[name] >= times for name in names):
                return
            await asyncio.sleep(PAUSE)
        raise AssertionError(store.serves)

    async def main() -> None:
        zone = LocalZone("plant-a", store, MemoryObjectStore(), settings)
        node = Node("plant-a", settings, zone=zone)
        await node.start()
        polls = {n: asyncio.create_task(fetched(node, n)) for n in ("log", "view", "mine", "all")}
        await waits([*polls], 1)
        await asyncio.sleep(PAUSE)  # for what they were given to become what they wait for
        for n in range(3):
            whole = json.loads(message(f"order:{n}:created", to_zone="hq"))
            await asyncio.to_thread(zone.append, whole["envelope"], whole["fact"])
        for name in ("mine", "all"):
            assert (await polls[name])["facts"][0]["offset"] == 1
        assert (store.serves["log"], store.serves["view"]) == (1, 1)
        whole = json.loads(message("order:9:created", to_zone="elsewhere"))
        await asyncio.to_thread(zone.append, whole["envelope"], whole["fact"])
        assert (await polls["view"])["facts"][0]["offset"] == 4
        assert store.serves["log"] == 1
        await node.stop()
        assert (await polls["log"])["facts"] == []
        node.close()

    asyncio.run(main())


@pytest.mark.slow
@pytest.mark.req("C11")
def test_a_poll_that_waits_keeps_its_lease(tmp_path: Path) -> None:
    """However short the lease is: otherwise another process takes the name while its holder waits,
    and an empty answer would come to somebody who holds nothing.
    """
    store = Counted(tmp_path / "facts.db", zone="plant-a")
    store.serves = Counter()
    settings = ZoneSettings(data=str(tmp_path), listen="127.0.0.1:0", insecure=True)
    store.create_consumer("c", OUTBOUND)

    async def waits(times: int) -> float:
        for _round in range(ROUNDS):
            if store.serves["c"] >= times:
                return store.consumer("c").held_until
            await asyncio.sleep(PAUSE)
        raise AssertionError(store.serves)

    async def main() -> None:
        zone = LocalZone("plant-a", store, MemoryObjectStore(), settings)
        node = Node("plant-a", settings, zone=zone)
        await node.start()
        poll = asyncio.create_task(fetched(node, "c", lease_ms=600))
        begun = await waits(2)
        assert await waits(5) > begun + 0.3
        await node.stop()
        assert (await poll)["facts"] == []
        node.close()

    asyncio.run(main())
