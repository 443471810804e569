"""A node is killed at each failpoint it passes, starts again, and nothing is lost or doubled."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.boundary.factstore.sqlite import SqliteFactStore
from ergon_framework.boundary.node import node as node_module
from ergon_framework.storage.failpoints import NAMES
from ergon_framework.storage.objectstore.filesystem import FilesystemObjectStore
from tests.boundary.node.processes import ADMIN, CORE, Answer, NodeProcess
from tests.campaign.parameter_sample import sampled

assert node_module.run_node is not None  # importing it declares every failpoint of a node

CLIENTS = ("boundary.confirming.", "boundary.inbox.", "boundary.outbox.", "boundary.publishing.")
QUIET = (
    "boundary.bucket_",
    "boundary.desk.",
    "boundary.move.",
    "boundary.saving.",
    "boundary.truncate.",
    "boundary.object.delete.",
    "boundary.quarantine.",
    "storage.checkpoint.",
)
"""Failpoints of clients, and of what this workload does not do; each is tested where it belongs."""
POINTS = sorted(
    name
    for name in NAMES
    if name.startswith(("boundary.", "storage.commit")) and not name.startswith((*CLIENTS, *QUIET))
)
KEPT = (
    "boundary.append.after",
    "boundary.bind.before",
    "boundary.object.rename.after",
    "boundary.pull.received",
    "boundary.receive.after",
    "storage.commit.before",
)
FACTS = 8


def retried(node: NodeProcess, call: Callable[[], Answer]) -> Answer:
    """Ask until there is an answer; a node that died starts again, without its failpoint."""
    for _attempt in range(5):
        try:
            answer = call()
        except (OSError, http.client.HTTPException):
            assert node.wait() == -9
            node.start()
            continue
        if answer.status != 503:
            return answer
    raise AssertionError("the node does not answer")


def work(node: NodeProcess) -> dict[str, int]:
    """Facts and artifacts, as a producer sends them; the offset each was acknowledged with."""
    acknowledged = {}
    for number in range(FACTS):
        content: Any = number
        if number % 4 == 0:
            path = f"/v1/objects/files/{number}"

            def put(path: str = path, number: int = number) -> Answer:
                status, _headers, body = node.request("PUT", path, b"artifact %d" % number)
                answer = Answer(json.loads(body))
                answer.status = status
                return answer

            content = dict(retried(node, put))
        name = f"order:{number}:created"
        answer = retried(
            node,
            lambda name=name, content=content: node.append(name, content),  # type: ignore[misc]
        )
        assert answer.status == 200, answer
        acknowledged[name] = answer["offset"]
    return acknowledged


def consume(node: NodeProcess, log: str, count: int, source: NodeProcess) -> list[dict[str, Any]]:
    """Everything in a log, page by page, each confirmed; a page comes again when we died on it."""
    asked = {"consumer_name": "reader", "log": log}
    retried(node, lambda: node.ask(f"{ADMIN}CreateConsumer", asked))
    found: dict[int, dict[str, Any]] = {}
    while len(found) < count:
        source.revive()
        page = retried(
            node,
            lambda: node.ask(
                f"{CORE}FetchFacts", {"consumer_name": "reader", "limit": 5, "wait_ms": 1000}
            ),
        )["facts"]
        found |= {each["offset"]: each for each in page}
        last = max(found, default=0)
        confirm = {"consumer_name": "reader", "offset": last}
        retried(node, lambda confirm=confirm: node.ask(f"{CORE}ConfirmReceipt", confirm))  # type: ignore[misc]
    assert list(found) == list(range(1, count + 1))
    return list(found.values())


def check(folder: Path, zone: str) -> None:
    """The chain and the objects are whole."""
    store = SqliteFactStore(folder / "facts.db", zone=zone, read_only=True)
    objects = FilesystemObjectStore(folder / "objects")
    try:
        flaws = [each for log in store.logs() for each in store.verify(log.name)]
        assert not [flaw for flaw in flaws if not isinstance(flaw, int)]
        for each in store.objects():
            assert objects.verify(each.digest, each.size) is None
    finally:
        objects.close()
        store.close()


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.req("P7", "P11", "BOUNDARY:zones", "BOUNDARY:node")
@pytest.mark.parametrize("point", sampled(POINTS, KEPT))
def test_a_kill_at_each_point(point: str, tmp_path: Path) -> None:
    """Both zones die at this point; the forward log equals the store log afterwards."""
    a = NodeProcess("plant-a", tmp_path / "a", failpoints=f"{point}=kill@2")
    b = None
    try:
        acknowledged = work(a)
        assert sorted(acknowledged.values()) == list(range(1, FACTS + 1))
        b = NodeProcess(
            "plant-b", tmp_path / "b", "--peer", f"plant-a={a.url}", failpoints=f"{point}=kill"
        )
        found = consume(b, "inbound:plant-a", FACTS, a)
        assert {each["envelope"]["message_id"]: each["source_offset"] for each in found} == (
            acknowledged
        )
        for name, offset in acknowledged.items():
            a.revive()
            asked = {"from_zone": "plant-a", "message_id": name}
            assert a.ask(f"{ADMIN}LookupFact", asked)["offset"] == offset
        assert len(consume(a, "outbound", FACTS, a)) == FACTS
    finally:
        a.kill()
        if b is not None:
            b.kill()
    check(tmp_path / "a", "plant-a")
    check(tmp_path / "b", "plant-b")


def test_every_point_is_covered() -> None:
    """The list is not empty, and holds the steps that matter."""
    wanted = {"boundary.append.before", "boundary.append.after", "boundary.receive.before"}
    assert wanted | {"boundary.pull.received", "boundary.bind.before"} <= set(POINTS)
