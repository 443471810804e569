"""The running node: what reviewers found once, and what must not come back."""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.boundary.factstore.memory import MemoryFactStore
from ergon_framework.boundary.maintenance import collect, run_maintenance
from ergon_framework.boundary.node.app import NodeApplication
from ergon_framework.boundary.node.node import Node
from ergon_framework.boundary.node.policy import Policy
from ergon_framework.boundary.settings import DAY, RetentionSettings, ZoneSettings
from ergon_framework.boundary.zone import LocalZone
from ergon_framework.storage.objectstore.memory import MemoryObjectStore
from tests.boundary.http.workbench import run, serving
from tests.boundary.node.processes import ADMIN, CORE, PATIENCE, NodeProcess, fact, running


def zone_with(orphans: int, **retention: Any) -> LocalZone:
    """A zone in memory with objects that nobody wants any more."""
    now = [1_000_000.0]
    settings = ZoneSettings(
        listen="127.0.0.1:0", insecure=True, retention=RetentionSettings(**retention)
    )
    store = MemoryFactStore("plant-a", clock=lambda: now[0])
    zone = LocalZone("plant-a", store, MemoryObjectStore(), settings, clock=lambda: now[0])
    for number in range(orphans):
        zone.put("files", f"{number}", b"%d" % number)
    now[0] += 2 * DAY
    return zone


def left(zone: LocalZone) -> int:
    """How many objects there are."""
    return len(list(zone.objects.digests()))


# ---- threads ----


@pytest.mark.req("BOUNDARY:node")
def test_cancelled_work_is_waited_for() -> None:
    """What a thread works on may be closed next, so a cancelled call ends after its thread."""

    async def whole() -> None:
        zone = zone_with(0)
        application = NodeApplication(zone, Policy.open, threads=1)
        begun, go_on = threading.Event(), threading.Event()
        is_over: list[bool] = []

        def work() -> None:
            begun.set()
            is_over.append(go_on.wait(PATIENCE))

        async def call() -> None:
            try:
                await application.in_thread(work)
            finally:
                is_over.append(bool(is_over))

        task = asyncio.create_task(call())
        assert await asyncio.to_thread(begun.wait, PATIENCE)
        task.cancel()
        for _ in range(20):
            await asyncio.sleep(0)
        assert not task.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert is_over == [True, True]
        await application.close()
        zone.close()

    run(whole())


# ---- housekeeping ----


@pytest.mark.req("BOUNDARY:node", "BOUNDARY:operator")
def test_a_round_ends_when_it_is_told_to() -> None:
    """It looks between two objects, and leaves the rest to the next round."""
    with zone_with(5) as zone:
        looks = iter([False, False, True])
        assert collect(zone, lambda: next(looks)) == 2
        assert left(zone) == 3
        assert run_maintenance(zone, is_thorough=True, is_stopping=lambda: True).objects == 0
        assert left(zone) == 3
        assert run_maintenance(zone, is_thorough=True).objects == 3


@pytest.mark.slow
@pytest.mark.req("BOUNDARY:node", "BOUNDARY:operator")
def test_a_stop_does_not_wait_for_the_whole_round() -> None:
    """A node that is told to stop gives its housekeeping up after the object at hand."""

    async def whole() -> None:
        zone = zone_with(50)
        node = Node("plant-a", zone.settings, zone=zone)
        begun, go_on = threading.Event(), threading.Event()
        delete = zone.objects.delete

        def slow(digest: bytes) -> bool:
            begun.set()
            assert go_on.wait(PATIENCE)
            return delete(digest)

        zone.objects.delete = slow  # type: ignore[method-assign]
        await node.start()
        assert await asyncio.to_thread(begun.wait, PATIENCE)
        stopping = asyncio.create_task(node.stop())
        await asyncio.sleep(0)
        go_on.set()
        await stopping
        assert left(zone) == 49
        node.close()

    run(whole())


@pytest.mark.slow
@pytest.mark.req("BOUNDARY:node", "BOUNDARY:operator")
def test_housekeeping_survives_what_nobody_expected() -> None:
    """A round that fails in any way is followed by the next one."""

    async def whole() -> None:
        zone = zone_with(0, every=0.01)
        rounds: list[float] = []
        third = threading.Event()

        def sweep(older_than: float) -> int:
            rounds.append(older_than)
            if len(rounds) == 3:
                third.set()
            if len(rounds) < 3:
                raise RuntimeError("unforeseen")
            return 0

        zone.objects.sweep = sweep  # type: ignore[method-assign]
        node = Node("plant-a", zone.settings, zone=zone)
        await node.start()
        assert await asyncio.to_thread(third.wait, PATIENCE)
        await node.stop()
        node.close()

    run(whole())


# ---- over HTTP ----


@pytest.mark.req("BOUNDARY:http")
@pytest.mark.parametrize("how", ["reset", "close"])
def test_a_client_that_hangs_up_is_known_to_be_gone(how: str) -> None:
    """Whoever answers later can see that nobody is there to hear it."""

    async def whole() -> None:
        async with serving() as bench:
            wire = await bench.wire()
            wire.ask("POST", "/hold")
            exchange = await bench.app.held.get()
            assert not exchange.is_gone
            if how == "reset":
                wire.reset()
            else:
                wire.writer.close()
            await bench.until(lambda: exchange.is_gone)

    run(whole())


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """One node for all that is only asked."""
    with running("plant-a", tmp_path_factory.mktemp("reviewed") / "data") as node:
        yield node


@pytest.mark.slow
@pytest.mark.req("BOUNDARY:http", "BSFG:Errors")
@pytest.mark.parametrize(
    "path",
    [f"{CORE}AppendFact", f"{CORE}FetchFacts", f"{ADMIN}AppendFacts", f"{ADMIN}GetStatus"],
)
def test_an_operation_is_called_with_post(node: NodeProcess, path: str) -> None:
    """GET and DELETE of an operation are not allowed; a path that is none is not found."""
    for method in ("GET", "DELETE"):
        status, _headers, body = node.request(method, path)
        assert (status, json.loads(body)["code"]) == (405, "unimplemented")
        assert node.request(method, f"{path}X")[0] == 404


@pytest.mark.slow
@pytest.mark.req("BOUNDARY:http", "BOUNDARY:objects")
@pytest.mark.parametrize(
    ("name", "value"), [("Content-Range", "bytes 0-2/10"), ("Content-Encoding", "gzip")]
)
def test_an_object_is_put_whole_and_as_it_is(node: NodeProcess, name: str, value: str) -> None:
    """What is put once stands for the object for ever."""
    path = f"/v1/objects/files/{name.lower()}"
    status, _, body = node.request("PUT", path, b"abc", {name: value})
    shape = json.loads(body)
    assert (status, shape["code"]) == (400, "invalid_argument")
    assert shape["details"]["reason"] == name.lower().replace("-", "_")
    assert node.request("PUT", path, b"abcdefghij", {"Content-Encoding": "identity"})[0] == 200


@pytest.mark.slow
@pytest.mark.req("BOUNDARY:http", "BOUNDARY:objects")
def test_a_put_tells_its_length(node: NodeProcess) -> None:
    """Without a length nobody could tell a whole object from one that was cut off."""
    connection = http.client.HTTPConnection("127.0.0.1", node.port, timeout=PATIENCE)
    try:
        connection.putrequest("PUT", "/v1/objects/files/unmeasured")
        connection.endheaders()
        answer = connection.getresponse()
        shape = json.loads(answer.read())
    finally:
        connection.close()
    assert (answer.status, shape["code"]) == (411, "invalid_argument")
    assert shape["details"]["reason"] == "length_required"
    assert node.request("GET", "/v1/objects/files/unmeasured")[0] == 404


@pytest.mark.slow
@pytest.mark.req("BOUNDARY:http", "BOUNDARY:objects")
def test_odd_ranges_over_the_wire(node: NodeProcess) -> None:
    """No range, however odd, makes the node stumble."""
    assert node.request("PUT", "/v1/objects/files/ranged", b"0123456789")[0] == 200
    assert node.request("PUT", "/v1/objects/files/empty", b"")[0] == 200
    for odd in ("bytes=" + "9" * 5000 + "-", "bytes=0-1,3-4", "bytes=4-2", "nonsense"):
        status, _headers, body = node.request(
            "GET", "/v1/objects/files/ranged", headers={"Range": odd}
        )
        assert (status, body) == (200, b"0123456789")
    status, headers, body = node.request(
        "GET", "/v1/objects/files/empty", headers={"Range": "bytes=0-"}
    )
    assert (status, body) == (200, b"")
    assert "content-range" not in headers


@pytest.mark.slow
@pytest.mark.req("BOUNDARY:http", "BOUNDARY:objects")
def test_the_wrong_digest_over_the_wire(node: NodeProcess) -> None:
    """Other bytes than those that were asked for are not found."""
    assert node.request("PUT", "/v1/objects/files/digested", b"bytes")[0] == 200
    other = hashlib.sha256(b"other").hexdigest()
    path = f"/v1/objects/files/digested?digest=sha256:{other}"
    status, _headers, body = node.request("GET", path)
    assert (status, json.loads(body)["code"]) == (404, "not_found")


@pytest.mark.slow
@pytest.mark.req("BOUNDARY:badinput")
def test_a_lone_surrogate_over_the_wire(node: NodeProcess) -> None:
    """A batch with one bad item is answered, item by item."""
    items = [fact("surrogate:1"), fact("surrogate:2", "\ud800"), fact("surrogate:3")]
    answer = node.ask(f"{ADMIN}AppendFacts", {"items": items})
    assert answer.status == 200
    first, second, third = answer["results"]
    assert third["offset"] == first["offset"] + 1
    assert second["error"]["code"] == "invalid_argument"


@pytest.mark.slow
@pytest.mark.req("BOUNDARY:node", "BOUNDARY:objects")
def test_a_spoilt_object_over_the_wire(tmp_path: Path) -> None:
    """An object whose bytes changed on the disk is data loss, streamed or in one call."""
    data = b"x" * 1000
    name = hashlib.sha256(data).hexdigest()
    with running("plant-a", tmp_path / "data") as node:
        assert node.request("PUT", "/v1/objects/files/spoilt", data)[0] == 200
        (path,) = (tmp_path / "data").rglob(name)
        path.chmod(0o600)
        path.write_bytes(data[:500] + b"?" + data[501:])
        unary = node.ask(f"{ADMIN}GetObject", {"bucket": "files", "key": "spoilt"})
        assert (unary.status, unary["code"]) == (500, "data_loss")
        status, _headers, body = node.request("GET", "/v1/objects/files/spoilt")
        assert (status, json.loads(body)["code"]) == (500, "data_loss")
