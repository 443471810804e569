"""The drivers of the outbox: threads, event loops, files, the lock, the background."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.boundary.client.artifacts import Artifact
from ergon_framework.boundary.client.outbox import DrainEnd, DrainReport, Outbox
from ergon_framework.boundary.client.outbox_store import DrainLock
from ergon_framework.core.retry import Backoff
from ergon_framework.errors import (
    BufferFullError,
    ConfigurationError,
    ConflictingDuplicateError,
    FactInvalidError,
    ObjectConflictError,
    StoreFullError,
    StoreUnavailableError,
)
from ergon_framework.testing.clock import VirtualClock
from tests.boundary.outbox_node import AsyncNode, Node, away, envelope, fact

WAIT = 30.0
NEVER = Backoff(base=3600.0, cap=7200.0)
BARE = {"subject": "work_order:WO-1", "predicate": "has_batch_attachment"}


@pytest.fixture
def node() -> Node:
    """A node in memory."""
    return Node()


@pytest.fixture
def outbox(tmp_path: Path, node: Node) -> Iterator[Outbox]:
    """An outbox that looks by itself only once in a test."""
    with Outbox(tmp_path / "outbox.db", node, poll=3600.0) as outbox:
        yield outbox


def copies(outbox: Outbox) -> list[Path]:
    """The files that the spool keeps."""
    folder = outbox.files_folder
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _has(node: Node, count: int) -> bool:
    return len(node.log) == count


# ---- the background ----


@pytest.mark.req("BOUNDARY:producer")
def test_the_background_sends_what_comes(outbox: Outbox, node: Node) -> None:
    """Each add wakes it; stopping leaves what is not sent where it is."""
    outbox.start()
    outbox.start()
    for n in range(3):
        outbox.add(envelope(f"e:{n}"), fact(n))
        node.wait_for(partial(_has, node, n + 1))
    assert outbox.stop(WAIT)
    assert outbox.stop(WAIT)
    outbox.add(envelope("e:3"), fact(3))
    assert outbox.pending() >= 1
    outbox.start()
    node.wait_for(lambda: len(node.log) == 4)
    assert outbox.stop(WAIT)
    assert outbox.pending() == 0


@pytest.mark.req("BOUNDARY:producer")
def test_a_wait_is_cut_short_by_a_new_fact(tmp_path: Path, node: Node) -> None:
    """The node is back, and the next thing that happens is a reason to ask it."""
    backoff = Backoff(base=0.001, factor=3.6e6)  # the second wait is an hour
    node.faults = [away(), away()]
    with Outbox(tmp_path / "o.db", node, backoff=backoff, poll=3600.0) as outbox:
        outbox.add(envelope("e:1"), fact(1))
        outbox.start()
        node.wait_for(lambda: len(node.calls) == 2)
        outbox.add(envelope("e:2"), fact(2))
        node.wait_for(lambda: node.log == ["e:1", "e:2"])
        assert outbox.stop(WAIT)
        assert outbox.last_error is None


@pytest.mark.req("BOUNDARY:producer")
def test_a_stop_ends_any_wait(tmp_path: Path, node: Node) -> None:
    """Also one of an hour that new facts may not cut."""
    node.faults = [away()]
    with Outbox(tmp_path / "o.db", node, backoff=NEVER, poll=3600.0) as outbox:
        outbox.add(envelope("e:1"), fact(1))
        outbox.start()
        node.wait_for(lambda: len(node.calls) == 1)
        assert outbox.stop(WAIT)
        assert outbox.pending() == 1
        assert "nobody there" in str(outbox.last_error)


def test_the_background_outlives_what_it_does_not_understand(
    tmp_path: Path, node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    """A bug in a producer is logged; the drain begins again, and nothing is lost."""
    node.faults = [ZeroDivisionError("a bug")]
    with Outbox(tmp_path / "o.db", node, backoff=Backoff(base=0.001, cap=0.001)) as outbox:
        outbox.add(envelope("e:1"), fact(1))
        outbox.start()
        node.wait_for(lambda: node.log == ["e:1"])
    assert "ZeroDivisionError: a bug" in caplog.text


@pytest.mark.req("BOUNDARY:producer")
def test_the_background_goes_on_when_a_strict_line_is_freed(tmp_path: Path, node: Node) -> None:
    """Nothing passes the refused fact until an operator has decided."""
    node.refusals["e:1"] = FactInvalidError("no")
    options: dict[str, Any] = {"on_refusal": "stop", "poll": 0.001}
    with Outbox(tmp_path / "o.db", node, **options) as outbox:
        [first, _] = [outbox.add(envelope(f"e:{n}"), fact(n)) for n in (1, 2)]
        outbox.start()
        while not outbox.refused():
            node.wait_for(lambda: node.calls)
        assert node.log == []
        outbox.discard(first)
        node.wait_for(lambda: node.log == ["e:2"])


# ---- in the foreground ----


def test_a_drain_is_stopped_by_an_event_and_a_wake(outbox: Outbox, node: Node) -> None:
    """After what it is sending, at once."""
    stop, reports = threading.Event(), list[DrainReport]()
    outbox.add(envelope("e:1"), fact(1))
    thread = threading.Thread(target=lambda: reports.append(outbox.drain(stop)))
    thread.start()
    node.wait_for(lambda: node.log == ["e:1"])
    stop.set()
    outbox.wake()
    thread.join(WAIT)
    assert not thread.is_alive()
    assert (reports[0].sent, reports[0].ended) == (1, DrainEnd.STOPPED)


@pytest.mark.req("BOUNDARY:producer")
def test_who_comes_second_waits_or_is_told(tmp_path: Path, outbox: Outbox, node: Node) -> None:
    """Within one process as well, and the first one's end lets the second in at once."""
    outbox.start()
    outbox.add(envelope("e:1"), fact(1))
    node.wait_for(lambda: node.log == ["e:1"])
    with Outbox(tmp_path / "outbox.db", node, poll=3600.0) as second:
        with pytest.raises(StoreUnavailableError, match=f"process {os.getpid()} drains"):
            second.drain(when_held="raise")
        second.start()
        assert outbox.stop(WAIT)
        second.add(envelope("e:2"), fact(2))
        node.wait_for(lambda: node.log == ["e:1", "e:2"])


def test_who_waits_until_it_is_empty_need_not_empty_it(
    tmp_path: Path, outbox: Outbox, node: Node
) -> None:
    """Another one drains for ever, and has sent everything: then there is nothing to wait for."""
    outbox.start()
    outbox.add(envelope("e:1"), fact(1))
    node.wait_for(lambda: node.log == ["e:1"])
    with Outbox(tmp_path / "outbox.db", node, poll=0.01) as second:
        nothing = DrainReport(ended=DrainEnd.EMPTY)
        assert second.drain(until_empty=True) == nothing
        assert asyncio.run(second.drain_async(AsyncNode(node), until_empty=True)) == nothing
    assert node.log == ["e:1"]


def test_who_waits_for_the_lock_can_be_stopped(tmp_path: Path, outbox: Outbox, node: Node) -> None:
    """It has done nothing."""
    outbox.start()
    outbox.add(envelope("e:1"), fact(1))
    node.wait_for(lambda: node.log == ["e:1"])
    stop = threading.Event()
    stop.set()
    with Outbox(tmp_path / "outbox.db", node) as second:
        assert second.drain(stop) == DrainReport()
        assert asyncio.run(second.drain_async(AsyncNode(node), _set())) == DrainReport()


def _set() -> asyncio.Event:
    stop = asyncio.Event()
    stop.set()
    return stop


def test_an_error_lets_go_of_the_lock(outbox: Outbox, node: Node) -> None:
    """What the drain does not understand it raises, and the fact stays."""
    outbox.add(envelope("e:1"), fact(1))
    node.faults = [ZeroDivisionError("a bug")]
    with pytest.raises(ZeroDivisionError):
        outbox.drain(until_empty=True)
    assert outbox.drain(until_empty=True, when_held="raise").sent == 1


@pytest.mark.slow
def test_a_forked_child_does_not_keep_the_lock(outbox: Outbox) -> None:
    """It would hold up everybody after its parent is gone."""
    lock = DrainLock(outbox.path.with_name(f"{outbox.path.name}-drain"))
    assert lock.try_acquire()
    ready, say_ready = os.pipe()
    end, say_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(say_ready, b"!")
        os.close(say_end)
        os.read(end, 1)  # alive until the parent has seen what it wants to see
        os._exit(0)
    try:
        assert os.read(ready, 1)
        lock.leave_to_parent()  # as if this process had died: nothing is unlocked on purpose
        assert outbox.drain(until_empty=True, when_held="raise").ended is DrainEnd.EMPTY
    finally:
        for each in (ready, say_ready, end, say_end):
            os.close(each)
        os.waitpid(pid, 0)


# ---- in an event loop ----


@pytest.mark.req("BOUNDARY:producer")
def test_the_event_loop_follows_the_same_schedule(tmp_path: Path, node: Node) -> None:
    """Hours of outage in virtual time, then everything in order."""
    clock = VirtualClock()
    node.faults = [away() for _ in range(5)]
    node.refusals["e:2"] = ConflictingDuplicateError("other")
    backoff = Backoff(base=100.0, factor=2.0, cap=1000.0)
    with Outbox(tmp_path / "o.db", node, backoff=backoff) as outbox:
        for n in range(4):
            outbox.add(envelope(f"e:{n}"), fact(n))
        report = clock.run(outbox.drain_async(AsyncNode(node), until_empty=True))
        assert [aside.message_id for aside in outbox.refused()] == ["e:2"]
    assert node.log == ["e:0", "e:1", "e:3"]
    assert (report.sent, report.refused, report.failures) == (3, 1, 5)
    assert clock.now() == pytest.approx(100.0 + 200.0 + 400.0 + 800.0 + 1000.0)


@pytest.mark.req("BOUNDARY:producer")
def test_the_event_loop_is_woken_and_stopped(outbox: Outbox, node: Node) -> None:
    """A new fact wakes it, the event ends it, and the lock is free again."""

    async def main() -> DrainReport:
        stop = asyncio.Event()
        drain = asyncio.create_task(outbox.drain_async(AsyncNode(node), stop))
        for n in range(2):
            await asyncio.to_thread(outbox.add, envelope(f"e:{n}"), fact(n))
            await asyncio.to_thread(node.wait_for, partial(_has, node, n + 1))
        with pytest.raises(StoreUnavailableError, match="drains"):
            await outbox.drain_async(AsyncNode(node), when_held="raise")
        stop.set()
        return await asyncio.wait_for(drain, WAIT)

    assert asyncio.run(main()).sent == 2
    assert outbox.drain(until_empty=True, when_held="raise").ended is DrainEnd.EMPTY


def test_a_cancelled_drain_lets_go(outbox: Outbox, node: Node) -> None:
    """In the middle of a wait."""

    async def main() -> None:
        drain = asyncio.create_task(outbox.drain_async(AsyncNode(node)))
        await asyncio.to_thread(outbox.add, envelope("e:1"), fact(1))
        await asyncio.to_thread(node.wait_for, lambda: node.log)
        drain.cancel()
        with pytest.raises(asyncio.CancelledError):
            await drain

    asyncio.run(main())
    assert outbox.drain(until_empty=True, when_held="raise").ended is DrainEnd.EMPTY


# ---- files ----


@pytest.mark.req("P1", "P2", "BSFG:Sequence", "BSFG:Artifact", "BSFG:ArtifactObligations")
def test_artifacts_go_before_their_fact(outbox: Outbox, node: Node, tmp_path: Path) -> None:
    """A put that fails is repeated; the fact goes when the node has its file, and in its turn."""
    report = tmp_path / "report.pdf"
    report.write_bytes(b"content")
    outbox.add(envelope("e:1"), fact(1))
    outbox.add(envelope("e:2"), BARE, [report])
    outbox.add(envelope("e:3"), fact(3))
    report.write_bytes(b"changed since")
    node.faults = [None, away()]
    done = Outbox(tmp_path / "outbox.db", node, backoff=Backoff())
    with done:
        assert done.drain(until_empty=True).sent == 3
    assert node.calls == ["append_fact", "put_object", "put_object", "append_fact", "append_fact"]
    assert node.log == ["e:1", "e:2", "e:3"]
    digest = hashlib.sha256(b"content").hexdigest()
    place = ("work-order-files", f"{digest[:16]}/report.pdf")
    assert node.objects == {place: (f"sha256:{digest}", 7)}
    assert copies(outbox) == []
    assert outbox.size == 0


def test_a_file_counts_towards_the_size(tmp_path: Path, node: Node) -> None:
    """And one that is too much is not kept."""
    with Outbox(tmp_path / "o.db", node, max_bytes=2000) as outbox:
        outbox.add(envelope("e:1"), BARE, [b"x" * 1000])
        assert outbox.size > 1000
        with pytest.raises(BufferFullError):
            outbox.add(envelope("e:2"), BARE, [b"y" * 1000])
        assert len(copies(outbox)) == 1


def test_a_fact_that_can_never_fit_is_told_so(tmp_path: Path, node: Node) -> None:
    """It is no full outbox, for which one waits; and no more is copied than could fit."""
    huge = tmp_path / "huge"
    with huge.open("wb") as sparse:
        sparse.truncate(8 << 30)
    with Outbox(tmp_path / "o.db", node, max_bytes=2000) as outbox:
        too_large: list[dict[str, Any]] = [
            {"files": [b"x" * 3000]},
            {"files": [b"x" * 1500, b"y" * 1500]},
            {"files": [huge]},
        ]
        for each in too_large:
            with pytest.raises(FactInvalidError, match="larger than the outbox may be: 2000") as no:
                outbox.add(envelope("e:1"), BARE, **each)
            assert (no.value.reason, no.value.is_retryable) == ("too_large", False)
        with pytest.raises(FactInvalidError, match="larger than the outbox may be"):
            outbox.add(envelope("e:1"), {**BARE, "object_json": "x" * 3000})
        assert (copies(outbox), outbox.size) == ([], 0)


def test_a_fact_that_is_not_taken_leaves_no_copy(outbox: Outbox, tmp_path: Path) -> None:
    """Neither an invalid one, nor a repeated one, nor one whose second file is missing."""
    outbox.add(envelope("e:1"), BARE, [b"a"])
    outbox.add(envelope("e:1"), BARE, [b"a"])
    with pytest.raises(FactInvalidError):
        outbox.add(envelope("e 2"), BARE, [b"b"])
    with pytest.raises(ConfigurationError, match="missing"):
        outbox.add(envelope("e:3"), BARE, [b"c", tmp_path / "missing"])
    with pytest.raises(FactInvalidError, match="attachments"):
        outbox.add(envelope("e:4"), {**BARE, "object_json": [1]}, [b"d"])
    assert len(copies(outbox)) == 1


@pytest.mark.req("BOUNDARY:producer")
def test_the_same_file_of_two_facts_is_kept_for_each(outbox: Outbox, node: Node) -> None:
    """The end of one does not take it from the other."""
    outbox.add(envelope("e:1"), BARE, [b"same"])
    outbox.add(envelope("e:2"), BARE, [b"same"])
    assert len(copies(outbox)) == 2
    node.losses = [None, None, ZeroDivisionError("stop here")]
    with pytest.raises(ZeroDivisionError):
        outbox.drain(until_empty=True)
    assert len(copies(outbox)) == 1
    assert outbox.drain(until_empty=True).sent == 1
    assert copies(outbox) == []


def test_a_file_may_stay_where_it_is(outbox: Outbox, node: Node, tmp_path: Path) -> None:
    """Then it must stay as it is: gone or changed, its fact is set aside until it is back."""
    large = tmp_path / "large.bin"
    large.write_bytes(b"0123456789")
    artifact = Artifact(large, bucket="b", key="k")
    number = outbox.add(envelope("e:1"), fact(1), [artifact], copy=False)
    assert copies(outbox) == []
    large.unlink()
    assert outbox.drain(until_empty=True).refused == 1
    assert outbox.refused()[0].reason == "file_missing"
    large.write_bytes(b"abcdefghij")
    outbox.retry(number)
    assert outbox.drain(until_empty=True).refused == 1
    assert outbox.refused()[0].reason == "file_changed"
    assert str(large) in outbox.refused()[0].message
    large.write_bytes(b"0123456789")
    outbox.retry(number)
    assert outbox.drain(until_empty=True).sent == 1
    assert large.exists()
    with pytest.raises(ConfigurationError, match="only a file"):
        outbox.add(envelope("e:2"), BARE, [b"bytes"], copy=False)


@pytest.mark.req("P15")
def test_a_file_that_the_node_refuses_sets_its_fact_aside(outbox: Outbox, node: Node) -> None:
    """Other bytes are under that key; discarding the fact removes its copy."""
    node.objects["b", "k"] = ("sha256:other", 1)
    number = outbox.add(envelope("e:1"), BARE, [Artifact(b"a", bucket="b", key="k")])
    outbox.add(envelope("e:2"), fact(2))
    assert outbox.drain(until_empty=True).refused == 1
    assert node.log == ["e:2"]
    assert outbox.refused()[0].reason == ObjectConflictError.reason
    assert len(copies(outbox)) == 1
    outbox.discard(number)
    assert copies(outbox) == []


@pytest.mark.req("BOUNDARY:badinput")
@pytest.mark.parametrize(
    ("number", "error", "text"),
    [
        (errno.ENOSPC, StoreFullError, "no room left"),
        (errno.EIO, StoreUnavailableError, "cannot be copied"),
    ],
)
def test_a_copy_that_does_not_reach_the_disk_adds_nothing(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch, number: int, error: type[Exception], text: str
) -> None:
    """A full or broken disk: an error says so, no fact is spooled and no file is left."""

    def fails(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as broken:
        broken.setattr("ergon_framework.boundary.client.outbox_store.sync_file", fails)
        with pytest.raises(error, match=text):
            outbox.add(envelope("e:1"), BARE, [b"a"])
    assert outbox.pending() == 0
    assert copies(outbox) == []
    outbox.add(envelope("e:1"), BARE, [b"a"])
    assert len(copies(outbox)) == 1


@pytest.mark.req("BOUNDARY:badinput")
def test_files_that_can_no_longer_be_read_do_not_block_the_line(outbox: Outbox, node: Node) -> None:
    """The node misses them and says so; the fact is set aside, and no file is swept away."""
    outbox.add(envelope("e:1"), BARE, [b"a"])
    outbox.add(envelope("e:2"), fact(2))
    with closing(sqlite3.connect(outbox.path)) as db, db:
        db.execute("UPDATE ergon_outbox SET files = '[{' WHERE files IS NOT NULL")
    assert outbox.drain(until_empty=True).refused == 1
    assert node.log == ["e:2"]
    assert outbox.refused()[0].reason == "artifact_missing"
    assert len(copies(outbox)) == 1
    outbox.discard(outbox.refused()[0].id)
    assert outbox.figures().refused == 0
