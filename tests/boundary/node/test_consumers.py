"""The consumer contract with the real consumers, against a real node."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.boundary import AsyncConsumer, Consumer, Inbox
from ergon_framework.boundary.model import Delivery
from ergon_framework.cli import invoke
from ergon_framework.core.retry import Backoff
from ergon_framework.errors import (
    BoundaryError,
    ConsumerHeldError,
    DataLossError,
    NodeUnavailableError,
    NonRetryableException,
)
from tests import fork_server
from tests.boundary.node.processes import ADMIN, CORE, PATIENCE, NodeProcess, running
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.req("BOUNDARY:consumer")]

AT_ONCE = Backoff(base=0.001, factor=1.0, cap=0.001)

CHILD = """
import os, sys
from ergon_framework.boundary import Consumer

url, name, what, lease = sys.argv[1:]

def handle(delivery):
    os.write(1, b"got %d\\n" % delivery.offset)
    if what == "dies" and delivery.offset == 3:
        os._exit(7)
    if what == "waits":
        sys.stdin.readline()

with Consumer(url, name, log="outbound", limit=10, lease=float(lease)) as consumer:
    report = consumer.run(handle, until_empty=True)
os.write(1, b"done %d\\n" % report.cursor)
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node with ten facts."""
    with running("plant-a", tmp_path / "data") as node:
        for number in range(1, 11):
            assert node.append(f"order:{number}:created", number)["offset"] == number
        yield node


def consumer(node: NodeProcess, name: str = "erp", **options: Any) -> Consumer:
    """A consumer that creates itself, and does not wait between attempts."""
    settings: dict[str, Any] = {"log": "outbound", "backoff": AT_ONCE, **options}
    return Consumer(node.url, name, **settings)


def info(node: NodeProcess, name: str = "erp") -> dict[str, Any]:
    """How the node sees a consumer."""
    found = node.ask(f"{ADMIN}ListConsumers", {})["consumers"]
    return next(each for each in found if each["consumer_name"] == name)


def child(node: NodeProcess, what: str, name: str = "erp", lease: float = 30.0) -> Any:
    """A consumer in a process of its own."""
    return fork_server.start(
        [sys.executable, "-c", CHILD, node.url, name, what, str(lease)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=dict(os.environ),
    )


@pytest.mark.req("C1", "C2")
def test_the_same_page_until_it_is_confirmed(node: NodeProcess) -> None:
    """Fetching changes nothing; the cursor outlives client and node."""
    with consumer(node) as first:
        page = first.fetch(4)
        assert [each.offset for each in page.facts] == [1, 2, 3, 4]
        assert first.fetch(4).facts == page.facts
        assert first.confirm(2) == 2
    node.kill()
    node.start()
    with consumer(node) as second:
        assert [each.offset for each in second.fetch(4).facts] == [3, 4, 5, 6]
        assert second.confirm(4) == 4
    assert node.stop() == 0
    node.start()
    assert info(node)["cursor"] == 4


@pytest.mark.req("C3")
def test_nothing_is_confirmed_before_the_handler_returned(node: NodeProcess) -> None:
    """While a fact is handled, the node's cursor lies below it."""
    seen = []

    def handle(delivery: Delivery) -> None:
        assert info(node)["cursor"] < delivery.offset
        seen.append(delivery.offset)

    with consumer(node, limit=3) as erp:
        report = erp.run(handle, until_empty=True)
    assert seen == list(range(1, 11))
    assert (report.handled, report.cursor, info(node)["cursor"]) == (10, 10, 10)


@pytest.mark.req("C4")
@pytest.mark.parametrize("seed", range(4))
def test_a_failure_confirms_the_prefix_only(node: NodeProcess, seed: int) -> None:
    """When item i fails, all before it is confirmed and nothing at or above it."""
    failing = random.Random(seed).randint(1, 10)  # noqa: S311 - a test's choice
    cursors: list[int] = []

    def handle(delivery: Delivery) -> None:
        if delivery.offset == failing and len(cursors) < 3:
            cursors.append(info(node)["cursor"])
            raise ValueError("not today")

    with consumer(node, max_attempts=5) as erp:
        report = erp.run(handle, until_empty=True)
    # The first failure comes before the prefix is confirmed; at the later ones it is.
    assert cursors[0] < failing
    assert cursors[1:] == [failing - 1] * 2
    assert (report.handled, report.quarantined, info(node)["cursor"]) == (10, 0, 10)


@pytest.mark.req("C4")
def test_an_interrupted_run_confirms_what_was_done(node: NodeProcess) -> None:
    """A run that is stopped in the middle of a page leaves the rest for the next one."""
    with consumer(node) as erp:

        def handle(delivery: Delivery) -> None:
            if delivery.offset == 4:
                erp.stop()

        report = erp.run(handle)
    assert (report.handled, report.cursor, info(node)["cursor"]) == (4, 4, 4)


@pytest.mark.req("C10")
def test_poison_is_set_aside_released_and_discarded(node: NodeProcess) -> None:
    """After so many attempts the cursor passes; a release delivers again, a discard ends it."""
    calls: list[int] = []
    is_mended = False

    def handle(delivery: Delivery) -> None:
        calls.append(delivery.offset)
        if delivery.offset in {4, 7} and not is_mended:
            raise ValueError("a private detail")

    with consumer(node, max_attempts=3) as erp:
        report = erp.run(handle, until_empty=True)
        assert (report.handled, report.quarantined, report.cursor) == (8, 2, 10)
        assert calls.count(4) == calls.count(7) == 3
        assert [n for n in calls if n not in {4, 7}] == [1, 2, 3, 5, 6, 8, 9, 10]
        first, second = node.ask(f"{ADMIN}ListQuarantine", {"consumer_name": "erp"})["items"]
        assert (first["offset"], first["attempts"], first["reason"]) == (4, 3, "handler_failed")
        status = node.ask(f"{ADMIN}GetStatus", {})
        assert "quarantine" in {alert["kind"] for alert in status["alerts"]}
        # Released too early, it comes back into quarantine under its number.
        url = ["--url", node.url]
        assert invoke(["boundary", "quarantine", "release", str(first["id"]), *url]) == 0
        calls.clear()
        report = erp.run(handle, until_empty=True)
        assert set(calls) == {4}
        assert (report.quarantined, report.cursor) == (1, 10)
        is_mended = True
        again = node.ask(f"{ADMIN}ListQuarantine", {"consumer_name": "erp"})["items"]
        number = next(each["id"] for each in again if each["offset"] == 4)
        node.ask(f"{ADMIN}ReleaseQuarantine", {"id": number})
        assert invoke(["boundary", "quarantine", "discard", str(second["id"]), *url]) == 0
        calls.clear()
        report = erp.run(handle, until_empty=True)
        assert calls == [4]
    assert node.ask(f"{ADMIN}ListQuarantine", {"consumer_name": "erp"})["items"] == []
    assert info(node)["cursor"] == 10


@pytest.mark.req("C10")
def test_a_refusal_is_not_repeated(node: NodeProcess) -> None:
    """A handler that knows that it never will can say so."""
    calls: list[int] = []

    def handle(delivery: Delivery) -> None:
        calls.append(delivery.offset)
        if delivery.offset == 2:
            raise NonRetryableException("never")

    with consumer(node) as erp:
        assert erp.run(handle, until_empty=True).quarantined == 1
    assert calls == list(range(1, 11))


@pytest.mark.req("C10")
def test_a_fact_that_kills_its_readers(node: NodeProcess) -> None:
    """A process that dies of a fact again and again is not let near it for ever."""
    ends: list[int] = []
    out = b""
    while len(ends) < 12:
        process = child(node, "dies", lease=0.2)
        out, _ = process.communicate(timeout=PATIENCE)
        ends.append(process.returncode)
        if process.returncode == 0:
            break
        until(lambda: info(node)["holder"] is None, "the end of its lease")
    assert ends[-1] == 0, f"it died {len(ends)} times: {ends}"
    assert 5 <= len(ends) <= 8
    assert b"done 10" in out
    (item,) = node.ask(f"{ADMIN}ListQuarantine", {})["items"]
    assert (item["offset"], item["reason"]) == (3, "crash_loop")
    assert info(node)["cursor"] == 10


@pytest.mark.req("C1", "C3", "C5")
def test_a_killed_consumer_goes_on(node: NodeProcess) -> None:
    """What was handled and not confirmed comes again; nothing is left out."""
    process = child(node, "waits")
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == b"got 1\n"
    process.stdin.write(b"\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"got 2\n"
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=PATIENCE)
    assert info(node)["cursor"] == 0
    with consumer(node) as another, pytest.raises(ConsumerHeldError):
        another.fetch()
    node.ask(f"{ADMIN}ReleaseLease", {"consumer_name": "erp", "holder": info(node)["holder"]})
    process = child(node, "works")
    out, _ = process.communicate(timeout=PATIENCE)
    assert out.decode().split()[1:-2:2] == [str(n) for n in range(1, 11)]


@pytest.mark.req("C5")
def test_an_inbox_makes_the_effect_happen_once(node: NodeProcess, tmp_path: Path) -> None:
    """Delivered twice, by a seek, every fact has one effect; a failed one has none."""
    path = tmp_path / "billing.db"
    inbox = Inbox("erp")
    with closing(sqlite3.connect(path)) as connection:
        inbox.create_table(connection)
        connection.execute("CREATE TABLE bill (line TEXT)")
        connection.commit()
    fails = iter([True, False])

    def bill(connection: sqlite3.Connection, delivery: Delivery) -> None:
        connection.execute("INSERT INTO bill VALUES (?)", (delivery.envelope.message_id,))
        if delivery.offset == 5 and next(fails, False):
            raise ValueError("after the insert")

    with consumer(node) as erp:
        handler = inbox.handler(lambda: sqlite3.connect(path), bill)
        erp.run(handler, until_empty=True)
        erp.seek(0, "all again")
        report = erp.run(handler, until_empty=True)
    assert report.handled == 10
    with closing(sqlite3.connect(path)) as connection:
        lines = [line for (line,) in connection.execute("SELECT line FROM bill")]
    assert lines == [f"order:{number}:created" for number in range(1, 11)]


@pytest.mark.req("C6")
def test_a_confirmation_is_no_fact(node: NodeProcess) -> None:
    """To confirm says nothing about acceptance: the outcome is a fact of its own."""
    with consumer(node) as erp:
        erp.run(lambda _delivery: None, until_empty=True)
    head = node.ask(f"{ADMIN}GetStatus", {})["logs"][0]["head_offset"]
    assert head == 10
    answer = node.append("order:1:accepted", {"by": "erp"}, causation_id="order:1:created")
    assert answer["offset"] == 11


@pytest.mark.req("C7")
def test_a_corrupted_artifact_is_data_loss(node: NodeProcess, tmp_path: Path) -> None:
    """One flipped byte, and no reader gets the artifact in any way."""
    data = b"batch report " * 1000
    node.request("PUT", "/v1/objects/files/report", data)
    name = hashlib.sha256(data).hexdigest()
    told = {"bucket": "files", "key": "report", "digest": f"sha256:{name}", "size": len(data)}
    node.append("order:1:attached", told)
    with consumer(node) as erp:
        assert erp.get_object(told) == data
        path = node.folder / "objects" / "sha256" / name[:2] / name[2:4] / name
        path.chmod(0o644)
        path.write_bytes(data[:-1] + b"X")
        target = tmp_path / "report.txt"
        for call in (
            lambda: erp.get_object(told),
            lambda: erp.open_object(told),
            lambda: erp.save_object(told, target),
        ):
            with pytest.raises(DataLossError) as caught:
                call()
            assert caught.value.code == "data_loss"
        assert not list(tmp_path.glob("*report.txt*"))
        os.truncate(path, 10)
        with pytest.raises(DataLossError):
            erp.get_object(told)


@pytest.mark.req("C8")
def test_reads_need_no_peer(node: NodeProcess, tmp_path: Path) -> None:
    """What a zone has received it can read, artifacts too, when the other zone is gone."""
    data = b"batch report"
    _status, _headers, stored = node.request("PUT", "/v1/objects/files/report", data)
    told = json.loads(stored)
    node.append("order:11:attached", told)
    with running("plant-b", tmp_path / "b", "--peer", f"plant-a={node.url}") as other:
        with Consumer(other.url, "erp", log="inbound:plant-a") as erp:
            head, pause = 0, threading.Event()
            while head < 11:
                pause.wait(0.05)
                head = erp.fetch(wait=5.0).head_offset
        node.kill()
        seen: list[Delivery] = []
        with Consumer(other.url, "erp", log="inbound:plant-a") as erp:
            erp.run(seen.append, until_empty=True)
            assert [each.source_offset for each in seen] == list(range(1, 12))
            assert erp.get_object(told) == data
        assert other.append("reply:1:created").status == 200
        node.start()


@pytest.mark.req("C9")
def test_a_cursor_goes_back_by_a_seek_only(node: NodeProcess) -> None:
    """Confirming less is nothing; a seek is done, and written down with its reason."""
    with consumer(node) as erp:
        erp.run(lambda _delivery: None, until_empty=True)
        assert erp.confirm(3) == 10
        erp.seek(6, "the ledger of March was lost")
        assert info(node)["cursor"] == 6
        assert [each.offset for each in erp.fetch().facts] == [7, 8, 9, 10]
    assert "the cursor of erp was set from 10 to 6" in node.log()
    with closing(sqlite3.connect(node.folder / "facts.db")) as connection:
        rows = connection.execute("SELECT action, details FROM ergon_boundary_journal").fetchall()
    assert any(a == "seek" and "the ledger of March was lost" in text for a, text in rows)


@pytest.mark.req("C11")
def test_two_processes_on_one_name(node: NodeProcess) -> None:
    """The second gets ``aborted`` with who holds the name, and confirms nothing."""
    process = child(node, "waits")
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"got 1\n"
        with consumer(node) as loser:
            with pytest.raises(ConsumerHeldError) as caught:
                loser.fetch()
            assert caught.value.code == "aborted"
            assert caught.value.retry_after is not None
            with pytest.raises(BoundaryError) as refused:
                loser.confirm(1)
            assert refused.value.code == "aborted"
        refusal = node.ask(f"{CORE}FetchFacts", {"consumer_name": "erp"})
        assert (refusal.status, refusal["code"]) == (409, "aborted")
        assert info(node)["cursor"] == 0
        process.communicate(b"\n" * 10, timeout=PATIENCE)
    finally:
        process.kill()
        process.communicate()
    assert info(node)["cursor"] == 10


@pytest.mark.req("C11")
def test_a_race_for_one_name(node: NodeProcess) -> None:
    """Of eight that come at once, one gets the page, and no fact is handled twice."""
    handled: list[int] = []
    lost: list[str] = []
    start = threading.Barrier(8)

    def work(number: int) -> None:
        with Consumer(node.url, "race", log="outbound", holder=f"h{number}", limit=3) as one:
            start.wait(PATIENCE)
            try:
                one.run(lambda delivery: handled.append(delivery.offset), until_empty=True)
            except ConsumerHeldError as error:
                lost.append(error.code)

    node.ask(f"{ADMIN}CreateConsumer", {"consumer_name": "race"})
    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(handled) == list(range(1, 11))
    assert info(node, "race")["cursor"] == 10


@pytest.mark.req("C11")
def test_a_lease_is_kept_in_a_long_handler(node: NodeProcess) -> None:
    """A handler that takes longer than the lease does not lose its name."""
    leases: list[int] = []
    pause = threading.Event()

    def handle(delivery: Delivery) -> None:
        if delivery.offset != 1:
            return
        first = info(node)["held_until_unix_ms"]
        for _ in range(600):  # until the lease was renewed several times over
            now = info(node)
            assert now["holder"] is not None
            leases.append(now["held_until_unix_ms"] - first)
            if leases[-1] > 900:
                break
            pause.wait(0.02)
        with consumer(node) as thief, pytest.raises(ConsumerHeldError):
            thief.fetch()

    with consumer(node, lease=0.6) as erp:
        report = erp.run(handle, until_empty=True)
    assert leases[-1] > 900
    assert (report.handled, info(node)["cursor"]) == (10, 10)


@pytest.mark.req("C1")
def test_a_run_outlives_a_restart_of_the_node(node: NodeProcess) -> None:
    """The node is killed in the middle of a run, which waits and goes on."""
    seen: list[int] = []

    with consumer(node, limit=2) as erp:

        def handle(delivery: Delivery) -> None:
            seen.append(delivery.offset)
            if delivery.offset == 5 and seen.count(5) == 1:
                node.kill()
                node.start()
            if delivery.offset == 10:
                erp.stop()

        report = erp.run(handle)
    assert sorted(set(seen)) == list(range(1, 11))
    assert seen == sorted(seen), "the order stays"
    assert report.cursor == info(node)["cursor"] == 10


@pytest.mark.req("C1")
def test_a_node_that_is_away_is_told_of(node: NodeProcess) -> None:
    """Who asks for one page gets the outage as an error after the schedule."""
    with consumer(node) as erp:
        erp.fetch(1)
        node.kill()
        with pytest.raises(NodeUnavailableError):
            erp.fetch(1)
        node.start()
        assert erp.fetch(1).facts[0].offset == 1


@pytest.mark.req("C3", "C4", "C10", "C11")
def test_the_asynchronous_consumer_does_the_same(node: NodeProcess) -> None:
    """In order, the prefix, quarantine, and the lease."""
    seen: list[int] = []

    async def handle(delivery: Delivery) -> None:
        seen.append(delivery.offset)
        if delivery.offset == 4:
            raise ValueError("poison")

    async def main() -> None:
        options: dict[str, Any] = {"log": "outbound", "backoff": AT_ONCE, "max_attempts": 2}
        async with AsyncConsumer(node.url, "erp", **options) as erp:
            report = await erp.run(handle, until_empty=True)
            assert (report.handled, report.quarantined, report.cursor) == (9, 1, 10)
            await erp.seek(0, "again")
            await erp.fetch(1)
            async with AsyncConsumer(node.url, "erp", **options) as loser:
                with pytest.raises(ConsumerHeldError):
                    await loser.fetch(1)

    asyncio.run(main())
    assert seen == [1, 2, 3, 4, 4, 5, 6, 7, 8, 9, 10]


def test_a_new_fact_ends_a_wait(node: NodeProcess) -> None:
    """A consumer that waits for facts is given the next one when it comes."""
    seen: list[int] = []
    with consumer(node, start="end") as erp:
        thread = threading.Thread(
            target=lambda: erp.run(lambda d: seen.append(d.offset), wait=20.0)
        )
        thread.start()
        until(lambda: any(c["consumer_name"] == "erp" and c["holder"] for c in _consumers(node)))
        node.append("order:11:created")
        until(lambda: seen == [11])
        until(lambda: info(node)["cursor"] == 11)
        erp.stop()
        node.append("order:12:created")
        thread.join(PATIENCE)
        assert not thread.is_alive()


def _consumers(node: NodeProcess) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = node.ask(f"{ADMIN}ListConsumers", {})["consumers"]
    return found
