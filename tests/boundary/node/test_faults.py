"""Disks that fail, files that changed, nodes in each other's way: a clear error, nothing lost."""

from __future__ import annotations

import json
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.cli import invoke
from tests.boundary.node.processes import ADMIN, CORE, PATIENCE, Answer, NodeProcess, running
from tests.campaign.parameter_sample import sampled
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.req("BOUNDARY:badinput")]

STRACE = shutil.which("strace")


def everything(node: NodeProcess, name: str = "reader", log: str = "outbound") -> list[Any]:
    """Every fact of a log, as (offset, id), without moving any cursor for good."""
    node.ask(f"{ADMIN}CreateConsumer", {"consumer_name": name, "log": log, "required": False})
    node.ask(f"{ADMIN}SeekConsumer", {"consumer_name": name, "offset": 0})
    page = node.ask(f"{CORE}FetchFacts", {"consumer_name": name, "limit": 1000})
    assert page.status == 200, page
    return [(each["offset"], each["envelope"]["message_id"]) for each in page["facts"]]


def put(node: NodeProcess, key: str, data: bytes) -> Answer:
    """Store an artifact."""
    status, _headers, body = node.request("PUT", f"/v1/objects/files/{key}", data)
    answer = Answer(json.loads(body))
    answer.status = status
    return answer


def blob(node: NodeProcess, stored: dict[str, Any]) -> Path:
    """Where the bytes of an artifact lie."""
    name = str(stored["digest"]).removeprefix("sha256:")
    return node.folder / "objects" / "sha256" / name[:2] / name[2:4] / name


def alerts(node: NodeProcess) -> set[str]:
    """The kinds of a node's alerts."""
    return {alert["kind"] for alert in node.ask(f"{ADMIN}GetStatus", {})["alerts"]}


def verify(node: NodeProcess, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[Any]]:
    """Exit code and findings of ``ergon boundary verify``."""
    capsys.readouterr()
    code = invoke(["boundary", "verify", "--data", str(node.folder), "--json"])
    return code, json.loads(capsys.readouterr().out)


# ---- the disk ----


@pytest.mark.parametrize("point", ["storage.commit.before", "boundary.append.before"])
def test_a_commit_that_fails_is_no_acknowledgement(point: str, tmp_path: Path) -> None:
    """The producer is told to try again, and its second attempt is the fact's only one.

    A node commits for itself as well, when it starts and while it runs: the planted failure meets
    one of several appends, or it is planted again.
    """
    told, answer = 0, Answer()
    first = 3 if point.startswith("storage.") else 1  # opening a store commits, too
    with running("plant-a", tmp_path / "data") as node:
        for passes in range(first, first + 6):
            node.kill()
            node.start(f"{point}=error@{passes}")
            for _append in range(8):
                told += 1
                answer = node.append(f"order:{told}:created")
                if answer.status != 200:
                    break
            if answer.status != 200:
                break
        assert (answer.status, answer["code"]) == (503, "unavailable"), answer
        assert answer["details"]["reason"] == "store_unavailable"
        again = node.append(f"order:{told}:created")
        assert (again.status, again["duplicate"]) == (200, False)
        names = [(number, f"order:{number}:created") for number in range(1, told + 1)]
        assert everything(node) == names


@pytest.mark.parametrize("operation", ["ConfirmReceipt", "CreateConsumer", "PutObject"])
def test_a_commit_that_fails_is_told_to_everybody(operation: str, tmp_path: Path) -> None:
    """Whoever writes is told that the store is in trouble, and may try again."""
    requests: dict[str, Any] = {
        "ConfirmReceipt": {"consumer_name": "c", "offset": 1},
        "CreateConsumer": {"consumer_name": "d"},
        "PutObject": {"bucket": "files", "key": "k", "blob": "AAAA"},
    }
    asked, answer = requests[operation], Answer()
    path = f"{ADMIN if operation == 'CreateConsumer' else CORE}{operation}"
    with running("plant-a", tmp_path / "data") as node:
        node.append("order:1:created")
        node.ask(f"{ADMIN}CreateConsumer", {"consumer_name": "c"})
        node.ask(f"{CORE}FetchFacts", {"consumer_name": "c"})
        for passes in range(2, 9):
            node.kill()
            node.start(f"storage.commit.before=error@{passes}")
            answer = node.ask(path, asked)
            if answer.status != 200:
                break
        assert (answer.status, answer.get("code")) == (503, "unavailable"), answer
        assert node.ask(path, asked).status == 200


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node of one test's own."""
    with running("plant-a", tmp_path / "data") as node:
        yield node


def test_a_full_disk_refuses_and_recovers(node: NodeProcess) -> None:
    """No file may grow: appends are refused, nothing is lost, and room fixes it without a start."""
    acknowledged = {}
    for number in range(20):
        answer = node.append(f"order:{number}:created", "x" * 2000)
        acknowledged[f"order:{number}:created"] = answer["offset"]
    before = resource.prlimit(node.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (60_000, before[1]))
    refused = []
    for number in range(20, 60):
        answer = node.append(f"order:{number}:created", "x" * 2000)
        if answer.status == 200:
            acknowledged[f"order:{number}:created"] = answer["offset"]
        else:
            refused.append((f"order:{number}:created", answer))
    assert refused
    for _name, answer in refused:
        assert (answer.status, answer["code"]) in {
            (503, "unavailable"),
            (429, "resource_exhausted"),
        }
        assert "x" * 20 not in json.dumps(answer)
    assert put(node, "large", b"y" * 200_000).status in {429, 503}
    resource.prlimit(node.pid, resource.RLIMIT_FSIZE, before)
    last = None
    for name, _answer in refused:
        last = node.append(name, "x" * 2000)
        if last.status != 200:
            break
        acknowledged[name] = last["offset"]
    if last is not None and last.status != 200:  # it has latched: it says so, and a start fixes it
        assert last["details"]["reason"] == "read_only"
        assert "read_only" in alerts(node)
        node.kill()
        node.start()
        for name, _answer in refused:
            acknowledged[name] = node.append(name, "x" * 2000)["offset"]
    assert put(node, "large", b"y" * 200_000).status == 200
    assert everything(node) == sorted((offset, name) for name, offset in acknowledged.items())
    assert len(acknowledged) == 60


@pytest.mark.skipif(STRACE is None, reason="needs strace to fail an fsync")
def test_a_failed_fsync_latches_the_node(
    node: NodeProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody knows what is on disk: the node takes no more, says so, and a start fixes it."""
    assert node.append("order:1:created").status == 200
    assert STRACE is not None
    command = [STRACE, "-f", "-q", "-e", "trace=fsync,fdatasync"]
    command += ["-e", "inject=fsync,fdatasync:error=EIO", "-o", os.devnull, "-p", str(node.pid)]
    tracer = subprocess.Popen(command, stderr=subprocess.PIPE)  # noqa: S603 - found above
    try:
        status = Path(f"/proc/{node.pid}/status")
        until(lambda: "TracerPid:\t0\n" not in status.read_text(), "a tracer at the node")
        if tracer.poll() is not None:
            pytest.skip("this machine lets nobody trace")
        answer = node.append("order:2:created")
        assert (answer.status, answer["details"]["reason"]) == (503, "read_only"), answer
    finally:
        tracer.terminate()
        tracer.communicate(timeout=PATIENCE)
    # The disk is well again, and still: what it said about earlier writes cannot be trusted.
    answer = node.append("order:3:created")
    assert (answer.status, answer["details"]["reason"]) == (503, "read_only")
    confirm = node.ask(f"{ADMIN}CreateConsumer", {"consumer_name": "c"})
    assert (confirm.status, confirm["code"]) == (503, "unavailable")
    assert alerts(node) == {"appends", "read_only"}
    assert node.request("GET", "/readyz")[0] == 503
    assert node.request("GET", "/healthz")[0] == 200
    assert invoke(["boundary", "status", "--url", node.url]) == 1
    asked = {"from_zone": "plant-a", "message_id": "order:1:created"}
    assert node.ask(f"{ADMIN}LookupFact", asked)["offset"] == 1, "reading goes on"
    node.kill()
    node.start()
    offsets = [node.append(f"order:{number}:created")["offset"] for number in (1, 2, 3)]
    assert sorted(offsets) == [1, 2, 3]
    assert verify(node, capsys) == (0, [])


@pytest.mark.skipif(STRACE is None, reason="needs strace to fail an fsync")
def test_a_failed_fsync_of_an_object_is_told(node: NodeProcess) -> None:
    """An artifact whose bytes the disk did not confirm is not acknowledged."""
    assert STRACE is not None
    command = [STRACE, "-f", "-q", "-e", "trace=fsync,fdatasync"]
    command += ["-e", "inject=fsync,fdatasync:error=EIO", "-o", os.devnull, "-p", str(node.pid)]
    tracer = subprocess.Popen(command, stderr=subprocess.PIPE)  # noqa: S603 - found above
    try:
        status = Path(f"/proc/{node.pid}/status")
        until(lambda: "TracerPid:\t0\n" not in status.read_text(), "a tracer at the node")
        answer = put(node, "a", b"bytes")
        assert (answer.status, answer["code"]) == (503, "unavailable"), answer
    finally:
        tracer.terminate()
        tracer.communicate(timeout=PATIENCE)
    assert "read_only" in alerts(node)
    node.kill()
    node.start()
    stored = put(node, "a", b"bytes")
    assert stored.status == 200
    assert node.append("order:1:attached", dict(stored)).status == 200


# ---- files that changed ----


@pytest.mark.req("C7", "BOUNDARY:objects")
@pytest.mark.parametrize("damage", ["truncated", "gone", "flipped"])
def test_a_damaged_object_is_found(
    damage: str, node: NodeProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """A reader is never given other bytes as if they were right; verify names the object."""
    data = b"batch report " * 1000
    stored = put(node, "report", data)
    node.append("order:1:attached", dict(stored))
    path = blob(node, stored)
    path.parent.chmod(0o755)
    path.chmod(0o644)
    if damage == "truncated":
        os.truncate(path, 100)
    elif damage == "gone":
        path.unlink()
    else:
        path.write_bytes(b"X" + data[1:])
    code, (finding,) = verify(node, capsys)
    assert (code, finding["kind"], finding["where"]) == (1, "object", "files/report")
    status, headers, body = node.request("GET", "/v1/objects/files/report")
    if status == 200:  # flipped, and not looked at: whoever reads verifies against the digest
        assert damage == "flipped"
        assert headers["digest-sha256"] == stored["digest"]
    else:
        assert (status, json.loads(body)["code"]) == (500, "data_loss")
    unary = node.ask(f"{ADMIN}GetObject", {"bucket": "files", "key": "report"})
    assert unary.status == 200 or unary["code"] == "data_loss"
    assert unary.status == 500 or damage == "flipped"


@pytest.mark.req("BOUNDARY:objects", "P2")
@pytest.mark.parametrize("damage", ["truncated", "gone"])
def test_a_damaged_object_is_mended_by_the_same_bytes(damage: str, node: NodeProcess) -> None:
    """Putting the same bytes again, as the error's remedy says, makes the object whole."""
    data = b"batch report " * 1000
    stored = put(node, "report", data)
    path = blob(node, stored)
    path.parent.chmod(0o755)
    path.chmod(0o644)
    if damage == "truncated":
        os.truncate(path, 100)
    else:
        path.unlink()
    assert put(node, "report", data).status == 200
    assert node.request("GET", "/v1/objects/files/report")[2] == data


@pytest.mark.req("P1", "BOUNDARY:objects")
def test_a_fact_about_an_object_that_is_gone(node: NodeProcess) -> None:
    """A reference to bytes that somebody removed from the disk is refused, not believed."""
    stored = put(node, "report", b"bytes")
    path = blob(node, stored)
    path.parent.chmod(0o755)
    path.unlink()
    answer = node.append("order:1:attached", dict(stored))
    assert answer.status != 200, "the artifact is not durably there"


def spoil(folder: Path, offset: int, part: str = "fact", place: float = 0.5) -> None:
    """Flip one bit of a fact of the outbound log, as a bad disk might.

    ``proof`` is what the store keeps beside envelope and fact: digests, chain and id.
    """
    with closing(sqlite3.connect(folder / "facts.db")) as connection, connection:
        number = (1 << 40) + offset
        query = f"SELECT {part} FROM ergon_boundary_facts WHERE id = ?"  # noqa: S608 - ours
        raw = bytearray(connection.execute(query, (number,)).fetchone()[0])
        raw[int(len(raw) * place)] ^= 1
        change = f"UPDATE ergon_boundary_facts SET {part} = ? WHERE id = ?"  # noqa: S608 - ours
        connection.execute(change, (bytes(raw), number))


def read_all(node: NodeProcess, name: str, last: int) -> list[int]:
    """The offsets a consumer is given, page by page, each confirmed."""
    node.ask(f"{ADMIN}CreateConsumer", {"consumer_name": name})
    seen: list[int] = []
    while seen[-1:] != [last]:
        page = node.ask(f"{CORE}FetchFacts", {"consumer_name": name, "limit": 10})
        assert page.get("facts"), page
        seen += [each["offset"] for each in page["facts"]]
        node.ask(f"{CORE}ConfirmReceipt", {"consumer_name": name, "offset": seen[-1]})
    return seen


PARTS = [("fact", 0.5), ("envelope", 0.5), ("proof", 0.0), ("proof", 0.5), ("proof", 0.95)]
CHAIN = 0.2
"""Where in the proof the hash chain lies: it says nothing about the fact, but all about the log."""


@pytest.mark.req("C10", "BOUNDARY:store")
@pytest.mark.parametrize(("part", "place"), sampled(PARTS, [("fact", 0.5), ("proof", 0.5)]))
def test_a_corrupted_fact_is_set_aside(
    part: str, place: float, node: NodeProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """Consumers get everything else; the fact is in quarantine, and verify names it."""
    for number in range(1, 6):
        node.append(f"order:{number}:created", {"a": "some content"})
    node.ask(f"{ADMIN}CreateConsumer", {"consumer_name": "c"})
    assert node.stop() == 0
    spoil(node.folder, 3, part, place)
    code, findings = verify(node, capsys)
    assert code == 1
    assert (findings[0]["kind"], findings[0]["offset"]) == ("fact", 3)
    node.start()
    assert read_all(node, "c", 5) == [1, 2, 4, 5]
    (item,) = node.ask(f"{ADMIN}ListQuarantine", {"consumer_name": "c"})["items"]
    assert (item["offset"], item["reason"]) == (3, "corrupted")
    assert "quarantine" in alerts(node)
    assert node.append("order:6:created")["offset"] == 6


@pytest.mark.req("BOUNDARY:store")
@pytest.mark.parametrize(("part", "place"), sampled(PARTS, [("fact", 0.5), ("proof", 0.5)]))
def test_the_last_fact_is_the_corrupted_one(
    part: str, place: float, node: NodeProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """Facts after it take their places, consumers pass it, and it stays named as the flaw."""
    for number in range(1, 4):
        node.append(f"order:{number}:created", {"a": "some content"})
    assert node.stop() == 0
    spoil(node.folder, 3, part, place)
    node.start()
    assert node.append("order:4:created")["offset"] == 4
    assert node.append("order:5:created")["offset"] == 5
    assert read_all(node, "c", 5) == [1, 2, 4, 5]
    code, findings = verify(node, capsys)
    assert code == 1
    assert findings[0]["offset"] == 3


@pytest.mark.req("BOUNDARY:store")
@pytest.mark.parametrize("offset", [3, 5])
def test_a_corrupted_chain_is_found(
    offset: int, node: NodeProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """The facts are whole and delivered; verify names the place where the chain breaks."""
    for number in range(1, 6):
        node.append(f"order:{number}:created", {"a": "some content"})
    assert node.stop() == 0
    spoil(node.folder, offset, "proof", CHAIN)
    node.start()
    assert node.append("order:6:created")["offset"] == 6
    assert read_all(node, "c", 6) == [1, 2, 3, 4, 5, 6]
    code, findings = verify(node, capsys)
    assert code == 1
    assert findings[0]["offset"] == offset


@pytest.mark.req("P7", "BOUNDARY:store")
def test_a_corrupted_fact_keeps_its_id(node: NodeProcess) -> None:
    """Its producer's retry is neither a second fact nor a crash."""
    for number in range(1, 4):
        node.append(f"order:{number}:created", {"a": "some content"})
    assert node.stop() == 0
    spoil(node.folder, 2)
    node.start()
    again = node.append("order:2:created", {"a": "some content"})
    assert (again.status, again.get("offset"), again.get("duplicate")) == (200, 2, True)


@pytest.mark.req("C10", "BOUNDARY:zones")
def test_a_corrupted_fact_does_not_stop_a_link(node: NodeProcess, tmp_path: Path) -> None:
    """The peer gets everything but the corrupted one, which is in quarantine where it lies."""
    for number in range(1, 6):
        node.append(f"order:{number}:created", {"a": "some content"})
    assert node.stop() == 0
    spoil(node.folder, 3)
    node.start()
    with running("plant-b", tmp_path / "b", "--peer", f"plant-a={node.url}") as peer:
        log = "inbound:plant-a"
        until(lambda: len(everything(peer, log=log)) >= 4, "the other four facts")
        assert [name for _offset, name in everything(peer, log=log)] == [
            f"order:{number}:created" for number in (1, 2, 4, 5)
        ]
        node.append("order:6:created")
        until(lambda: len(everything(peer, log=log)) >= 5, "one more")
        (item,) = node.ask(f"{ADMIN}ListQuarantine", {})["items"]
        assert (item["consumer_name"], item["offset"]) == ("zone:plant-b", 3)


@pytest.mark.req("BOUNDARY:zones")
def test_a_damaged_artifact_does_not_stop_a_link(node: NodeProcess, tmp_path: Path) -> None:
    """A fact whose artifact the peer has lost is set aside at the receiver; the others pass."""
    stored = put(node, "report", b"bytes" * 1000)
    node.append("order:1:created")
    node.append("order:2:attached", dict(stored))
    node.append("order:3:created")
    path = blob(node, stored)
    path.parent.chmod(0o755)
    path.unlink()
    settings = tmp_path / "ergon.toml"
    settings.write_text("[zones.plant-b.pull]\nartifact_attempts = 2\n", encoding="utf-8")
    options = ("--config", str(settings), "--peer", f"plant-a={node.url}")
    with running("plant-b", tmp_path / "b", *options) as peer:
        log = "inbound:plant-a"
        until(lambda: len(everything(peer, log=log)) >= 2, "the other facts")
        names = [name for _offset, name in everything(peer, log=log)]
        assert names == ["order:1:created", "order:3:created"]
        (item,) = peer.ask(f"{ADMIN}ListQuarantine", {})["items"]
        assert (item["consumer_name"], item["offset"]) == ("pull:plant-a", 2)
        # The artifact is brought back, and the operator lets the fact in after all.
        assert put(node, "report", b"bytes" * 1000).status == 200
        assert peer.ask(f"{ADMIN}ReleaseQuarantine", {"id": item["id"]}).status == 200
        until(lambda: len(everything(peer, log=log)) == 3, "the released fact")
        assert peer.request("GET", "/v1/objects/files/report")[2] == b"bytes" * 1000


def test_a_node_whose_file_was_removed(node: NodeProcess) -> None:
    """It acknowledges nothing from then on and is not ready; what was acknowledged was before."""
    assert node.append("order:1:created")["offset"] == 1
    for rest in node.folder.glob("facts.db*"):
        rest.unlink()
    for _again in range(2):
        answer = node.append("order:2:created")
        assert (answer.status, answer["details"]["reason"]) == (503, "store_unavailable"), answer
    assert node.request("GET", "/readyz")[0] == 503
    assert node.request("GET", "/healthz")[0] == 200
    node.kill()
    node.start()
    assert node.append("order:2:created")["offset"] == 1


def test_a_file_that_is_no_database(node: NodeProcess) -> None:
    """A node does not start on a damaged file, and says why."""
    assert node.stop() == 0
    (node.folder / "facts.db").write_bytes(b"not a database, " * 1000)
    for rest in node.folder.glob("facts.db-*"):
        rest.unlink()
    code, text = _serve(node.folder)
    assert code not in {0, None}
    assert "is not an SQLite database" in text
    assert "Traceback" not in text


# ---- in each other's way ----


def _serve(folder: Path, zone: str = "plant-a") -> tuple[int, str]:
    command = [sys.executable, "-m", "ergon_framework.cli", "boundary", "serve"]
    command += ["--zone", zone, "--data", str(folder), "--listen", "127.0.0.1:0", "--insecure"]
    done = subprocess.run(  # noqa: S603 - our own interpreter
        command, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_two_nodes_on_one_folder(node: NodeProcess) -> None:
    """The second one is refused with the first one's number, and harms nothing."""
    node.append("order:1:created")
    code, text = _serve(node.folder)
    assert code != 0
    assert "is in use by another node" in text
    assert str(node.pid) in text
    assert "Traceback" not in text
    assert node.append("order:2:created")["offset"] == 2


def test_another_zone_on_the_same_folder(node: NodeProcess) -> None:
    """A folder belongs to one zone for ever."""
    node.append("order:1:created")
    assert node.stop() == 0
    code, text = _serve(node.folder, "plant-x")
    assert code != 0
    assert "plant-a" in text
    assert "Traceback" not in text
    node.start()
    assert node.append("order:1:created")["duplicate"] is True


def test_a_port_that_is_taken(node: NodeProcess, tmp_path: Path) -> None:
    """A node that cannot listen says so, and leaves its folder for the next one."""
    command = [sys.executable, "-m", "ergon_framework.cli", "boundary", "serve", "--insecure"]
    command += ["--zone", "plant-b", "--data", str(tmp_path / "b")]
    done = subprocess.run(  # noqa: S603 - our own interpreter
        [*command, "--listen", f"127.0.0.1:{node.port}"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode != 0
    assert str(node.port) in done.stderr
    assert "Traceback" not in done.stderr
    with running("plant-b", tmp_path / "b") as other:
        assert other.append("order:1:created").status == 200
