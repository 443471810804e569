"""Processes that fork, end or are killed: what was said to be safe is written, once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ergon_framework.providers.spill import find_replayable
from ergon_framework.storage.failpoints import NAMES
from tests import fork_server
from tests.providers import recorder_child
from tests.providers.recorder_child import ROWS, DurableStore
from tests.providers.recorder_fakes import WAIT

pytestmark = [pytest.mark.slow, pytest.mark.req("PROVIDERS:storage", "PEF:B-11")]


def child(what: str, folder: Path, variable: str = "") -> list[str]:
    """Run a child to its end and see that it died exactly when it was told to."""
    done = fork_server.run(
        [sys.executable, recorder_child.__file__, what, str(folder)],
        stdout=subprocess.PIPE,
        env=os.environ | {"ERGON_FAILPOINTS": variable},
        check=False,
        timeout=WAIT * 2,
    )
    assert done.returncode == (-signal.SIGKILL if variable else 0)
    return done.stdout.decode().splitlines()


def sent(folder: Path) -> dict[str, int]:
    """How often the store was given each row."""
    return DurableStore(folder / "store.txt").sent()


def letters(count: int) -> set[str]:
    """The ids of so many dead letters and their rows."""
    return {f"{kind}{n}" for kind in "rd" for n in range(count)}


@pytest.mark.req("PEF:A-19", "PEF:A-18")
@pytest.mark.parametrize("nth", [1, 3])
@pytest.mark.parametrize("moment", ["before", "written", "after"])
def test_killed_while_spilling(tmp_path: Path, moment: str, nth: int) -> None:
    """What ``write_now`` returned for is written later; the one in question whole or not at all."""
    said = child("spill", tmp_path, f"providers.spill.{moment}=kill@{nth}")
    assert said == [f"kept {n}" for n in range(nth - 1)]
    child("replay", tmp_path)
    assert set(sent(tmp_path)) == letters(nth - 1 if moment == "before" else nth)
    assert set(sent(tmp_path).values()) <= {1}
    assert find_replayable(tmp_path / "spill") == []


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_while_replaying(tmp_path: Path, moment: str, nth: int) -> None:
    """The next process replays the file from its beginning; the store knows the ids."""
    child("spill", tmp_path)
    if moment == "after" and nth == 2:
        child("spill", tmp_path)  # another file, which dies with the second
    child("replay", tmp_path, f"providers.replay.{moment}=kill@{nth}")
    assert find_replayable(tmp_path / "spill")
    child("replay", tmp_path)
    assert set(sent(tmp_path)) == letters(ROWS)
    assert find_replayable(tmp_path / "spill") == []


def test_all_failpoints_are_known() -> None:
    """Those that the tests above kill at, and no others."""
    found = {name for name in NAMES if name.startswith(("providers.spill", "providers.replay"))}
    spill = {f"providers.spill.{moment}" for moment in ("before", "written", "after")}
    assert found == spill | {f"providers.replay.{moment}" for moment in ("before", "after")}


def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    """What did not fit is refused or counted as lost, and spoils nothing that did."""
    *said, lost = child("limit", tmp_path)
    kept = [line.removeprefix("kept ") for line in said if line.startswith("kept")]
    assert 1 <= len(kept) < ROWS
    assert len(said) == ROWS
    child("replay", tmp_path)
    found = sent(tmp_path)
    queued = [each for each in found if each.startswith("queued")]
    assert lost == f"lost {3 - len(queued)}"
    assert set(found) == {f"{kind}{n}" for kind in "rd" for n in kept} | set(queued)


def test_a_process_that_ends_writes_its_rows(tmp_path: Path) -> None:
    """Nobody has to close anything."""
    child("end", tmp_path)
    assert sent(tmp_path) == {f"r{n}": 1 for n in range(ROWS)}


@pytest.mark.req("PEF:trap-prefork")
def test_a_fork_after_the_start(tmp_path: Path) -> None:
    """Parent and child have their own thread, and nobody writes the other's rows."""
    child("fork", tmp_path)
    assert sent(tmp_path) == {"before0": 1} | {
        f"{who}{n}": 1 for who in ("queued", "parent", "child") for n in range(ROWS)
    }


@pytest.mark.req("PEF:trap-prefork")
def test_forks_while_a_database_is_written(tmp_path: Path) -> None:
    """A prefork worker on SQLite: every process writes its rows, and nobody another's."""
    assert child("forks", tmp_path) == [f"written {ROWS * 200}"]


@pytest.mark.req("PEF:trap-prefork")
def test_a_child_of_multiprocessing(tmp_path: Path) -> None:
    """It runs no exit hooks, and its rows are written all the same."""
    child("processes", tmp_path)
    assert sent(tmp_path) == {f"{who}{n}": 1 for who in ("parent", "worker") for n in range(ROWS)}


@pytest.mark.req("PEF:trap-prefork")
def test_a_child_does_not_hold_its_dead_parents_file(tmp_path: Path) -> None:
    """The lock ends with the process that wrote, whoever it forked."""
    holder = fork_server.start(
        [sys.executable, recorder_child.__file__, "hold", str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=dict(os.environ),
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    with holder.stdin, holder.stdout:
        assert holder.stdout.readline() == b"holding\n"
        child("replay", tmp_path)
        assert sent(tmp_path) == {}  # its owner lives
        holder.kill()
        holder.wait(WAIT)
        child("replay", tmp_path)
        assert sent(tmp_path) == {f"r{n}": 1 for n in range(ROWS)}
