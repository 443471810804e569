"""The outbox and the producer against a real node that comes and goes."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.boundary import AsyncProducer, Outbox, Producer
from ergon_framework.core.retry import Backoff
from ergon_framework.errors import ArtifactError, ConflictingDuplicateError, NodeUnavailableError
from tests import fork_server
from tests.boundary.node.cables import Cable
from tests.boundary.node.processes import ADMIN, CORE, PATIENCE, NodeProcess, fact, running
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.req("BOUNDARY:producer")]

SOON = Backoff(base=0.02, factor=1.0, cap=0.02)

CHILD = """
import sys
from ergon_framework.boundary import Outbox, Producer

path, url, recover = sys.argv[1:]
with Producer(url, timeout=5.0) as producer, Outbox(path, producer, recover=recover) as outbox:
    print(outbox.drain(until_empty=True).sent, flush=True)
"""
PUBLISH = """
import sys
from ergon_framework.boundary import Producer

url, file, how = sys.argv[1:]
fact = {"subject": "work_order:WO-1", "predicate": "has_batch_attachment"}
with Producer(url, from_zone="plant-a", to_zone="plant-b") as producer:
    if how == "lookup" and producer.lookup_fact("plant-a", "WO-1:attached:1") is not None:
        print("known", flush=True)
    else:
        told = producer.publish(fact, [file], message_id="WO-1:attached:1", produced_at_unix_ms=1)
        print("told" if not told.duplicate else "told again", flush=True)
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node of one test's own."""
    with running("plant-a", tmp_path / "data") as node:
        yield node


def add(outbox: Outbox, *numbers: int, files: tuple[Any, ...] = ()) -> None:
    """Spool facts."""
    for number in numbers:
        body = fact(f"order:{number}:created", {"number": number})
        outbox.add(body["envelope"], body["fact"], files)


def log_of(node: NodeProcess) -> list[str]:
    """The ids in the node's log, in order; offsets are dense."""
    node.ask(f"{ADMIN}CreateConsumer", {"consumer_name": "all", "required": False})
    facts = node.ask(f"{CORE}FetchFacts", {"consumer_name": "all", "limit": 1000})["facts"]
    assert [each["offset"] for each in facts] == list(range(1, len(facts) + 1))
    return [each["envelope"]["message_id"] for each in facts]


def names(count: int) -> list[str]:
    """What was spooled."""
    return [f"order:{number}:created" for number in range(count)]


@pytest.mark.req("P6", "P7", "BSFG:Errors")
def test_a_node_that_is_down_for_a_while(node: NodeProcess, tmp_path: Path) -> None:
    """Adding never waits; when the node is back, all is there in order, once."""
    with (
        Producer(node.url, timeout=5.0) as producer,
        Outbox(tmp_path / "outbox.db", producer, backoff=SOON) as outbox,
    ):
        outbox.start()
        add(outbox, *range(10))
        until(lambda: outbox.pending() == 0, "ten facts at the node")
        node.kill()
        add(outbox, *range(10, 40))
        until(lambda: outbox.last_error is not None, "the outage is noticed")
        assert outbox.pending() == 30
        node.start()
        until(lambda: outbox.pending() == 0, "all facts at the node")
        until(lambda: outbox.last_error is None, "the end of the outage, told after it is settled")
    assert log_of(node) == names(40)


@pytest.mark.req("P6", "P7")
def test_a_node_that_restarts_again_and_again(node: NodeProcess, tmp_path: Path) -> None:
    """Killed in the middle of batches, the node has every fact once and in order."""
    options: dict[str, Any] = {"backoff": SOON, "batch_items": 3}
    with (
        Producer(node.url, timeout=5.0) as producer,
        Outbox(tmp_path / "outbox.db", producer, **options) as outbox,
    ):
        add(outbox, *range(200))
        outbox.start()
        for left in (180, 120, 60):
            until(lambda left=left: outbox.pending() <= left, "some progress")  # type: ignore[misc]
            node.kill()
            node.start()
        until(lambda: outbox.pending() == 0, "all facts at the node")
        assert outbox.refused() == []
    assert log_of(node) == names(200)


@pytest.mark.req("P6")
def test_a_link_that_is_cut_after_the_commit(node: NodeProcess, tmp_path: Path) -> None:
    """Answers are lost again and again; the node has every fact once."""
    with (
        Cable(node.port) as cable,
        Producer(f"http://127.0.0.1:{cable.port}", timeout=2.0) as producer,
        Outbox(tmp_path / "outbox.db", producer, backoff=SOON, batch_items=2) as outbox,
    ):
        add(outbox, *range(60))
        outbox.start()
        for left in (50, 30, 10):
            until(lambda left=left: outbox.pending() <= left, "some progress")  # type: ignore[misc]
            cable.cut()
            cable.heal()
        until(lambda: outbox.pending() == 0, "all facts at the node")
    assert log_of(node) == names(60)


@pytest.mark.req("P14", "BSFG:Errors")
@pytest.mark.parametrize("recover", ["append", "lookup"])
@pytest.mark.parametrize("point", ["boundary.outbox.sent.before", "boundary.outbox.sent.after"])
def test_a_producer_that_dies_after_the_answer(
    node: NodeProcess, tmp_path: Path, recover: str, point: str
) -> None:
    """Both ways of recovery, look-up and plain re-append, end in one fact each."""
    path = tmp_path / "outbox.db"
    with Outbox(path) as outbox:
        add(outbox, *range(5))
    command = [sys.executable, "-c", CHILD, str(path), node.url, recover]
    environment = {**os.environ, "ERGON_FAILPOINTS": f"{point}=kill"}
    died = fork_server.run(
        command, env=environment, capture_output=True, timeout=PATIENCE, check=False
    )
    assert died.returncode == -9, died.stderr
    done = fork_server.run(
        command, capture_output=True, timeout=PATIENCE, check=True, env=dict(os.environ)
    )
    assert done.stdout
    assert log_of(node) == names(5)
    with Outbox(path) as outbox:
        assert outbox.pending() == 0


@pytest.mark.req("P1", "P2", "P14", "BSFG:Sequence", "BSFG:Retry")
@pytest.mark.parametrize("how", ["append", "lookup"])
@pytest.mark.parametrize(
    "point", ["boundary.publishing.before", "boundary.publishing.after", "none"]
)
def test_a_publication_that_dies(node: NodeProcess, tmp_path: Path, how: str, point: str) -> None:
    """Killed between artifact and fact, or after both, it ends in one object and one fact."""
    file = tmp_path / "batch_order.pdf"
    file.write_bytes(b"%PDF " * 1000)
    command = [sys.executable, "-c", PUBLISH, node.url, str(file), how]
    if point != "none":
        died = fork_server.run(
            command,
            env={**os.environ, "ERGON_FAILPOINTS": f"{point}=kill"},
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        )
        assert died.returncode == -9, died.stderr
    for _ in range(2):
        fork_server.run(
            command, capture_output=True, timeout=PATIENCE, check=True, env=dict(os.environ)
        )
    assert log_of(node) == ["WO-1:attached:1"]
    (told,) = node.ask(f"{CORE}FetchFacts", {"consumer_name": "all"})["facts"]
    reference = told["fact"]["object_json"]
    assert reference["file_name"] == "batch_order.pdf"
    path = f"/v1/objects/{reference['bucket']}/{reference['key']}"
    assert node.request("GET", path)[2] == file.read_bytes()


@pytest.mark.req("P1", "P2")
def test_files_in_the_outbox(node: NodeProcess, tmp_path: Path) -> None:
    """Facts with files wait for the node together; the artifact is there before the fact."""
    file = tmp_path / "report.txt"
    node.kill()
    with (
        Producer(node.url, timeout=5.0) as producer,
        Outbox(tmp_path / "outbox.db", producer, backoff=SOON) as outbox,
    ):
        for number in range(3):
            file.write_bytes(b"report %d" % number)
            add(outbox, number, files=(file,))
        file.unlink()  # they were copied
        outbox.start()
        until(lambda: outbox.last_error is not None, "the outage is noticed")
        node.start()
        until(lambda: outbox.pending() == 0, "all facts at the node")
        assert outbox.refused() == []
    assert log_of(node) == names(3)
    facts = node.ask(f"{CORE}FetchFacts", {"consumer_name": "all"})["facts"]
    for number, each in enumerate(facts):
        (reference,) = each["fact"]["object_json"]["attachments"]
        path = f"/v1/objects/{reference['bucket']}/{reference['key']}"
        assert node.request("GET", path)[2] == b"report %d" % number


@pytest.mark.req("P9")
def test_a_refused_fact_does_not_stop_the_line(node: NodeProcess, tmp_path: Path) -> None:
    """A conflict is set aside with what the node said; the others pass in order."""
    node.append("order:1:created", "other content")
    with (
        Producer(node.url) as producer,
        Outbox(tmp_path / "outbox.db", producer, backoff=SOON) as outbox,
    ):
        add(outbox, 0, 1, 2)
        assert outbox.drain(until_empty=True).sent == 2
        (refused,) = outbox.refused()
        assert "conflicting_duplicate" in repr(refused)
    assert log_of(node) == ["order:1:created", "order:0:created", "order:2:created"]


@pytest.mark.req("P16")
def test_a_full_node_is_waited_for(tmp_path: Path) -> None:
    """``buffer_full`` is no refusal of a fact: it stays in the spool, in its place."""
    with running("plant-a", tmp_path / "data", "--capacity", "2000") as node:
        with (
            Producer(node.url) as producer,
            Outbox(tmp_path / "outbox.db", producer, backoff=SOON, batch_items=1) as outbox,
        ):
            add(outbox, *range(30))
            outbox.start()
            until(lambda: outbox.last_error is not None, "the node is full")
            assert outbox.stop(PATIENCE)
            assert outbox.refused() == []
            sent = 30 - outbox.pending()
            assert 0 < sent < 30
            assert log_of(node) == names(sent)
            node.kill()
            node.options = ()
            node.start()
            outbox.drain(until_empty=True)
        assert log_of(node) == names(30)


@pytest.mark.req("P5", "BSFG:Retry")
def test_a_producer_gives_up_and_may_try_again(node: NodeProcess) -> None:
    """Without an outbox an outage surfaces after the schedule; the same call works later."""
    body = fact("order:1:created")
    with Producer(node.url, timeout=5.0) as producer:
        node.kill()
        with pytest.raises(NodeUnavailableError):
            producer.append_fact(body["envelope"], body["fact"])
        node.start()
        first = producer.append_fact(body["envelope"], body["fact"])
        again = producer.append_fact(body["envelope"], body["fact"])
        assert (first.duplicate, again.duplicate, first.offset) == (False, True, again.offset)


@pytest.mark.req("P1", "P9")
def test_refusals_reach_the_producer_as_errors(node: NodeProcess) -> None:
    """Each is an error of its own kind, with the node's details, and none is repeated."""
    with Producer(node.url) as producer:
        body = fact("order:1:created", {"a": 1})
        producer.append_fact(body["envelope"], body["fact"])
        with pytest.raises(ConflictingDuplicateError) as conflict:
            producer.append_fact(body["envelope"], {**body["fact"], "object_json": {"a": 2}})
        assert conflict.value.details["offset"] == 1
        told = {"bucket": "b", "key": "k", "digest": "sha256:" + "0" * 64, "size": 1}
        body = fact("order:2:created", told)
        with pytest.raises(ArtifactError):
            producer.append_fact(body["envelope"], body["fact"])
        assert producer.lookup_fact("plant-a", "order:2:created") is None
        found = producer.lookup_fact("plant-a", "order:1:created")
        assert found is not None
        assert found.offset == 1


@pytest.mark.req("P1", "P6", "BSFG:Sequence")
def test_the_asynchronous_producer_does_the_same(node: NodeProcess, tmp_path: Path) -> None:
    """A publication with two files, drained asynchronously through an outbox as well."""
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_bytes(b"first")
    second.write_bytes(b"second")

    async def main() -> None:
        async with AsyncProducer(node.url, from_zone="plant-a", to_zone="plant-b") as producer:
            what = {"subject": "order:1", "predicate": "attached", "object_json": {"n": 1}}
            for duplicate in (False, True):
                told = await producer.publish(
                    what, [first, second], message_id="order:1:attached", produced_at_unix_ms=1
                )
                assert (told.offset, told.duplicate) == (1, duplicate)
            with Outbox(tmp_path / "outbox.db") as outbox:
                add(outbox, *range(5))
                await outbox.drain_async(producer, until_empty=True)

    asyncio.run(main())
    assert log_of(node) == ["order:1:attached", *names(5)]
    facts = node.ask(f"{CORE}FetchFacts", {"consumer_name": "all"})["facts"]
    attached = facts[0]["fact"]["object_json"]["attachments"]
    assert [each["file_name"] for each in attached] == ["a.txt", "b.txt"]
    assert json.dumps(attached).count("sha256:") == 2
