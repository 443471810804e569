"""What survives a process that dies while it adds or drains: each fact, once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ergon_framework.boundary.client.outbox import Outbox
from ergon_framework.errors import StoreUnavailableError
from tests import fork_server
from tests.boundary import outbox_child
from tests.boundary.outbox_child import FACTS
from tests.boundary.outbox_node import DurableNode
from tests.campaign.parameter_sample import sampled

WAIT = 60.0
ALL = [f"e:{n}" for n in range(FACTS)]

pytestmark = pytest.mark.slow


def child(what: str, folder: Path, variable: str = "", recover: str = "append") -> str:
    """Run a child to its end and see that it died exactly when it was told to."""
    done = fork_server.run(
        [sys.executable, outbox_child.__file__, what, str(folder), recover],
        stdout=subprocess.PIPE,
        env=os.environ | {"ERGON_FAILPOINTS": variable},
        check=False,
        timeout=WAIT,
    )
    assert done.returncode == (-signal.SIGKILL if variable else 0)
    return done.stdout.decode()


def copies(folder: Path) -> list[str]:
    """The files that the spool keeps."""
    place = folder / "outbox.db-files"
    return sorted(os.listdir(place)) if place.is_dir() else []  # noqa: PTH208 - names are enough


@pytest.mark.req("BOUNDARY:producer", "P11")
@pytest.mark.parametrize("nth", sampled([1, 2, 4], [2]))
@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_while_adding(tmp_path: Path, moment: str, nth: int) -> None:
    """What ``add`` returned for is there; the one in question is there whole or not at all."""
    output = child("add", tmp_path, f"boundary.outbox.add.{moment}=kill@{nth}")
    assert output.split("\n")[:-1] == [f"added e:{n}" for n in range(nth - 1)]
    node = DurableNode(tmp_path / "node.db")
    with Outbox(tmp_path / "outbox.db", node) as outbox:
        assert outbox.pending() == (nth - 1 if moment == "before" else nth)
        outbox.drain(until_empty=True)
        assert list(node.appends()) == ALL[: nth - 1 if moment == "before" else nth]
    child("add", tmp_path)  # whoever starts anew tells it all again
    child("drain", tmp_path)
    assert list(node.appends()) == ALL


@pytest.mark.req("P6", "P14", "BSFG:RetrySafety", "BSFG:Errors")
@pytest.mark.parametrize("recover", ["append", "lookup"])
@pytest.mark.parametrize("nth", sampled([1, 3], [3]))
@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_between_the_answer_and_the_note(
    tmp_path: Path, moment: str, nth: int, recover: str
) -> None:
    """Looked up or sent again: exactly one fact at the node, in order, and the spool is empty."""
    child("add", tmp_path)
    child("drain", tmp_path, f"boundary.outbox.sent.{moment}=kill@{nth}")
    node = DurableNode(tmp_path / "node.db")
    before = node.appends()
    assert list(before) == ALL[: len(before)]
    output = child("drain", tmp_path, recover=recover)
    left = FACTS - len(before) + (moment == "before")
    assert output == f"drained {left}\n"
    after = node.appends()
    assert list(after) == ALL
    assert sum(after.values()) == FACTS + (moment == "before" and recover == "append")
    with Outbox(tmp_path / "outbox.db") as outbox:
        assert (outbox.pending(), outbox.size) == (0, 0)


@pytest.mark.req("BOUNDARY:producer")
def test_copies_that_a_crash_left_are_swept(tmp_path: Path) -> None:
    """A file whose fact never came to be goes when it is old enough, and no other."""
    child("add", tmp_path, "boundary.outbox.add.before=kill@4")  # the second one with a file
    assert len(copies(tmp_path)) == 2
    node = DurableNode(tmp_path / "node.db")
    with Outbox(tmp_path / "outbox.db", node) as outbox:
        outbox.drain(until_empty=True)
    [orphan] = copies(tmp_path)
    (tmp_path / "outbox.db-files" / "mine.txt").touch()
    later = (tmp_path / "outbox.db-files" / orphan).stat().st_mtime + 3601.0
    with Outbox(tmp_path / "outbox.db", node, clock=lambda: later) as outbox:
        outbox.drain(until_empty=True)
    assert copies(tmp_path) == ["mine.txt"]


@pytest.mark.req("BOUNDARY:producer")
def test_two_processes_do_not_drain_one_spool(tmp_path: Path) -> None:
    """The second one is told who does; when that one dies, nothing holds it up."""
    holder = fork_server.start(
        [sys.executable, outbox_child.__file__, "hold", str(tmp_path)],
        stdout=subprocess.PIPE,
        env=dict(os.environ),
    )
    try:
        assert holder.stdout is not None
        with holder.stdout as said:
            assert said.readline() == b"holding\n"
        node = DurableNode(tmp_path / "node.db")
        with Outbox(tmp_path / "outbox.db", node) as outbox:
            with pytest.raises(StoreUnavailableError, match=f"process {holder.pid} drains"):
                outbox.drain(until_empty=True, when_held="raise")
            holder.kill()
            holder.wait(WAIT)
            outbox.drain(until_empty=True, when_held="raise")
            assert list(node.appends()) == ["e:held"]
    finally:
        holder.kill()
        holder.wait(WAIT)


@pytest.mark.req("BOUNDARY:producer")
def test_what_another_process_adds_wakes_the_drain(tmp_path: Path) -> None:
    """The bell rings across processes: no look of its own is due for a long time."""
    node = DurableNode(tmp_path / "node.db")
    with Outbox(tmp_path / "outbox.db", node, poll=3600.0) as outbox:
        outbox.start()
        child("add", tmp_path)
        node.wait_for(lambda: len(node.wire) >= FACTS)
    assert list(node.appends()) == ALL
