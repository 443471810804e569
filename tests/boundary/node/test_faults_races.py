"""Faults that need two hands: a full disk at the receiver, damaged pages, deletes against puts."""

from __future__ import annotations

import json
import resource
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.cli import invoke
from tests.boundary.node.processes import ADMIN, CORE, NodeProcess, running
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.req("BOUNDARY:badinput")]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node of one test's own."""
    with running("plant-a", tmp_path / "data") as node:
        yield node


def everything(node: NodeProcess, log: str = "outbound") -> list[str]:
    """The ids of a log, read anew page by page."""
    name = f"reader-{log}".replace(":", "-")
    node.ask(f"{ADMIN}CreateConsumer", {"consumer_name": name, "log": log, "required": False})
    node.ask(f"{ADMIN}SeekConsumer", {"consumer_name": name, "offset": 0})
    found: list[str] = []
    while page := node.ask(f"{CORE}FetchFacts", {"consumer_name": name, "limit": 1000})["facts"]:
        found += [each["envelope"]["message_id"] for each in page]
        node.ask(f"{CORE}ConfirmReceipt", {"consumer_name": name, "offset": page[-1]["offset"]})
    return found


def alerts(node: NodeProcess) -> set[str]:
    """The kinds of a node's alerts."""
    return {alert["kind"] for alert in node.ask(f"{ADMIN}GetStatus", {})["alerts"]}


@pytest.mark.req("BOUNDARY:zones")
def test_a_full_disk_at_the_receiver(node: NodeProcess, tmp_path: Path) -> None:
    """The link waits, the sender never notices, and room lets everything in once."""
    names = [f"order:{number}:created" for number in range(60)]
    with running("plant-b", tmp_path / "b", "--peer", f"plant-a={node.url}") as peer:
        node.append(names[0], "x" * 2000)
        until(lambda: everything(peer, "inbound:plant-a") == names[:1], "the first fact")
        before = resource.prlimit(peer.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(peer.pid, resource.RLIMIT_FSIZE, (20_000, before[1]))
        for name in names[1:]:
            assert node.append(name, "x" * 2000).status == 200
        until(lambda: bool(alerts(peer)), "an alert at the receiver")
        resource.prlimit(peer.pid, resource.RLIMIT_FSIZE, before)

        def has_all() -> bool:
            if "read_only" in alerts(peer):
                peer.kill()
                peer.start()
            return len(everything(peer, "inbound:plant-a")) == len(names)

        until(has_all, "everything at the receiver")
        assert everything(peer, "inbound:plant-a") == names


@pytest.mark.req("P15", "P1", "BOUNDARY:objects")
def test_deletes_against_puts_of_the_same_bytes(node: NodeProcess) -> None:
    """Whatever is put and deleted at once: the artifact of an acknowledged fact is there."""
    data = b"shared bytes"
    stop = threading.Event()
    told: list[tuple[str, dict[str, Any]]] = []

    def tell() -> None:
        for number in range(60):
            key = f"kept-{number % 5}"
            status, _headers, body = node.request("PUT", f"/v1/objects/files/{key}", data)
            if status != 200:
                continue
            stored = json.loads(body)
            if node.append(f"order:{number}:attached", stored).status == 200:
                told.append((key, stored))
        stop.set()

    def tear(key: str) -> None:
        while not stop.is_set():
            node.request("PUT", f"/v1/objects/files/{key}", data)
            node.request("DELETE", f"/v1/objects/files/{key}")

    with ThreadPoolExecutor(4) as threads:
        work = [
            threads.submit(tell),
            *(threads.submit(tear, key) for key in ("t1", "t2", "kept-3")),
        ]
        for each in work:
            each.result()
    assert told
    for key, _stored in told:
        status, _headers, body = node.request("GET", f"/v1/objects/files/{key}")
        assert (status, body) == (200, data)
    assert invoke(["boundary", "verify", "--data", str(node.folder)]) == 0


def test_a_damaged_page(node: NodeProcess, capsys: pytest.CaptureFixture[str]) -> None:
    """Garbage in the middle of the file: errors that say so, no traceback, no silence."""
    for number in range(100):
        node.append(f"order:{number}:created", "x" * 2000)
    assert node.stop() == 0
    path = node.folder / "facts.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        [size] = connection.execute("PRAGMA page_size").fetchone()
        [count] = connection.execute("PRAGMA page_count").fetchone()
    with path.open("r+b") as file:
        file.seek(size * (count // 2))
        file.write(b"\xa5" * size)
    capsys.readouterr()
    assert invoke(["boundary", "verify", "--data", str(node.folder)]) != 0
    assert "Traceback" not in capsys.readouterr().err
    node.start()
    node.ask(f"{ADMIN}CreateConsumer", {"consumer_name": "c"})
    seen: list[int] = []
    asked = {"consumer_name": "c", "limit": 10}
    while (page := node.ask(f"{CORE}FetchFacts", asked)).status == 200 and page["facts"]:
        seen += [each["offset"] for each in page["facts"]]
        node.ask(f"{CORE}ConfirmReceipt", {"consumer_name": "c", "offset": seen[-1]})
    assert seen == sorted(seen)
    if page.status == 200:  # then whatever is missing was set aside by name
        items = node.ask(f"{ADMIN}ListQuarantine", {})["items"]
        assert {item["offset"] for item in items} | set(seen) == set(range(1, 101))
    else:
        assert page["code"] in {"unavailable", "data_loss"}, page
        assert "damaged" in page["message"]
    assert "Traceback" not in node.log()


@pytest.mark.req("BOUNDARY:operator")
def test_looking_at_what_a_dead_node_left(
    node: NodeProcess, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """After a kill, verify, status and backup read the folder without a node."""
    for number in range(10):
        node.append(f"order:{number}:created")
    node.kill()
    data = ["--data", str(node.folder)]
    assert invoke(["boundary", "verify", *data]) == 0
    capsys.readouterr()
    assert invoke(["boundary", "status", "--json", *data]) == 0
    assert json.loads(capsys.readouterr().out)["logs"][0]["head_offset"] == 10
    assert invoke(["boundary", "backup", str(tmp_path / "copy"), *data]) == 0
    with running("plant-a", tmp_path / "copy") as copy:
        assert len(everything(copy)) == 10
        assert copy.append("order:3:created")["offset"] == 4
    node.start()
    assert node.append("order:10:created")["offset"] == 11
