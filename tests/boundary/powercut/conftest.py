"""Nodes that were recorded at work, once for all tests."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.boundary.node.processes import ADMIN, CORE, Answer, NodeProcess, fact, running
from tests.boundary.powercut.recorder import ZONE, Recording, compiled, read, watched
from tests.storage.conftest import until

ARTIFACTS = 5
LARGE = 300_000
"""Bytes of the last artifact: enough to be written past the system's cache."""
ALONE, TOGETHER, PRODUCERS = 70, 40, 4
"""Facts that come one by one, and facts that come from several producers at a time."""


@pytest.fixture(scope="session")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled recorder."""
    return compiled(tmp_path_factory.mktemp("recorder"))


@pytest.fixture(scope="session")
def recording(recorder: Path, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """A node with producers and a consumer; its folder was there before it."""
    place = tmp_path_factory.mktemp("powercut")
    root = place / "disk"
    (root / ZONE).mkdir(parents=True)
    with watched(recorder, root, place / "record") as node:
        one_by_one(node)
        all_at_once(node)
    return Recording(root, list(read(place / "record")), existing=(ZONE,))


@pytest.fixture(scope="session")
def receiving(recorder: Path, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """A node that pulled the facts and artifacts of another one, and was killed."""
    place = tmp_path_factory.mktemp("powercut")
    root = place / "disk"
    (root / "plant-b").mkdir(parents=True)
    with running(ZONE, place / ZONE) as sender:
        peer = ("--peer", f"{ZONE}={sender.url}")
        with watched(recorder, root, place / "record", *peer, zone="plant-b") as receiver:
            for number in range(TOGETHER):
                good(sender.append(f"order:{number}:sent", content(sender, number)))
            consume(receiver, f"inbound:{ZONE}", TOGETHER)
            until(lambda: has_all(sender))
            receiver.kill()
    return Recording(root, list(read(place / "record")), existing=("plant-b",))


def one_by_one(node: NodeProcess) -> None:
    """One request at a time, of every kind that changes something."""
    good(node.ask(f"{ADMIN}CreateConsumer", {"consumer_name": "rover"}))
    for number in range(ALONE):
        good(node.append(f"order:{number}:created", content(node, number)))
    long = {"start": "long-start", "filler": "x" * 20_000, "tail": "long-end"}
    good(node.append("order:1:described", long))
    items = [fact(f"order:{number}:packed", number) for number in range(10)]
    good(node.ask(f"{ADMIN}AppendFacts", {"items": items}))
    good(node.ask(f"{CORE}FetchFacts", {"consumer_name": "rover", "limit": 3}))
    good(node.ask(f"{CORE}ConfirmReceipt", {"consumer_name": "rover", "offset": 2}))
    again = good(node.append("order:7:created", 7))
    assert again["duplicate"]
    seek = {"consumer_name": "rover", "offset": 9, "reason": "skip the trial run"}
    good(node.ask(f"{ADMIN}SeekConsumer", seek))
    good(node.ask(f"{ADMIN}Seal", {"reason": "works on the line"}))


def all_at_once(node: NodeProcess) -> None:
    """Several producers, whose facts share commits, and a reader that is close behind them."""

    def produce(producer: int) -> None:
        for number in range(producer, TOGETHER, PRODUCERS):
            good(node.append(f"order:{number}:shipped", number))

    with ThreadPoolExecutor(PRODUCERS + 1) as pool:
        reading = pool.submit(consume, node, "outbound", ALONE + TOGETHER + 11)
        for done in [pool.submit(produce, producer) for producer in range(PRODUCERS)]:
            done.result()
        reading.result()


def consume(node: NodeProcess, log: str, count: int) -> None:
    """Read and confirm that many facts."""
    good(node.ask(f"{ADMIN}CreateConsumer", {"consumer_name": "reader", "log": log}))
    seen = 0
    while seen < count:
        asked = {"consumer_name": "reader", "limit": 30, "wait_ms": 5000}
        page = good(node.ask(f"{CORE}FetchFacts", asked))
        if page["facts"]:
            seen = page["facts"][-1]["offset"]
            good(node.ask(f"{CORE}ConfirmReceipt", {"consumer_name": "reader", "offset": seen}))


def has_all(sender: NodeProcess) -> bool:
    """Whether the only consumer, which is the peer, has confirmed every fact."""
    [peer] = sender.ask(f"{ADMIN}ListConsumers", {})["consumers"]
    return bool(peer["cursor"] == TOGETHER)


def content(node: NodeProcess, number: int) -> Any:
    """What a fact says: mostly a number, and for the first ones an artifact that was put before."""
    if number >= ARTIFACTS:
        return number
    size = LARGE if number == ARTIFACTS - 1 else 2000
    line = b"measurement of order %d\n" % number
    path = f"/v1/objects/files/order-{number}.txt"
    return answer(node.request("PUT", path, (line * (size // len(line) + 1))[:size]))


def answer(told: tuple[int, dict[str, str], bytes]) -> Any:
    """The JSON of a good answer."""
    status, _headers, body = told
    assert status == 200, body
    return json.loads(body)


def good(answer: Answer) -> Answer:
    """The answer, which is no refusal."""
    assert answer.status == 200, answer
    return answer
